"""Tabular data: each number is a token of its own beside a token of the class; attention by hand."""

import torch
from torch import nn
from torch.nn import functional as F

FEATURES, DIM, HEADS = 3, 8, 2


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.out = nn.Linear(DIM, DIM)

    def forward(self, x):
        b, n, _ = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        scores = torch.matmul(q, k.transpose(-2, -1)) / (DIM // HEADS) ** 0.5
        mixed = torch.matmul(F.softmax(scores, dim=-1), v)
        return self.out(mixed.transpose(1, 2).reshape(b, n, DIM))


class FTTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(FEATURES, DIM))
        self.bias = nn.Parameter(torch.randn(FEATURES, DIM))
        self.cls = nn.Parameter(torch.randn(1, 1, DIM))
        self.norm1, self.norm2, self.norm = nn.LayerNorm(DIM), nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(DIM, 16), nn.GELU(), nn.Linear(16, DIM))
        self.head = nn.Linear(DIM, 1)

    def forward(self, x):
        tokens = x.unsqueeze(-1) * self.weight + self.bias
        tokens = torch.cat([tokens.mean(1, keepdim=True) + self.cls, tokens], dim=1)
        tokens = tokens + self.attention(self.norm1(tokens))
        tokens = tokens + self.mlp(self.norm2(tokens))
        return self.head(F.relu(self.norm(tokens[:, 0]))).squeeze(-1)


def build():
    return FTTransformer()


def example(n):
    return (torch.randn(n, FEATURES),)
