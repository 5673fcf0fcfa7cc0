"""Control of an accelerator: registers, sequencer, watchdog, status block, soft reset.

A run with `command` 0:

    start -> (reset, if the run before ended in an error that could not be cleared)
          -> phase table walked, all that is awaited complete, or an error
          -> status block written -> (after an error: reset) -> done

A run with `command` 1 is only a reset: the masters are halted and drained, `core_reset` is high for some
cycles, done. When `command` becomes 1 in a run, that ends so too, without a status block. Errors are AXI
responses, a phase table that is none, and the watchdog: `timeout` cycles (0: `DEFAULT_TIMEOUT`) without
`activity`. Every wait is guarded by the same watchdog, so a run always ends, even when the memory is dead:
then the error register says HUNG and the next start tries the reset again.

`core_reset` must reset everything but this component: masters, clients, DMAs, kernels, FIFOs, bus, counters.
What belongs to the core in here, sequencer and status writer, is reset along with it.
"""

from dataclasses import dataclass
from typing import Any

from amaranth import Cat, Module, Mux, ResetInserter, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from streamgen.artifact.manifest import COMMAND_RESET, DEFAULT_TIMEOUT, RunError
from streamgen.artifact.packing import BEAT_BYTES
from streamgen.contract.cost import Resources
from streamgen.platform.control.counters import CounterPort
from streamgen.platform.control.descriptor_bus import BusWord
from streamgen.platform.control.registers import AxiLiteSignature, ControlRegistersParams
from streamgen.platform.control.sequencer import Request, SequencerParams
from streamgen.platform.control.status import StatusWriterParams

SETTLE = 16  # cycles after `halt` before `idle` counts, and around the core's reset
_RESET = 16  # cycles of `core_reset`


@dataclass(frozen=True, kw_only=True)
class ControlParams:
    """pointers: names of the buffer arguments, "table" and "status" among them. targets: nodes on the
    descriptor bus. completions: nodes that are awaited. counters: words of the counters. channels: masters.
    design_hash: 64 bits.
    """

    pointers: tuple[str, ...]
    targets: int
    completions: int
    counters: int
    channels: int
    design_hash: int

    def __post_init__(self) -> None:
        for name in ("table", "status"):
            if name not in self.pointers:
                raise ValueError(f"pointers of a control need {name!r}: {self.pointers}")
        if self.channels < 1:
            raise ValueError(f"channels of a control must be at least 1, not {self.channels}")

    @property
    def registers(self) -> ControlRegistersParams:
        """The registers inside."""
        return ControlRegistersParams(pointers=self.pointers)

    @property
    def sequencer(self) -> SequencerParams:
        """The sequencer inside."""
        return SequencerParams(targets=self.targets, completions=self.completions)

    @property
    def status(self) -> StatusWriterParams:
        """The status writer inside."""
        return StatusWriterParams(counters=self.counters, design_hash=self.design_hash)

    @property
    def resources(self) -> Resources:
        parts = self.registers.resources + self.sequencer.resources + self.status.resources
        return parts + Resources(lut=165, ff=150)

    def build(self) -> "Control":
        return Control(self)


