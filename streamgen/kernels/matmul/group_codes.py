"""The arithmetic of the quantiser: groups of 32 reals in, `lanes` at a time, groups of 8-bit codes out.

    e = floor(log2(max |x|)) - 6        code = x * 2^-e to nearest even, at most +-127       sum of the codes

A real is f24: sign, biased exponent, 15 bits of fraction. With b the greatest biased exponent of the group,
its significand of 16 bits is shifted right by 9 + b - exponent: by 9 always, then by 0 to 7 places; what is
further down is less than a half. So b stands for e = b - 133, and b = 0 says that all are zero.

Tokens wait in a small memory until b is known: tree of maxima over the lanes (two levels a stage), maximum
over the tokens of the group. Then distance, shift, rounding and sign, tree of sums (two levels a stage).
Nothing here can stall: whoever sends a token has room for the group that it belongs to.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from streamgen.arith.pipeline import Pipeline
from streamgen.cost import Resources
from streamgen.numbers.formats import MX_GROUP

__all__ = ["REAL", "SUM_BITS", "GroupCodes", "GroupCodesParams"]

FRACTION = 15
SUM_BITS = 13  # 32 * 127 and its negative
REAL = data.StructLayout({"fraction": FRACTION, "exponent": 8, "sign": 1})


@dataclass(frozen=True, kw_only=True)
class GroupCodesParams:
    """lanes: reals a token, a power of two up to 32. sums: whether the sums are made."""

    lanes: int
    sums: bool

    @property
    def tokens(self) -> int:
        """Tokens of a group."""
        return MX_GROUP // self.lanes

    @property
    def tree_stages(self) -> int:
        """Stages of a tree over the lanes."""
        return self.lanes.bit_length() // 2

    @property
    def latency(self) -> int:
        """Cycles from the last token of a group to its codes."""
        return self.tokens + 4 + self.tree_stages * (2 if self.sums else 1)

    @property
    def resources(self) -> Resources:
        gathered = 8 * MX_GROUP - 8 * self.lanes if self.tokens > 1 else 0
        total = Resources(lut=40 + 69.5 * self.lanes, ff=58 + 47 * self.lanes + gathered)
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
                "o_sum": Out(SUM_BITS if params.sums else 0),
                "o_last": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        lanes, tokens = self._params.lanes, self._params.tokens
        held = tokens + self._params.tree_stages + 1  # tokens in the memory at most
        depth = 1 << (held - 1).bit_length()
        m.submodules.waiting = waiting = Memory(shape=unsigned(lanes * REAL.size), depth=depth, init=[])
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
        distance = [(greatest - token[lane].exponent)[:8] for lane in range(lanes)]
        s = pipe.stage(
            zero=Cat(d[3:].any() | (token[lane].exponent == 0) for lane, d in enumerate(distance)),
            places=Cat(d[:3] for d in distance),
            fraction=Cat(token[lane].fraction for lane in range(lanes)),
            sign=Cat(token[lane].sign for lane in range(lanes)),
            greatest=greatest,
            last=last,
        )
        magnitudes, ups = [], []
        for lane in range(lanes):
            fraction, places = s.fraction.word_select(lane, FRACTION), s.places.word_select(lane, 3)
            shifted = (Cat(Const(0, 7), fraction, Const(1, 1)) >> places)[: FRACTION + 8]
            kept, half, rest = shifted[FRACTION + 1 :], shifted[FRACTION], shifted[:FRACTION]
            magnitudes.append(Mux(s.zero[lane], 0, kept))
            ups.append(half & (rest.any() | kept[0]) & ~kept.all() & ~s.zero[lane])
        s = pipe.stage(magnitude=Cat(magnitudes), up=Cat(ups), sign=s.sign, greatest=s.greatest, last=s.last)
        codes = []
        for lane in range(lanes):
            magnitude, up, sign = s.magnitude.word_select(lane, 7), s.up[lane], s.sign[lane]
            codes.append(((Cat(magnitude, Const(0, 1)) ^ sign.replicate(8)) + (up ^ sign))[:8])
        s = pipe.stage(codes=Cat(codes), greatest=s.greatest, last=s.last)
        total: Value = Const(0, 0)
        if self._params.sums:
            partial = [s.codes.word_select(lane, 8).as_signed() for lane in range(lanes)]
            for _ in range(self._params.tree_stages):
                partial = _halve(_halve(partial, lambda a, b: a + b), lambda a, b: a + b)
                names = {f"sum{index}": value for index, value in enumerate(partial)}
                s = pipe.stage(codes=s.codes, greatest=s.greatest, last=s.last, **names)
                partial = [getattr(s, name) for name in names]
            total = partial[0]

        moving = Signal(pipe.depth)
        m.d.sync += moving.eq(Cat(active, moving)[: pipe.depth])
        self._collect(m, moving[-1], s.codes, total)
        m.d.comb += [self.o_greatest.eq(s.greatest), self.o_last.eq(s.last)]
        return m

    def _greatest(self, m: Module) -> tuple[Value, Value, Value]:
        """(start, greatest, last): a pulse for a complete group; its greatest exponent, held from then on."""
        lanes, tokens = self._params.lanes, self._params.tokens
        pipe = Pipeline(m, Const(1))
        index = Signal(range(tokens))
        with m.If(self.valid):
            m.d.sync += index.eq(index + 1)  # tokens is a power of two
        s = pipe.stage(
            first=index == 0,
            end=index == tokens - 1,
            last=self.last,
            **{f"max{lane}": self.elements[lane].exponent for lane in range(lanes)},
        )
        partial = [getattr(s, f"max{lane}") for lane in range(lanes)]
        for _ in range(self._params.tree_stages):
            partial = _halve(_halve(partial, _maximum), _maximum)
            names = {f"max{index}": value for index, value in enumerate(partial)}
            s = pipe.stage(first=s.first, end=s.end, last=s.last, **names)
            partial = [getattr(s, name) for name in names]
        moving = Signal(pipe.depth)
        m.d.sync += moving.eq(Cat(self.valid, moving)[: pipe.depth])
        start, so_far, greatest, last = Signal(), Signal(8), Signal(8), Signal()
        value = Mux(s.first, partial[0], _maximum(so_far, partial[0]))
        m.d.sync += start.eq(moving[-1] & s.end)
        with m.If(moving[-1]):
            m.d.sync += so_far.eq(value)
            with m.If(s.end):
                m.d.sync += [greatest.eq(value), last.eq(s.last)]
        return start, greatest, last

    def _collect(self, m: Module, valid: Value, codes: Value, total: Value) -> None:
        """Put the tokens of a group together again; the last one completes it in its own cycle."""
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


def _halve(values: list[Value], join: Callable[[Value, Value], Value]) -> list[Value]:
    """One level of a tree; a single value stays."""
    if len(values) == 1:
        return values
    return [join(a, b) for a, b in zip(values[::2], values[1::2], strict=True)]


def _maximum(a: Value, b: Value) -> Value:
    return Mux(a > b, a, b)
