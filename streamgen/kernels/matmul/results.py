"""The results of a matmul column: the accumulators of a tile become floats, one by one.

    y = f24(f24(accumulator) * r) * 2^(e - 15) [+ b]        accumulator by accumulator, the lowest first

`load` takes all accumulators at once into registers, which are free again `tile_results` cycles later. One
after the other goes into a queue in which the caller must have left room (`returned` marks each result that
leaves). In the queue every result waits for its row scale r, with the bias b if there is one, and for its
exponent e.
"""

from dataclasses import dataclass
from typing import Any

from amaranth import Cat, Module, Mux, Signal, Value, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from streamgen.contract.cost import Resources
from streamgen.fifo.queue import QueueParams
from streamgen.gateware.arith import F24, AddParams, ScaleAccumulatorParams
from streamgen.gateware.arith.pipeline import Pipeline
from streamgen.gateware.rtl import Shared
from streamgen.gateware.stream import RegisterSliceParams

EXPONENT_BITS = 16


@dataclass(frozen=True, kw_only=True)
class ResultsParams:
    """tile_results: accumulators loaded at once, of accumulator_bits. ahead: cycles from credit to load.
    bias: whether one is beside each row scale."""

    tile_results: int
    accumulator_bits: int
    ahead: int
    bias: bool = False

    @property
    def depth(self) -> int:
        """Depth of the queue: the results in flight if every credit returns as soon as possible."""
        return max(32, 1 << (self.ahead + self.taken_after + 2 + self.tile_results - 1).bit_length())

    @property
    def queue(self) -> QueueParams:
        return QueueParams(bits=self.accumulator_bits, depth=self.depth, memory="lutram")

    @property
    def scaler(self) -> ScaleAccumulatorParams:
        return ScaleAccumulatorParams(width=self.accumulator_bits, form=F24, exponent_bits=EXPONENT_BITS)

    @property
    def adder(self) -> AddParams:
        return AddParams(form=F24)

    @property
    def row_bits(self) -> int:
        """Bits of the data of a row: r, or r and b."""
        return F24.bits * (1 + self.bias)

    @property
    def stages(self) -> int:
        """Registers that move together: those of the scaler, and those of the adder."""
        return self.scaler.latency + self.bias * self.adder.latency

    @property
    def output(self) -> RegisterSliceParams:
        return RegisterSliceParams(bits=F24.bits)

    @property
    def taken_after(self) -> int:
        """Cycles from load to the first result taken, with its r and its e."""
        return 2  # the registers, the queue

    @property
    def latency(self) -> int:
        """Cycles from a result taken to y offered."""
        return self.stages + self.output.latency

    @property
    def resources(self) -> Resources:
        held = self.tile_results * self.accumulator_bits
        chosen = -(-self.tile_results // 4) * self.accumulator_bits if self.tile_results > 1 else 0
        scaler = Resources(lut=8 * self.accumulator_bits, ff=7 * self.accumulator_bits + 20, dsp=1)
        mine = Resources(lut=chosen + 16, ff=held + 8 + self.stages)
        if self.bias:  # which waits in shift registers of LUTs until the scaler is done
            mine += self.adder.resources + Resources(lut=F24.bits, ff=F24.bits)
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
                "i_r": In(stream.Signature(unsigned(params.row_bits))),
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

        held = Signal(len(self.accumulators), reset_less=True)
        place, busy = Signal(range(p.tile_results)), Signal()
        with m.If(self.load):
            m.d.sync += [held.eq(self.accumulators), place.eq(0), busy.eq(1)]
        with m.Elif(busy):
            m.d.sync += [place.eq(place + 1), busy.eq(place != p.tile_results - 1)]
        results: list[Value] = [held.word_select(n, p.accumulator_bits) for n in range(p.tile_results)]
        for bit in place:
            results += results[-1:] * (len(results) % 2)
            results = [Mux(bit, b, a) for a, b in zip(results[::2], results[1::2], strict=True)]
        m.d.comb += [queue.i.payload.eq(results[0]), queue.i.valid.eq(busy)]

        valid = Signal(p.stages)  # of what moves together
        m.d.comb += [
            scaler.enable.eq(output.i.ready | ~valid[-1]),
            self.returned.eq(scaler.enable & queue.o.valid & self.i_r.valid & self.i_e.valid),
            *(port.ready.eq(self.returned) for port in (queue.o, self.i_r, self.i_e)),
            scaler.acc.eq(queue.o.payload.as_signed()),
            scaler.scale.eq(self.i_r.payload[: F24.bits]),
            scaler.exponent.eq(self.i_e.payload.as_signed()),
            output.i.payload.eq(scaler.o if not p.bias else self._biased(m, scaler)),
            output.i.valid.eq(valid[-1]),
        ]
        with m.If(scaler.enable):
            m.d.sync += valid.eq(Cat(self.returned, valid))
        return m

    def _biased(self, m: Module, scaler: Any) -> Value:
        """The output of the scaler, and the bias of its row."""
        p = self._params
        m.submodules.adder = adder = Shared(p.adder)
        pipe, bias = Pipeline(m, scaler.enable), self.i_r.payload[F24.bits :]
        for _ in range(p.scaler.latency):
            bias = pipe.stage(bias=bias).bias
        m.d.comb += [adder.enable.eq(scaler.enable), adder.a.eq(scaler.o), adder.b.eq(bias)]
        return adder.o
