"""The lane of `dot` in fewer cycles, for matmuls whose latency counts: one format of weights, no halves.

It computes the same accumulators from the same operands, and differs in where registers are:

* Chains have two DSPs, not four, so all operands come in one cycle. The tree adds 16 sums, two levels in a
  stage. An adder is one LUT level and a chain of carries.
* A dot product without a group scale goes to the DSP that accumulates, shifted when the power is not. It
  passes no DSP that would multiply it by 1.

    product, product + cascade   3 cycles     tree   2 cycles, the second one into the next DSP
    scale                        2 cycles, with group scales only             accumulator   1 cycle more
    the parts of a sum in two    1 cycle, behind which the units of results search for its leading one
"""

from dataclasses import dataclass
from typing import Any

from amaranth import Cat, Module, Mux, Value

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.dsp import DspParams
from streamgen.gateware.arith.pipeline import delayed, registered
from streamgen.gateware.rtl import Shared
from streamgen.kernels.matmul.dot import (
    CHAIN,
    FAR,
    K_LANES,
    LOW_BITS,
    POWER_BITS,
    SLICE,
    Dot,
    DotParams,
    plus,
)

_QUICK_CHAIN = 2  # DSPs
_STAGE = 4  # sums that a stage of the tree adds up


@dataclass(frozen=True, kw_only=True)
class QuickDotParams(DotParams):
    """table: the integers that codes stand for; empty if a code is its own integer."""

    table: tuple[int, ...]
    halves: bool = False

    @property
    def skew(self) -> tuple[int, ...]:
        return (0,) * CHAIN

    @property
    def multiplicands(self) -> tuple[int, ...]:
        return self.table

    @property
    def scale_delay(self) -> int:
        return 1 + _QUICK_CHAIN + 1  # the first register, the chain, a stage of the tree

    @property
    def power_delay(self) -> int:
        return self.scale_delay + 2 * self.scales

    @property
    def latency(self) -> int:
        return super().latency + self.in_two

    @property
    def scales(self) -> bool:
        """Whether a DSP multiplies dot products before another one accumulates them."""
        return self.scale_bits > 0 or self.in_two

    @property
    def multipliers(self) -> int:
        return super().multipliers - (0 if self.scales else self.rows)

    def total(self, row: int) -> DspParams:
        """The DSP that accumulates dot products as they are: the second row adds the sign of the first."""
        return DspParams(
            a_bits=self.dot_bits + FAR,
            b_bits=POWER_BITS,
            p_bits=self.accumulator_bits,
            d_bits=FAR + 2 if row else 0,
            accumulate=True,
        )

    @property
    def resources(self) -> Resources:
        """The adders of the tree, the selection of scales, and the adders that join the parts of a sum."""
        chains, few = K_LANES // _QUICK_CHAIN, K_LANES // _QUICK_CHAIN // _STAGE
        first, second = self._sum_bits(2 * _QUICK_CHAIN), self._sum_bits(_STAGE * _QUICK_CHAIN)
        third, last = self._sum_bits(K_LANES // 2), self._sum_bits(K_LANES)
        tree = chains // 2 * first + few * second
        tree += self.rows * (2 * (third + 1) + last + 1) if self._parted else 2 * third + last
        factors = self.rows * (self.scale_bits + FAR) * (1 + self.minimum)
        if not self.scales:
            factors = self.rows * (self.dot_bits + FAR)
        joined = self.rows * (self.accumulator_bits - LOW_BITS) if self.in_two else 0
        kept = self.rows * self.accumulator_bits if self.in_two else 0
        decoded = K_LANES * self.rows * -(-self.multiplicand_bits // 2) if self.multiplicands else 0
        return Resources(
            lut=tree + factors + joined + decoded,
            ff=few * second + 1 + self.minimum + kept,
            dsp=self.multipliers,
        )

    def build(self) -> "QuickDot":
        return QuickDot(self)


class QuickDot(Dot):
    """Ports and timing as in `Dot`, with the delays of its params."""

    params: QuickDotParams

    def elaborate(self, platform: Any) -> Module:
        if self.params.scales:
            return super().elaborate(platform)
        m = Module()
        p = self.params
        enable = delayed(m, self.valid, 1)
        for row, (dot, sign) in enumerate(self._dots(m, self._chains(m))):
            m.submodules[f"sum_{row}_0"] = total = Shared(p.total(row))
            m.d.comb += [
                total.a.eq(Mux(self.far, dot.shift_left(FAR), dot)),
                total.b.eq(self.power),
                total.first.eq(self.first),
                total.enable.eq(enable),
                self.accumulators.word_select(row, p.accumulator_bits).eq(total.p),
            ]
            if row:
                m.d.comb += total.d.eq(Mux(self.far, Cat(sign, 0).shift_left(FAR), Cat(sign, 0)))
        return m

    def _joined(self, m: Module, total: Value) -> Value:
        return registered(m, total, self.params.accumulator_bits)

    def _chains(self, m: Module) -> list[Value]:
        """The sums of 16 chains."""
        p = self.params
        sums: list[Any] = [None] * (SLICE * CHAIN // _QUICK_CHAIN)
        for k in range(CHAIN):
            codes, low = getattr(self, f"codes_{k}"), getattr(self, f"low_{k}")
            place = k % _QUICK_CHAIN
            for i in range(SLICE):
                m.submodules[f"product_{SLICE * k + i}"] = product = Shared(p.product(place))
                weights = [self._weight(low, i, None)]
                if p.rows == 2:
                    weights.append(self._weight(getattr(self, f"high_{k}"), i, None))
                    m.d.comb += product.d.eq(weights[0])
                m.d.comb += [product.a.eq(weights[-1]), product.b.eq(codes.word_select(i, 8).as_signed())]
                chain = SLICE * (k // _QUICK_CHAIN) + i
                if place:
                    m.d.comb += product.cascade.eq(sums[chain])
                sums[chain] = product.p
        return sums

    def _dots(self, m: Module, sums: list[Value]) -> list[tuple[Value, Value | None]]:
        """The adder tree, and the carry of each row's low field (for the rows after the first)."""
        p = self.params
        bits = p._sum_bits(_STAGE * _QUICK_CHAIN)
        fours = (sums[k : k + _STAGE] for k in range(0, len(sums), _STAGE))
        terms = [registered(m, (a + b) + (c + d), bits) for a, b, c, d in fours]
        if p._parted:
            lows = [term[: p.field_bits].as_signed() for term in terms]
            highs = [term[p.field_bits :].as_signed() for term in terms]
            signs = [low[-1] for low in lows]
            left, right = (plus(highs[k], highs[k + 1], signs[k]) for k in (0, 2))
            low = (lows[0] + lows[1]) + (lows[2] + lows[3])
            return [(low, None), (plus(left, right, signs[1]), signs[3])]
        a, b, c, d = terms
        total = ((a + b) + (c + d))[: p._sum_bits(K_LANES)].as_signed()
        if p.rows == 1:
            return [(total, None)]
        low, high = total[: p.field_bits].as_signed(), total[p.field_bits :].as_signed()
        return [(low, None), (high, low[-1])]
