"""Status writer: puts the status block of a run into memory.

The block is that of `artifact.manifest.StatusBlock`: 16 words, then the counters, filled up with zeros to
whole beats. Words are gathered one a cycle and written by a write client (`o_write`, `o_data`).
"""

from dataclasses import dataclass
from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from streamgen.artifact.manifest import STATUS_MAGIC, STATUS_WORDS
from streamgen.artifact.packing import BEAT_BYTES
from streamgen.contract.cost import Resources
from streamgen.gateware.stream import Gather, GatherParams
from streamgen.platform.control.counters import CounterPort
from streamgen.platform.control.sequencer import Request

_BEAT_WORDS = BEAT_BYTES // 4


@dataclass(frozen=True, kw_only=True)
class StatusWriterParams:
    """counters: words behind the first 16. design_hash: 64 bits that name the design."""

    counters: int
    design_hash: int

    def __post_init__(self) -> None:
        if not 0 <= self.counters < 1 << 20:
            raise ValueError(f"counters of a status block must be 0 to 2^20 - 1, not {self.counters}")
        if not 0 <= self.design_hash < 1 << 64:
            raise ValueError(f"design_hash must have 64 bits, not {self.design_hash:#x}")

    @property
    def beats(self) -> int:
        """Beats of the block."""
        return -(-(STATUS_WORDS + self.counters) // _BEAT_WORDS)

    @property
    def resources(self) -> Resources:
        return GatherParams(bits=32, slots=_BEAT_WORDS).resources + Resources(lut=100, ff=42)

    def build(self) -> "StatusWriter":
        return StatusWriter(self)


class StatusWriter(wiring.Component):
    """`start` for a cycle; the values must be steady from then on, the counters stopped."""

    def __init__(self, params: StatusWriterParams) -> None:
        self._params = params
        super().__init__(
            {
                "start": In(1),
                "address": In(64),
                "error": In(8),
                "detail": In(32),
                "cycles": In(64),
                "descriptors": In(32),
                "awaited": In(32),
                "counters": Out(CounterPort),
                "o_write": Out(stream.Signature(Request)),
                "o_data": Out(stream.Signature(8 * BEAT_BYTES)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        params = self._params
        m.submodules.gather = gather = Gather(GatherParams(bits=32, slots=_BEAT_WORDS))
        wiring.connect(m, wiring.flipped(self.o_data), gather.o)
        design_hash = Const(params.design_hash, 64)
        header = [
            Const(STATUS_MAGIC, 32),
            self.error,
            self.detail,
            Const(0, 32),
            design_hash[:32],
            design_hash[32:],
            self.cycles[:32],
            self.cycles[32:],
            self.descriptors,
            self.awaited,
            Const(params.counters, 32),
        ]
        header += [Const(0, 32)] * (STATUS_WORDS - len(header))
        total = params.beats * _BEAT_WORDS
        place = Signal(range(total + 1), init=total)
        word = Signal(32, reset_less=True)
        loaded = Signal()
        load = Signal()
        in_header = place < STATUS_WORDS
        in_counters = ~in_header & (place < STATUS_WORDS + params.counters)
        m.d.comb += [
            load.eq((place != total) & (~loaded | gather.i.ready)),
            gather.i.valid.eq(loaded),
            gather.i.payload.eq(word),
            self.counters.shift.eq(load & in_counters),
            self.o_write.payload.address.eq(self.address),
            self.o_write.payload.beats.eq(params.beats),
        ]
        with m.If(gather.i.ready):
            m.d.sync += loaded.eq(0)
        with m.If(load):
            m.d.sync += [loaded.eq(1), place.eq(place + 1)]
            with m.If(in_header):
                choices = Cat(Cat(entry, Const(0, 32 - len(entry))) for entry in header)
                m.d.sync += word.eq(choices.word_select(place[: (STATUS_WORDS - 1).bit_length()], 32))
            with m.Else():
                m.d.sync += word.eq(Mux(in_counters, self.counters.word, 0))
        with m.If(self.o_write.ready):
            m.d.sync += self.o_write.valid.eq(0)
        with m.If(self.start):
            m.d.sync += [place.eq(0), self.o_write.valid.eq(1)]
        return m
