"""Write client: a stream of beats goes to memory in legal bursts.

    memory[address + 64*k] = beat number k of i,  k < beats, command after command

An address is sent when all beats of its burst are in the FIFO, so write data never wait for the source
and no client of a channel blocks another. `done` is high for one cycle when the responses of all bursts
of a command have come: then a read sees the data.
"""

from dataclasses import dataclass
from typing import Any

from amaranth import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from streamgen.artifact.packing import ADDRESS_BITS, TRANSFER_BITS
from streamgen.contract.cost import Resources
from streamgen.fifo.queue import Queue, QueueParams
from streamgen.platform.axi import BEAT_BITS, BEAT_SHIFT, MAX_BURST, Burst, Command, WriteBeat, WritePort
from streamgen.platform.read_client import check_burst

_OUTSTANDING = 32  # bursts without response
_ADDRESSES = 4  # bursts collected and not yet granted


@dataclass(frozen=True, kw_only=True)
class WriteClientParams:
    """depth: beats of the FIFO; twice the burst lets one burst gather while another leaves."""

    depth: int = 2 * MAX_BURST
    burst: int = MAX_BURST

    def __post_init__(self) -> None:
        check_burst("write client", self.depth, self.burst)

    @property
    def queue(self) -> QueueParams:
        """The FIFO of beats."""
        return QueueParams(bits=WriteBeat.size, depth=self.depth)

    @property
    def resources(self) -> Resources:
        bursts = QueueParams(bits=Burst.size, depth=_ADDRESSES).resources
        finals = QueueParams(bits=1, depth=_OUTSTANDING).resources
        burst = ceil_log2(self.burst)
        return self.queue.resources + bursts + finals + Resources(lut=98 + 3 * burst, ff=63 + 2 * burst)

    def build(self) -> "WriteClient":
        return WriteClient(self)


class WriteClient(wiring.Component):
    """Commands on `i_command`, beats on `i`, the channel at `memory`, `done` for each command."""

    def __init__(self, params: WriteClientParams) -> None:
        self._params = params
        super().__init__(
            {
                "i_command": In(stream.Signature(Command)),
                "i": In(stream.Signature(BEAT_BITS)),
                "memory": Out(WritePort),
                "done": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        burst = self._params.burst
        m.submodules.beats = beats = Queue(self._params.queue)
        m.submodules.bursts = bursts = Queue(QueueParams(bits=Burst.size, depth=_ADDRESSES))
        m.submodules.finals = finals = Queue(QueueParams(bits=1, depth=_OUTSTANDING))
        memory = self.memory
        m.d.comb += [
            memory.w.payload.eq(beats.o.payload),
            memory.w.valid.eq(beats.o.valid),
            beats.o.ready.eq(memory.w.ready),
            memory.aw.payload.eq(bursts.o.payload),
            memory.aw.valid.eq(bursts.o.valid),
            bursts.o.ready.eq(memory.aw.ready),
        ]

        active = Signal()
        begin = Signal(ADDRESS_BITS - BEAT_SHIFT, reset_less=True)  # beat of the burst that gathers
        left = Signal(TRANSFER_BITS, reset_less=True)
        final = Signal(reset_less=True)  # left == 1
        gathered = Signal(range(burst), reset_less=True)  # beats of the burst before this one
        place = Signal(range(burst), reset_less=True)  # of this beat between multiples of `burst`
        move = Signal()
        ends = Signal()
        command = self.i_command
        entry = data.View(WriteBeat, beats.i.payload)
        request = data.View(Burst, bursts.i.payload)
        m.d.comb += [
            self.i.ready.eq(active & beats.i.ready & bursts.i.ready & finals.i.ready),
            move.eq(self.i.valid & self.i.ready),
            ends.eq(final | (place == burst - 1)),
            entry.data.eq(self.i.payload),
            entry.last.eq(ends),
            beats.i.valid.eq(move),
            request.address.eq(begin << BEAT_SHIFT),
            request.length.eq(gathered),
            bursts.i.valid.eq(move & ends),
            finals.i.payload.eq(final),
            finals.i.valid.eq(move & ends),
            command.ready.eq(~active | (move & final)),
        ]
        with m.If(move):
            m.d.sync += [
                left.eq(left - 1),
                final.eq(left == 2),
                gathered.eq(gathered + 1),
                place.eq(place + 1),
            ]
            with m.If(ends):
                m.d.sync += [
                    begin.eq(begin + gathered + 1),
                    gathered.eq(0),
                    place.eq(0),
                ]
        with m.If(command.ready):
            m.d.sync += [
                active.eq(command.valid),
                begin.eq(command.payload.address[BEAT_SHIFT:]),
                left.eq(command.payload.beats),
                final.eq(command.payload.beats == 1),
                gathered.eq(0),
                place.eq(command.payload.address[BEAT_SHIFT:]),
            ]
        m.d.comb += finals.o.ready.eq(memory.b)
        m.d.sync += self.done.eq(memory.b & finals.o.payload)
        return m
