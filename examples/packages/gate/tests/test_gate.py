"""The kernel conforms; the operator is one that torch can trace, and compiles."""

import numpy as np
import torch
from streamgen_example_gate.kernel import GateRowsParams
from streamgen_example_gate.torch_operator import gate_rows

import streamgen
from streamgen.numbers import formats
from streamgen.testing import conformance_tests

PARAMS = GateRowsParams(lanes=2, max_rows=12, max_row_tokens=5)


def case(rows: int, features: int, limit: float, seed: int) -> tuple:
    """Rows that pass and rows that do not; some begin with a special value."""
    values = formats.round_f24(np.random.default_rng(seed).normal(size=(rows, features)))
    for row, special in zip(values, (limit, np.inf, np.nan, -np.inf, -0.0), strict=False):
        row[0] = special
    return {"rows": rows, "features": features, "limit": limit}, {"i": values}


test_gate_conforms = conformance_tests(
    PARAMS,
    [case(12, 10, 0.5, 0), case(1, 2, 0.0, 1), case(7, 4, np.inf, 2), case(9, 2, 0.25, 3)],
    refused=[
        {"rows": 13, "features": 2, "limit": 0.5},
        {"rows": 1, "features": 3, "limit": 0.5},
        {"rows": 1, "features": 12, "limit": 0.5},
        {"rows": 1, "features": 2, "limit": -1.0},
        {"rows": 1, "features": 2, "limit": 0.1},
    ],
)


def test_torch_can_trace_the_operator() -> None:
    torch.library.opcheck(gate_rows, (torch.randn(3, 8), 0.5))


class Gated(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(20, 12), torch.nn.Linear(12, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(gate_rows(self.up(x), 0.25))


def test_the_entry_point_brings_the_operation() -> None:
    """Nothing here imports it; the operation is found by the operator that the module calls."""
    estimate = streamgen.estimate(Gated().eval(), torch.zeros(4, 20))
    assert estimate.groups[0].resources.parts["GateRows"].lut > 0
