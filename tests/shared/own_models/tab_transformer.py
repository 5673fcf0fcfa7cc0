"""Tabular data: categories through tables and a transformer among columns, numbers beside them."""

import torch
from torch import nn

CATEGORIES, NUMBERS, DIM = [5, 9, 4], 4, 8


class TabTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeds = nn.ModuleList(nn.Embedding(n, DIM) for n in CATEGORIES)
        self.column = nn.Parameter(torch.randn(len(CATEGORIES), DIM) * 0.1)
        layer = nn.TransformerEncoderLayer(DIM, 2, 16, batch_first=True, norm_first=True)
        self.transformer = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(NUMBERS)
        self.head = nn.Sequential(nn.Linear(len(CATEGORIES) * DIM + NUMBERS, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, categories, numbers):
        x = torch.stack([embed(categories[:, i]) for i, embed in enumerate(self.embeds)], dim=1)
        x = self.transformer(x + self.column)
        return self.head(torch.cat([x.flatten(1), self.norm(numbers)], dim=-1))


def build():
    return TabTransformer()


def example(n):
    return torch.stack([torch.randint(c, (n,)) for c in CATEGORIES], 1), torch.randn(n, NUMBERS)
