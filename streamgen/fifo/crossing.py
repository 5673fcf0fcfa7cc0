"""Crossing: a FIFO whose two ends lie on different SLRs; every wire between two SLRs ends in registers.

    o = i, at least `latency` cycles later

A token passes a register at the source, two on every SLR between, one at the target, and comes into a queue
that has room for it: the sender counts the places of the queue that are free. A place that is free is told to
the sender by one bit, which passes as many registers backwards. So no path is longer than a wire between two
registers, and no token ever waits on its way.

As of any queue, `depth` is exact: with the output stopped it takes `depth` tokens. A token offered in cycle t
is taken in t when (pushes before t) - (pops before t - way) < depth, `way` being 2 for each boundary, so a
token a cycle needs a depth of 2 * way + 1 and the latency of the queue.

Registers for the wires between SLRs (Laguna) are asked for by USER_SLL_REG (AMD's UG912). The three kinds of
blocks lie each on an SLR of their own: sender, one relay for each SLR between, receiver. `Wires` are what
crosses without a handshake: numbers that somebody counts or watches.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from amaranth import Cat, Module, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from streamgen.contract.cost import Resources
from streamgen.fifo.queue import Queue, QueueParams

_SLL = {"USER_SLL_REG": "TRUE", "shreg_extract": "no"}


def way_of(boundaries: int) -> int:
    """Cycles that a token, and back a free place, is on its way over so many boundaries."""
    return 2 * boundaries


def fifo(bits: int, depth: int, boundaries: int = 0) -> "QueueParams | CrossingParams":
    """The FIFO of a stream whose ends lie so many boundaries apart."""
    if boundaries:
        return CrossingParams(bits=bits, depth=depth, boundaries=boundaries)
    return QueueParams(bits=bits, depth=depth)


@dataclass(frozen=True, kw_only=True)
class CrossingParams:
    """bits: payload width. depth: tokens it holds, 2 at least. boundaries: that a token crosses."""

    bits: int
    depth: int
    boundaries: int

    def __post_init__(self) -> None:
        if self.boundaries < 1:
            raise ValueError(f"boundaries of a crossing must be at least 1, not {self.boundaries}")
        if self.depth < 2:
            raise ValueError(f"depth of a crossing must be at least 2, not {self.depth}")

    @property
    def way(self) -> int:
        """Cycles that a token, and back a free place, is on its way."""
        return way_of(self.boundaries)

    @property
    def wires(self) -> int:
        """Between two SLRs: payload, valid, a free place."""
        return self.bits + 2

    @property
    def queue(self) -> QueueParams:
        """At the target."""
        return QueueParams(bits=self.bits, depth=self.depth)

    @property
    def latency(self) -> int:
        """Cycles from a token taken by an empty crossing to the token offered."""
        return self.way + self.queue.latency

    @property
    def sender(self) -> "SenderParams":
        return SenderParams(bits=self.bits, depth=self.depth)

    @property
    def relays(self) -> "tuple[RelayParams, ...]":
        """One for each SLR between source and target, in order."""
        return (RelayParams(bits=self.bits),) * (self.boundaries - 1)

    @property
    def receiver(self) -> "ReceiverParams":
        return ReceiverParams(queue=self.queue)

    @property
    def resources(self) -> Resources:
        """Of all blocks."""
        parts = self.sender.resources + self.receiver.resources
        return parts + RelayParams(bits=self.bits).resources * (self.boundaries - 1)

    def build(self) -> "Crossing":
        return Crossing(self)


@dataclass(frozen=True, kw_only=True)
class SenderParams:
    """bits: payload width. depth: places of the queue at the target."""

    bits: int
    depth: int

    @property
    def resources(self) -> Resources:
        count = bits_for(self.depth)
        return Resources(lut=2 * count + 2, ff=self.bits + count + 3)

    def build(self) -> "Sender":
        return Sender(self)


@dataclass(frozen=True, kw_only=True)
class RelayParams:
    """bits: payload width."""

    bits: int

    @property
    def resources(self) -> Resources:
        return Resources(lut=0, ff=2 * (self.bits + 2))

    def build(self) -> "Relay":
        return Relay(self)


@dataclass(frozen=True, kw_only=True)
class ReceiverParams:
    """queue: what holds the tokens."""

    queue: QueueParams

    @property
    def resources(self) -> Resources:
        return self.queue.resources + Resources(lut=1, ff=self.queue.bits + 2)

    def build(self) -> "Receiver":
        return Receiver(self)


def _passed(bits: int) -> wiring.Signature:
    """What two SLRs have between them, seen from the source: a token, with nobody to refuse it, and back a
    bit for each place that has become free."""
    return wiring.Signature({"payload": Out(bits), "valid": Out(1), "freed": In(1)})


class Crossing(wiring.Component):
    """`i` to `o`, all blocks in one; `level` is that of the queue."""

    def __init__(self, params: CrossingParams) -> None:
        self._params = params
        tokens = stream.Signature(params.bits)
        super().__init__({"i": In(tokens), "o": Out(tokens), "level": Out(range(params.depth + 1))})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self._params
        m.submodules.sender = sender = p.sender.build()
        m.submodules.receiver = receiver = p.receiver.build()
        relays = [relay.build() for relay in p.relays]
        m.submodules += relays
        blocks: list[Any] = [sender, *relays, receiver]
        for source, target in pairwise(blocks):
            wiring.connect(m, source.o, target.i)
        wiring.connect(m, wiring.flipped(self.i), sender.i)
        wiring.connect(m, receiver.o, wiring.flipped(self.o))
        m.d.comb += self.level.eq(receiver.level)
        return m


class Sender(wiring.Component):
    """`i` to `o`, as far as there are free places."""

    def __init__(self, params: SenderParams) -> None:
        self._params = params
        super().__init__({"i": In(stream.Signature(params.bits)), "o": Out(_passed(params.bits))})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        depth = self._params.depth
        free, some, freed = Signal(range(depth + 1), init=depth), Signal(init=1), Signal(attrs=_SLL)
        payload, valid = Signal(self._params.bits, reset_less=True, attrs=_SLL), Signal(attrs=_SLL)
        taken = self.i.valid & some
        m.d.comb += [self.i.ready.eq(some), self.o.payload.eq(payload), self.o.valid.eq(valid)]
        m.d.sync += [freed.eq(self.o.freed), payload.eq(self.i.payload), valid.eq(taken)]
        with m.If(taken & ~freed):
            m.d.sync += [free.eq(free - 1), some.eq(free != 1)]
        with m.Elif(freed & ~taken):
            m.d.sync += [free.eq(free + 1), some.eq(1)]
        return m


class Relay(wiring.Component):
    """Two registers for everything, on an SLR that is crossed."""

    def __init__(self, params: RelayParams) -> None:
        self._params = params
        super().__init__({"i": In(_passed(params.bits)), "o": Out(_passed(params.bits))})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        payload: Value = self.i.payload
        valid: Value = self.i.valid
        freed: Value = self.o.freed
        for k in range(2):
            later = Signal(self._params.bits, reset_less=True, attrs=_SLL, name=f"payload_{k}")
            flags = Signal(2, attrs=_SLL, name=f"flags_{k}")
            m.d.sync += [later.eq(payload), flags.eq(Cat(valid, freed))]
            payload, valid, freed = later, flags[0], flags[1]
        m.d.comb += [self.o.payload.eq(payload), self.o.valid.eq(valid), self.i.freed.eq(freed)]
        return m


class Receiver(wiring.Component):
    """`i` to `o` through the queue; `level` is the number of tokens in it."""

    def __init__(self, params: ReceiverParams) -> None:
        self._params = params
        bits, depth = params.queue.bits, params.queue.depth
        super().__init__(
            {"i": In(_passed(bits)), "o": Out(stream.Signature(bits)), "level": Out(range(depth + 1))}
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.queue = queue = Queue(self._params.queue)
        wiring.connect(m, queue.o, wiring.flipped(self.o))
        payload = Signal(self._params.queue.bits, reset_less=True, attrs=_SLL)
        valid, freed = Signal(attrs=_SLL), Signal(attrs=_SLL)
        m.d.sync += [
            payload.eq(self.i.payload),
            valid.eq(self.i.valid),
            freed.eq(self.o.valid & self.o.ready),
        ]
        m.d.comb += [
            queue.i.payload.eq(payload),
            queue.i.valid.eq(valid),
            self.i.freed.eq(freed),
            self.level.eq(queue.level),
        ]
        return m


@dataclass(frozen=True, kw_only=True)
class WiresParams:
    """bits: wires. stages: registers of each: 1 at the source or the target, 2 on an SLR between."""

    bits: int
    stages: int

    @property
    def resources(self) -> Resources:
        return Resources(lut=0, ff=self.bits * self.stages)

    def build(self) -> "Wires":
        return Wires(self)


class Wires(wiring.Component):
    """`o` is what `i` was so many cycles before."""

    def __init__(self, params: WiresParams) -> None:
        self._params = params
        super().__init__({"i": In(params.bits), "o": Out(params.bits)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        now: Value = self.i
        for k in range(self._params.stages):
            later = Signal(self._params.bits, attrs=_SLL, name=f"later_{k}")
            m.d.sync += later.eq(now)
            now = later
        m.d.comb += self.o.eq(now)
        return m
