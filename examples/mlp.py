"""A module for the command line:

streamgen compile examples/mlp.py:mlp -o mlp --max-tokens 8 --multipliers 64
streamgen simulate mlp --tokens 4 --probe
streamgen report mlp

Run by itself, the file does the same in Python.
"""

import numpy as np
import torch

import streamgen


def mlp() -> tuple[torch.nn.Module, torch.Tensor]:
    """The module, with weights of a fixed seed, and an input to export it with."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(32, 16), torch.nn.SiLU(), torch.nn.Linear(16, 8, bias=False)
    return torch.nn.Sequential(*layers).eval(), torch.zeros(2, 32)


def main() -> None:
    module, example = mlp()
    config = streamgen.CompileConfig(name="mlp", max_tokens=8, multipliers=64, weights="w8")
    accelerator = streamgen.compile(module, example, config)
    x = np.random.default_rng(0).normal(size=(4, 32)).astype(np.float32)
    y = accelerator.run(x)
    assert y.tobytes() == accelerator.golden(x).tobytes()
    print(accelerator.report())


if __name__ == "__main__":
    main()
