"""A recommender: an MLP of dense features, a table for each category, products of all pairs, a top MLP."""

from itertools import pairwise

import torch
from torch import nn

TABLES, DIM, DENSE = [11, 7, 5, 9], 8, 6


def mlp(sizes, last=None):
    layers = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    layers[-1] = last or layers[-1]
    return nn.Sequential(*layers)


class DLRM(nn.Module):
    def __init__(self):
        super().__init__()
        self.bottom = mlp([DENSE, 16, DIM])
        self.tables = nn.ModuleList(nn.Embedding(rows, DIM) for rows in TABLES)
        n = len(TABLES) + 1
        self.top = mlp([DIM + n * (n - 1) // 2, 16, 1], nn.Sigmoid())
        li, lj = torch.tril_indices(n, n, offset=-1)
        self.register_buffer("li", li)
        self.register_buffer("lj", lj)

    def forward(self, dense, sparse):
        x = self.bottom(dense)
        rows = [table(sparse[:, i]) for i, table in enumerate(self.tables)]
        T = torch.stack([x, *rows], dim=1)
        Z = torch.bmm(T, T.transpose(1, 2))
        return self.top(torch.cat([x, Z[:, self.li, self.lj]], dim=1)).squeeze(1)


def build():
    return DLRM()


def example(n):
    sparse = [torch.randint(rows, (n,)) for rows in TABLES]
    return torch.randn(n, DENSE), torch.stack(sparse, 1)
