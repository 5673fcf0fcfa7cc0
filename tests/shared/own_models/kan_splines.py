"""A Kolmogorov-Arnold network with B-splines of order 2, by the recursion of Cox and de Boor."""

import torch
from torch import nn
from torch.nn import functional as F


class KANLinear(nn.Module):
    def __init__(self, inputs, outputs, grid_size=3, order=2):
        super().__init__()
        self.inputs, self.outputs, self.order = inputs, outputs, order
        h = 2 / grid_size
        grid = torch.arange(-order, grid_size + order + 1) * h - 1
        self.register_buffer("grid", grid.expand(inputs, -1).contiguous())
        self.base_weight = nn.Parameter(torch.randn(outputs, inputs) / inputs**0.5)
        self.spline_weight = nn.Parameter(torch.randn(outputs, inputs, grid_size + order) / 4)

    def b_splines(self, x):
        grid = self.grid
        x = x.unsqueeze(-1)
        bases = ((x >= grid[:, :-1]) & (x < grid[:, 1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            left = (x - grid[:, : -(k + 1)]) / (grid[:, k:-1] - grid[:, : -(k + 1)])
            right = (grid[:, k + 1 :] - x) / (grid[:, k + 1 :] - grid[:, 1:-k])
            bases = left * bases[:, :, :-1] + right * bases[:, :, 1:]
        return bases.contiguous()

    def forward(self, x):
        base = F.linear(F.silu(x), self.base_weight)
        splines = self.b_splines(x).view(x.size(0), -1)
        return base + F.linear(splines, self.spline_weight.view(self.outputs, -1))


def build():
    return nn.Sequential(KANLinear(2, 3), KANLinear(3, 2))


def example(n):
    return (torch.rand(n, 2) * 2 - 1,)
