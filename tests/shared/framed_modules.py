"""Modules whose inputs have different numbers of tokens, or are images, as people write them."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

__all__ = ["HEADS", "MODULES", "SHAPES", "WHOLE", "WIDTH", "framed_module", "of_transformers"]

WIDTH, HEADS = 32, 2


def _layer() -> dict[str, Any]:
    return {"d_model": WIDTH, "nhead": HEADS, "dim_feedforward": 48, "batch_first": True, "dropout": 0.0}


class Patches(nn.Module):
    """A vision transformer: a convolution cuts patches, a class token goes in front, learned places are
    added, and the class token is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, WIDTH, 4, 4)
        self.first = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.places = nn.Parameter(torch.randn(1, 10, WIDTH))
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**_layer()), 1)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.cut(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.encoder(x)[:, 0])


class PatchesByHand(nn.Module):
    """Patches by views, two tokens behind them, and several results: a mean and a maximum of the patches, the
    patches themselves, and the last but one token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(2 * 4 * 4, WIDTH)
        self.more = nn.Parameter(torch.randn(2, WIDTH))
        self.attend = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        n, c, h, w = image.shape
        cut = image.reshape(n, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1).reshape(n, -1, 16 * c)
        x = torch.cat([self.embed(cut), self.more.repeat(n, 1, 1)], dim=1)
        x = x + self.attend(x, x, x, need_weights=False)[0]
        patches = x[:, :-2]
        return {"mean": patches.mean(1), "most": patches.amax(1), "patches": x[:, 2:], "one": x[:, -2]}


class Cross(nn.Module):
    """Queries beside keys and values of another number of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.attend(x, memory, memory)[0])


class TokensFirst(nn.Module):
    """Cross attention in torch's default layout [tokens, batch, features], written out."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        q, k, v = self.q(x[:, 0]), self.k(memory[:, 0]), self.v(memory[:, 0])
        return (torch.softmax(q @ k.T / WIDTH**0.5, -1) @ v).unsqueeze(1)


class Translator(nn.Module):
    """torch's encoder and decoder, with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        layer = _layer()
        self.both = nn.Transformer(layer.pop("d_model"), num_encoder_layers=1, num_decoder_layers=1, **layer)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.both(source, target, tgt_mask=mask)


