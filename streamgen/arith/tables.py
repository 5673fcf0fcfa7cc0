"""Functions of a fraction 0 <= x < 1: generated tables with straight lines between their entries.

    value(x) = (table[k] + floor((table[k + 1] - table[k]) · low / 2^13)) >> cut

x has 20 bits, k is its upper 7, low its lower 13. All of it is integer arithmetic, the same in numpy
and in hardware. The lines meet in the entries, so from a table that rises (falls) come values that
never fall (rise).
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
from amaranth import Cat, Const, Module, Value, unsigned
from amaranth.lib.memory import Memory
from numpy import ndarray

from streamgen.arith.pipeline import Pipeline

__all__ = ["EXP2", "EXP2_BITS", "RECIPROCAL", "RECIPROCAL_BITS", "TABLE_BITS", "Table"]

_INDEX_BITS = 7
_LOW_BITS = 13
TABLE_BITS = _INDEX_BITS + _LOW_BITS


@dataclass(frozen=True)
class Table:
    """129 entries, the last being the limit towards x = 1, which no x reaches."""

    entries: tuple[int, ...]
    cut: int

    def golden(self, x: ndarray) -> ndarray:
        """int64 array of values for integers 0 <= x < 2^TABLE_BITS."""
        table = np.array(self.entries, np.int64)
        k, low = x >> _LOW_BITS, x & ((1 << _LOW_BITS) - 1)
        return (table[k] + (((table[k + 1] - table[k]) * low) >> _LOW_BITS)) >> self.cut

    def stages(self, m: Module, pipe: Pipeline, name: str, x: Value, /, **along: Value) -> SimpleNamespace:
        """Three stages: table, product, sum. Gives `value` and what comes `along`."""
        delta = np.diff(self.entries)
        delta_bits = int(np.abs(delta).max()).bit_length()
        start_bits = max(self.entries[:-1]).bit_length()
        negative = Const(int(delta[0] < 0), 1)
        mask = (1 << delta_bits) - 1
        words = [int(d) & mask | start << delta_bits for d, start in zip(delta, self.entries, strict=False)]
        memory = Memory(
            shape=unsigned(delta_bits + start_bits),
            depth=len(words),
            init=words,
        )
        m.submodules[name] = memory
        port = memory.read_port(domain="comb")
        m.d.comb += port.addr.eq(x[_LOW_BITS:])
        s = pipe.stage(delta=port.data[:delta_bits], start=port.data[delta_bits:], low=x[:_LOW_BITS], **along)
        kept = {key: getattr(s, key) for key in along}
        s = pipe.stage(product=Cat(s.delta, negative).as_signed() * s.low, start=s.start, **kept)
        kept = {key: getattr(s, key) for key in along}
        value = s.start + (s.product >> _LOW_BITS)
        return pipe.stage(value=value[self.cut : start_bits], **kept)


def _tabulate(
    function: Callable[[ndarray], ndarray], curvature: Callable[[ndarray], ndarray], bits: int, cut: int
) -> Table:
    """The table of a convex function with values in units of 2^-bits.

    In the middle of two entries h apart a chord lies h²/8·f'' above the function. Inner entries are
    lowered by half of that, which leaves errors of both signs, half as large. Half a unit is added to
    all entries but the last, since `cut` bits below the unit are cut off.
    """
    x = np.arange(2**_INDEX_BITS + 1) / 2**_INDEX_BITS
    entries = function(x)
    entries[1:-1] -= (4.0**-_INDEX_BITS / 16 * curvature(x))[1:-1]
    entries = np.rint(entries * 2.0 ** (bits + cut)).astype(np.int64)
    entries[:-1] += (1 << cut) >> 1
    return Table(tuple(int(entry) for entry in entries), cut)


EXP2_BITS = 16
RECIPROCAL_BITS = 22

# 2^x, rising from 1 to less than 2: 17 bits.
EXP2 = _tabulate(np.exp2, lambda x: np.log(2) ** 2 * np.exp2(x), EXP2_BITS, 4)

# 1 / (1 + x), falling from 1 to 1/2: 23 bits. A last entry one lower makes the greatest x give 1/2.
_HALVED = _tabulate(lambda x: 1 / (1 + x), lambda x: 2 / (1 + x) ** 3, RECIPROCAL_BITS, 0)
RECIPROCAL = Table((*_HALVED.entries[:-1], _HALVED.entries[-1] - 1), _HALVED.cut)
