"""The lane of the matmul column: one token row times two weight rows, 32 products each a cycle.

    dot[n]  = sum over j of code[j] * weight[n][j]                          j = 0..31, n = 0, 1
    term[n] = (f * scale[n] * dot[n] [+ minimum[n] * sum]) * 2^shift        shift = 15 - d, f = 5 + step
    accumulator[n] = (0 if first else accumulator[n]) + term[n]             when valid

A new group of 32 enters every cycle; nothing in a lane ever waits.

Packing. Both weights of a column of the pair share the activation, so one multiplier (27 x 18, a
DSP48E2) forms both products: (weight[1] * 2^s + weight[0]) * code. The packed products of several j are
added as they are; the low field is read as a signed number and its sign is added back to the high one.
That is exact while the low field holds the sum, |sum| < 2^(s-1), with |code| <= 127:

    4-bit weights: 32 products * 127 * 8   =  32512 < 2^15, s = 16: all 32 before the fields part
    8-bit weights:  8 products * 127 * 128 = 130048 < 2^17, s = 18: 8 before, 4 partial sums after

so a weight of -128 is legal and an activation of -128 is not (the quantiser clamps to +-127). The
packed factor has 16 + 5 = 21 or 18 + 9 = 27 bits; the registers that hold it and the code are those at
the inputs of the multiplier.

`sum` has been multiplied by f already (`times_factor`), of which every row would else do the same.

Timing, in cycles after `codes`, `low`, `high`: `minimums`, `sum` are expected `scale_delay` later, `scales`
and `step` `factor_delay` later, `shift`, `valid`, `first` `shift_delay` later, and `accumulators` change
`latency` later.
"""

from dataclasses import dataclass
from typing import Any

from amaranth import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from streamgen.cost import Resources

__all__ = ["FACTOR_BITS", "K_LANES", "SUM_BITS", "Dot", "DotParams", "delayed", "registered", "times_factor"]

K_LANES = 32
FACTOR_BITS = 3  # that a product with f is wider
STEP_BITS = 2
SUM_BITS = 16  # 32 * 127 * 8 and a sign


@dataclass(frozen=True, kw_only=True)
class DotParams:
    """What is built: the width of a weight (4 or 8), one or two weight rows, the group scale, the sum.

    scale_bits: 0 builds a lane without group scales. accumulator_bits: the caller proves that it is enough.
    """

    weight_bits: int
    rows: int
    scale_bits: int
    minimum: bool
    accumulator_bits: int

    @property
    def field_bits(self) -> int:
        """Distance of the two packed weights."""
        return 16 if self.weight_bits == 4 else 18

    @property
    def packed_levels(self) -> int:
        """Levels of the adder tree before the packed fields part."""
        return 5 if self.weight_bits == 4 else 3

    @property
    def dot_bits(self) -> int:
        """Width of one signed dot product."""
        return (K_LANES * 127 << self.weight_bits - 1).bit_length() + 1

    @property
    def scale_delay(self) -> int:
        return 3 + 5 + 1  # three registers of a DSP, the tree, the parting of the fields

    @property
    def factor_delay(self) -> int:
        """A scale is multiplied by f while the products are added; without one the sum is."""
        return self.scale_delay - (self.scale_bits > 0)

    @property
    def shift_delay(self) -> int:
        return self.scale_delay + (2 if self.scale_bits else 1) + self.minimum

    @property
    def latency(self) -> int:
        return self.shift_delay + 2  # the shifter, the accumulator

    @property
    def multipliers(self) -> int:
        """DSPs: 32 for the products, one for each scale and each minimum."""
        return K_LANES + self.rows * (bool(self.scale_bits) + self.minimum)

    @property
    def resources(self) -> Resources:
        """Products and adders by their widths, a shifter and an accumulator for each row."""
        adders = [(K_LANES >> level + 1, self._tree_bits(level)) for level in range(self.packed_levels)]
        packed = sum(count * bits for count, bits in adders)
        partial = adders[-1][0]
        parts = self.rows * (2 * partial - 1) * self.dot_bits
        factor = self.weight_bits + (self.rows - 1) * (self.field_bits + 1)
        scaled = self.dot_bits + FACTOR_BITS + (self.scale_bits + self.minimum if self.scale_bits else 0)
        factor_bits = (self.scale_bits or self.dot_bits) + FACTOR_BITS
        row = Resources(
            lut=2 * scaled + 18 + self.accumulator_bits + scaled * self.minimum + factor_bits,
            ff=(scaled + 15)
            + self.accumulator_bits
            + scaled * (2 * bool(self.scale_bits) + 3 * self.minimum)
            + factor_bits,
        )
        inputs = 8 + self.rows * self.weight_bits + (self.rows - 1)
        pack = K_LANES * (self.rows - 1) * (self.weight_bits + 1)
        products = Resources(lut=pack, ff=K_LANES * (2 * (factor + 8) + inputs), dsp=self.multipliers)
        return products + Resources(lut=packed + parts, ff=packed + parts + 2) + row * self.rows

    def _tree_bits(self, level: int) -> int:
        """Width of the sums of 2^(level + 1) packed products."""
        largest = 127 << self.weight_bits - 1
        if self.rows == 2:
            largest = (largest << self.field_bits) + largest
        return (largest << level + 1).bit_length() + 1

    def build(self) -> "Dot":
        return Dot(self)


