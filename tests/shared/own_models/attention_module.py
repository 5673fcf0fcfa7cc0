"""nn.MultiheadAttention with a boolean mask; positions are a parameter; ids [T] without a batch."""

import torch
from torch import nn

VOCABULARY, CONTEXT = 31, 16


class Layer(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(dim, heads, dropout=0.1, batch_first=True)
        self.norm2 = nn.LayerNorm(dim)
        self.feed_forward = nn.Sequential(nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.feed_forward(self.norm2(x))


class Model(nn.Module):
    def __init__(self, dim: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, dim)
        self.positions = nn.Parameter(0.1 * torch.randn(CONTEXT, dim))
        self.layers = nn.ModuleList([Layer(dim, heads) for _ in range(2)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        (length,) = ids.shape
        x = self.tokens(ids) + self.positions[:length]
        steps = torch.arange(length)
        mask = steps[None, :] > steps[:, None]
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x))


def build() -> nn.Module:
    return Model()


SHAPE = ("tokens",)
