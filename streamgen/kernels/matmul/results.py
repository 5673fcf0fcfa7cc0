"""The results of a matmul column: the accumulators of a tile, one by one, become floats.

    y = f24(f24(accumulator) * r) * 2^(e - 15)              accumulator by accumulator, the lowest first

`load` takes all accumulators at once into a shift register, which is free again `tile_results` cycles
later. It feeds a queue that the caller must have left room in (`returned` marks each result that leaves).
There every result waits for its row scale r and its exponent e.
"""

from dataclasses import dataclass
from typing import Any

from amaranth import Cat, Module, Signal, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from streamgen.arith import F24, ScaleAccumulatorParams
from streamgen.cost import Resources
from streamgen.fifo.queue import QueueParams
from streamgen.rtl import Shared
from streamgen.stream import RegisterSliceParams

__all__ = ["EXPONENT_BITS", "Results", "ResultsParams"]

EXPONENT_BITS = 16


@dataclass(frozen=True, kw_only=True)
class ResultsParams:
    """tile_results: accumulators loaded at once, of accumulator_bits. ahead: cycles from credit to load."""

    tile_results: int
    accumulator_bits: int
    ahead: int

    @property
    def depth(self) -> int:
        """Of the queue: what is under way when every credit comes back as soon as it can."""
        return max(32, 1 << (self.ahead + self.taken_after + 2 + self.tile_results - 1).bit_length())

    @property
    def queue(self) -> QueueParams:
        return QueueParams(bits=self.accumulator_bits, depth=self.depth, memory="lutram")

    @property
    def scaler(self) -> ScaleAccumulatorParams:
        return ScaleAccumulatorParams(width=self.accumulator_bits, form=F24, exponent_bits=EXPONENT_BITS)

    @property
    def output(self) -> RegisterSliceParams:
        return RegisterSliceParams(bits=F24.bits)

    @property
    def taken_after(self) -> int:
        """Cycles from load to the first result, its r and its e taken."""
        return 2  # the shift register, the queue

    @property
    def latency(self) -> int:
        """Cycles from a result taken to y offered."""
        return self.scaler.latency + self.output.latency

    @property
    def resources(self) -> Resources:
        serial = self.tile_results * self.accumulator_bits
        scaler = Resources(lut=8 * self.accumulator_bits, ff=7 * self.accumulator_bits + 20, dsp=1)
        mine = Resources(lut=serial + 16, ff=serial + 8 + self.scaler.latency)
        return mine + self.queue.resources + scaler + self.output.resources

    def build(self) -> "Results":
        return Results(self)


class Results(wiring.Component):
    """accumulators at `load`, i_r and i_e in; o_y out."""

    def __init__(self, params: ResultsParams) -> None:
        self._params = params
        super().__init__(
            {
                "accumulators": In(params.tile_results * params.accumulator_bits),
                "load": In(1),
                "returned": Out(1),
                "i_r": In(stream.Signature(unsigned(F24.bits))),
                "i_e": In(stream.Signature(unsigned(EXPONENT_BITS))),
                "o_y": Out(stream.Signature(unsigned(F24.bits))),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self._params
        m.submodules.queue = queue = Shared(p.queue)
        m.submodules.scaler = scaler = Shared(p.scaler)
        m.submodules.output = output = Shared(p.output)
        wiring.connect(m, output.o, wiring.flipped(self.o_y))

        serial = Signal(len(self.accumulators), reset_less=True)
        left = Signal(range(p.tile_results + 1))
        m.d.comb += [queue.i.payload.eq(serial[: p.accumulator_bits]), queue.i.valid.eq(left != 0)]
        with m.If(self.load):
            m.d.sync += [serial.eq(self.accumulators), left.eq(p.tile_results)]
        with m.Elif(left != 0):
            m.d.sync += [serial.eq(serial[p.accumulator_bits :]), left.eq(left - 1)]

        valid = Signal(p.scaler.latency)  # of the stages of the scaler, which move together
        m.d.comb += [
            scaler.enable.eq(output.i.ready | ~valid[-1]),
            self.returned.eq(scaler.enable & queue.o.valid & self.i_r.valid & self.i_e.valid),
            *(port.ready.eq(self.returned) for port in (queue.o, self.i_r, self.i_e)),
            scaler.acc.eq(queue.o.payload.as_signed()),
            scaler.scale.eq(self.i_r.payload),
            scaler.exponent.eq(self.i_e.payload.as_signed()),
            output.i.payload.eq(scaler.o),
            output.i.valid.eq(valid[-1]),
        ]
        with m.If(scaler.enable):
            m.d.sync += valid.eq(Cat(self.returned, valid))
        return m