class Control(wiring.Component):
    """See the module's docstring; pointers come out as `pointer_x`."""

    def __init__(self, params: ControlParams) -> None:
        self._params = params
        beat = stream.Signature(8 * BEAT_BYTES)
        super().__init__(
            {
                "s_axi": In(AxiLiteSignature()),
                "interrupt": Out(1),
                **{f"pointer_{name}": Out(64) for name in params.pointers},
                "o_words": Out(stream.Signature(BusWord)),
                "completed": In(params.completions),
                "o_read": Out(stream.Signature(Request)),
                "i_read": In(beat),
                "o_write": Out(stream.Signature(Request)),
                "o_data": Out(beat),
                "write_done": In(1),
                "counters": Out(CounterPort),
                "activity": In(1),
                "axi_error": In(params.channels),
                "idle": In(params.channels),
                "halt": Out(1),
                "core_reset": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        params = self._params
        m.submodules.registers = registers = params.registers.build()
        sequencer, status = params.sequencer.build(), params.status.build()
        m.submodules.sequencer = ResetInserter(self.core_reset)(sequencer)
        m.submodules.status = ResetInserter(self.core_reset)(status)
        for port, inner in (
            (self.s_axi, registers.s_axi),
            (self.o_words, sequencer.o),
            (self.o_read, sequencer.o_read),
            (self.i_read, sequencer.i_read),
            (self.o_write, status.o_write),
            (self.o_data, status.o_data),
        ):
            wiring.connect(m, wiring.flipped(port), inner)

        error = Signal(8)
        detail = Signal(params.channels)
        cycles = Signal(64)
        m.d.comb += [
            self.interrupt.eq(registers.interrupt),
            registers.error.eq(Cat(error, detail)),
            sequencer.table.eq(registers.pointer_table),
            sequencer.tiles.eq(registers.tiles),
            sequencer.position.eq(registers.position),
            sequencer.completed.eq(self.completed),
            status.address.eq(registers.pointer_status),
            status.error.eq(error),
            status.detail.eq(detail),
            status.cycles.eq(cycles),
            status.descriptors.eq(sequencer.sent),
            status.awaited.eq(sequencer.awaited),
            self.counters.shift.eq(status.counters.shift),
            status.counters.word.eq(self.counters.word),
        ]
        for name in params.pointers:
            m.d.comb += getattr(self, f"pointer_{name}").eq(getattr(registers, f"pointer_{name}"))

        watch = Signal()  # restarts the watchdog
        expired = self._watchdog(m, registers.timeout, watch)
        dirty = Signal()  # the core must be reset before it can run
        halt = Signal()  # for a cycle: begin to drain
        timer = Signal(range(max(SETTLE, _RESET) + 1))
        all_idle = Signal()
        m.d.sync += [
            all_idle.eq(self.idle.all()),
            timer.eq(Mux(timer == 0, 0, timer - 1)),
        ]
        failed, stopped = Signal(), Signal()
        m.d.comb += stopped.eq(registers.command == COMMAND_RESET)
        m.d.comb += failed.eq(self.axi_error.any() | sequencer.bad | expired)
        with m.FSM():
            with m.State("IDLE"), m.If(registers.start):
                m.d.sync += [error.eq(RunError.NONE), detail.eq(0), cycles.eq(0)]
                m.next = "BEGIN"
                with m.If(dirty | stopped):
                    m.d.comb += halt.eq(1)
                    m.next = "HALT"
            with m.State("BEGIN"):
                m.d.comb += [sequencer.start.eq(1), self.counters.clear.eq(1), watch.eq(1)]
                m.d.sync += timer.eq(SETTLE)
                m.next = "RUN"
            with m.State("RUN"):
                m.d.comb += self.counters.enable.eq(1)
                m.d.sync += cycles.eq(cycles + 1)
                with m.If(self.axi_error.any()):
                    m.d.sync += [error.eq(RunError.AXI), detail.eq(self.axi_error)]
                with m.Elif(sequencer.bad):
                    m.d.sync += error.eq(RunError.TABLE)
                with m.Elif(expired):
                    m.d.sync += [error.eq(RunError.TIMEOUT), detail.eq(~self.idle)]
                with m.If(failed | (sequencer.finished & (timer == 0))):
                    m.d.sync += dirty.eq(failed)
                    m.next = "STATUS"
                with m.If(stopped):
                    m.d.comb += halt.eq(1)
                    m.d.sync += error.eq(RunError.STOPPED)
                    m.next = "HALT"
            with m.State("STATUS"):
                m.d.comb += [status.start.eq(1), watch.eq(1)]
                m.next = "WRITE"
            with m.State("WRITE"), m.If(self.write_done | expired):
                m.next = "DONE"
                with m.If(~dirty & self.axi_error.any()):
                    m.d.sync += [error.eq(RunError.AXI), detail.eq(self.axi_error)]
                with m.Elif(~dirty & expired):
                    m.d.sync += [error.eq(RunError.TIMEOUT), detail.eq(~self.idle)]
                with m.If(dirty | self.axi_error.any() | expired):
                    m.d.comb += halt.eq(1)
                    m.next = "HALT"
            with m.State("HALT"):
                with m.If((timer == 0) & all_idle):
                    m.d.sync += [timer.eq(_RESET), self.core_reset.eq(1)]
                    m.next = "RESET"
                with m.Elif(expired):
                    m.d.sync += [error.eq(RunError.HUNG), detail.eq(~self.idle)]
                    m.next = "DONE"
            with m.State("RESET"), m.If(timer == 0):
                m.d.sync += [self.core_reset.eq(0), self.halt.eq(0), dirty.eq(0), timer.eq(SETTLE)]
                m.next = "SETTLE"
            with m.State("SETTLE"), m.If(timer == 0):
                m.next = "DONE"
                with m.If((error == RunError.NONE) & ~stopped):
                    m.next = "BEGIN"
            with m.State("DONE"):
                m.d.comb += registers.finish.eq(1)
                m.next = "IDLE"
        with m.If(halt):
            m.d.comb += watch.eq(1)
            m.d.sync += [self.halt.eq(1), dirty.eq(1), timer.eq(SETTLE)]
        return m

    def _watchdog(self, m: Module, timeout: Any, restart: Any) -> Signal:
        """Returns the bit that rises when nothing has moved for `timeout` cycles."""
        count = Signal(32)
        expired = Signal()
        limit = Signal(32)
        moved = Signal()
        m.d.sync += [limit.eq(Mux(timeout == 0, DEFAULT_TIMEOUT, timeout)), moved.eq(self.activity)]
        with m.If(restart | moved):
            m.d.sync += [count.eq(0), expired.eq(0)]
        with m.Else():
            m.d.sync += count.eq(count + 1)
            with m.If(count == limit):
                m.d.sync += expired.eq(1)
        return expired
