"""The arithmetic of the quantiser: groups of 32 reals in, `lanes` at a time, groups of 8-bit codes out.

    max |x| = 2^b * (1 + s / 4 + ...)        f = 5 + s      code = x / (f * 2^(b - 9))      sum of the codes

A real is f24: sign, biased exponent, 15 bits of fraction. Of the largest one of a group the exponent and two
bits of fraction count, b and s; so codes reach 102 at least and stay below 128. Division is multiplication by
a ratio of 15 bits that does not exceed 1 / f:

    |code| = significand * floor(2^17 / f) * 2^-(23 + b - exponent) to nearest even

The significand has 16 bits, the product 31. A shift of 23 + 9 leaves less than a half. b is sent as it is,
biased, and 0 says that all are zero.

Tokens wait in a small memory until b and s are known: tree of maxima over the lanes (two levels a stage),
maximum over the tokens of the group. Then distance, product, shift, rounding and sign, tree of sums (two
levels a stage). Nothing here can stall: whoever sends a token has room for the group that it belongs to.
"""

from dataclasses import dataclass
from operator import add
from typing import Any

import numpy as np
from amaranth import Array, Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.pipeline import Pipeline
from streamgen.kernels.row_parts import halve, maximum, ring_style
from streamgen.numbers.formats import MX_GROUP, MX_LEAST_FACTOR, MX_MAX_FACTOR

