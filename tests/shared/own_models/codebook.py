"""An autoencoder with a codebook: the nearest code of each half of a row, looked up at run time."""

import torch
from torch import nn

CODES, DIM = 8, 4


class VQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2 * DIM))
        self.codebook = nn.Embedding(CODES, DIM)
        self.decoder = nn.Sequential(nn.Linear(2 * DIM, 16), nn.ReLU(), nn.Linear(16, 6))

    def forward(self, x):
        z = self.encoder(x).view(-1, 2, DIM)
        distances = ((z.unsqueeze(2) - self.codebook.weight) ** 2).sum(-1)
        codes = distances.argmin(-1)
        q = self.codebook(codes)
        return self.decoder((z + (q - z).detach()).flatten(1)), codes


def build():
    return VQ()


def example(n):
    return (torch.randn(n, 6),)
