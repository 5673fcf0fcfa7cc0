"""Functions of a number of fixed point: generated tables with straight lines between their entries.

    value(x) = (start[k] + floor(delta[k] · low / 2^13)) >> cut

low are the lower 13 bits of x, k the bits above. All of it is integer arithmetic, the same in numpy and in
hardware. The lines of a table through entries meet in them, so from entries that rise (fall) come values
that never fall (rise).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
from amaranth import Cat, Const, Module, Value, unsigned
from amaranth.lib.memory import Memory
from numpy import ndarray

from streamgen.gateware.arith.pipeline import Pipeline


def table_style(words: int) -> dict[str, str]:
    """The attribute of a memory that is only read, into a register: LUTs until a block RAM is worth it."""
    return {"rom_style": "distributed" if words <= 512 else "block"}


@dataclass(frozen=True)
class Table:
    """Lines that start at `starts` and all rise, or all fall, by `deltas`."""

    starts: tuple[int, ...]
    deltas: tuple[int, ...]
    cut: int = 0

    @classmethod
    def through(cls, entries: Sequence[int], cut: int) -> "Table":
        """Lines from entry to entry; the last is the limit towards the end, which no x reaches."""
        return cls(tuple(entries[:-1]), tuple(b - a for a, b in pairwise(entries)), cut)

    def golden(self, x: ndarray) -> ndarray:
        """int64 array of values for integers x >= 0."""
        k, low = x >> LOW_BITS, x & ((1 << LOW_BITS) - 1)
        start, delta = np.array(self.starts, np.int64), np.array(self.deltas, np.int64)
        return (start[k] + ((delta[k] * low) >> LOW_BITS)) >> self.cut

    def stages(self, m: Module, pipe: Pipeline, name: str, x: Value, /, **along: Value) -> SimpleNamespace:
        """Three stages: table, product, sum. Gives `value` and what comes `along`."""
        delta_bits = max(abs(delta) for delta in self.deltas).bit_length()
        start_bits = max(self.starts).bit_length()
        negative = Const(int(self.deltas[0] < 0), 1)
        mask = (1 << delta_bits) - 1
        words = [d & mask | start << delta_bits for d, start in zip(self.deltas, self.starts, strict=True)]
        memory = Memory(
            shape=unsigned(delta_bits + start_bits),
            depth=len(words),
            init=words,
            attrs=table_style(len(words)),
        )
        m.submodules[name] = memory
        port = memory.read_port(domain="comb")
        m.d.comb += port.addr.eq(x[LOW_BITS:])
        s = pipe.stage(delta=port.data[:delta_bits], start=port.data[delta_bits:], low=x[:LOW_BITS], **along)
        kept = {key: getattr(s, key) for key in along}
        s = pipe.stage(product=Cat(s.delta, negative).as_signed() * s.low, start=s.start, **kept)
        kept = {key: getattr(s, key) for key in along}
        value = s.start + (s.product >> LOW_BITS)
        width = max(start + max(delta - 1, 0) for start, delta in zip(self.starts, self.deltas, strict=True))
        return pipe.stage(value=value[self.cut : width.bit_length()], **kept)


def _tabulate(
    function: Callable[[ndarray], ndarray],
    curvature: Callable[[ndarray], ndarray],
    bits: int,
    cut: int,
    end: int = 1,
) -> Table:
    """The table of a convex function of 0 <= x < end with values in units of 2^-bits.

    In the middle of two entries h apart a chord lies h²/8·f'' above the function. Inner entries are
    lowered by half of that, which leaves errors of both signs, half as large. Half a unit is added to
    all entries but the last, since `cut` bits below the unit are cut off. A falling function's last entry
    is lowered by the last line's step, so that the greatest x gives the limit.
    """
    x = np.arange(end * 2**INDEX_BITS + 1) / 2**INDEX_BITS
    values = function(x)
    values[1:-1] -= (4.0**-INDEX_BITS / 16 * curvature(x))[1:-1]
    entries = np.rint(values * 2.0 ** (bits + cut)).astype(np.int64)
    entries[:-1] += (1 << cut) >> 1
    entries[-1] -= max(0, (entries[-2] - entries[-1]) >> LOW_BITS)
    return Table.through(entries.tolist(), cut)


INDEX_BITS = 7
LOW_BITS = 13
TABLE_BITS = INDEX_BITS + LOW_BITS  # of an x below 1
EXP2_BITS = 16
RECIPROCAL_BITS = 22

# 2^x, rising from 1 to less than 2: 17 bits.
EXP2 = _tabulate(np.exp2, lambda x: np.log(2) ** 2 * np.exp2(x), EXP2_BITS, 4)

# 1 / (1 + x), falling from 1 to 1/2: 23 bits.
RECIPROCAL = _tabulate(lambda x: 1 / (1 + x), lambda x: 2 / (1 + x) ** 3, RECIPROCAL_BITS, 0)

# 1 / sqrt(y), falling from 1 to 1/2, for 1 <= y = 1 + x < 2 and, from there on, 2 <= y = 2·x < 4: 23 bits.
RECIPROCAL_ROOT = _tabulate(
    lambda x: 1 / np.sqrt(np.where(x < 1, 1 + x, 2 * x)),
    lambda x: np.where(x < 1, 0.75 * (1 + x) ** -2.5, 3 * (2 * np.maximum(x, 1)) ** -2.5),
    RECIPROCAL_BITS,
    0,
    end=2,
)
