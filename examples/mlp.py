"""A module for the command line:

streamgen compile examples/mlp.py:mlp -o mlp --max-tokens 8 --multipliers 64
streamgen simulate mlp --tokens 4 --probe
streamgen report mlp
"""

import torch


def mlp() -> tuple[torch.nn.Module, torch.Tensor]:
    """The module, with weights of a fixed seed, and an input to export it with."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(32, 16), torch.nn.SiLU(), torch.nn.Linear(16, 8, bias=False)
    return torch.nn.Sequential(*layers).eval(), torch.zeros(2, 32)