class Dot(wiring.Component):
    """codes, low, high, ... -> accumulators; see the module's docstring for the timing."""

    def __init__(self, params: DotParams) -> None:
        self.params = p = params
        ports: dict[str, Any] = {
            "codes": In(K_LANES * 8),
            "low": In(K_LANES * p.weight_bits),
            "step": In(STEP_BITS),
            "shift": In(4),
            "valid": In(1),
            "first": In(1),
            "accumulators": Out(p.rows * p.accumulator_bits),
        }
        if p.rows == 2:
            ports["high"] = In(K_LANES * p.weight_bits)
        if p.scale_bits:
            ports["scales"] = In(p.rows * p.scale_bits)
        if p.minimum:
            ports["minimums"] = In(p.rows * p.scale_bits)
            ports["sum"] = In(signed(SUM_BITS))
        super().__init__(ports)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self.params
        valid, first = delayed(m, self.valid, 1), delayed(m, self.first, 1)
        dots = self._dots(m, self._products(m))
        for row, dot in enumerate(dots):
            if p.scale_bits:
                scale = self.scales.word_select(row, p.scale_bits).as_signed()
                factor = registered(m, times_factor(scale, self.step))
                scaled = registered(m, registered(m, factor * dot))
            else:
                scaled = registered(m, times_factor(dot, self.step))
            if p.minimum:
                minimum = self.minimums.word_select(row, p.scale_bits).as_signed()
                scaled = registered(m, scaled + registered(m, registered(m, minimum * self.sum)))
            term = registered(m, scaled << self.shift)
            accumulator = Signal(signed(p.accumulator_bits), reset_less=True, name=f"accumulator_{row}")
            with m.If(valid):
                m.d.sync += accumulator.eq(term + Mux(first, 0, accumulator))
            m.d.comb += self.accumulators.word_select(row, p.accumulator_bits).eq(accumulator)
        return m

    def _products(self, m: Module) -> list[Value]:
        p = self.params
        # Whole vectors in one register, and the differences lane by lane: a simulator copies the former fast
        # and is slow with wide vectors that are put together from small fields.
        codes, lows = registered(m, self.codes), registered(m, self.low)
        products = []
        for j in range(K_LANES):
            weight: Value = lows.word_select(j, p.weight_bits).as_signed()
            if p.rows == 2:
                extended = Signal(signed(p.field_bits), name=f"low_{j}")
                m.d.comb += extended.eq(weight)
                borrow = self.low.word_select(j, p.weight_bits)[-1]
                high = self.high.word_select(j, p.weight_bits).as_signed()
                weight = Cat(extended, registered(m, (high - borrow)[: p.weight_bits + 1])).as_signed()
            products.append(registered(m, registered(m, weight * codes.word_select(j, 8).as_signed())))
        return products

    def _dots(self, m: Module, terms: list[Value]) -> list[Value]:
        """The adder tree, a level a register; the packed fields part after `packed_levels`."""
        p = self.params
        for level in range(p.packed_levels):
            bits = p._tree_bits(level)
            terms = [registered(m, a + b, bits) for a, b in zip(terms[::2], terms[1::2], strict=True)]
        if p.rows == 2:
            fields = [
                [registered(m, term[: p.field_bits].as_signed()) for term in terms],
                [registered(m, (term >> p.field_bits) + term[p.field_bits - 1]) for term in terms],
            ]
        else:
            fields = [[registered(m, term) for term in terms]]
        dots = []
        for partial in fields:
            while len(partial) > 1:
                partial = [registered(m, a + b) for a, b in zip(partial[::2], partial[1::2], strict=True)]
            dots.append(partial[0][: p.dot_bits].as_signed())
        return dots


def registered(m: Module, value: Value, bits: int | None = None) -> Signal:
    """`value` one cycle later, without reset; `bits` when its signed range is known to be smaller."""
    shape = value.shape() if bits is None else signed(bits)
    register = Signal(shape, reset_less=True, name="register")
    m.d.sync += register.eq(value)
    return register


def times_factor(value: Value, step: Value) -> Value:
    """A signed value times 5 + step in one adder: 4 + 1, 4 + 2, 8 - 1 or 8 times it."""
    two, three = step == 1, step == 3
    large = Mux(step[1], value << 3, value << 2)
    small = Mux(three, 0, Mux(two, value << 1, value))
    return Mux(step == 2, large - small, large + small)[: len(value) + FACTOR_BITS].as_signed()


def delayed(m: Module, value: Value, cycles: int) -> Value:
    """`value` some cycles later: a shift register without reset, which FPGAs keep in LUTs."""
    for _ in range(cycles):
        value = registered(m, value)
    return value
