"""Time series: a matmul over time, shared by all channels, then one over channels (an MLP mixer)."""

import torch
from torch import nn

STEPS, CHANNELS, AHEAD = 6, 4, 3


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(CHANNELS)
        self.over_time = nn.Linear(STEPS, STEPS)
        self.over_channels = nn.Sequential(nn.Linear(CHANNELS, 8), nn.GELU(), nn.Linear(8, CHANNELS))
        self.ahead = nn.Linear(STEPS, AHEAD)

    def forward(self, x):
        x = x + self.over_time(self.norm(x).transpose(1, 2)).relu().transpose(1, 2)
        x = x + self.over_channels(x)
        return self.ahead(x.transpose(1, 2)).transpose(1, 2)


def build():
    return Mixer()


def example(n):
    return (torch.randn(n, STEPS, CHANNELS),)
