"""Log-softmax over rows of f24 scores: the logarithm of softmax without the softmax, which would underflow.

    o = (i - max) - log(sum(exp(i - max)))

Both terms are 0 or less, so they do not cancel: beside 2^-16 for the sum, the error is below 2^-14 of the
result. Streams, bounds and buffers are those of `softmax`; in place of exponentials the differences wait for
their row, and the logarithm of the sum in place of its reciprocal. An element of -infinity gives -infinity,
as padding does, and a row of nothing else NaN.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from amaranth import Cat, Const, Module, Mux, Value, unsigned
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.contract import Bounds
from streamgen.contract.cost import Resources
from streamgen.gateware.arith import F24, AddParams, UnitParams
from streamgen.gateware.arith.pipeline import Pipeline, delayed, operand
from streamgen.gateware.functions import FUNCTIONS
from streamgen.kernels.softmax.softmax import SoftmaxParams
from streamgen.kernels.softmax.terms import (
    DIFFERENCE,
    EXPONENTIAL,
    TERM_FRACTION,
    ExponentialParams,
    term_stage,
)

LOG = FUNCTIONS["log"].unit(F24)
ADD = AddParams(form=F24)


@dataclass(frozen=True, kw_only=True)
class LogTermParams(ExponentialParams):
    """A difference, and the term of the sum that its exponential is."""

    @property
    def resources(self) -> Resources:
        """Estimate: those of the exponential, and the difference that waits for the term."""
        return super().resources + Resources(lut=F24.bits, ff=2 * F24.bits)

    def golden(self, x: ndarray, negated: ndarray) -> tuple[ndarray, ndarray]:
        """float64 array of differences, int64 array of terms."""
        return DIFFERENCE.golden(x, negated), super().golden(x, negated)[1]

    def build(self) -> "LogTerm":
        return LogTerm(self)


class LogTerm(wiring.Component):
    """x, negated: bits of the operands; e, the difference, and term: `latency` cycles later."""

    def __init__(self, params: LogTermParams) -> None:
        bits = unsigned(F24.bits)
        super().__init__({"x": In(bits), "negated": In(bits), "e": Out(bits), "term": Out(TERM_FRACTION + 1)})
        self._params = params

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        bits = self._params.exponential_stages(m, self.x, self.negated)
        s = term_stage(Pipeline(m, Const(1)), bits)
        difference = m.submodules.difference.o
        m.d.comb += [self.e.eq(delayed(m, difference, EXPONENTIAL.latency + 1)), self.term.eq(s.term)]
        return m


@dataclass(frozen=True, kw_only=True)
class LogSoftmaxParams(SoftmaxParams):
    """lanes, max_length and bounds of `SoftmaxParams`."""

    @property
    def lane(self) -> LogTermParams:
        return LogTermParams()

    @property
    def held_bits(self) -> int:
        return F24.bits

    @property
    def of_row(self) -> UnitParams:
        return LOG

    @property
    def of_element(self) -> UnitParams:
        return ADD

    def add_factor(self, m: Module, total: Value) -> Value:
        """-log(total · 2^-TERM_FRACTION)."""
        m.submodules.log = log = LOG.build()
        given = operand(F24, total)
        lowered = Cat(given.fraction, (given.exponent - TERM_FRACTION)[:8], Const(0, 1))
        m.d.comb += [log.enable.eq(1), log.i.eq(Mux(given.zero, 0, lowered))]
        logarithm = operand(F24, log.o)
        return Mux(logarithm.nan, F24.nan, Cat(log.o[:-1], ~logarithm.sign & ~logarithm.zero))

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        scores, negated = self.rows.golden(bounds, inputs["i"])
        differences, terms = self.lane.golden(scores, negated)
        total = self.convert.golden(terms.sum(axis=1, keepdims=True))
        offset = 0.0 - LOG.golden(total * 2.0**-TERM_FRACTION)
        offset = np.where(np.isnan(negated), np.nan, offset)
        return {"o": ADD.golden(differences, offset).astype(np.float32)}
