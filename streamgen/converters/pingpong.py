"""Ping-pong converter: the same tensor, or the part of it that the target reads, in another order.

    o = i[: extents of the target]

Tiles come in the order of `source` and leave in the order of `target`. The common loops of the two orders are
the shared loops (`infer_converter`); one iteration of them is a window. In a window the source fills one half
of a memory, while the target reads the previous window from the other half. Elements that the target never
reads are dropped; elements that are sent again are written again.

From the descriptor in cycle 0 and with every port ready, with F and D cycles to fill and drain (`layout`),

    window w fills from cycle 1 + w * F                           (F >= D)
                     or cycle 1, then 1 + F + (w - 1) * D         (F < D)
    and drains from cycle 1 + F + w * max(F, D); a read reaches the port `latency` cycles later.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from amaranth import Module, Signal
from amaranth.lib import wiring

from streamgen.contract import Bounds
from streamgen.contract.cost import Curve, Resources
from streamgen.converters.banks import BanksParams
from streamgen.converters.layout import QUEUE_DEPTH, LayoutParams, WindowConverter
from streamgen.converters.walker import WalkerParams
from streamgen.fifo.clocks import Clocks
from streamgen.fifo.curves import KernelSide


@dataclass(frozen=True, kw_only=True)
class PingPongParams(LayoutParams):
    """source, target: as in `LayoutParams`."""

    @property
    def held_bits(self) -> int:
        """Bits of the buffer; `resources` says which memories hold it."""
        return self.converter.bits

    @cached_property
    def banks(self) -> BanksParams:
        """The memory."""
        return BanksParams(banking=self.banking, atom_bits=self.atom_bits, depth=2 * self.banking.words)

    @cached_property
    def writer(self) -> WalkerParams:
        """The address generator of the side that fills."""
        return self.walker(self.banking.source, self.nests[0], self.banking.clipped, self.banking.strides)

    @cached_property
    def reader(self) -> WalkerParams:
        """The address generator of the side that drains."""
        within = (False,) * len(self.banking.rows)
        return self.walker(self.banking.target, self.nests[1], within, self.banking.strides)

    @property
    def latency(self) -> int:
        """Cycles from a read to its token on `o`."""
        return 1 + self.banks.latency + self.queue.latency

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        trips = self.trips(bounds).items()
        windows, fills, reads = (
            prod(trip for name, trip in trips if name.startswith(prefix))
            for prefix in ("shared", "fill", "read")
        )
        write, read = prod(self.banking.source.pieces), prod(self.banking.target.pieces)
        filling, draining = fills * write, reads * read
        if filling >= draining:
            taken = Curve.nest(write, (windows * fills, write))
        elif windows == 1:
            taken = Curve.nest(write, (fills, write))
        else:
            later = (write + filling, ((windows - 1, draining), (fills, write)))
            taken = Curve(((write, ((fills, write),)), later))
        first = filling + read + self.latency
        return {"i": taken, "o": Curve.nest(first, (windows, max(filling, draining)), (reads, read))}

    def _sides(self, bounds: Bounds) -> Clocks:
        """A filled window lets the reader begin; a read window lets the writer begin the next but one."""
        trips = self.trips(bounds).items()
        fills, reads = (
            prod(trip for name, trip in trips if name.startswith(prefix)) for prefix in ("fill", "read")
        )
        taken, sent = (self.curves(bounds)[port].cycles() for port in ("i", "o"))
        pieces = prod(self.banking.target.pieces)
        way = self.latency + pieces - 1
        fill, send = KernelSide("fill", taken), KernelSide("send", sent)
        read = KernelSide("read", sent - way, pieces)  # a token's first access
        tokens, windows = np.arange(len(sent)), np.arange(len(sent) // reads)
        return Clocks(
            (fill, read, send),
            {"i": (fill, np.arange(len(fill.cycles))), "o": (send, tokens)},
            (
                fill.to(read, windows * fills + fills - 1, windows * reads),
                read.to(fill, windows[:-2] * reads + reads - 1, windows[2:] * fills, latency=0, after=pieces),
                read.to(send, tokens, tokens, depth=QUEUE_DEPTH, latency=way),
            ),
        )

    @property
    def resources(self) -> Resources:
        """Resources, counted from the structure."""
        parts = (self.writer, self.reader, self.banks, self.waiting, self.queue)
        return sum((part.resources for part in parts), Resources(lut=8, ff=8))

    def build(self) -> "PingPong":
        return PingPong(self)


class PingPong(WindowConverter):
    """`i` to `o`."""

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        writer, reader, banks, queue, one, two, filled, drained, room, asked, sent = self._begin(m)

        ready, fetch_last = Signal(), Signal()
        m.d.sync += fetch_last.eq(asked)
        m.d.comb += [
            ready.eq(writer.running & ~two),
            self.i.ready.eq(ready & writer.token_last),
            writer.step.eq(ready & self.i.valid),
            filled.eq(writer.step & writer.window_last),
            reader.step.eq(reader.running & one & room),
            drained.eq(reader.step & reader.window_last),
            asked.eq(reader.step & reader.token_last),
            sent.eq(self.o.valid & self.o.ready),
            banks.token.eq(self.i.payload),
            banks.take.eq(writer.step),
            banks.take_last.eq(writer.token_last),
            banks.write.eq(writer.strobe & writer.inside),
            banks.write_address.eq(writer.address),
            banks.write_way.eq(writer.way),
            banks.fetch.eq(reader.strobe),
            banks.fetch_last.eq(fetch_last),
            banks.fetch_address.eq(reader.address),
            banks.fetch_way.eq(reader.way),
            queue.i.valid.eq(banks.complete),  # `free` sees to it that the queue is ready
            queue.i.payload.eq(banks.collected),
        ]
        wiring.connect(m, wiring.flipped(self.o), queue.o)
        return m
