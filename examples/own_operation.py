"""An operation from a package of its own: a torch operator, its golden model and its kernel, in a module.

    y = W_2 gate_rows(W_1 x, 0.125)       gate_rows: a row passes if its first feature is above a limit

Once the package is installed, `streamgen.compile` finds the operation by itself:

pip install --no-deps examples/packages/gate

Without that, the package is found beside this file, and `register` stands for its entry point.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import streamgen
from streamgen.model.operations.registry import is_offered, register

TOKENS, FEATURES, HIDDEN, LIMIT = 8, 32, 20, 0.125
sys.path += [str(Path(__file__).parent / "packages" / "gate")]


class Gated(torch.nn.Module):
    """Two matmuls with a gate between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(FEATURES, HIDDEN)
        self.down = torch.nn.Linear(HIDDEN, FEATURES, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from streamgen_example_gate.torch_operator import gate_rows  # now that the path has its folder

        return self.down(gate_rows(self.up(x), LIMIT))


def build() -> streamgen.Accelerator:
    torch.manual_seed(0)
    config = streamgen.CompileConfig(
        name="gated", max_tokens=TOKENS, channels=2, multipliers=128, weights="w8"
    )
    return streamgen.compile(Gated().eval(), torch.zeros(TOKENS, FEATURES), config)


def main(folder: Path) -> None:
    if not is_offered("streamgen_example.gate_rows.default"):
        from streamgen_example_gate.operation import GateRows

        register("streamgen_example::gate_rows", GateRows)
    written = build().write(folder)
    accelerator = streamgen.load(written, trust=("streamgen_example_gate",))
    x = np.random.default_rng(0).normal(size=(TOKENS, FEATURES)).astype(np.float32)
    y = accelerator.run(x)
    assert y.tobytes() == accelerator.golden(x).tobytes()
    torch.manual_seed(0)
    expected = Gated()(torch.from_numpy(x)).detach().numpy()
    passed = y.any(axis=1)
    assert (passed == expected.any(axis=1)).all() and np.abs(y - expected).max() < 0.05
    print(accelerator.report())
    print(f"{passed.sum()} of {TOKENS} rows pass the gate; all outputs equal golden bit for bit")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else place) / "own_operation")
