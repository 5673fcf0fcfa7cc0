"""Walks a loop nest through the words of a converter's memory, an access a cycle, without multiplying.

    address = half * words + sum over loops of index * (step in words), plus the ways' overflows
    slot = (window * words + the same sum) modulo `modulus`

Loops, outermost first: the shared ones (which only count windows), those of a window, those over the
pieces of a token (of fixed trip). `load` takes the last index of every loop that is not fixed. From the
next cycle on `running` is high and each `step` is an access; `token_last` and `window_last` say that it
is the last of a token or a window. One cycle after the step `strobe` is high and `address`, `way` and
`inside` belong to that access.

Each loop keeps the address at which its present iteration began; when loop k goes on, all loops inside it
begin at that address plus the step of k. Which loop goes on is registered first, then one adder gives the
address. A quantity (address; slot; way and row along one dimension) has registers only for loops that move
it.

What in-place converters ask for in addition: with `holds` an access stays where it is, one cycle after its
step, as long as `hold` is high (and no step may come). `base` is the address at which the present iteration
of the outer `level` loops of the window began, and `final` says that the outer `after` of them are in their
last iteration. `edge` is high when an access is the first, or the last, of a window that touches its word.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import Any, Literal

from amaranth import Const, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from streamgen.contract.cost import Resources


@dataclass(frozen=True)
class Axis:
    """A dimension: ways of a word, distance of neighbouring words, words of a window, and the row and way of
    the start of the walk. clipped: the walk leaves the window."""

    ways: int
    stride: int
    rows: int
    row: int
    way: int
    clipped: bool


@dataclass(frozen=True)
class WalkLoop:
    """A loop: its greatest trip, whether the trip is fixed, the axis along which it moves (None: none), and
    the step."""

    trip: int
    fixed: bool
    axis: int | None
    rows: int
    ways: int


@dataclass(frozen=True)
class WordEdge:
    """The condition for an access that touches a word first or last: the loops that stay in a word are at an
    end, and the loops that go through words and on to the next are at the end of a word, or at their own end.
    """

    kind: Literal["first", "last"]
    staying: tuple[int, ...]
    crossing: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class WalkerParams:
    """shared: greatest trips of the loops outside the window. inner: loops of the window and of a token; the
    last `pieces` of them are those of a token. words: of a window. halves: windows use two halves in turns.
    modulus: slots of a ring; None if there is no ring."""

    shared: tuple[int, ...]
    inner: tuple[WalkLoop, ...]
    pieces: int
    axes: tuple[Axis, ...]
    words: int
    halves: bool = True
    modulus: int | None = None
    holds: bool = False
    level: int = 0
    after: int = 0
    edge: WordEdge | None = None

    @property
    def address_bits(self) -> int:
        """Bits of an address in all halves."""
        return max(1, ceil_log2((1 + self.halves) * self.words))

    @property
    def slot_bits(self) -> int:
        """Bits of a slot."""
        return max(1, ceil_log2(self.modulus or 1))

    @property
    def origin(self) -> int:
        """The address of the first access in the first half."""
        return sum(axis.row * axis.stride for axis in self.axes)

    def moves(self, modulus: int) -> dict[int, tuple[int, int]]:
        """For each loop that moves the address: its step, without and with overflow of the way."""
        return {
            k: (loop.rows * axis.stride % modulus, (loop.rows + 1) * axis.stride % modulus)
            for axis_number, axis in enumerate(self.axes)
            for k, loop in enumerate(self.inner)
            if loop.axis == axis_number and (loop.rows or loop.ways)
        }

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
        """About one LUT per flip-flop: counters reload, and one adder serves the registers of a quantity."""
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
        if self.modulus is not None:
            ff += self.slot_bits * (2 + len(self.moves(self.modulus)))
        if self.edge is not None:
            ff += 1 + len(self.edge.crossing)
        if self.edge is not None and self.edge.kind == "first":
            ff += len(self.edge.staying)
        ring = self.slot_bits if self.modulus is not None else 0
        return Resources(lut=ff + len(counted) + 1 + ring, ff=ff + bool(self.after))

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
                **({"hold": In(1), "strobe_last": Out(1)} if params.holds else {}),
                **({"slot": Out(params.slot_bits)} if params.modulus is not None else {}),
                **({"base": Out(params.address_bits)} if params.level else {}),
                **({"final": Out(1)} if params.after else {}),
                **({"edge": Out(1)} if params.edge is not None else {}),
            }
        )

    @contextmanager
    def _going(self, m: Module) -> Iterator[None]:
        """The registers that keep their values while `hold` is high."""
        if not self._params.holds:
            yield
            return
        with m.If(~self.hold):
            yield

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
                way = self._track(m, f"way{d}", start, start, moves, axis.way)
                m.d.comb += self.way[sum(p.way_bits[:d]) :][: p.way_bits[d]].eq(way.value)
                for k, change in way.changes.items():
                    with self._going(m), m.If(change):
                        m.d.sync += self._over[k].eq(way.new >= axis.ways - loops[d][k].ways)
            if axis.clipped:
                reach = sum((loop.trip - 1) * (loop.rows + bool(loop.ways)) for loop in loops[d].values())
                start = Const(axis.row, signed(1 + max(bits_for(-axis.row), bits_for(axis.row + reach))))
                moves = {k: (loop.rows, loop.rows + 1) for k, loop in loops[d].items()}
                row = self._track(m, f"row{d}", start, start, moves, axis.row)
                new = row.new.as_signed()
                within = Signal(name=f"inside{d}", init=0 <= axis.row < axis.rows)
                with self._going(m), m.If(list(row.changes.values())[-1]):
                    m.d.sync += within.eq((new >= 0) & (new < axis.rows))
                inside = inside & within
        m.d.comb += self.inside.eq(inside)

        self._address(m)
        self._marks(m)
        return m

    def _address(self, m: Module) -> None:
        p = self._params
        moves = p.moves(1 << p.address_bits)
        ping = Const(p.origin % (1 << p.address_bits), p.address_bits)
        if p.halves:
            pong = Const((p.origin + p.words) % (1 << p.address_bits), p.address_bits)
            half = Signal()
            with self._going(m):
                m.d.sync += half.eq(half ^ self._next)
            now, start = Mux(half, pong, ping), Mux(half ^ self._next, pong, ping)
        else:
            now = start = ping
        address = self._track(m, "address", now, start, moves, ping.value)
        m.d.comb += self.address.eq(address.value)
        if p.level:
            m.d.comb += self.base.eq(address.bases[max(k for k in address.bases if k < p.level)])
        if p.modulus is not None:
            first, second = p.origin % p.modulus, (p.origin + p.words) % p.modulus
            now = Signal(p.slot_bits, name="slot_now", init=first)
            following = Signal(p.slot_bits, name="slot_following", init=second)
            with self._going(m), m.If(self._next):
                m.d.sync += [
                    now.eq(following),
                    following.eq(_modulo(following + p.words % p.modulus, p.modulus)),
                ]
            slot = self._track(m, "slot", now, following, p.moves(p.modulus), first, p.modulus)
            m.d.comb += self.slot.eq(slot.value)

    def _marks(self, m: Module) -> None:
        """The facts about an access one cycle after its step."""
        p = self._params
        if p.holds:
            m.d.comb += self.strobe_last.eq(self._next)
        if p.after:
            with m.If(self.step):
                m.d.sync += self.final.eq(_all(self._none[: p.after]))
        if p.edge is None:
            return
        marks: list[Value] = []
        if p.edge.kind == "last":
            staying = Signal(name="last_of_staying", init=1)
            with m.If(self.step):
                m.d.sync += staying.eq(_all([self._none[k] for k in p.edge.staying]))
            marks.append(staying)
            for k in p.edge.crossing:
                last = Signal(name=f"last_of_{k}")
                with m.If(self.step):
                    m.d.sync += last.eq(self._none[k])
                marks.append(last | self._over[k])
        else:
            for k in (*p.edge.staying, *p.edge.crossing):
                first = Signal(name=f"first_of_{k}", init=1)
                with self._going(m):
                    with m.If(_any([*self._go[:k], self._next])):
                        m.d.sync += first.eq(1)
                    with m.Elif(self._go[k]):
                        m.d.sync += first.eq(self._over[k] if k in p.edge.crossing else 0)
                marks.append(first)
        m.d.comb += self.edge.eq(_all(marks))

    def _count(self, m: Module) -> None:
        """The counters, and in registers the choice: the inner loop that advances, or the end of
        the window."""
        p = self._params
        ends = [sum(p.last_bits[: k + 1]) for k in range(len(p.last_bits))]
        fields = [self.lasts[end - bits : end] for bits, end in zip(p.last_bits, ends, strict=True)]
        trips = [*((trip, False) for trip in p.shared), *((loop.trip, loop.fixed) for loop in p.inner)]
        ended: list[Value] = [Const(1)]  # the innermost 0, 1, 2 ... loops are in their last iteration
        self._go = [Signal(name=f"go{k}") for k in range(len(p.inner))]
        self._next = Signal()
        self._none = [Signal(name=f"none{k}") for k in range(len(trips))]  # left == 0
        for k, (trip, fixed) in reversed(list(enumerate(trips))):
            rest = ended[-1]
            left = Signal(range(trip), name=f"left{k}", init=trip - 1)
            none = self._none[k]
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
                with self._going(m):
                    m.d.sync += self._go[k - len(p.shared)].eq(self.step & rest & ~none)
            ended.append(rest & none)
        self._none = self._none[len(p.shared) :]  # of the loops of the window
        m.d.comb += [self.token_last.eq(ended[p.pieces]), self.window_last.eq(ended[len(p.inner)])]
        with self._going(m):
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
        modulus: int | None = None,
    ) -> "_Tracked":
        """A quantity that loop k moves by moves[k] (without and with overflow of the way), modulo a number if
        one is given. The current window began at `now`; the next begins at `start`, which without a modulus
        stays the same until then."""
        loops = sorted(k for k, (plain, _) in moves.items() if plain or k in self._over)
        if not loops:
            return _Tracked(now, now, {}, {})
        width = len(start)
        bases = {k: Signal(width, name=f"{name}_{k}", init=init % (1 << width)) for k in loops}
        terms: list[Value] = []
        for k, base in [(-1, now if modulus else start), *bases.items()]:
            inward = min((j for j in loops if j > k), default=len(self._go))
            going = self._go[max(k, 0) : inward] + ([self._next] if k < 0 and modulus is None else [])
            terms.append(Mux(_any(going), base, 0))
        if modulus is not None:
            terms.append(Mux(self._next, start, 0))
        new = Signal(width, name=f"{name}_new")

        def moved(less: int) -> Value:
            """The next value less a number, in one bit more."""
            size = width + 1
            steps = [Mux(_any([self._go[k] for k in loops]), 0, Const(-less % (1 << size), size))]
            for k in loops:
                plain, carried = (Const((step - less) % (1 << size), size) for step in moves[k])
                step = Mux(self._over[k], carried, plain) if k in self._over else plain
                steps.append(Mux(self._go[k], step, 0))
            return (reduce(or_, terms) + reduce(or_, steps))[:size]

        total = moved(0)
        if modulus is None:
            m.d.comb += new.eq(total)
        else:
            reduced = moved(modulus)
            m.d.comb += new.eq(Mux(reduced[-1], total, reduced))
        changes = {k: _any([*self._go[: k + 1], self._next]) for k in loops}
        for k, base in bases.items():
            with self._going(m), m.If(changes[k]):
                m.d.sync += base.eq(new)
        return _Tracked(bases[loops[-1]], new, changes, bases)


@dataclass(frozen=True)
class _Tracked:
    """value: the present one; new: the next one. By loop that moves it: changes: when the next value becomes
    that at which its present iteration began; bases: the latter."""

    value: Value
    new: Value
    changes: dict[int, Value]
    bases: dict[int, Signal]


def _modulo(total: Value, modulus: int) -> Value:
    """A value below two times the modulus, reduced modulo it."""
    return Mux(total >= modulus, total - modulus, total)[: max(1, ceil_log2(modulus))]


def _any(bits: list[Signal]) -> Value:
    """Whether one of the bits is set."""
    return reduce(or_, bits, Const(0))


def _all(bits: Sequence[Value]) -> Value:
    """Whether all of the bits are set."""
    return reduce(and_, bits, Const(1))
