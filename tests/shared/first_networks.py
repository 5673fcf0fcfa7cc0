"""Small networks as first lessons write them, each with an example input; for the command line, too:

streamgen compile tests/shared/first_networks.py:digits -o digits
"""

import torch
from torch import nn

__all__ = ["NETWORKS", "classifier", "digits", "generator", "normalised"]

Made = tuple[nn.Module, torch.Tensor]


def digits() -> Made:
    """An MLP for images of digits."""
    torch.manual_seed(0)
    layers = nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10)
    return nn.Sequential(*layers).eval(), torch.randn(2, 1, 28, 28)


def normalised() -> Made:
    """An MLP with batch norms before and behind a function, with statistics of random data."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.BatchNorm1d(32), nn.Linear(32, 4)
    )
    with torch.no_grad():
        for _ in range(20):
            module.train()(2 * torch.randn(16, 20) + 1)
    return module.eval(), torch.randn(2, 20)


def classifier() -> Made:
    """A classifier of log-probabilities."""
    torch.manual_seed(0)

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.scores = nn.Linear(32, 48), nn.Linear(48, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = nn.functional.elu(self.hidden(x), alpha=0.5)
            return nn.functional.log_softmax(20 * self.scores(hidden), dim=1)

    return Classifier().eval(), torch.randn(2, 32)


def generator() -> Made:
    """A generator of images from noise."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(16, 32),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Linear(32, 64),
        nn.PReLU(64),
        nn.Linear(64, 64),
        nn.Hardtanh(-0.25, 0.25),
        nn.Unflatten(1, (1, 8, 8)),
    )
    return module.eval(), torch.randn(2, 16)


NETWORKS = {made.__name__: made for made in (digits, normalised, classifier, generator)}