class Slots(nn.Module):
    """Learned queries, as many as there are results, which attend to the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = nn.Parameter(torch.randn(1, 3, WIDTH))
        self.decoder = nn.TransformerDecoderLayer(**_layer())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.slots.expand(x.shape[0], -1, -1), x)


class RelativePlaces(nn.Module):
    """Attention whose scores have a learned bias for each distance and head, and a mask of blocks."""

    def __init__(self, tokens: int = 6) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.bias = nn.Embedding(2 * tokens - 1, HEADS)
        place = torch.arange(tokens)
        self.register_buffer("distance", place[:, None] - place + tokens - 1)
        self.register_buffer("hidden", (place[:, None] // 3) != (place // 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / k.shape[-1] ** 0.5 + self.bias(self.distance).permute(2, 0, 1)
        shares = scores.masked_fill(self.hidden, float("-inf")).softmax(-1)
        return (shares @ v).transpose(1, 2).flatten(2)


class TwoTowers(nn.Module):
    """Ids of a text beside an image: the mean of each."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.cut = nn.Embedding(50, WIDTH), nn.Conv2d(3, WIDTH, 4, 4)
        self.text, self.image = nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 8)

    def forward(self, ids: torch.Tensor, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        text = self.text(self.words(ids).mean(1))
        seen = self.image(self.cut(image).flatten(2).mean(2))
        return nn.functional.normalize(text, dim=-1), nn.functional.normalize(seen, dim=-1)


class OneAfterTheOther(nn.Module):
    """Words of a text in front of patches of an image, in one encoder; each part is a result."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.cut = nn.Embedding(50, WIDTH), nn.Conv2d(3, WIDTH, 4, 4)
        self.encoder = nn.TransformerEncoderLayer(**_layer())

    def forward(self, ids: torch.Tensor, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        both = torch.cat([self.words(ids), self.cut(image).flatten(2).transpose(1, 2)], 1)
        encoded = self.encoder(both)
        return encoded[:, : ids.shape[1]], encoded[:, ids.shape[1] :].mean(1)


class Prompted(nn.Module):
    """Learned tokens behind the tokens, which alone are the result."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt = nn.Parameter(torch.randn(1, 2, WIDTH))
        self.encoder = nn.TransformerEncoderLayer(**_layer())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(torch.cat([x, self.prompt.expand(len(x), -1, -1)], 1))[:, :-2]


class Fused(nn.Module):
    """Two sequences side by side, the second one first."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        both = torch.cat([y, x], 1)
        return both + self.attend(both, both, both)[0]


def _random(*extents: int) -> torch.Tensor:
    return torch.randn(*extents, generator=torch.Generator().manual_seed(3))


def _ids(*extents: int) -> torch.Tensor:
    return torch.randint(3, 50, extents, generator=torch.Generator().manual_seed(3))


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[torch.Tensor, ...]]] = {
    "patches": (Patches, (_random(1, 3, 12, 12),)),
    "patches by hand": (PatchesByHand, (_random(1, 2, 8, 12),)),
    "cross, longer keys": (Cross, (_random(1, 4, WIDTH), _random(1, 7, WIDTH))),
    "cross, longer queries": (Cross, (_random(2, 7, WIDTH), _random(2, 4, WIDTH))),
    "tokens first": (TokensFirst, (_random(3, 1, WIDTH), _random(5, 1, WIDTH))),
    "translator": (Translator, (_random(1, 6, WIDTH), _random(1, 4, WIDTH))),
    "slots": (Slots, (_random(1, 5, WIDTH),)),
    "relative places": (RelativePlaces, (_random(1, 6, WIDTH),)),
    "one after the other": (OneAfterTheOther, (_ids(1, 5), _random(1, 3, 8, 8))),
    "prompted": (Prompted, (_random(1, 5, WIDTH),)),
    "fused": (Fused, (_random(2, 4, WIDTH), _random(2, 3, WIDTH))),
    "two towers": (TwoTowers, (_ids(1, 7), _random(1, 3, 8, 8))),
}
"""By name: a module, and its example inputs."""


def framed_module(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """One of MODULES with random weights, in eval mode, and its example."""
    torch.manual_seed(2)
    kind, example = MODULES[name]
    return kind().eval(), example


VISION: dict[str, Any] = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "image_size": 12,
    "patch_size": 4,
}
BART: dict[str, Any] = {
    "d_model": WIDTH,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "vocab_size": 50,
    "max_position_embeddings": 12,
}
T5: dict[str, Any] = {
    "d_model": WIDTH,
    "d_kv": 16,
    "num_layers": 1,
    "num_heads": HEADS,
    "d_ff": 48,
    "vocab_size": 50,
}
TEXT: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": WIDTH,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "max_position_embeddings": 12,
    "bos_token_id": 48,
    "eos_token_id": 49,
    "pad_token_id": 0,
}
GPT2: dict[str, Any] = {"vocab_size": 50, "n_embd": WIDTH, "n_layer": 1, "n_head": HEADS, "n_positions": 12}
GPT2 |= {"pad_token_id": 0, "bos_token_id": 48, "eos_token_id": 49}
TEXTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "CLIP text": ("CLIPTextModel", "CLIPTextConfig", TEXT),
    "CLIP text, greatest id": (
        "CLIPTextModelWithProjection",
        "CLIPTextConfig",
        {**TEXT, "eos_token_id": 2, "projection_dim": 8},
    ),
    "GPT-2 classifier": ("GPT2ForSequenceClassification", "GPT2Config", {**GPT2, "num_labels": 3}),
}
"""Models of texts that read one token, whose place they find at run time."""
SHAPES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ViT": ("ViTForImageClassification", "ViTConfig", VISION),
    "DeiT": ("DeiTForImageClassificationWithTeacher", "DeiTConfig", VISION),
    "CLIP vision": ("CLIPVisionModelWithProjection", "CLIPVisionConfig", {**VISION, "projection_dim": 8}),
    "SigLIP vision": ("SiglipVisionModel", "SiglipVisionConfig", VISION),
    "CLIP": (
        "CLIPModel",
        "CLIPConfig",
        {"text_config": TEXT, "vision_config": VISION, "projection_dim": 8},
    ),
    "SigLIP": (
        "SiglipModel",
        "SiglipConfig",
        {"text_config": {**TEXT, "projection_size": WIDTH}, "vision_config": VISION},
    ),
    "BART": ("BartModel", "BartConfig", BART),
    "T5": ("T5Model", "T5Config", T5),
    "T5 encoder": ("T5EncoderModel", "T5Config", T5),
}
"""By family: the class of the model, the class of its configuration, and its fields."""
WHOLE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ViT": ("ViTForImageClassification", "ViTConfig", {"num_labels": 1000}),
    "DeiT": ("DeiTForImageClassificationWithTeacher", "DeiTConfig", {"num_labels": 1000}),
    "CLIP vision": ("CLIPVisionModelWithProjection", "CLIPVisionConfig", {}),
    "SigLIP vision": ("SiglipVisionModel", "SiglipVisionConfig", {}),
    "BART": ("BartModel", "BartConfig", {"encoder_layers": 6, "decoder_layers": 6, "d_model": 768}),
    "T5": ("T5Model", "T5Config", {}),
}
"""Published sizes: the defaults of each configuration, which are ViT-B/16, DeiT-B/16, CLIP ViT-B/32, SigLIP
B/16, the width and layers of BART-base, and T5-small; with the classes of ImageNet."""


def of_transformers(
    family: str, shapes: dict[str, tuple[str, str, dict[str, Any]]]
) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A model of transformers with random weights, in eval mode, and its example."""
    model_class, config_class, fields = shapes[family]
    config = getattr(transformers, config_class)(**fields)
    torch.manual_seed(2)
    model = getattr(transformers, model_class)(config).eval()
    size = getattr(getattr(config, "vision_config", config), "image_size", None)
    image = {} if size is None else {"pixel_values": _random(1, 3, size, size)}
    if hasattr(config, "image_size"):
        return model, image
    example = {"input_ids": _ids(1, 6)}
    decodes = getattr(config, "is_encoder_decoder", False) and family != "T5 encoder"
    return model, {**example, **image, **({"decoder_input_ids": _ids(1, 4)} if decodes else {})}
