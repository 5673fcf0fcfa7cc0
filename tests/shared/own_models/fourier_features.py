"""A field of colours: random Fourier features of a place, then an MLP of sines."""

import math

import torch
from torch import nn


class FourierFeatures(nn.Module):
    def __init__(self, inputs, features, scale=1.0):
        super().__init__()
        self.register_buffer("B", torch.randn(inputs, features) * scale)

    def forward(self, v):
        projected = 2 * math.pi * v @ self.B
        return torch.cat([torch.sin(projected), torch.cos(projected)], dim=-1)


class Sine(nn.Module):
    def __init__(self, inputs, outputs, omega=2.0):
        super().__init__()
        self.linear, self.omega = nn.Linear(inputs, outputs), omega

    def forward(self, x):
        return torch.sin(self.omega * self.linear(x))


def build():
    return nn.Sequential(FourierFeatures(2, 8), Sine(16, 8), nn.Linear(8, 3), nn.Sigmoid())


def example(n):
    return (torch.rand(n, 2),)
