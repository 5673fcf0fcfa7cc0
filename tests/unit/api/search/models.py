"""Small models whose spaces are searched in tests."""

import torch

from streamgen.api.search import Space, space
from streamgen.compiler.config import CompileConfig

__all__ = ["BUDGETS", "small_space"]

BUDGETS = CompileConfig(max_tokens=4, multipliers=256, channels=2)


def small_space() -> Space:
    """The space of a network with two matmuls with biases and a ReLU between them."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(40, 24), torch.nn.ReLU(), torch.nn.Linear(24, 8)).eval()
    return space(model, torch.zeros(2, 40), BUDGETS)
