"""Decoders with a source, as people write them."""

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class CrossBlock(nn.Module):
    """Self attention, attention over a memory, a feed-forward network; heads by hand. change: another use of
    the memory, which cannot be compiled."""

    def __init__(self, size: int, heads: int, kv_heads: int, memory: int, change: str) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.change = heads, kv_heads, change
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.query, self.pair = nn.Linear(size, size), nn.Linear(memory, 2 * size * kv_heads // heads)
        self.back = nn.Linear(size, size)
        self.wide, self.narrow = nn.Linear(size, 2 * size), nn.Linear(2 * size, size)
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(3))

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:-1], -1, self.query.out_features // self.heads).transpose(1, 2)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        q, k, v = map(self.split, self.qkv(self.norms[0](x)).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        q = self.split(self.query(self.norms[1](x)))
        group = self.heads // self.kv_heads
        k, v = (self.split(part).repeat_interleave(group, 1) for part in self.pair(memory).chunk(2, -1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if self.change == "masked":
            scores = scores.masked_fill(torch.arange(k.shape[-2]) > 2, -1e9)
        x = x + self.back((torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2))
        if self.change == "added":
            x = x + self.pair(memory).mean(1)[..., : x.shape[-1]]
        return x + self.narrow(functional.gelu(self.wide(self.norms[2](x))))


class Captioner(nn.Module):
    """Text about features [1, rows, memory] that are given."""

    def __init__(
        self,
        vocabulary: int = 50,
        size: int = 32,
        memory: int = 24,
        layers: int = 2,
        kv_heads: int = 4,
        change: str = "",
    ) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, size), nn.Embedding(40, size)
        self.blocks = nn.ModuleList(CrossBlock(size, 4, kv_heads, memory, change) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor, memory: torch.Tensor | None) -> torch.Tensor:
        assert memory is not None
        x = self.token(ids) + self.place(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x, memory)
        return self.head(self.norm(x))


class TorchDecoder(nn.Module):
    """nn.TransformerDecoder over features [1, rows, size]."""

    def __init__(self, vocabulary: int = 40, size: int = 32) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, size)
        layer = nn.TransformerDecoderLayer(size, 4, 48, dropout=0.0, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, 2)
        self.head = nn.Linear(size, vocabulary)

    def forward(self, ids: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.decoder(self.token(ids), memory, tgt_mask=mask, tgt_is_causal=True))


class Translator(nn.Module):
    """A text in one vocabulary from a text in another one: encoder and decoder in one module."""

    def __init__(self, source: int = 30, vocabulary: int = 50, size: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(source, size)
        layer = nn.TransformerEncoderLayer(size, 4, 48, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.captioner = Captioner(vocabulary, size, size)

    def forward(self, source: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return self.captioner(ids, self.encoder(self.words(source)))


def from_transformers(size: int = 32, layers: int = 2) -> dict[str, tuple[nn.Module, Any, str]]:
    """Small models of transformers with random weights: the module, its example, the name of its text."""
    import transformers

    torch.manual_seed(1)
    ids, words = torch.tensor([[7, 5, 9, 6]]), torch.tensor([[5, 9, 22, 6, 15, 30, 2]])
    ends = {"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    sizes = {"d_model": size, "encoder_layers": layers, "decoder_layers": layers}
    sizes |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    sizes |= {"encoder_ffn_dim": 2 * size, "decoder_ffn_dim": 2 * size, "vocab_size": 60}
    bart = transformers.BartConfig(max_position_embeddings=40, pad_token_id=3, **ends, **sizes)
    whisper = transformers.WhisperConfig(
        max_target_positions=40, max_source_positions=10, num_mel_bins=8, pad_token_id=0, **ends, **sizes
    )
    t5 = transformers.T5Config(
        vocab_size=60,
        d_model=size,
        d_kv=size // 4,
        d_ff=2 * size,
        num_layers=layers,
        num_heads=4,
        decoder_start_token_id=0,
        feed_forward_proj="gated-gelu",
    )
    heard = {"encoder_outputs": (torch.randn(1, 10, size),), "decoder_input_ids": ids}
    name = "decoder_input_ids"
    return {
        "BART": (
            transformers.BartForConditionalGeneration(bart),
            {"input_ids": words, "decoder_input_ids": ids},
            name,
        ),
        "T5": (
            transformers.T5ForConditionalGeneration(t5),
            {"input_ids": words, "decoder_input_ids": ids},
            name,
        ),
        "Whisper": (transformers.WhisperForConditionalGeneration(whisper), heard, name),
    }
