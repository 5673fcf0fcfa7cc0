"""In-place converter: one buffer in which a place is filled again as soon as its last read is done.

    o = i[: extents of the target]

Tiles come in the order of `source` and leave in the order of `target`, window by window, as in a ping-pong
converter (`layout`, `pingpong`). But the next window fills the places that the current one leaves, and a
window is read as far as it is written. The buffer holds `places` words. There are two ways to know the place
of a word:

ring    Words lie one after the other, in the order in which the source fills them, modulo `places`. A place
        is free when all words before it and its own are done. The only memory is the data. For targets that
        finish words in nearly the order of the source: sliding windows, tiles of rows, re-use.
pool    A word gets any free place when it is first written and leaves it when it is last read. A map holds
        the places of the words of two windows, a queue the free places. For any order, above all transposes.

A write waits, from one cycle after its step, until it has a place. A read waits until its word is complete:
either the window is complete, or the word is below the address at which the source's current iteration of its
outer loops began (`trace.steady_level`). The last read of a window waits for the whole window. In steady
state a window takes max(F, D) cycles, as with two halves: `choice` takes the fewest places for which this
holds. `timing` computes the exact cycles.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Any, Literal

import numpy as np
from amaranth import Const, Module, Mux, Signal, Value
from amaranth.lib import wiring

from streamgen.contract import Bounds
from streamgen.contract.cost import Curve, Resources
from streamgen.converters import timing
from streamgen.converters.banks import BanksParams
from streamgen.converters.layout import QUEUE_DEPTH, LayoutParams, WindowConverter
from streamgen.converters.pool import Pool, PoolParams
from streamgen.converters.trace import edges, rows_touched, steady_level, trace
from streamgen.converters.walker import Walker, WalkerParams
from streamgen.fifo.clocks import Clocks
from streamgen.fifo.curves import KernelSide
from streamgen.itensor import ITensor

_TIMES = 3  # readings of a window to distinguish: first, all between, last


@dataclass(frozen=True, kw_only=True)
class InPlaceParams(LayoutParams):
    """source, target: as in `LayoutParams`. scheme: "ring" or "pool". places: of the buffer. after: of a
    ring, outer loops of the reading window in whose last iteration places come free.

    Also raises ValueError if there are too few places, or if no pool supports the loops.
    """

    scheme: Literal["ring", "pool"]
    places: int
    after: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scheme not in ("ring", "pool"):
            raise ValueError(f"scheme of a converter must be ring or pool, not {self.scheme!r}")
        if not 2 <= self.places < 2 * self.banking.words:
            raise ValueError(
                f"places of a converter must be from 2 to {2 * self.banking.words - 1}, not {self.places}"
            )
        loops = len(self.reader.inner)
        if not 0 <= self.after <= (loops if self.scheme == "ring" else 0):
            raise ValueError(
                f"after must be one of the {loops} loops that read a ring, 0 for a pool; not {self.after}"
            )
        if self.scheme == "pool" and self.writer.edge is None:
            raise ValueError(f"no pool can tell the first write of a word by the loops of {self.source}")
        if self.scheme == "pool" and self.reader.edge is None:
            raise ValueError(f"no pool can tell the last read of a word by the loops of {self.target}")
        self._check(self._greatest)

    @property
    def held_bits(self) -> int:
        """The memory: the buffer, and for a pool the map and the free places."""
        return self.places * self.word_bits + (self.pool.bits if self.scheme == "pool" else 0)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """The address distance of neighbouring words by dimension; words are numbered in the order of the
        source."""
        rows = self.banking.rows
        order = list(dict.fromkeys(loop.dim for loop in self.nests[0].loops if loop.dim is not None))
        order += [dim for dim in range(len(rows)) if dim not in order]
        return tuple(prod(rows[d] for d in order[order.index(dim) + 1 :]) for dim in range(len(rows)))

    @cached_property
    def writer(self) -> WalkerParams:
        """The address generator of the side that fills."""
        walker = self._walk(0, self.banking.clipped)
        edge = edges(walker, "first") if self.scheme == "pool" else None
        return replace(walker, level=steady_level(walker, 0), edge=edge)

    @cached_property
    def reader(self) -> WalkerParams:
        """The address generator of the side that drains."""
        walker = self._walk(1, (False,) * len(self.banking.rows))
        if self.scheme == "pool":
            return replace(walker, edge=edges(walker, "last"))
        level = steady_level(walker, self.after)
        return replace(walker, level=level, after=self.after if level else 0)

    @cached_property
    def pool(self) -> PoolParams:
        """The map and the free places."""
        walker = self.writer
        assert walker.edge is not None
        moving = walker.moves(1 << walker.address_bits)
        comes_back = any(k < max(moving, default=-1) for k in walker.edge.staying) or any(
            j > k for k in walker.edge.crossing for j in moving
        )
        return PoolParams(places=self.places, words=2 * self.banking.words, looks_up=comes_back)

    @cached_property
    def banks(self) -> BanksParams:
        """The memory."""
        late = self.scheme == "pool" and self.pool.looks_up
        return BanksParams(banking=self.banking, atom_bits=self.atom_bits, depth=self.places, late=late)

    @property
    def latency(self) -> int:
        """Cycles from a read to its token on `o`."""
        return (self.scheme == "pool") + self.banks.latency + self.queue.latency

    def trips_between(self, source: ITensor, target: ITensor) -> dict[str, int]:
        """Trip counts for these orders; ValueError also if they do not fit this scheme or its places."""
        trips = super().trips_between(source, target)
        self._check(trips)
        return trips

    def rules(self, trips: Mapping[str, int], *, every: bool = True) -> timing.Rules:
        """The conditions for the accesses of a window. every: include all reads; else, for a window that is
        read repeatedly, only the first reading and the last two."""
        fill = trace(self.writer, _starting(trips, "fill"))
        counts, at = _starting(trips, "read"), None
        if not every and counts and counts[0] > _TIMES and self.reader.inner[0].axis is None:
            again, counts[0] = counts[0], _TIMES
            reads = prod(counts[1:]) * prod(loop.trip for loop in self.reader.inner if loop.fixed)
            at = np.add.outer(np.array([0, again - 2, again - 1]) * reads, np.arange(reads)).reshape(-1)
        read = trace(self.reader, counts)
        completes = np.minimum(np.searchsorted(fill.base, read.address, "right"), len(fill.base)) - 1
        completes[-1] = len(fill.base) - 1
        if self.scheme == "ring":
            wants = np.where(fill.inside, fill.address, -1)
            places = self.banking.words
            frees = np.searchsorted(read.base, np.arange(places), "right") - 1
            delay = 1
        else:
            first = _first_of_each(np.where(fill.inside, fill.address, -1))
            wants = np.full(len(fill.address), -1, np.int64)
            places = len(first)
            wants[first] = np.arange(places)
            frees = np.sort(len(read.address) - 1 - _first_of_each(read.address[::-1]))
            delay = self.pool.delay
        return timing.Rules(wants, frees, places, self.places, completes, delay, at)

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        _, windows, shift, count = _timed(self, tuple(self.trips(bounds).items()))
        write, read = (prod(side.pieces) for side in (self.banking.source, self.banking.target))
        taken = [window.write_steps[write - 1 :: write] for window in windows]
        sent = [window.reads[read - 1 :: read] + self.latency for window in windows]
        return {"i": timing.curve(taken, count, shift), "o": timing.curve(sent, count, shift)}

    def _sides(self, bounds: Bounds) -> Clocks:
        """Complete words let the reader continue; free places let the writer continue."""
        rules, windows, shift, count = _timed(self, tuple(self.trips(bounds).items()))
        times = timing.every(windows, count, shift)
        pieces = prod(self.banking.target.pieces)
        fill, write = KernelSide("fill", times.write_steps), KernelSide("write", times.writes)
        read = KernelSide("read", times.reads)
        send = KernelSide("send", times.reads[pieces - 1 :: pieces] + self.latency)
        tokens = np.arange(len(send.cycles))
        return Clocks(
            (fill, write, read, send),
            {"i": (fill, np.arange(len(fill.cycles))), "o": (send, tokens)},
            (
                *timing.waits(rules, fill, write, read),
                read.to(send, tokens * pieces + pieces - 1, tokens, latency=self.latency),
                # room that a token leaves is known in the cycle after next: the read steps, then it goes
                send.to(read, tokens[:-QUEUE_DEPTH], tokens[QUEUE_DEPTH:] * pieces, latency=2),
            ),
        )

    @property
    def resources(self) -> Resources:
        """Resources, counted from the structure."""
        parts = (self.writer, self.reader, self.banks, self.waiting, self.queue)
        compared = self.writer.address_bits  # with the end of what may be read, or written
        total = Resources(lut=20, ff=9)
        if self.scheme == "pool":
            total += self.pool.resources
        else:
            total += Resources(lut=2 * compared, ff=0)
        if self.writer.level:
            total += Resources(lut=compared // 2, ff=0)
        return sum((part.resources for part in parts), total)

    def build(self) -> "InPlace":
        return InPlace(self)

    @cached_property
    def _greatest(self) -> dict[str, int]:
        return super().trips_between(self.source, self.target)

    def _walk(self, side: int, clipped: tuple[bool, ...]) -> WalkerParams:
        ring = self.scheme == "ring"
        return self.walker(
            (self.banking.source, self.banking.target)[side],
            self.nests[side],
            clipped,
            self.strides,
            halves=not ring,
            modulus=self.places if ring else None,
            holds=True,
        )

    def _check(self, trips: Mapping[str, int]) -> None:
        if self.scheme == "pool":
            fill, read = _starting(trips, "fill"), _starting(trips, "read")
            for axis in range(len(self.banking.rows)):
                if rows_touched(self.writer, fill, axis) != rows_touched(self.reader, read, axis):
                    raise ValueError(
                        f"a pool keeps what is written until it is read; with the trips {dict(trips)} "
                        f"the source fills other words along dimension {axis} than the target reads"
                    )
        if timing.stuck(self.rules(trips, every=False)):
            raise ValueError(f"{self.places} places are too few for the trips {dict(trips)}")


@lru_cache(maxsize=64)
def _timed(
    params: InPlaceParams, trips: tuple[tuple[str, int], ...]
) -> tuple[timing.Rules, list[timing.Window], int, int]:
    """The rules, the first windows, the cycles from window to window after them, and the number of
    windows."""
    rules = params.rules(dict(trips))
    count = prod(_starting(dict(trips), "shared"))
    return rules, *timing.windows(rules, count), count


def _starting(trips: Mapping[str, int], prefix: str) -> list[int]:
    return [trip for name, trip in trips.items() if name.startswith(prefix)]


def _first_of_each(values: np.ndarray) -> np.ndarray:
    """Ascending positions at which a non-negative value occurs first."""
    distinct, position = np.unique(values, return_index=True)
    return np.sort(position[distinct >= 0])


class InPlace(WindowConverter):
    """`i` to `o`."""

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self._params
        writer, reader, banks, queue, one, two, filled, drained, room, asked, sent = self._begin(m)

        placed = Signal()  # the access that writes has its place
        complete = Signal()  # the word of the access that reads is complete
        below: Value = reader.address < writer.base if p.writer.level else Const(0)
        wrote, read = Signal(), Signal()  # the accesses that go
        last = Signal()  # of a token
        with m.If(reader.step):
            m.d.sync += last.eq(reader.token_last)
        m.d.comb += [
            self.i.ready.eq(writer.running & ~writer.hold & writer.token_last),
            writer.hold.eq(writer.strobe & (two | (writer.inside & ~placed))),
            writer.step.eq(writer.running & ~writer.hold & self.i.valid),
            wrote.eq(writer.strobe & ~writer.hold),
            filled.eq(wrote & writer.strobe_last),
            reader.hold.eq(reader.strobe & ~complete),
            reader.step.eq(reader.running & room & ~reader.hold),
            read.eq(reader.strobe & complete),
            drained.eq(read & reader.strobe_last),
            asked.eq(reader.step & reader.token_last),
            sent.eq(self.o.valid & self.o.ready),
            complete.eq(one | (below & ~reader.strobe_last)),
            banks.token.eq(self.i.payload),
            banks.take.eq(writer.step),
            banks.take_last.eq(writer.token_last),
            banks.write.eq(wrote & writer.inside),
            banks.write_way.eq(writer.way),
            queue.i.valid.eq(banks.complete),  # `free` sees to it that the queue is ready
            queue.i.payload.eq(banks.collected),
        ]
        if p.scheme == "ring":
            m.d.comb += [
                placed.eq(self._in_ring(writer, reader, one)),
                banks.write_address.eq(writer.slot),
                banks.fetch.eq(read),
                banks.fetch_last.eq(read & last),
                banks.fetch_address.eq(reader.slot),
                banks.fetch_way.eq(reader.way),
            ]
        else:
            m.submodules.pool = pool = Pool(p.pool)
            m.d.sync += [
                banks.fetch.eq(read),
                banks.fetch_last.eq(read & last),
                banks.fetch_way.eq(reader.way),
            ]
            m.d.comb += [
                placed.eq(pool.available | ~writer.edge),
                pool.write.eq(wrote & writer.inside),
                pool.give.eq(writer.edge),
                pool.number.eq(writer.address),
                banks.write_address.eq(pool.write_place),
                pool.fetch.eq(read),
                pool.release.eq(reader.edge),
                pool.fetch_number.eq(reader.address),
                banks.fetch_address.eq(pool.fetch_place),
            ]
        wiring.connect(m, wiring.flipped(self.o), queue.o)
        return m

    def _in_ring(self, writer: Walker, reader: Walker, one: Signal) -> Value:
        """Whether the word of the current write is less than `places` ahead of the oldest word in use."""
        p = self._params
        done: Value = Const(0)
        if p.reader.level:
            done = Mux(reader.final, reader.base, 0) if p.reader.after else reader.base
        limit = done + Mux(one, p.places - p.banking.words, p.places)
        return writer.address < limit
