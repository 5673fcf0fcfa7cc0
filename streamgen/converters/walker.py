"""Walks a loop nest through the words of a ping-pong memory, an access a cycle, without multiplying.

    address = half * words + sum over loops of index * (step in words), plus the ways' overflows

Loops, outermost first: the shared ones (which only count windows), those of a window, those over the
pieces of a token (of fixed trip). `load` takes the last index of every loop that is not fixed. From the
next cycle on `running` is high and each `step` is an access; `token_last` and `window_last` say that it
is the last of a token or a window. One cycle after the step `strobe` is high and `address`, `way` and
`inside` belong to that access.

Each loop keeps the address at which its present iteration began; when loop k goes on, all loops inside it
begin at that address plus the step of k. Which loop goes on is registered first, then one adder gives the
address. A quantity (address; way and row along one dimension) has registers only for loops that move it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

from amaranth import Const, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from streamgen.cost import Resources

__all__ = ["Axis", "WalkLoop", "Walker", "WalkerParams"]


@dataclass(frozen=True)
class Axis:
    """A dimension: ways of a word, distance of neighbouring words, words of a window, and the row and way
    where the walk starts. clipped: the walk leaves the window."""

    ways: int
    stride: int
    rows: int
    row: int
    way: int
    clipped: bool


@dataclass(frozen=True)
class WalkLoop:
    """A loop: greatest trip, whether it is always that, the axis it moves along (None: none) and how far."""

    trip: int
    fixed: bool
    axis: int | None
    rows: int
    ways: int


@dataclass(frozen=True, kw_only=True)
class WalkerParams:
    """shared: greatest trips of the loops outside the window. inner: loops of the window and of a token,
    the last `pieces` of them those of a token. words: words of a window."""

    shared: tuple[int, ...]
    inner: tuple[WalkLoop, ...]
    pieces: int
    axes: tuple[Axis, ...]
    words: int

    @property
    def address_bits(self) -> int:
        """Bits of an address in both halves."""
        return ceil_log2(2 * self.words)

    @property
    def last_bits(self) -> tuple[int, ...]:
        """Widths of the last indices that `load` takes, the first in the lowest bits of `lasts`."""
        trips = [*self.shared, *(loop.trip for loop in self.inner if not loop.fixed)]
        return tuple(bits_for(trip - 1) for trip in trips)

    @property
    def way_bits(self) -> tuple[int, ...]:
        """Widths of the ways along each axis, the first in the lowest bits of `way`."""
        return tuple(ceil_log2(axis.ways) for axis in self.axes)

    @property
    def resources(self) -> Resources:
        """About a LUT a flip-flop: counters reload, and one adder serves the registers of a quantity."""
        counted = [
            *((trip, False) for trip in self.shared),
            *((loop.trip, loop.fixed) for loop in self.inner),
        ]
        ff = 4 + len(self.inner)
        ff += sum(bits_for(trip - 1) * (1 if fixed else 2) + (1 if fixed else 2) for trip, fixed in counted)
        for loop in self.inner:
            if loop.axis is not None:
                axis = self.axes[loop.axis]
                clip = bits_for(axis.rows) + 2 if axis.clipped else 0
                ff += self.address_bits + clip + (1 + ceil_log2(axis.ways) if loop.ways else 0)
        return Resources(lut=ff + len(counted) + 1, ff=ff)

    def build(self) -> "Walker":
        return Walker(self)


class Walker(wiring.Component):
    """The counters and the address of one side."""

    def __init__(self, params: WalkerParams) -> None:
        self._params = params
        super().__init__(
            {
                "load": In(1),
                "lasts": In(max(1, sum(params.last_bits))),
                "step": In(1),
                "running": Out(1),
                "token_last": Out(1),
                "window_last": Out(1),
                "strobe": Out(1),
                "address": Out(params.address_bits),
                "way": Out(max(1, sum(params.way_bits))),
                "inside": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self._params
        self._count(m)
        loops = [{k: loop for k, loop in enumerate(p.inner) if loop.axis == d} for d in range(len(p.axes))]
        # whether the next step of a loop goes over the end of a word
        self._over = {
            k: Signal(name=f"over{k}", init=axis.way + loop.ways >= axis.ways)
            for axis, moving in zip(p.axes, loops, strict=True)
            for k, loop in moving.items()
            if loop.ways
        }
        inside: Value = Const(1)
        for d, axis in enumerate(p.axes):
            if axis.ways > 1:
                start = Const(axis.way, p.way_bits[d])
                moves = {k: (loop.ways, loop.ways - axis.ways) for k, loop in loops[d].items()}
                way, new, changes = self._track(m, f"way{d}", start, start, moves, axis.way)
                m.d.comb += self.way[sum(p.way_bits[:d]) :][: p.way_bits[d]].eq(way)
                for k, change in changes.items():
                    with m.If(change):
                        m.d.sync += self._over[k].eq(new >= axis.ways - loops[d][k].ways)
            if axis.clipped:
                reach = sum((loop.trip - 1) * (loop.rows + bool(loop.ways)) for loop in loops[d].values())
                start = Const(axis.row, signed(1 + max(bits_for(-axis.row), bits_for(axis.row + reach))))
                moves = {k: (loop.rows, loop.rows + 1) for k, loop in loops[d].items()}
                _, new, changes = self._track(m, f"row{d}", start, start, moves, axis.row)
                within = Signal(name=f"inside{d}", init=0 <= axis.row < axis.rows)
                with m.If(list(changes.values())[-1]):
                    m.d.sync += within.eq((new.as_signed() >= 0) & (new.as_signed() < axis.rows))
                inside = inside & within
        m.d.comb += self.inside.eq(inside)

        half = Signal()
        m.d.sync += half.eq(half ^ self._next)
        begin = sum(axis.row * axis.stride for axis in p.axes)
        ping, pong = (Const((begin + n * p.words) % (1 << p.address_bits), p.address_bits) for n in (0, 1))
        moves = {
            k: (loop.rows * axis.stride, (loop.rows + 1) * axis.stride)
            for axis, moving in zip(p.axes, loops, strict=True)
            for k, loop in moving.items()
        }
        now, start = Mux(half, pong, ping), Mux(half ^ self._next, pong, ping)
        address, _, _ = self._track(m, "address", now, start, moves, ping.value)
        m.d.comb += self.address.eq(address)
        return m

    def _count(self, m: Module) -> None:
        """The counters, and in registers the choice: which inner loop goes on, or that the window ends."""
        p = self._params
        ends = [sum(p.last_bits[: k + 1]) for k in range(len(p.last_bits))]
        fields = [self.lasts[end - bits : end] for bits, end in zip(p.last_bits, ends, strict=True)]
        trips = [*((trip, False) for trip in p.shared), *((loop.trip, loop.fixed) for loop in p.inner)]
        ended: list[Value] = [Const(1)]  # the innermost 0, 1, 2 ... loops are in their last iteration
        self._go = [Signal(name=f"go{k}") for k in range(len(p.inner))]
        self._next = Signal()
        for k, (trip, fixed) in reversed(list(enumerate(trips))):
            rest = ended[-1]
            left = Signal(range(trip), name=f"left{k}", init=trip - 1)
            none = Signal(name=f"none{k}")  # left == 0
            last: Value = Const(trip - 1)
            single: Value = Const(0)
            if not fixed:
                field = fields.pop()
                last = Signal(range(trip), name=f"last{k}")
                single = Signal(name=f"single{k}")
                with m.If(self.load):
                    m.d.sync += [last.eq(field), single.eq(field == 0), left.eq(field), none.eq(field == 0)]
            with m.If(self.step & rest):
                m.d.sync += [left.eq(Mux(none, last, left - 1)), none.eq(Mux(none, single, left == 1))]
            if k >= len(p.shared):
                m.d.sync += self._go[k - len(p.shared)].eq(self.step & rest & ~none)
            ended.append(rest & none)
        m.d.comb += [self.token_last.eq(ended[p.pieces]), self.window_last.eq(ended[len(p.inner)])]
        m.d.sync += [self.strobe.eq(self.step), self._next.eq(self.step & self.window_last)]
        with m.If(self.load):
            m.d.sync += self.running.eq(1)
        with m.Elif(self.step & ended[-1]):
            m.d.sync += self.running.eq(0)

    def _track(
        self,
        m: Module,
        name: str,
        now: Value,
        start: Value,
        moves: Mapping[int, tuple[int, int]],
        init: int,
    ) -> tuple[Value, Value, dict[int, Value]]:
        """A quantity that begins a window at `start` and that loop k moves by moves[k] (without and with
        overflow of the way). Gives its present value (`now` when no loop moves it), its next value, and for
        each moving loop when that value becomes the one at which the loop's present iteration began."""
        loops = sorted(k for k, (plain, _) in moves.items() if plain or k in self._over)
        if not loops:
            return now, now, {}
        width = len(start)
        bases = {k: Signal(width, name=f"{name}_{k}", init=init % (1 << width)) for k in loops}
        new = Signal(width, name=f"{name}_new")
        terms: list[Value] = []
        steps: list[Value] = []
        for k, base in [(-1, start), *bases.items()]:
            inward = min((j for j in loops if j > k), default=len(self._go))
            going = self._go[max(k, 0) : inward] + ([self._next] if k < 0 else [])
            terms.append(Mux(_any(going), base, 0))
        for k in loops:
            plain, carried = (Const(step % (1 << width), width) for step in moves[k])
            step = Mux(self._over[k], carried, plain) if k in self._over else plain
            steps.append(Mux(self._go[k], step, 0))
        m.d.comb += new.eq(reduce(or_, terms) + reduce(or_, steps))
        changes = {k: _any([*self._go[: k + 1], self._next]) for k in loops}
        for k, base in bases.items():
            with m.If(changes[k]):
                m.d.sync += base.eq(new)
        return bases[loops[-1]], new, changes


def _any(bits: list[Signal]) -> Value:
    """Whether one of the bits is set."""
    return reduce(or_, bits, Const(0))
