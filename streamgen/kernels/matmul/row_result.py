"""The result of a row of a matmul from its sum, in fewer cycles than `results` takes.

    y = f24(f24(sum) * r) * 2^(e - 15) [+ b]     [y = max(y, 0)]

It computes what the scaler, the adder and ReLU compute one after another, bit for bit. Some of their stages
share a cycle, so paths are longer, but none has more LUT levels than others of the house. The product of two
significands has registers in front of it and behind it.
"""

from dataclasses import dataclass

from amaranth import Module, Value
from amaranth.hdl import ShapeLike
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith import F24, AddParams, MergedUnitParams, ScaleAccumulatorParams
from streamgen.gateware.arith.pipeline import Pipeline
from streamgen.gateware.functions.relu import ReluParams

ADDER, RELU = AddParams(form=F24), ReluParams(form=F24)
_NARROW = 40  # bits of a sum


@dataclass(frozen=True, kw_only=True)
class RowResultParams(MergedUnitParams):
    """scaler: of sums. bias: whether one is added. relu: whether negative results become 0."""

    scaler: ScaleAccumulatorParams
    bias: bool
    relu: bool
    form = F24

    @property
    def operands(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.scaler.operands, "bias") if self.bias else self.scaler.operands

    @property
    def _all(self) -> int:
        """Stages of the units."""
        return self.scaler.latency + self.bias * ADDER.latency + self.relu * RELU.latency

    @property
    def kept(self) -> frozenset[int]:  # type: ignore[override]
        """Stages keep their registers where a carry, a long shift or a search for the leading one would
        follow another. In narrow sums that search shares a cycle with the absolute value."""
        scaled = (2, 3, 5, 6, 7) if self.scaler.width <= _NARROW else (1, 2, 3, 5, 6, 7)
        added = (8, 9, 11, 12, 13, 14) if self.bias else ()
        return frozenset((*scaled, *added, self._all))

    @property
    def resources(self) -> Resources:
        """Fitted to synthesis."""
        width = self.scaler.width
        total = Resources(lut=8 * width, ff=2 * width + 190, dsp=1)
        if self.bias:
            total += Resources(lut=ADDER.resources.lut, ff=178)
        return total

    def golden(self, acc: ndarray, scale: ndarray, exponent: ndarray, *bias: ndarray) -> ndarray:
        """float64 array of results, of the operands of the scaler and, for a bias, values of f24."""
        y = self.scaler.golden(acc, scale, exponent)
        if self.bias:
            y = ADDER.golden(y, *bias)
        return RELU.golden(y) if self.relu else y

    def shapes(self) -> dict[str, ShapeLike]:
        return {**super().shapes(), **self.scaler.shapes()}

    def stages(self, m: Module, pipe: Pipeline, *operands: Value) -> Value:
        own, beside = (self.merged(m, pipe) for _ in range(2))
        result = self.scaler.stages(m, own, *operands[:3])
        if self.bias:
            bias = operands[3]
            for _ in range(self.scaler.latency):
                bias = beside.stage(bias=bias).bias
            result = ADDER.stages(m, own, result, bias)
        return RELU.stages(m, own, result) if self.relu else result
