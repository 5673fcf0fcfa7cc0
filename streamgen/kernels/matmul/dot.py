"""The lane of the matmul column: one token row times two weight rows, 32 products each a cycle.

    dot[n]  = sum over j of code[j] * weight[n][j]                          j = 0..31, n = 0, 1
    term[n] = (scale[n] * dot[n] [+ minimum[n] * sum]) * f * 2^s            f = 5 + step, s = 15 - d
    accumulator[n] = (0 if first else accumulator[n]) + term[n]             when valid

A new group of 32 enters every cycle; nothing in a lane ever waits. All but a few adders are DSPs
(`streamgen.gateware.arith.dsp`).

Packing. Both weights of a column of the pair share the activation, so one DSP forms both products:
(weight[1] * 2^b + weight[0]) * code. The packed products of several j are added as they are; the low field
is read as a signed number and its sign is added back to the high one. That is exact while the low field
holds the sum, |sum| < 2^(b-1), with |code| <= 127:

    4-bit weights: 32 products * 127 * 8   =  32512 < 2^15, b = 16: all 32 before the fields part
    8-bit weights:  8 products * 127 * 128 = 130048 < 2^17, b = 18: 8 before, 4 partial sums after

so a weight of -128 is legal and an activation of -128 is not (the quantiser clamps to +-127).

Halves. A 4-bit lane takes 8-bit weights, when it is built for `halves`, as 16 times two halves: the low
one, unsigned, at even j, the high one at odd j, both with the same code. Bit by bit, a token of 16 weights of
8 bits is one of 32 of 4 bits. The sums over even j and over odd j meet last,

    dot = even + (16 * odd if wide else odd),       16 * 127 * 128 = 260096 < 2^18, b = 19

Tables. A code that stands for another integer than itself (`DecodedDotParams`) is decoded in front of its
multiplier (`multiplicand`); the packed fields are as far apart as the sums of these integers need.

Chains. Product j = 8k + i is the k-th of chain i' of 8; four DSPs add theirs to the one before, each a cycle
later. The second takes its operands a cycle later by a second register of its own, the third and fourth get
theirs 1 and 2 cycles later (`SKEW`). Eight sums meet in a tree; its last adder has the input registers of
the next DSP for a register. The sign of the low field goes to the pre-adder of that DSP.

Power. f * 2^s has 4 + 15 bits, and a DSP takes 18 with their sign. So scale and minimum are multiplied by 4
when s >= 12 (`far`), and the power is f * 2^(s - 2). A product of more than 27 bits, or a sum of more than
48, is accumulated in two parts, of which the lower one is unsigned: 2^16 steps of (2^16 - 1) * 2^16 fit.

Timing, in cycles after slice 0 of `codes`, `low`, `high` and after `wide`: `minimums`, `sum`, `far` are
expected `minimum_delay` later, `scales` `scale_delay`, `power`, `valid`, `first` `power_delay`, and
`accumulators` change `latency` later.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from amaranth import Array, Cat, Const, Module, Mux, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.dsp import DspParams
from streamgen.gateware.arith.pipeline import delayed, registered
from streamgen.gateware.rtl import Shared

K_LANES = 32
CHAIN = 4  # DSPs
SLICE = K_LANES // CHAIN  # products that begin together, one of each chain
SKEW = (0, 0, 1, 2)  # of the slices of a chain
SUM_BITS = 13  # 32 * 127 and its negative
FAR = 2  # places that a scale is shifted, and the power is not
POWER_BITS = 18  # 8 * 2^13 and a sign
LOW_BITS = 16  # of the lower part of what is accumulated in two
LONGEST = 1 << 20  # greatest K: 2^16 steps of 16
DSP_FACTOR, DSP_SUM = 27, 48


@dataclass(frozen=True, kw_only=True)
class DotParams:
    """The parameters of a lane: the width of a weight (4 or 8), one or two weight rows, the group scale, the
    sum.

    halves: 8-bit weights may come in halves, to a lane of 4 bits. scale_bits: 0 builds a lane without group
    scales. accumulator_bits: the caller proves that this width is enough, and that at most LONGEST terms are
    added.
    """

    weight_bits: int
    halves: bool
    rows: int
    scale_bits: int
    minimum: bool
    accumulator_bits: int

    @property
    def multiplicands(self) -> tuple[int, ...]:
        """The integer for each code; None if a code is its own integer."""
        return ()

    @property
    def greatest(self) -> int:
        """The greatest magnitude of a weight that is not a half."""
        return max(map(abs, self.multiplicands), default=1 << self.weight_bits - 1)

    @property
    def multiplicand_bits(self) -> int:
        """Width of a signed multiplicand."""
        plain = self.weight_bits + self.halves
        return max(plain, self.greatest.bit_length() + 1) if self.multiplicands else plain

    @property
    def field_bits(self) -> int:
        """Distance of the two packed weights: the low field holds its sum until the fields part."""
        return self._largest(2 * CHAIN << self.packed_levels - 1).bit_length() + 1

    @property
    def packed_levels(self) -> int:
        """Levels of the adder tree before the packed fields part."""
        return 3 if self.weight_bits == 4 else 1

    @property
    def dot_bits(self) -> int:
        """Width of one signed dot product."""
        return self._largest_dot.bit_length() + 1

    @property
    def scaled_bits(self) -> int:
        """Width of a dot product times its scale."""
        largest = self._largest_dot << FAR
        if self.scale_bits:
            sums = K_LANES * 127 * (self.greatest + self.minimum)
            largest = max(largest, sums << FAR + self.scale_bits - 1)
        return largest.bit_length() + 1

    @property
    def in_two(self) -> bool:
        """Whether terms are accumulated in two parts."""
        return self.scaled_bits > DSP_FACTOR or self.accumulator_bits > DSP_SUM

    @property
    def skew(self) -> tuple[int, ...]:
        """Cycles by which the operands of a slice come later."""
        return SKEW

    @property
    def scale_delay(self) -> int:
        return 1 + CHAIN + 2  # the first register, the chain, two levels of the tree

    @property
    def minimum_delay(self) -> int:
        return self.scale_delay - self.minimum

    @property
    def power_delay(self) -> int:
        return self.scale_delay + 2

    @property
    def latency(self) -> int:
        return self.power_delay + 2

    @property
    def multipliers(self) -> int:
        """DSPs: 32 for the products; for each row one for its scale, one for a minimum, one or two to
        accumulate."""
        return K_LANES + self.rows * (1 + self.minimum + 1 + self.in_two)

    @property
    def resources(self) -> Resources:
        """The adders of the tree, the selection of scales, and the adders that join the parts of a sum."""
        first, second, last = (self._sum_bits(2 * CHAIN << level) for level in range(3))
        if self._parted:
            tree = 4 * first + 2 * (2 * (second + 1) + last + 1)
            kept = 4 * first + 2 * 2 * second + 3
        else:
            tree = 4 * first + 2 * second + last
            kept = 4 * first + 2 * second
        factors = self.rows * (self.scale_bits + FAR) * (1 + self.minimum) if self.scale_bits else 2
        joined = self.rows * (self.accumulator_bits - LOW_BITS) if self.in_two else 0
        signs = K_LANES // 2 * self.rows + 3 if self.halves else 0
        if self.multiplicands:  # two bits of a multiplicand are one LUT
            signs = K_LANES * self.rows * -(-self.multiplicand_bits // 2)
        return Resources(
            lut=tree + factors + joined + signs,
            ff=kept + 1 + self.minimum + 3 * self.halves,
            dsp=self.multipliers,
        )

    @property
    def _parted(self) -> bool:
        """Whether the fields part inside the tree."""
        return self.rows == 2 and self.packed_levels == 1

    @property
    def _largest_dot(self) -> int:
        halves = K_LANES // 2 * 127 * 128 if self.halves else 0
        return max(K_LANES * 127 * self.greatest, halves)

    def _largest(self, products: int) -> int:
        """The greatest magnitude of the sum of that many products."""
        if products == K_LANES:
            return self._largest_dot
        return products * 127 * max(self.greatest, 15 * self.halves)

    def _sum_bits(self, products: int) -> int:
        """Width of the sum of that many products, packed as long as the fields are not split."""
        largest = self._largest(products)
        packed = self.rows == 2 and products <= 2 * CHAIN << self.packed_levels - 1
        return (largest * (1 + (packed << self.field_bits))).bit_length() + 1

    def product(self, place: int) -> DspParams:
        """The DSP of a product, by its place in the chain."""
        bits = self.multiplicand_bits
        packed = self.rows == 2
        return DspParams(
            a_bits=bits,
            b_bits=8,
            p_bits=self._sum_bits(CHAIN),
            d_bits=bits if packed else 0,
            shift=self.field_bits if packed else 0,
            registers=1 if place == 0 else 2,
            cascade=place > 0,
        )

    @property
    def factor_bits(self) -> int:
        """Width of a scale and of a minimum, with FAR."""
        return (self.scale_bits or 2) + FAR

    def scaled(self, row: int) -> DspParams:
        """The DSP of a scale: the second row adds the sign of the first."""
        return DspParams(
            a_bits=self.dot_bits,
            b_bits=self.factor_bits,
            p_bits=self.scaled_bits,
            d_bits=2 if row else 0,
            cascade=self.minimum,
        )

    @property
    def lifted(self) -> DspParams:
        """The DSP of a minimum."""
        return DspParams(a_bits=self.factor_bits, b_bits=SUM_BITS, p_bits=self.scaled_bits)

    @property
    def sums(self) -> tuple[DspParams, ...]:
        """The DSPs that accumulate: one, or those of the lower and the upper part."""
        parts = [(self.scaled_bits, self.accumulator_bits)]
        if self.in_two:
            upper = (max(1, self.scaled_bits - LOW_BITS), self.accumulator_bits - LOW_BITS)
            parts = [(LOW_BITS + 1, DSP_SUM), upper]
        return tuple(
            DspParams(a_bits=bits, b_bits=POWER_BITS, p_bits=total, accumulate=True) for bits, total in parts
        )

    def build(self) -> "Dot":
        return Dot(self)


@dataclass(frozen=True, kw_only=True)
class DecodedDotParams(DotParams):
    """A lane whose codes stand for other integers. table: these integers, indexed by the code as an unsigned
    number."""

    table: tuple[int, ...]

    @property
    def multiplicands(self) -> tuple[int, ...]:
        return self.table


class Dot(wiring.Component):
    """codes, low, high, ... -> accumulators; see the module's docstring for the timing."""

    def __init__(self, params: DotParams) -> None:
        self.params = p = params
        ports: dict[str, Any] = {
            **{f"codes_{k}": In(SLICE * 8) for k in range(CHAIN)},
            **{f"low_{k}": In(SLICE * p.weight_bits) for k in range(CHAIN)},
            "far": In(1),
            "power": In(signed(POWER_BITS)),
            "valid": In(1),
            "first": In(1),
            "accumulators": Out(p.rows * p.accumulator_bits),
        }
        if p.rows == 2:
            ports |= {f"high_{k}": In(SLICE * p.weight_bits) for k in range(CHAIN)}
        if p.halves:
            ports["wide"] = In(1)
        if p.scale_bits:
            ports["scales"] = In(p.rows * p.scale_bits)
        if p.minimum:
            ports |= {"minimums": In(p.rows * p.scale_bits), "sum": In(signed(SUM_BITS))}
        super().__init__(ports)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self.params
        enable = delayed(m, self.valid, 1)
        for row, (dot, sign) in enumerate(self._dots(m, self._chains(m))):
            m.submodules[f"scaled_{row}"] = scaled = Shared(p.scaled(row))
            m.d.comb += [scaled.a.eq(dot), scaled.b.eq(self._factor(m, row))]
            if row:
                m.d.comb += scaled.d.eq(Cat(sign, 0))
            if p.minimum:
                m.submodules[f"lifted_{row}"] = lifted = Shared(p.lifted)
                minimum = self.minimums.word_select(row, p.scale_bits).as_signed()
                m.d.comb += [
                    lifted.a.eq(Mux(self.far, minimum.shift_left(FAR), minimum)),
                    lifted.b.eq(self.sum),
                    scaled.cascade.eq(lifted.p),
                ]
            terms: list[Value] = [scaled.p]
            if p.in_two:
                terms = [scaled.p[:LOW_BITS], scaled.p[LOW_BITS:].as_signed()]
            totals = []
            for part, (params, term) in enumerate(zip(p.sums, terms, strict=True)):
                m.submodules[f"sum_{row}_{part}"] = total = Shared(params)
                m.d.comb += [
                    total.a.eq(term),
                    total.b.eq(self.power),
                    total.first.eq(self.first),
                    total.enable.eq(enable),
                ]
                totals.append(total.p)
            total_sum: Value = totals[0]
            if p.in_two:
                total_sum = self._joined(m, totals[0].as_unsigned() + totals[1].shift_left(LOW_BITS))
            m.d.comb += self.accumulators.word_select(row, p.accumulator_bits).eq(total_sum)
        return m

    def _joined(self, m: Module, total: Value) -> Value:
        """The sum of two parts."""
        return total

    def _factor(self, m: Module, row: int) -> Value:
        """The scale of a row, or 1, shifted when the power is not."""
        p = self.params
        far = delayed(m, self.far, p.minimum)
        if not p.scale_bits:
            return Mux(far, 1 << FAR, 1)
        scale = self.scales.word_select(row, p.scale_bits).as_signed()
        return Mux(far, scale.shift_left(FAR), scale)

    def _chains(self, m: Module) -> list[Value]:
        """The sums of the eight chains; the first four have the even products."""
        p = self.params
        sums: list[Value] = [None] * SLICE
        for k in range(CHAIN):
            codes, low = getattr(self, f"codes_{k}"), getattr(self, f"low_{k}")
            wide = delayed(m, self.wide, SKEW[k]) if p.halves else None
            for i in range(SLICE):
                chain = SLICE // 2 * (i % 2) + i // 2
                m.submodules[f"product_{SLICE * k + i}"] = product = Shared(p.product(k))
                weights = [self._weight(low, i, wide)]
                if p.rows == 2:
                    weights.append(self._weight(getattr(self, f"high_{k}"), i, wide))
                    m.d.comb += product.d.eq(weights[0])
                m.d.comb += [product.a.eq(weights[-1]), product.b.eq(codes.word_select(i, 8).as_signed())]
                if k:
                    m.d.comb += product.cascade.eq(sums[chain])
                sums[chain] = product.p
        return sums

    def _weight(self, weights: Value, place: int, wide: Value | None) -> Value:
        """A signed weight; the even halves of 8-bit ones are unsigned."""
        p = self.params
        weight = weights.word_select(place, p.weight_bits)
        if not p.multiplicands:
            if wide is None:
                return weight.as_signed()
            return Cat(weight, weight[-1] if place % 2 else weight[-1] & ~wide).as_signed()
        decoded = multiplicand(weight, p.multiplicands, p.multiplicand_bits)
        if wide is None:
            return decoded
        return Mux(wide, Cat(weight, weight[-1] & place % 2).as_signed(), decoded)

    def _dots(self, m: Module, sums: list[Value]) -> list[tuple[Value, Value]]:
        """The adder tree, and the carry of each row's low field (for the rows after the first)."""
        p = self.params
        terms: list[Value] = [
            registered(m, a + b, p._sum_bits(2 * CHAIN)) for a, b in zip(sums[::2], sums[1::2], strict=True)
        ]
        if p._parted:
            return self._parted(m, terms)
        bits = p._sum_bits(4 * CHAIN)
        even, odd = (registered(m, a + b, bits) for a, b in zip(terms[::2], terms[1::2], strict=True))
        later: Value = odd
        if p.halves:
            later = Mux(delayed(m, self.wide, p.scale_delay), odd.shift_left(4), odd)
        total = (even + later)[: p._sum_bits(K_LANES)].as_signed()
        if p.rows == 1:
            return [(total, None)]
        low, high = total[: p.field_bits].as_signed(), total[p.field_bits :].as_signed()
        return [(low, None), (high, low[-1])]

    def _parted(self, m: Module, terms: list[Value]) -> list[tuple[Value, Value]]:
        """Four packed sums. Each adder of the high fields takes a sign of the low ones with it."""
        p = self.params
        lows = [term[: p.field_bits].as_signed() for term in terms]
        highs = [term[p.field_bits :].as_signed() for term in terms]
        signs = [low[-1] for low in lows]
        bits = p._sum_bits(4 * CHAIN)
        lows = [registered(m, a + b, bits) for a, b in zip(lows[::2], lows[1::2], strict=True)]
        highs = [
            registered(m, plus(a, b, sign), bits)
            for a, b, sign in zip(highs[::2], highs[1::2], signs[::2], strict=True)
        ]
        kept = registered(m, Cat(signs[1::2]))
        return [(lows[0] + lows[1], None), (plus(highs[0], highs[1], kept[0]), kept[1])]


def multiplicand(code: Value, multiplicands: Sequence[int], bits: int) -> Value:
    """The signed integer of that many bits for a code: a truth table of the bits of the code."""
    return Array([Const(value, signed(bits)) for value in multiplicands])[code].as_signed()


def plus(a: Value, b: Value, carry: Value) -> Value:
    """a + b + carry in one adder."""
    return (Cat(1, a).as_signed() + Cat(carry, b).as_signed())[1:].as_signed()
