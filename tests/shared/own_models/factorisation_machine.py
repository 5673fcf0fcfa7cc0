"""A factorisation machine: a table for each field, half of (sum squared - sum of squares), an MLP."""

import torch
from torch import nn

FIELDS, DIM = [6, 4, 8], 8


class FactorisationMachine(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("sizes", torch.tensor(FIELDS))
        self.tables = nn.ModuleList(nn.Embedding(n, DIM) for n in FIELDS)
        self.weights = nn.ModuleList(nn.Embedding(n, 1) for n in FIELDS)
        self.bias = nn.Parameter(torch.zeros(1))
        self.deep = nn.Sequential(nn.Linear(len(FIELDS) * DIM, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        e = torch.stack([table(x[:, i]) for i, table in enumerate(self.tables)], 1)
        linear = sum(table(x[:, i]) for i, table in enumerate(self.weights)) + self.bias
        pairs = 0.5 * (e.sum(1).pow(2) - e.pow(2).sum(1)).sum(1, keepdim=True)
        return torch.sigmoid(linear + pairs + self.deep(e.flatten(1)))


def build():
    return FactorisationMachine()


def example(n):
    return (torch.stack([torch.randint(rows, (n,)) for rows in FIELDS], 1),)
