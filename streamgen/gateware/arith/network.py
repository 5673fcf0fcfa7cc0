"""Units that compute one result together: each takes operands, constants and results of earlier units.

Every unit begins when the last of its operands is there; the others wait in shift registers, one for each
value. The results are those of the units one after another, bit for bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from amaranth import Const, Module, Value
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.compare import MaximumParams
from streamgen.gateware.arith.format import Float
from streamgen.gateware.arith.pipeline import Pipeline
from streamgen.gateware.arith.relations import RelationParams
from streamgen.gateware.arith.remembered import remembered
from streamgen.gateware.arith.unit import UnitParams
from streamgen.gateware.rtl import Shared

Part = tuple[UnitParams, tuple[int, ...]]
"""A unit, and what it takes: n is operand n, or behind all operands the result of an earlier part; -1 - n is
constant n."""

_SHIFT = 32  # stages of a shift register in one LUT for each bit
_LEAST_SHIFT = 3  # stages; fewer are registers


@dataclass(frozen=True, kw_only=True)
class NetworkParams(UnitParams):
    """Units in `form`; the result is that of the last part. constants: values of the format."""

    form: Float
    operands: tuple[str, ...]  # type: ignore[misc]
    constants: tuple[float, ...] = ()
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        for number, (unit, taken) in enumerate(self.parts):
            known = range(-len(self.constants), len(self.operands) + number)
            if len(taken) != len(unit.operands) or not all(index in known for index in taken):
                raise ValueError(f"part {number} takes {taken}; {len(unit.operands)} of {known} are needed")
            if all(index < 0 for index in taken):
                raise ValueError(f"part {number} takes constants alone")
        if not self.parts:
            raise ValueError("there are no parts; at least 1 is needed")

    @property
    def times(self) -> tuple[int, ...]:
        """The stages before each operand and each result is there."""
        times = [0] * len(self.operands)
        for unit, taken in self.parts:
            times.append(max(times[index] for index in taken if index >= 0) + unit.latency)
        return tuple(times)

    @property
    def latency(self) -> int:
        return self.times[-1]

    def waits(self) -> Mapping[int, tuple[int, ...]]:
        """By operand or result: the stages after which parts take it, rising, without those at once."""
        times, waits = self.times, dict[int, set[int]]()
        for (unit, taken), time in zip(self.parts, times[len(self.operands) :], strict=True):
            for index in taken:
                if index >= 0:
                    waits.setdefault(index, set()).add(time - unit.latency - times[index])
        return {index: tuple(sorted(stages - {0})) for index, stages in waits.items()}

    @property
    def resources(self) -> Resources:
        """The units, and the values that wait."""
        total = Resources(lut=0, ff=0)
        for unit, taken in self.parts:
            total += unit.resources
            if isinstance(unit, MaximumParams | RelationParams) and min(taken) < 0:  # its key is known
                bits = self.form.bits
                total = replace(total, lut=total.lut - 3 * bits // 2, ff=total.ff - bits)
        for stages in self.waits().values():
            for first, last in pairwise((0, *stages)):
                total += _delay_resources(self.form.bits, last - first)
        return total

    def golden(self, *operands: ndarray) -> ndarray:
        """float64 array of the result for values of the format."""
        values = [np.asarray(operand, np.float64) for operand in operands]
        for unit, taken in self.parts:
            compute = remembered(unit) if len(taken) == 1 else unit.golden
            values.append(compute(*(values[k] if k >= 0 else self._constant(k) for k in taken)))
        return values[-1]

    def _constant(self, index: int) -> ndarray:
        return np.array(self.constants[-1 - index])

    def stages(self, m: Module, pipe: Pipeline, *operands: Value) -> Value:
        form, times, values = self.form, self.times, [*operands]
        delayed: dict[tuple[int, int], Value] = {}

        def after(index: int, stages: int) -> Value:
            """A value so many stages later."""
            if not stages:
                return values[index]
            if (index, stages) not in delayed:
                before = after(index, stages - 1)
                delayed[index, stages] = pipe.stage(waiting=before).waiting
            return delayed[index, stages]

        for number, (unit, taken) in enumerate(self.parts):
            begin = times[len(self.operands) + number] - unit.latency
            block = Shared(unit)
            m.submodules[f"part_{number}"] = block
            m.d.comb += block.enable.eq(pipe.enable)
            for pin, index in zip(unit.operands, taken, strict=True):
                if index >= 0:
                    value: Value = after(index, begin - times[index])
                else:
                    value = Const(int(form.encode(self._constant(index))), form.bits)
                m.d.comb += getattr(block, pin).eq(value)
            values.append(block.o)
        return values[-1]


def _delay_resources(bits: int, stages: int) -> Resources:
    if stages < _LEAST_SHIFT:
        return Resources(lut=0, ff=stages * bits)
    return Resources(lut=-(-stages // _SHIFT) * bits, ff=0)


@dataclass
class Composed:
    """Puts a network together, part by part, in one `form`; `value = composed.apply(unit, a, b)`.

    Operands are numbers, in the order of `operands`. The last part is the result.
    """

    form: Float
    operands: tuple[str, ...] = ("i",)
    _constants: list[float] = field(default_factory=list)
    _parts: list[Part] = field(default_factory=list)

    def constant(self, value: float) -> int:
        """A constant, rounded to the format."""
        rounded = float(self.form.round(np.array(value)))
        if rounded not in self._constants:
            self._constants.append(rounded)
        return -1 - self._constants.index(rounded)

    def apply(self, unit: UnitParams, *taken: int) -> int:
        """The result of a unit."""
        self._parts.append((unit, taken))
        return len(self.operands) + len(self._parts) - 1

    @property
    def params(self) -> NetworkParams:
        """The network."""
        return NetworkParams(
            form=self.form,
            operands=self.operands,
            constants=tuple(self._constants),
            parts=tuple(self._parts),
        )
