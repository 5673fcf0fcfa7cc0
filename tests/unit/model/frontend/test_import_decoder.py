"""streamgen.model.frontend.decoder: recovered decoders run like the modules; anything else is named."""

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from streamgen.model.frontend import import_decoder
from streamgen.model.golden_text import vocabulary_of
from streamgen.model.graph.logical import LogicalGraph
from streamgen.numbers.quantisation import GroupGrid
from tests.shared.decoders import is_tied, stepper
from tests.unit.model.frontend.checkpoints import LLAMA3
from tests.unit.model.frontend.plain_decoder import CONTEXT, SIZES, Explicit, Plain

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers

Step = Callable[[np.ndarray], np.ndarray]  # ids of one pass to its logits
SPLIT = (9, 1, 1, 1, 4, 1)  # prefill, decode steps, a few tokens at once
# Half of the bound: float32 norms and angles inside float64 modules leave 2e-7.
BOUND = 5e-6


def _same(decoder: LogicalGraph, step: Step, split: tuple[int, ...] = SPLIT) -> None:
    """Every pass of a text, the decoder in float64 against eager, relative to the largest logit."""
    rng = np.random.default_rng(1)
    run = stepper(decoder)
    for count in split:
        ids = rng.integers(0, vocabulary_of(decoder), count)
        logits = run(ids)
        expected = step(ids)
        assert np.abs(logits - expected).max() <= BOUND * np.abs(expected).max()


def _eager_plain(module: nn.Module) -> Step:
    empty = torch.zeros(1, SIZES["kv_heads"], 0, SIZES["head_dim"], dtype=torch.float64)
    state: list[Any] = [[empty] * SIZES["layers"], [empty] * SIZES["layers"]]
    module = module.double()

    def step(ids: np.ndarray) -> np.ndarray:
        past = state[0][0].shape[2]
        positions = torch.arange(past, past + len(ids))[None]
        with torch.no_grad():
            logits, *state[:] = module(torch.from_numpy(ids)[None], positions, *state)
        return logits[0].numpy()

    return step


def _eager_transformers(model: Any) -> Step:
    cache = transformers.DynamicCache()
    model = model.double()

    def step(ids: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return model(torch.from_numpy(ids)[None], past_key_values=cache, use_cache=True).logits[0].numpy()

    return step


TINY = {
    "vocab_size": 41,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 96,
    "attn_implementation": "sdpa",
}


def _llama(kind: str = "Llama", **changes: Any) -> Any:
    torch.manual_seed(1)
    config = getattr(transformers, f"{kind}Config")(**TINY | changes)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter.add_(torch.randn_like(parameter) / 4)
    return model


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("Llama", {"tie_word_embeddings": True}),
        (
            "Llama",
            {
                "attn_implementation": "eager",
                "rope_parameters": LLAMA3,
                "attention_bias": True,
                "num_hidden_layers": 1,
            },
        ),
        ("Mistral", {"sliding_window": 96, "num_key_value_heads": 6, "num_hidden_layers": 1}),
    ],
)
def test_transformers(kind: str, changes: dict[str, Any]) -> None:
    model = _llama(kind, **changes)
    decoder = import_decoder(model)
    assert is_tied(decoder) == bool(changes.get("tie_word_embeddings"))
    assert (decoder.name, decoder.context) == (f"{kind}ForCausalLM", 96)
    layers = decoder.by_name["layers"].op.layers
    assert len(layers) == changes.get("num_hidden_layers", 2)
    attention, rotary = layers[-1].op("attention"), layers[-1].op("rotate_q")
    assert (attention.heads, attention.kv_heads) == (6, changes.get("num_key_value_heads", 2))
    assert not rotary.interleaved and rotary.rotated == 8
    assert np.array_equal(layers[-1].op("q").weight, model.model.layers[-1].self_attn.q_proj.weight.detach())
    frequencies = model.model.rotary_emb.inv_freq.double().numpy()
    np.testing.assert_allclose(rotary.frequencies, frequencies, rtol=1e-6)
    _same(decoder, _eager_transformers(model))


def test_narrow_floats() -> None:
    """bfloat16 weights come as the same numbers; tables rounded to bfloat16 are still recognised."""
    model = _llama(num_hidden_layers=1).to(torch.bfloat16)
    decoder = import_decoder(model, name="tiny", context=64)
    weight = model.model.layers[0].mlp.up_proj.weight.detach().float().numpy()
    assert np.array_equal(decoder.op("layers[0].up").weight, weight)
    assert (decoder.name, decoder.context) == ("tiny", 64)


def test_plain() -> None:
    torch.manual_seed(2)
    module = Plain()
    decoder = import_decoder(module, **SIZES)
    assert is_tied(decoder) and decoder.name == "Plain"
    assert decoder.op("layers[0].q").bias is not None and decoder.op("layers[0].k").bias is None
    _same(decoder, _eager_plain(module))


