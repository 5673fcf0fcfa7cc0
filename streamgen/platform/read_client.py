"""Read client: a command becomes legal bursts, their beats come out as a stream.

    o = the `beats` beats from `address` on, command after command

Bursts end at multiples of `burst` beats. A burst is asked for only when the prefetch FIFO has room for all
of it beside everything under way (credits), so read data are never held up and no client of a
channel blocks another. Several bursts, also of several commands, are under way at a time: a memory serves
them in their order, so a client with a deep FIFO asks for no more than `under_way` beats at once, and
those who ask behind it wait no longer than these take.
"""

from dataclasses import dataclass
from typing import Any

from amaranth import Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from streamgen.artifact.packing import ADDRESS_BITS, TRANSFER_BITS
from streamgen.contract.cost import Resources
from streamgen.fifo.queue import Queue, QueueParams
from streamgen.platform.axi import BEAT_BITS, BEAT_SHIFT, MAX_BURST, Command, ReadPort


def check_burst(block: str, depth: int, burst: int) -> None:
    """ValueError unless `burst` is legal and the FIFO holds one."""
    if burst < 1 or burst & (burst - 1) or burst > MAX_BURST:
        raise ValueError(f"burst of a {block} must be a power of two from 1 to {MAX_BURST}, not {burst}")
    if depth < burst:
        raise ValueError(f"depth of a {block} must be at least its burst of {burst} beats, not {depth}")


@dataclass(frozen=True, kw_only=True)
class ReadClientParams:
    """depth: beats of the prefetch FIFO. burst: greatest burst in beats. under_way: beats that memory owes at
    most; None: as many as the FIFO has room for.

    A channel of rate r and latency L streams without a pause when depth >= r * L + 2 * burst and
    under_way >= r * L + burst.
    """

    depth: int = 512
    burst: int = MAX_BURST
    under_way: int | None = None

    def __post_init__(self) -> None:
        check_burst("read client", self.depth, self.burst)
        if self.under_way is not None and not self.burst <= self.under_way < self.depth:
            raise ValueError(
                f"under_way of a read client is {self.under_way} beats; it must be its burst, {self.burst}, "
                f"at least and less than its depth, {self.depth}"
            )

    @property
    def queue(self) -> QueueParams:
        """The prefetch FIFO."""
        return QueueParams(bits=BEAT_BITS, depth=self.depth)

    @property
    def latency(self) -> int:
        """Cycles from a command taken to its first beat offered, over what master and memory take."""
        return 3 + self.queue.latency

    @property
    def resources(self) -> Resources:
        burst, room = bits_for(self.burst), bits_for(self.depth)
        owed = 0 if self.under_way is None else bits_for(self.under_way)
        control = Resources(lut=110 + 5 * burst + 1.5 * room + 3 * owed, ff=97 + 2 * burst + room + owed)
        return self.queue.resources + control

    def build(self) -> "ReadClient":
        return ReadClient(self)


class ReadClient(wiring.Component):
    """Commands on `i_command`, beats on `o`, the channel at `memory`."""

    def __init__(self, params: ReadClientParams) -> None:
        self._params = params
        super().__init__(
            {
                "i_command": In(stream.Signature(Command)),
                "o": Out(stream.Signature(BEAT_BITS)),
                "memory": Out(ReadPort),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        depth, burst = self._params.depth, self._params.burst
        m.submodules.queue = queue = Queue(self._params.queue)
        wiring.connect(m, wiring.flipped(self.o), queue.o)
        m.d.comb += [queue.i.payload.eq(self.memory.r.payload), queue.i.valid.eq(self.memory.r.valid)]

        ar = self.memory.ar
        at = Signal(ADDRESS_BITS - BEAT_SHIFT, reset_less=True)  # the beat that comes next
        left = Signal(TRANSFER_BITS, reset_less=True)
        beats = Signal(range(burst + 1), reset_less=True)
        room = Signal(range(depth + 1), init=depth)  # beats that the FIFO can still promise to take
        limit = Signal(range(burst + 1))
        issue = Signal()
        few = self._few_under_way(m, issue, beats)
        page = at[: bits_for(burst - 1)] if burst > 1 else 0
        m.d.comb += limit.eq(burst - page)
        with m.If(ar.ready):
            m.d.sync += ar.valid.eq(0)
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.i_command.ready.eq(1)
                m.d.sync += [
                    at.eq(self.i_command.payload.address[BEAT_SHIFT:]),
                    left.eq(self.i_command.payload.beats),
                ]
                with m.If(self.i_command.valid):
                    m.next = "CUT"
            with m.State("CUT"):
                m.d.sync += beats.eq(Mux(left < limit, left, limit))
                m.next = "ISSUE"
            with m.State("ISSUE"):
                m.d.comb += issue.eq((~ar.valid | ar.ready) & (room >= beats) & few)
                with m.If(issue):
                    m.d.sync += [
                        ar.valid.eq(1),
                        ar.payload.address.eq(at << BEAT_SHIFT),
                        ar.payload.length.eq(beats - 1),
                        at.eq(at + beats),
                        left.eq(left - beats),
                    ]
                    m.next = "CUT"
                    with m.If(left == beats):
                        m.next = "IDLE"
        pop = self.o.valid & self.o.ready
        m.d.sync += room.eq(room - Mux(issue, beats, 0) + pop)
        return m

    def _few_under_way(self, m: Module, issue: Value, beats: Value) -> Value:
        """Whether memory owes so little that a burst may be asked for."""
        most = self._params.under_way
        if most is None:
            return Const(1)
        owed = Signal(range(most + 1))
        m.d.sync += owed.eq(owed + Mux(issue, beats, 0) - self.memory.r.valid)
        return owed <= most - self._params.burst
