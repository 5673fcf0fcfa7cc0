"""Places of a buffer, given to words when they are first written and taken back when they are last read.

A word of a window has a number (in two halves, which windows use in turns); the map holds its place. Places
that were never given come in order; all others come in the order in which they became free.

writing    `give` with a word's `number`: it gets the next free place (only when `available`); `write_place`
           is the place of the word of `number`, in the same cycle, or one later with `looks_up`
reading    `fetch` with a word's number: `fetch_place` is its place a cycle later, free again with `release`

A place is available `delay` cycles after its release. Without `looks_up` all writes of a word are
consecutive.
"""

from dataclasses import dataclass
from typing import Any

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from streamgen.contract.cost import Resources
from streamgen.fifo.queue import Queue, QueueParams

_RAM_STYLE = {"lutram": "distributed", "bram": "block"}


@dataclass(frozen=True, kw_only=True)
class PoolParams:
    """places: of the buffer. words: numbers of both halves. looks_up: whether writes return to a word."""

    places: int
    words: int
    looks_up: bool

    @property
    def place_bits(self) -> int:
        """Width of a place."""
        return max(1, ceil_log2(self.places))

    @property
    def free(self) -> QueueParams:
        """The queue of places that became free."""
        return QueueParams(bits=self.place_bits, depth=max(2, self.places))

    @property
    def map(self) -> QueueParams:
        """Width, depth and memory of one copy of the map: those of a FIFO of this size."""
        kind = QueueParams(bits=self.place_bits, depth=max(8, self.words)).kind
        return QueueParams(
            bits=self.place_bits, depth=max(8, self.words), memory="bram" if kind in _BLOCK else "lutram"
        )

    @property
    def bits(self) -> int:
        """Memory of the map, one copy for each side that reads it, and of the free places."""
        return self.place_bits * (self.words * (1 + self.looks_up) + self.places)

    @property
    def delay(self) -> int:
        """Cycles from a release to the first cycle in which the place can be given."""
        return 1 + self.free.latency

    @property
    def resources(self) -> Resources:
        """Resources, counted from the structure."""
        copies = 1 + self.looks_up
        bits, rows = self.place_bits, self.map.depth
        count = bits_for(self.places)
        logic = Resources(lut=3 * count + 2 * bits + 8, ff=2 * count + 2 * bits + self.free.latency + 4)
        if self.map.kind == "bram":
            table = copies * Resources(lut=0, ff=0, bram=self.map.resources.bram)
        else:
            banks = -(-rows // 64)
            cells = 8 * -(-bits // 14) if rows <= 32 else 8 * banks * -(-bits // 7)
            table = copies * Resources(lut=cells + bits * -(-(banks - 1) // 3) + banks, ff=bits)
        return logic + table + self.free.resources

    def build(self) -> "Pool":
        return Pool(self)


_BLOCK = ("bram", "uram")


class Pool(wiring.Component):
    """See the module."""

    def __init__(self, params: PoolParams) -> None:
        self._params = params
        number, place = ceil_log2(params.words), params.place_bits
        super().__init__(
            {
                "available": Out(1),
                "write": In(1),
                "give": In(1),
                "number": In(number),
                "write_place": Out(place),
                "fetch": In(1),
                "release": In(1),
                "fetch_number": In(number),
                "fetch_place": Out(place),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self._params
        m.submodules.free = free = Queue(p.free)
        attributes = {"ram_style": _RAM_STYLE[p.map.kind]}
        m.submodules.map = table = Memory(shape=p.place_bits, depth=p.words, init=[], attrs=attributes)

        # places that were never given; then those that came free
        unused, fresh = Signal(range(p.places + 1)), Signal(init=1)
        place = Signal(p.place_bits)
        given = Signal()
        m.d.comb += [
            given.eq(self.write & self.give),
            place.eq(Mux(fresh, unused, free.o.payload)),
            free.o.ready.eq(given & ~fresh),
        ]
        with m.If(given & fresh):
            m.d.sync += [unused.eq(unused + 1), fresh.eq(unused != p.places - 1)]

        released, pending = Signal(), Signal()
        m.d.sync += released.eq(self.fetch & self.release)
        m.d.comb += [free.i.valid.eq(released), free.i.payload.eq(self.fetch_place)]
        late = released
        for stage in range(p.free.latency - 1):
            later = Signal(name=f"late{stage}")
            m.d.sync += later.eq(late)
            late = later
        m.d.comb += pending.eq(late)
        left, some = Signal(range(p.places + 1), init=p.places), Signal(init=1)  # some: left != 0
        m.d.comb += self.available.eq(some)
        with m.If(given & ~pending):
            m.d.sync += [left.eq(left - 1), some.eq(left != 1)]
        with m.Elif(pending & ~given):
            m.d.sync += [left.eq(left + 1), some.eq(1)]

        enter = table.write_port()
        m.d.comb += [enter.addr.eq(self.number), enter.data.eq(place), enter.en.eq(given)]
        look = table.read_port()
        m.d.comb += [look.addr.eq(self.fetch_number), look.en.eq(self.fetch), self.fetch_place.eq(look.data)]
        kept = Signal(p.place_bits)
        with m.If(given):
            m.d.sync += kept.eq(place)
        if p.looks_up:
            again = table.read_port()
            gave = Signal()
            m.d.sync += gave.eq(self.give)
            m.d.comb += [
                again.addr.eq(self.number),
                again.en.eq(self.write),
                self.write_place.eq(Mux(gave, kept, again.data)),
            ]
        else:
            m.d.comb += self.write_place.eq(Mux(self.give, place, kept))
        return m
