"""Values of attention: for each row the sum of its context's values, weighted with probabilities.

    E = the greatest e of the positions 0 ... length - 1 of the row's context, attended to or not
    acc[j] = sum over s of p[s] * m[s] * v[s, j] * 2^(15 - d[s])        d = E - e[s]; no term where d > 15
    o[j] = f24(f24(acc[j] * 2^(E - 15)) / sum)

p are integers of `p_bits` and `sum` their sum as f24, both of `streamgen.kernels.attention.softmax`; v are
codes of 8 bits with scales m * 2^e as `attention.row_codes` makes them. acc is an exact integer, so
lanes and tiles cannot matter. A row whose sum is 0 gives zeros, one whose sum is NaN gives NaN. E =
E_NOT_FINITE, a context with a position that is not finite, gives NaN to all of its other rows.

Tiles in, in the order of `attention_rows`: `i_v_scale` (lanes, 1) i24, once for each head, ahead of all else,
since E must be known; for each row and tile `i_p` (1, lanes) u<p_bits> and `i_v` (lanes, dims) i8; for each
row `i_sum` (1) f24, with the last tile. Out: `o` (1, width) f24, for each row its dims. What the padding of
the last tile holds does not matter.

A tile a cycle. A row's sums go through one divider of `width` lanes in dims / width cycles while the next row
is under way; so a row takes the greater of that and its tiles. Scales of the next context come in meanwhile.
Contexts of one row wait for each other some cycles: the third is let in when the first is done.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.fifo.clocks import Clocks
from streamgen.fifo.curves import KernelSide
from streamgen.fifo.queue import QueueParams
from streamgen.gateware.arith import F24, DivideParams, ScaledIntegerParams
from streamgen.gateware.arith.pipeline import delayed, registered
from streamgen.gateware.rtl import Shared
from streamgen.gateware.stream import descriptor_signature
from streamgen.itensor import ITensor
from streamgen.kernels.attention.row_codes import SCALE, SCALE_DTYPE, split_scale
from streamgen.kernels.attention.rows import AttentionRowsParams
from streamgen.kernels.attention.value_factors import FACTOR_BITS, PLACES, ValueFactorsParams
from streamgen.kernels.attention.value_scales import ValueScalesParams
from streamgen.kernels.attention.value_sums import ValueSumsParams
from streamgen.kernels.softmax.rows import has_room
from streamgen.numbers.formats import E_NOT_FINITE

_FACTORS = 32  # tokens of p that have been taken while their values have not
_KEY_NOT_FINITE = E_NOT_FINITE + (1 << 15)
_ONE = F24.bias << F24.fraction_bits


@dataclass(frozen=True, kw_only=True)
class AttentionValuesParams(AttentionRowsParams):
    """p_bits: of a probability, 8 to 16. width: elements of a token of `o`, a divisor of dims."""

    p_bits: int = 12
    width: int = 1

    @property
    def squares(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"i_p", "i_v"} | ({"i_v_scale"} if self.lanes > 1 else set()))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 8 <= self.p_bits <= 16:
            raise ValueError(f"AttentionValues.p_bits is {self.p_bits}; 8 to 16 are allowed")
        if self.width < 1 or self.dims % self.width:
            raise ValueError(
                f"AttentionValues.width is {self.width}; it must be a divisor of dims, {self.dims}"
            )
        if self.sum_bits > 64:
            raise ValueError(
                f"AttentionValues.max_length is {self.max_length}; sums of p_bits = {self.p_bits} then have"
                f" {self.sum_bits} bits, 64 are allowed"
            )

    @property
    def sum_bits(self) -> int:
        """Bits of acc, signed."""
        term = ((1 << self.p_bits) - 1) * 255 * 128 << PLACES
        return (term * self.max_length).bit_length() + 1

    @property
    def row_tokens(self) -> int:
        """Tokens of `o` for a row."""
        return self.dims // self.width

    @property
    def scales(self) -> ValueScalesParams:
        return ValueScalesParams(
            lanes=self.lanes,
            max_tiles=self.max_tiles,
            rows_bits=self.max_rows.bit_length(),
            length_bits=self.length_bits,
        )

    @property
    def factors(self) -> ValueFactorsParams:
        return ValueFactorsParams(lanes=self.lanes, p_bits=self.p_bits)

    @property
    def sums(self) -> ValueSumsParams:
        return ValueSumsParams(dims=self.dims, factors=self.factors, sum_bits=self.sum_bits)

    @property
    def convert(self) -> ScaledIntegerParams:
        """The conversion of acc * 2^(E - 15) to f24."""
        return ScaledIntegerParams(width=self.sum_bits, form=F24, exponent_bits=17)

    @property
    def divide(self) -> DivideParams:
        return DivideParams(form=F24)

    @property
    def factor_queue(self) -> QueueParams:
        """The queue of factors of tiles whose values are not there yet, with the end of the row and E."""
        bits = self.lanes * (FACTOR_BITS + self.factors.far_bits) + 1 + 16
        return QueueParams(bits=bits, depth=_FACTORS, memory="lutram")

    @property
    def pipe(self) -> int:
        """Cycles from the last tile of a row taken to its first result in the queue."""
        return self.sums.latency + 1 + self.convert.latency + self.divide.latency

    @property
    def queue(self) -> QueueParams:
        """The queue of results, with room for a row and for all results in flight at the highest rate."""
        n, ages = self.row_tokens, range(self.row_tokens, self.pipe + 3 + self.row_tokens, self.row_tokens)
        under_way = sum(min(n, n - age + self.pipe + 3) for age in ages)
        needed = n + under_way
        depth = 32 if needed <= 32 else 64 * -(-needed // 64)
        return QueueParams(bits=self.width * F24.bits, depth=depth, memory="lutram")

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {
            "i_p": self.positions(bounds, f"u{self.p_bits}"),
            "i_sum": ITensor((1,), "f24", (self.rows(bounds),), (1,), ((0,),)),
            "i_v": self.tiles_of_rows(bounds, "i8", self.dims),
            "i_v_scale": self.tiles_of_heads(bounds, SCALE_DTYPE, 1),
        }

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"o": self.queries(bounds, "f24", self.dims, self.width)}

    def descriptor_fields(self) -> tuple[Field, ...]:
        return self.scales.descriptor_fields()

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        self._check(bounds)
        return {
            "contexts": bounds["heads"],
            "rows": bounds["t"] * self.group,
            "length": bounds["length"],
        }

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        """o float32 [t, query heads * dims]."""
        heads, length = bounds["heads"], bounds["length"]
        shape = self._shape(bounds)
        p = inputs["i_p"].reshape(heads, -1, inputs["i_p"].shape[1])[:, :, :length].astype(np.int64)
        v = inputs["i_v"].reshape(shape["tiles"])[:length].astype(np.int64)
        m, e = (part[:length].astype(np.int64) for part in split_scale(inputs["i_v_scale"]))
        greatest = e.max(axis=0)
        distance = greatest - e
        factor = np.where(distance > PLACES, 0, m << np.maximum(PLACES - distance, 0))
        acc = np.matmul(p, (v * factor[:, :, None]).swapaxes(0, 1))  # [heads, rows of a head, dims]
        of_head = greatest[:, None, None]
        f = self.convert.golden(acc, of_head - PLACES, of_head == E_NOT_FINITE)
        total = inputs["i_sum"].astype(np.float64).reshape(heads, -1, 1)
        means = np.where(total == 0, 0.0, self.divide.golden(f, total))
        rows = np.moveaxis(means.reshape(heads, bounds["t"], self.group, self.dims), 0, 1)
        return {"o": rows.reshape(bounds["t"], -1).astype(np.float32)}

    def cost(self, bounds: Bounds) -> Cost:
        curves = self.curves(bounds)
        ports = {**self.inputs(bounds), **self.outputs(bounds)}
        busiest = curves[max(ports, key=lambda port: ports[port].token_count)].cycles()
        ii = float(busiest[-1] - busiest[0]) / (len(busiest) - 1) if len(busiest) > 1 else 1.0
        out = curves["o"].cycles()
        return Cost(resources=self._resources, ii=ii, latency=int(out[0]) - 1, cycles=int(out[-1]) + 1)

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        """One piece for each context: its scales, then its rows."""
        tiles, rows = self.tiles(bounds), bounds["t"] * self.group
        period = max(tiles, self.row_tokens)
        complete = tiles + self.scales.latency  # from the first scale taken to the first p taken
        scales, begins = [1], [1 + complete]
        for context in range(1, bounds["heads"]):
            filled = scales[-1] + tiles
            if context > 1:  # the last tile of p before the last context frees a bank
                filled = max(filled, begins[-2] + (rows - 1) * period + tiles)
            scales.append(filled)
            begins.append(max(begins[-1] + rows * period, filled + complete))
        to_values = self.factors.latency + 2
        last = to_values + tiles - 1

        def pieces(delay: int, count: int) -> Curve:
            return Curve(tuple((begin + delay, ((rows, period), (count, 1))) for begin in begins))

        return {
            "i_p": pieces(0, tiles),
            "i_sum": pieces(last, 1),
            "i_v": pieces(to_values, tiles),
            "i_v_scale": Curve(tuple((begin, ((tiles, 1),)) for begin in scales)),
            "o": pieces(last + self.pipe + 1, self.row_tokens),
        }

    def clocks(self, bounds: Bounds) -> Clocks:
        """Probabilities are taken ahead of their values; the last values of a row wait for its sum."""
        heads, tiles, rows = bounds["heads"], self.tiles(bounds), bounds["t"] * self.group
        curves = {name: curve.cycles() for name, curve in self.curves(bounds).items()}
        every, scale = np.arange(heads * rows * tiles), np.arange(heads * tiles)
        context, row = np.arange(heads), np.arange(heads * rows)
        row_ends = (row + 1) * tiles - 1
        scales, shares = KernelSide("scales", curves["i_v_scale"]), KernelSide("p", curves["i_p"], None)
        sums, out = KernelSide("v", curves["i_v"], None), KernelSide("o", curves["o"])
        ahead = _FACTORS - 1
        gone = (row + 1) * self.row_tokens - self.queue.depth - 1  # result that leaves a place for the row
        waits = gone >= 0
        return Clocks(
            (scales, shares, sums, out),
            {
                "i_p": (shares, every),
                "i_sum": (sums, row_ends),
                "i_v": (sums, every),
                "i_v_scale": (scales, scale),
                "o": (out, np.arange(len(out.cycles))),
            },
            (
                scales.to(
                    shares,
                    context * tiles + tiles - 1,
                    context * rows * tiles,
                    latency=1 + self.scales.latency,
                ),
                shares.to(scales, (context[:-2] + 1) * rows * tiles - 1, context[2:] * tiles),
                shares.to(sums, every, every, latency=self.factors.latency + 2),
                sums.to(shares, every[:-ahead], every[ahead:], latency=0),
                sums.to(out, row_ends, row * self.row_tokens, latency=self.pipe + 1),
                out.to(sums, gone[waits], row_ends[waits], latency=0),
            ),
        )

    def build(self) -> "AttentionValues":
        return AttentionValues(self)

    @property
    def _resources(self) -> Resources:
        """Fitted to synthesis: the units with their own Params, the register that holds sums, control."""
        handed = self.dims * self.sum_bits
        results = self.width * (self.convert.resources + self.divide.resources)
        own = Resources(lut=handed + 150 + 3 * self.length_bits, ff=handed + 190 + 3 * self.length_bits)
        return (
            self.scales.resources
            + self.factors.resources
            + self.factor_queue.resources
            + self.sums.resources
            + self.queue.resources
            + results
            + own
        )


class AttentionValues(wiring.Component):
    """The hardware of an AttentionValuesParams."""

    def __init__(self, params: AttentionValuesParams) -> None:
        self._params = params
        lanes = params.lanes
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i_p": In(stream.Signature(params.p_bits * lanes)),
                "i_sum": In(stream.Signature(F24.bits)),
                "i_v": In(stream.Signature(8 * params.dims * lanes)),
                "i_v_scale": In(stream.Signature(SCALE.size * lanes)),
                "o": Out(stream.Signature(F24.bits * params.width)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self._params
        m.submodules.waiting = waiting = Shared(p.factor_queue)
        self._multiply_probabilities(m, waiting)

        # Values meet their factors; the last tile of a row waits for the sum and for room for the results.
        layout = data.StructLayout(
            {
                "factors": p.lanes * FACTOR_BITS,
                "far": p.lanes * p.factors.far_bits,
                "last": 1,
                "key": 16,
            }
        )
        token = data.View(layout, waiting.o.payload)
        step, ends, first = Signal(), Signal(), Signal(init=1)
        may_end = self.i_sum.valid & self._room(m, ends) & self._pause(m, ends)
        m.d.comb += [
            step.eq(waiting.o.valid & self.i_v.valid & (~token.last | may_end)),
            ends.eq(step & token.last),
            waiting.o.ready.eq(step),
            self.i_v.ready.eq(step),
            self.i_sum.ready.eq(ends),
        ]
        with m.If(step):
            m.d.sync += first.eq(token.last)
        m.submodules.sums = sums = p.sums.build()
        m.d.comb += [
            sums.factors.eq(token.factors),
            sums.far.eq(token.far),
            sums.v.eq(self.i_v.payload),
            sums.first.eq(first),
            sums.valid.eq(step),
        ]
        complete = Signal(p.sums.latency)
        m.d.sync += complete.eq(Cat(ends, complete))
        of_row = delayed(m, Cat(token.key, self.i_sum.payload), p.sums.latency)
        self._divide(m, complete[-1], sums.sums, of_row[:16], of_row[16:])
        return m

    def _multiply_probabilities(self, m: Module, waiting: Any) -> None:
        """Take contexts and the probabilities of their rows; their factors go to the queue."""
        p = self._params
        m.submodules.scales = scales = p.scales.build()
        wiring.connect(m, wiring.flipped(self.i_descriptor), scales.i_descriptor)
        m.d.comb += [
            scales.i.payload.eq(self.i_v_scale.payload),
            scales.i.valid.eq(self.i_v_scale.valid),
            self.i_v_scale.ready.eq(scales.i.ready),
        ]
        key = Signal(16, reset_less=True)
        rows = Signal(len(scales.o.payload.rows), reset_less=True)  # of the context from this one on
        length, left = (Signal(p.length_bits, reset_less=True, name=name) for name in ("length", "left"))
        active, begins, last, last_row = Signal(), Signal(), Signal(), Signal()
        step = Signal()
        room = has_room(m, step, waiting.o.valid & waiting.o.ready, _FACTORS)
        paced = self._pause(m, step & begins)
        m.d.comb += [
            self.i_p.ready.eq(active & room & (~begins | paced)),
            step.eq(self.i_p.ready & self.i_p.valid),
            scales.read.eq(step),
            scales.again.eq(last),
            scales.finished.eq(step & last & last_row),
            scales.o.ready.eq(~active | scales.finished),
        ]
        context = scales.o.payload
        with m.If(scales.o.ready):
            m.d.sync += [
                active.eq(scales.o.valid),
                begins.eq(1),
                key.eq(context.key),
                rows.eq(context.rows),
                last_row.eq(context.rows == 1),
                length.eq(context.length),
                left.eq(context.length),
                last.eq(context.length <= p.lanes),
            ]
        with m.Elif(step):
            m.d.sync += [
                begins.eq(last),
                left.eq(Mux(last, length, left - p.lanes)),
                last.eq(Mux(last, length <= p.lanes, left <= 2 * p.lanes)),
            ]
            with m.If(last):
                m.d.sync += [rows.eq(rows - 1), last_row.eq(rows == 2)]

        # A cycle later the scales are there.
        m.submodules.factors = factors = p.factors.build()
        greatest = registered(m, key)
        m.d.comb += [
            factors.p.eq(registered(m, self.i_p.payload)),
            Value.cast(factors.scales).eq(scales.scales),
            factors.key.eq(greatest),
        ]
        along = delayed(m, Cat(registered(m, last), greatest), p.factors.latency)
        present = Signal(1 + p.factors.latency)
        m.d.sync += present.eq(Cat(step, present))
        m.d.comb += [
            waiting.i.valid.eq(present[-1]),
            waiting.i.payload.eq(Cat(factors.factors, factors.far, along)),
        ]

    def _pause(self, m: Module, came: Value) -> Value:
        """Whether the results of a row could be sent out since the last `came`."""
        n = self._params.row_tokens
        left = Signal(range(n), name="pause")
        free = Signal(init=1)
        with m.If(came):
            m.d.sync += [left.eq(n - 1), free.eq(n == 1)]
        with m.Elif(~free):
            m.d.sync += [left.eq(left - 1), free.eq(left == 1)]
        return free

    def _room(self, m: Module, came: Value) -> Value:
        """Whether the queue has room for the results of one more row."""
        n, depth = self._params.row_tokens, self._params.queue.depth
        under_way, following = Signal(range(depth + 1)), Signal(range(depth + 1))
        room = Signal(init=1)
        gone = self.o.valid & self.o.ready
        m.d.comb += following.eq(under_way + Mux(came, n, 0) - gone)
        m.d.sync += [under_way.eq(following), room.eq(following <= depth - n)]
        return room

    def _divide(self, m: Module, load: Value, sums: Value, key: Value, total: Value) -> None:
        """Send out the sums of a row, `width` per cycle, through conversion and division to the queue."""
        p = self._params
        m.submodules.results = results = Shared(p.queue)
        wiring.connect(m, results.o, wiring.flipped(self.o))
        serial = Signal(len(sums), reset_less=True)
        exponent, nan = Signal(p.convert.exponent_bits, reset_less=True), Signal(reset_less=True)
        divisor, zero = Signal(F24.bits, reset_less=True), Signal(reset_less=True)
        left = Signal(range(p.row_tokens + 1))
        empty = total[F24.fraction_bits : F24.bits - 1] == 0
        with m.If(load):
            m.d.sync += [
                serial.eq(sums),
                left.eq(p.row_tokens),
                exponent.eq(key - ((1 << 15) + PLACES)),
                nan.eq(key == _KEY_NOT_FINITE),
                divisor.eq(Mux(empty, _ONE, total)),
                zero.eq(empty),
            ]
        with m.Elif(left != 0):
            m.d.sync += [serial.eq(serial[p.width * p.sum_bits :]), left.eq(left - 1)]
        along = delayed(m, Cat(divisor, zero), p.convert.latency)
        for lane in range(p.width):
            m.submodules[f"convert_{lane}"] = convert = Shared(p.convert)
            m.submodules[f"divide_{lane}"] = divide = Shared(p.divide)
            m.d.comb += [
                convert.enable.eq(1),
                convert.i.eq(serial.word_select(lane, p.sum_bits).as_signed()),
                convert.exponent.eq(exponent),
                convert.nan.eq(nan),
                divide.enable.eq(1),
                divide.a.eq(Mux(along[-1], 0, convert.o)),
                divide.b.eq(along[:-1]),
                results.i.payload.word_select(lane, F24.bits).eq(divide.o),
            ]
        present = Signal(p.convert.latency + p.divide.latency)
        m.d.sync += present.eq(Cat(left != 0, present))
        m.d.comb += results.i.valid.eq(present[-1])