FRACTION = 15
STEP_BITS = 2
SUM_BITS = 13  # 32 * 127 and its negative
RATIOS = [(1 << 17) // f for f in range(MX_LEAST_FACTOR, MX_MAX_FACTOR + 1)]
PRODUCT_BITS, BELOW = 31, 14  # the lowest bits of a product say no more than whether there are any
FAR, PLACES = 8, 4  # a significand so many places below the greatest one still counts, and bits for them
REAL = data.StructLayout({"fraction": FRACTION, "exponent": 8, "sign": 1})


@dataclass(frozen=True, kw_only=True)
class GroupCodesParams:
    """lanes: reals a token, a power of two up to 32. sums: whether the sums are made."""

    lanes: int
    sums: bool

    @property
    def tokens(self) -> int:
        """The number of tokens of a group."""
        return MX_GROUP // self.lanes

    @property
    def tree_stages(self) -> int:
        """Stages of a tree over the lanes."""
        return self.lanes.bit_length() // 2

    @property
    def latency(self) -> int:
        """Cycles from the last token of a group to its codes."""
        return self.tokens + 5 + self.tree_stages * (2 if self.sums else 1)

    @property
    def resources(self) -> Resources:
        gathered = 8 * MX_GROUP - 8 * self.lanes if self.tokens > 1 else 0
        total = Resources(lut=44 + 95 * self.lanes, ff=58 + 85.5 * self.lanes + gathered, dsp=self.lanes)
        if not self.sums:
            return total
        adders = Resources(lut=5 + 8.5 * self.lanes, ff=13 + 3.3 * self.lanes)
        if self.tree_stages > 2:  # the codes wait in LUTs as shift registers
            return total + adders + Resources(lut=8 * self.lanes, ff=0)
        return total + adders + Resources(lut=0, ff=8 * self.lanes * self.tree_stages)

    def build(self) -> "GroupCodes":
        return GroupCodes(self)


class GroupCodes(wiring.Component):
    """valid, elements, last: a token, and whether its group ends the row; o_…: a group, when o_valid."""

    def __init__(self, params: GroupCodesParams) -> None:
        self._params = params
        super().__init__(
            {
                "valid": In(1),
                "elements": In(data.ArrayLayout(REAL, params.lanes)),
                "last": In(1),
                "o_valid": Out(1),
                "o_codes": Out(8 * MX_GROUP),
                "o_greatest": Out(8),
                "o_step": Out(STEP_BITS),
                "o_sum": Out(SUM_BITS if params.sums else 0),
                "o_last": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        lanes, tokens = self._params.lanes, self._params.tokens
        held = tokens + self._params.tree_stages + 1  # tokens in the memory at most
        depth = 1 << (held - 1).bit_length()
        m.submodules.waiting = waiting = Memory(
            shape=unsigned(lanes * REAL.size), depth=depth, init=[], attrs=ring_style(depth)
        )
        write, read = waiting.write_port(), waiting.read_port(domain="comb")
        m.d.comb += [write.en.eq(self.valid), write.data.eq(self.elements)]
        start, greatest, last = self._greatest(m)
        left = Signal(range(tokens))
        active = start | (left != 0)
        with m.If(self.valid):
            m.d.sync += write.addr.eq(write.addr + 1)
        with m.If(active):
            m.d.sync += [left.eq(Mux(start, tokens - 1, left - 1)), read.addr.eq(read.addr + 1)]

        pipe = Pipeline(m, Const(1))
        token = data.View(data.ArrayLayout(REAL, lanes), read.data)
        s = code_stages(pipe, [token[lane] for lane in range(lanes)], greatest, last=last)
        total: Value = Const(0, 0)
        if self._params.sums:
            partial = [s.codes.word_select(lane, 8).as_signed() for lane in range(lanes)]
            for _ in range(self._params.tree_stages):
                partial = halve(halve(partial, add), add)
                names = {f"sum{index}": value for index, value in enumerate(partial)}
                s = pipe.stage(codes=s.codes, greatest=s.greatest, last=s.last, **names)
                partial = [getattr(s, name) for name in names]
            total = partial[0]

        moving = Signal(pipe.depth)
        m.d.sync += moving.eq(Cat(active, moving)[: pipe.depth])
        self._collect(m, moving[-1], s.codes, total)
        m.d.comb += [Cat(self.o_step, self.o_greatest).eq(s.greatest), self.o_last.eq(s.last)]
        return m

    def _greatest(self, m: Module) -> tuple[Value, Value, Value]:
        """(start, greatest, last): a pulse for a complete group; its greatest `_size`, held from then on."""
        lanes, tokens = self._params.lanes, self._params.tokens
        pipe = Pipeline(m, Const(1))
        index = Signal(range(tokens))
        with m.If(self.valid):
            m.d.sync += index.eq(index + 1)  # tokens is a power of two
        s = pipe.stage(
            first=index == 0,
            end=index == tokens - 1,
            last=self.last,
            **{f"max{lane}": size(self.elements[lane]) for lane in range(lanes)},
        )
        partial = [getattr(s, f"max{lane}") for lane in range(lanes)]
        for _ in range(self._params.tree_stages):
            partial = halve(halve(partial, maximum), maximum)
            names = {f"max{index}": value for index, value in enumerate(partial)}
            s = pipe.stage(first=s.first, end=s.end, last=s.last, **names)
            partial = [getattr(s, name) for name in names]
        moving = Signal(pipe.depth)
        m.d.sync += moving.eq(Cat(self.valid, moving)[: pipe.depth])
        start, last = Signal(), Signal()
        so_far, greatest = Signal(8 + STEP_BITS), Signal(8 + STEP_BITS)
        value = Mux(s.first, partial[0], maximum(so_far, partial[0]))
        m.d.sync += start.eq(moving[-1] & s.end)
        with m.If(moving[-1]):
            m.d.sync += so_far.eq(value)
            with m.If(s.end):
                m.d.sync += [greatest.eq(value), last.eq(s.last)]
        return start, greatest, last

    def _collect(self, m: Module, valid: Value, codes: Value, total: Value) -> None:
        """Join the tokens of a group; the last token completes it in its own cycle."""
        tokens, width = self._params.tokens, 8 * self._params.lanes
        if tokens == 1:
            m.d.comb += [self.o_valid.eq(valid), self.o_codes.eq(codes), self.o_sum.eq(total)]
            return
        index = Signal(range(tokens))
        before = Signal(8 * MX_GROUP - width, reset_less=True)
        sum_before = Signal(len(self.o_sum), reset_less=True)
        first = index == 0
        m.d.comb += [
            self.o_valid.eq(valid & (index == tokens - 1)),
            self.o_codes.eq(Cat(before, codes)),
            self.o_sum.eq(Mux(first, 0, sum_before) + total),
        ]
        with m.If(valid):
            m.d.sync += [
                index.eq(index + 1),
                before.eq(Cat(before, codes)[width:]),
                sum_before.eq(self.o_sum),
            ]


def code_stages(pipe: Pipeline, elements: list[Any], greatest: Value, **beside: Value) -> Any:
    """Four stages from elements to their codes. The last one also holds `greatest` and what is `beside`.
    greatest: exponent and step of the greatest element of the group."""
    step, exponent = greatest[:STEP_BITS], greatest[STEP_BITS:]
    lanes = range(len(elements))
    distance = [(exponent - element.exponent)[:8] for element in elements]
    s = pipe.stage(
        zero=Cat((d > FAR) | (element.exponent == 0) for element, d in zip(elements, distance, strict=True)),
        places=Cat(d[:PLACES] for d in distance),
        fraction=Cat(element.fraction for element in elements),
        ratio=Array(RATIOS)[step],
        sign=Cat(element.sign for element in elements),
        greatest=greatest,
        **beside,
    )
    products = [
        (Cat(s.fraction.word_select(lane, FRACTION), Const(1, 1)) * s.ratio)[:PRODUCT_BITS] for lane in lanes
    ]

    def kept() -> dict[str, Value]:
        return {name: getattr(s, name) for name in ("greatest", *beside)}

    s = pipe.stage(product=Cat(products), zero=s.zero, places=s.places, sign=s.sign, **kept())
    magnitudes, ups = [], []
    for lane in lanes:
        product, places = s.product.word_select(lane, PRODUCT_BITS), s.places.word_select(lane, PLACES)
        shifted = (Cat(Const(0, FAR), product[BELOW:]) >> places)[: FAR + 16]  # no code is above 127
        above, half = shifted[FAR + 9 :], shifted[FAR + 8]
        rest = Cat(shifted[: FAR + 8], product[:BELOW])
        magnitudes.append(Mux(s.zero[lane], 0, above))
        ups.append(half & (rest.any() | above[0]) & ~above.all() & ~s.zero[lane])
    s = pipe.stage(magnitude=Cat(magnitudes), up=Cat(ups), sign=s.sign, **kept())
    codes = []
    for lane in lanes:
        magnitude, up, sign = s.magnitude.word_select(lane, 7), s.up[lane], s.sign[lane]
        codes.append(((Cat(magnitude, Const(0, 1)) ^ sign.replicate(8)) + (up ^ sign))[:8])
    return pipe.stage(codes=Cat(codes), **kept())


def group_codes(groups: ndarray) -> tuple[ndarray, ndarray, ndarray]:
    """The codes, float64, of groups of finite f24 values, float64 [..., 32]; exponents b, not biased, and
    steps of the greatest, int32 [...]. Those of groups of zeros mean nothing."""
    mantissas, exponents = np.frexp(np.abs(groups).max(axis=-1))  # mantissas lie in 1/2 ... 1
    b, step = exponents - 1, np.maximum(mantissas * 8, 4).astype(np.int32) - 4
    factors = np.ldexp(np.array(RATIOS, np.float64)[step], -8 - b)
    return np.clip(np.rint(groups * factors[..., None]), -127, 127), b, step


def size(element: Any) -> Value:
    """The exponent of a real, followed by the bits that select a step."""
    return Cat(element.fraction[FRACTION - STEP_BITS :], element.exponent)
