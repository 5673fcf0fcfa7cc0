"""Sweeps over a pipelined arithmetic unit: its emitted Verilog in Verilator, millions of operands a second.

    UnitSimulator(params).run({"a": bits, "b": bits})    the bits of the results

A unit has operands, an `enable` and the result `o`, `params.latency` enabled cycles later.
"""

import ctypes
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from amaranth.hdl import Value

from streamgen.gateware.rtl import Library, to_verilog
from streamgen.testing.stream_simulator import compile_design

__all__ = ["UnitSimulator"]


class UnitSimulator:
    """The unit that `params.build()` makes, built for simulation in a few seconds."""

    def __init__(self, params: Any) -> None:
        unit = params.build()
        self._latency = params.latency
        inputs = [name for name, member in unit.signature.members.items() if member.flow.name == "In"]
        self._widths = {name: len(Value.cast(getattr(unit, name))) for name in inputs if name != "enable"}
        result = Value.cast(unit.o)
        self._unused = 64 - len(result) if result.shape().signed else 0
        library = Library()
        text = to_verilog(unit, "top", library)
        folder = tempfile.TemporaryDirectory(prefix="unit-")
        weakref.finalize(self, folder.cleanup)
        place = Path(folder.name)
        (place / "design.v").write_text(text)
        operands = " ".join(f"X({k}, {name})" for k, name in enumerate(self._widths))
        (place / "unit.h").write_text(f"#define OPERANDS(X) {operands}\n")
        self._simulate = compile_design(
            place, ["design.v"], Path(__file__).with_name("unit_bench.cpp")
        ).simulate
        pointer, u64 = ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint64
        self._simulate.argtypes = (pointer, ctypes.c_void_p, u64, u64, u64, ctypes.c_double)
        self._simulate.restype = ctypes.c_bool

    def run(self, operands: Mapping[str, np.ndarray], stalls: float = 0.0, seed: int = 1) -> np.ndarray:
        """int64 array: the results for operands of at most 64 bits, one after another in the enabled cycles.

        In a share of `stalls` of the cycles the unit is not enabled and its operands are others;
        AssertionError when its result moves then.
        """
        if set(operands) != set(self._widths):
            raise ValueError(f"the operands are {sorted(self._widths)}, not {sorted(operands)}")
        columns = [
            np.ascontiguousarray(np.asarray(operands[name]).astype(np.int64).view(np.uint64) & _mask(width))
            for name, width in self._widths.items()
        ]
        count = len(columns[0])
        results = np.zeros(count, np.uint64)
        pointers = (ctypes.c_void_p * len(columns))(*(column.ctypes.data for column in columns))
        still = self._simulate(pointers, results.ctypes.data, count, self._latency, seed, stalls)
        assert still, f"the result moved while the unit was not enabled (stalls {stalls}, seed {seed})"
        return results.view(np.int64) << self._unused >> self._unused  # extends the sign


def _mask(width: int) -> np.uint64:
    return np.uint64((1 << width) - 1)
