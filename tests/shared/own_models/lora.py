"""Linears with adapters of low rank beside them, not merged."""

import torch
from torch import nn


class LoRALinear(nn.Module):
    def __init__(self, linear, rank=2, alpha=4.0):
        super().__init__()
        self.linear = linear
        self.A = nn.Parameter(torch.randn(rank, linear.in_features) / rank)
        self.B = nn.Parameter(torch.randn(linear.out_features, rank) / rank)
        self.scaling = alpha / rank
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return self.linear(x) + (self.dropout(x) @ self.A.T @ self.B.T) * self.scaling


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = LoRALinear(nn.Linear(8, 16))
        self.down = LoRALinear(nn.Linear(16, 4))

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x)))


def build():
    return Adapted()


def example(n):
    return (torch.randn(n, 8),)
