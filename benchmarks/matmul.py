"""Time from parameters to Verilog of a matmul with 4096 multipliers, the column's figures, its area.

    python benchmarks/matmul.py

16 columns of 4 rows by 2 tokens by 32, W4 with 8-bit scales and minimums: a row of 4096 products a cycle.
Areas are of a column of 8 rows by 32, promised and found by synthesis.
"""

import time
from typing import Any

import numpy as np
from amaranth import Module
from amaranth.lib import wiring

from streamgen.gateware.rtl import Shared, to_verilog
from streamgen.kernels.matmul.matmul import ColumnParams
from streamgen.numbers import formats
from streamgen.testing.lint import lint
from streamgen.testing.synthesis import check_all

COLUMNS = 16
COLUMN = ColumnParams(
    t_lanes=2,
    n_lanes=4,
    formats=("w4",),
    group=32,
    scale_bits=8,
    minimum=True,
    max_k=1536,
    max_n=96,
    max_t=16,
)


WEIGHTS = {
    "W4": (("w4",), 8, False),
    "W4 with minimums": (("w4",), 8, True),
    "W4 or W8": (("w4", "w8"), 8, False),
    "W4 with minimums or W8": (("w4", "w8"), 8, True),
    "W8": (("w8",), 0, False),
}


class Matmul(wiring.Component):
    """All columns side by side."""

    def __init__(self) -> None:
        self.columns = [Shared(COLUMN) for _ in range(COLUMNS)]
        super().__init__(
            {
                f"{port}_{c}": member
                for c, column in enumerate(self.columns)
                for port, member in column.signature.members.items()
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        for c, column in enumerate(self.columns):
            m.submodules[f"column_{c}"] = column
            for port in column.signature.members:
                wiring.connect(m, wiring.flipped(getattr(self, f"{port}_{c}")), getattr(column, port))
        return m


def golden_seconds() -> float:
    """Golden of 16 tokens by 1536 by 576."""
    params = ColumnParams(**{**vars(COLUMN), "max_n": 576})
    bounds = {"t": 16, "k": 1536, "n": 576, "format": "w4", "grouped": True}
    rng = np.random.default_rng(0)
    x = np.zeros((16, 1536), formats.MX)
    x["code"] = rng.integers(-127, 128, x.shape)
    inputs = {
        "i_x": x,
        "i_e": rng.integers(-8, 8, 16).astype(np.int16),
        "i_w": rng.integers(-8, 8, (576, 1536)).astype(np.int8),
        "i_s": rng.integers(-128, 128, (576, 48, 2)).astype(np.int8),
        "i_r": formats.round_f24(rng.normal(size=576)),
    }
    start = time.perf_counter()
    params.golden(bounds, inputs)
    return time.perf_counter() - start


def areas() -> None:
    """Print what a multiplier of each kind of column takes."""
    columns = [
        ColumnParams(
            t_lanes=1,
            n_lanes=8,
            formats=formats,
            group=32,
            scale_bits=scale_bits,
            minimum=minimum,
            max_k=2816,
            max_n=1024,
            max_t=512,
        )
        for formats, scale_bits, minimum in WEIGHTS.values()
    ]
    found = check_all([(column, None) for column in columns])
    for name, column, synthesis in zip(WEIGHTS, columns, found, strict=True):
        figures = (
            f"{getattr(column.resources, kind) / column.multipliers:.2f} {kind.upper()} promised, "
            f"{getattr(synthesis.resources, kind) / column.multipliers:.2f} found"
            for kind in ("lut", "ff", "dsp")
        )
        latency = column.lane(2).latency
        print(f"{name}, a multiplier: {'; '.join(figures)}; {synthesis.levels} levels, latency {latency}")


def main() -> None:
    multipliers = COLUMNS * COLUMN.tile_results * 32
    to_verilog(COLUMN.build(), "warm")  # loads Yosys
    start = time.perf_counter()
    text = to_verilog(Matmul(), "matmul")
    seconds = time.perf_counter() - start
    print(f"parameters to Verilog, {multipliers} multipliers: {seconds:.2f} s (bound 10), {len(text)} bytes")
    text = to_verilog(COLUMN.build(), "column")
    start = time.perf_counter()
    lint(text, "column")
    print(f"Verilator lint of one column: clean, {time.perf_counter() - start:.2f} s")
    print(f"golden of 16 x 1536 x 576: {golden_seconds():.3f} s (bound 1)")
    bounds = {"t": 16, "k": 576, "n": 96, "format": "w4", "grouped": True}
    cost = COLUMN.cost(bounds)
    products = bounds["t"] * bounds["k"] * bounds["n"]
    print(f"one column: {cost.resources}")
    ideal = products // (COLUMN.tile_results * 32)
    print(
        f"16 x 576 x 96 on one column: {cost.cycles} cycles, {ideal} of them multiply, latency {cost.latency}"
    )
    areas()


if __name__ == "__main__":
    main()