def test_plain_in_other_words() -> None:
    torch.manual_seed(3)
    module = Explicit()
    decoder = import_decoder(module, **SIZES)
    rotary = decoder.op("layers[0].rotate_k")
    assert rotary.interleaved and rotary.rotated == 4
    np.testing.assert_allclose(rotary.frequencies, [0.7, 0.02], rtol=1e-5)
    assert decoder.op("layers[0].attention").scale == pytest.approx(0.75 / 8**0.5)
    assert decoder.op("layers[0].gated").gate == "gelu_tanh"
    assert not is_tied(decoder) and decoder.op("logits").bias is not None
    _same(decoder, _eager_plain(module))


def test_grids_go_with_their_rows() -> None:
    """A fused projection is cut into q, k and v with its grid."""
    module = Explicit()
    rng = np.random.default_rng(1)
    linear = module.fused[0]
    N = linear.out_features
    scale = rng.random((N, 3)).astype(np.float32)
    grid = GroupGrid(rng.integers(0, 16, (N, 24)).astype(np.uint8), scale, -7 * scale)
    linear.weight = nn.Parameter(torch.from_numpy(grid.dequantise().astype(np.float32)))
    linear.weight_grid = grid
    decoder = import_decoder(module, **SIZES)
    for part in (decoder.op(f"layers[0].{name}") for name in "qkv"):
        assert np.array_equal(part.grid.dequantise().astype(np.float32), part.weight)
    assert decoder.op("layers[0].q").weight.shape == (32, 24)


class InPlace(Plain):
    """Changes that nothing else sees are values like others."""

    def feed_forward(self, block, x: torch.Tensor) -> torch.Tensor:
        gate = functional.silu(block.gate(x), inplace=True)
        gate *= block.up(x)
        return block.down(gate)

    def mask(self, positions: torch.Tensor, past: int) -> torch.Tensor:
        table = torch.zeros(1, positions.shape[1], past + positions.shape[1])
        table.masked_fill_(~super().mask(positions, past), -torch.inf)
        return table + positions[..., None].clamp(0, 0)


def test_in_place() -> None:
    module = InPlace()
    _same(import_decoder(module, **SIZES), _eager_plain(module))


class Scaled(Plain):
    def embed(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self.embedding(ids) * 24**0.5


class Capped(Plain):
    def head(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(super().head(x) / 30) * 30


class Windowed(Plain):
    def mask(self, positions, past):
        return super().mask(positions, past) & (
            torch.arange(past + positions.shape[1]) > positions[..., None] - 4
        )


class Normed(Plain):
    def project(self, block, x):
        q, k, v = super().project(block, x)
        return functional.rms_norm(q, (8,)), k, v


class OneSided(Plain):
    def rotate(self, x, positions):
        return super().rotate(x, positions) if x.shape[1] == 4 else x


class Ungated(Plain):
    def feed_forward(self, block, x):
        return block.down(functional.silu(block.gate(x)))


class Normless(Plain):
    def feed_forward(self, block, x):
        return block.down(functional.silu(block.gate(x * 2)) * block.up(x * 2))


class Written(Plain):
    def feed_forward(self, block, x):
        view = x.view(-1)
        x.relu_()
        return super().feed_forward(block, view.view(1, -1, 24))


class Filled(Plain):
    def mask(self, positions, past):
        limits = torch.zeros(past + positions.shape[1])
        limits.fill_(1)
        return (torch.arange(len(limits)) * limits).long() <= positions[..., None]


class LearnedPositions(Plain):
    """Rows for positions, two further on, are added to those of ids; nothing rotates."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(CONTEXT + 2, 24)

    def embed(self, ids, positions):
        return self.embedding(ids) + self.rows(positions + 2)

    def rotate(self, x, positions):
        return x


class CappedScores(Plain):
    def mix(self, q, key, value, mask):
        key, value = (y.repeat_interleave(2, dim=1) for y in (key, value))
        scores = 3 * torch.tanh(torch.matmul(q, key.mT) * 0.25 / 3)
        return torch.matmul(torch.where(mask, scores, -torch.inf).softmax(-1), value)


class WrittenGelu(Plain):
    def feed_forward(self, block, x):
        y = block.up(x)
        cubic = torch.tanh((2 / torch.pi) ** 0.5 * (y + 0.044715 * torch.pow(y, 3.0)))
        return block.down(0.5 * y * (1.0 + cubic))


class Together(Plain):
    """Attention and feed-forward of the same rows: layers are whole pieces."""

    def attention(self, block, x, positions, mask, key, value):
        out, key, value = super().attention(block, x, positions, mask, key, value)
        return out + super().feed_forward(block, x), key, value

    def feed_forward(self, block, x):
        return 0.25 * x


FURTHER = [
    *(Scaled, Capped, Windowed, Normed, OneSided, Ungated, Normless, Written, Filled),
    *(LearnedPositions, CappedScores, WrittenGelu, Together),
]


@pytest.mark.parametrize("kind", FURTHER)
def test_further_decoders(kind: type[Plain]) -> None:
    torch.manual_seed(2)
    module = kind()
    decoder = import_decoder(module, **SIZES)
    layers = decoder.by_name["layers"].op
    assert (layers.walks, layers.period) == (2, 1)
    _same(decoder, _eager_plain(module))


def test_transformers_is_not_needed() -> None:
    code = "import sys, streamgen.model.frontend\nsys.exit('transformers' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
