"""Scores of attention: each query times the keys of its context.

    f[s] = dot(q, k[s]) * m_q * m_k[s] * 2^(e_q + e_k[s]), rounded once to f24
    score[s] = f[s] * scale, rounded once to f24

Codes are of 8 bits with scales m * 2^e as `attention.row_codes` makes them; `scale` is a constant of
the descriptor, usually 1 / sqrt(dims). The integer dot * m_q * m_k is exact. A row of zeros gives 0, and
e = E_NOT_FINITE of either scale NaN; what is beyond f24 is infinite or zero in each of the two roundings.
Codes of a query are -127 to 127.

Tiles in: for each row `i_q` (1, dims) i8 and `i_q_scale` (1, 1) i24; for each row and tile of its context
`i_k` (lanes, dims) i8 and `i_k_scale` (lanes, 1) i24, in the order of `attention_rows`. Out: `o` (1, lanes)
f24, row-major, as `streamgen.kernels.attention.softmax` takes it. Positions of the last tile beyond the
length give what their codes and scales give; softmax does not look at them.

A tile a cycle. The next query is taken together with the last tile of the row before, so no cycle is lost
between rows or descriptors. A tile is taken when there is room for its scores behind the pipe, which never
stalls.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from amaranth import Cat, Module, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.fifo.queue import QueueParams
from streamgen.gateware.arith import F24, MultiplyParams, ScaledIntegerParams
from streamgen.gateware.arith.pipeline import delayed, registered
from streamgen.gateware.rtl import Shared
from streamgen.gateware.stream import CountdownParams, descriptor_signature
from streamgen.itensor import ITensor
from streamgen.kernels.attention.row_codes import SCALE, SCALE_DTYPE, split_scale
from streamgen.kernels.attention.rows import AttentionRowsParams
from streamgen.kernels.attention.score_dots import ScoreDotsParams
from streamgen.kernels.softmax.rows import has_room
from streamgen.numbers.formats import E_NOT_FINITE

_UNDER_WAY = (
    32  # tokens from a tile taken to its scores gone; the pipe holds 17 and one for each level of dots
)
_M_BITS = 16  # m_q * m_k


@dataclass(frozen=True, kw_only=True)
class AttentionScoresParams(AttentionRowsParams):
    """Bounds besides those of the rows: scale, a finite number, rounded to f24."""

    squares: ClassVar[frozenset[str]] = frozenset({"i_k", "i_k_scale", "o"})

    @property
    def dots(self) -> ScoreDotsParams:
        return ScoreDotsParams(dims=self.dims, lanes=self.lanes)

    @property
    def convert(self) -> ScaledIntegerParams:
        """The conversion of dot * m_q * m_k to f24."""
        return ScaledIntegerParams(width=self.dots.dot_bits + _M_BITS, form=F24, exponent_bits=17)

    @property
    def multiply(self) -> MultiplyParams:
        return MultiplyParams(form=F24)

    @property
    def queue(self) -> QueueParams:
        """The queue of scores for the reader."""
        return QueueParams(bits=self.lanes * F24.bits, depth=_UNDER_WAY, memory="lutram")

    @property
    def pipe(self) -> int:
        """Cycles from a tile taken to its scores in the queue."""
        return self.dots.latency + 2 + self.convert.latency + self.multiply.latency

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {
            "i_q": self.queries(bounds, "i8", self.dims, self.dims),
            "i_q_scale": self.queries(bounds, SCALE_DTYPE, 1, 1),
            "i_k": self.tiles_of_rows(bounds, "i8", self.dims),
            "i_k_scale": self.tiles_of_rows(bounds, SCALE_DTYPE, 1),
        }

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"o": self.positions(bounds, "f24")}

    def descriptor_fields(self) -> tuple[Field, ...]:
        return (
            Field("rows", self.max_rows.bit_length()),
            Field("length", self.length_bits),
            Field("scale", F24.bits),
        )

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        self._check(bounds)
        scale = int(F24.encode(self._scale(bounds)))
        return {"rows": self.rows(bounds), "length": bounds["length"], "scale": scale}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        """o float32 [rows, length padded to tiles]; ValueError for a code -128 of a query."""
        shape = self._shape(bounds)
        q = inputs["i_q"].reshape(shape["queries"])
        if (q == -128).any():
            raise ValueError("a code of i_q is -128; -127 to 127 are allowed")
        # [heads, t, group, ...]; a dot is exact in float64
        q = np.moveaxis(q, 1, 0).astype(np.float64)
        k = np.moveaxis(inputs["i_k"].reshape(shape["tiles"]), 1, 0).astype(np.float64)
        dot = np.matmul(q, k.swapaxes(1, 2)[:, None]).astype(np.int64)
        m_q, e_q = (
            np.moveaxis(part.reshape(shape["queries"]), 1, 0) for part in split_scale(inputs["i_q_scale"])
        )
        m_k, e_k = (part.T[:, None, None, :] for part in split_scale(inputs["i_k_scale"]))
        nan = (e_q == E_NOT_FINITE) | (e_k == E_NOT_FINITE)
        f = self.convert.golden(dot * m_q * m_k, e_q + e_k, nan)
        scores = self.multiply.golden(f, self._scale(bounds))
        return {"o": scores.reshape(self.rows(bounds), -1).astype(np.float32)}

    def cost(self, bounds: Bounds) -> Cost:
        tokens = self.rows(bounds) * self.tiles(bounds)
        latency = 2 + self.pipe
        return Cost(resources=self._resources, ii=1.0, latency=latency, cycles=1 + latency + tokens)

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        rows, tiles = self.rows(bounds), self.tiles(bounds)
        query, tile = Curve.nest(1, (rows, tiles)), Curve.nest(2, (rows * tiles, 1))
        return {
            "i_q": query,
            "i_q_scale": query,
            "i_k": tile,
            "i_k_scale": tile,
            "o": Curve.nest(3 + self.pipe, (rows * tiles, 1)),
        }

    def build(self) -> "AttentionScores":
        return AttentionScores(self)

    def _scale(self, bounds: Bounds) -> ndarray:
        """The constant as an f24 value."""
        given = float(bounds["scale"])
        scale = F24.round(np.array(given))
        if not np.isfinite(scale):
            raise ValueError(f"{self._kernel}: scale is {given}; a finite number of f24 is needed")
        return scale

    @property
    def _resources(self) -> Resources:
        """Fitted to synthesis: operands, dots, the stages after them in each lane, control."""
        dot = self.dots.dot_bits
        lane = Resources(lut=_M_BITS + 10, ff=2 * (dot + _M_BITS) + 40, dsp=2)
        lanes = self.lanes * (lane + self.convert.resources + self.multiply.resources)
        rows, length = self.max_rows.bit_length(), self.length_bits
        control = CountdownParams(bits=rows).resources + Resources(
            lut=60 + 5 * length, ff=160 + 2 * length + self.pipe
        )
        held = Resources(lut=0, ff=8 * self.dims)
        return self.dots.resources + lanes + self.queue.resources + control + held


class AttentionScores(wiring.Component):
    """The hardware of an AttentionScoresParams."""

    def __init__(self, params: AttentionScoresParams) -> None:
        self._params = params
        dims, lanes = params.dims, params.lanes
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i_q": In(stream.Signature(8 * dims)),
                "i_q_scale": In(stream.Signature(SCALE.size)),
                "i_k": In(stream.Signature(8 * dims * lanes)),
                "i_k_scale": In(stream.Signature(SCALE.size * lanes)),
                "o": Out(stream.Signature(F24.bits * lanes)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self._params
        m.submodules.queue = queue = Shared(p.queue)
        wiring.connect(m, queue.o, wiring.flipped(self.o))
        step = Signal()
        room = has_room(m, step, self.o.valid & self.o.ready, _UNDER_WAY)
        query, query_scale, scale, begins = self._take(m, step, room)

        m.submodules.dots = dots = Shared(p.dots)
        m.d.comb += [dots.q.eq(query), dots.begins.eq(begins), dots.k.eq(self.i_k.payload)]
        # One cycle behind the step: the scales of the query and of the keys that were taken.
        of_query, constant = (Signal(len(value), reset_less=True) for value in (query_scale, scale))
        with m.If(begins):
            m.d.sync += [of_query.eq(query_scale), constant.eq(scale)]
        of_keys = registered(m, self.i_k_scale.payload)
        at_product = p.dots.latency + 2
        constant = delayed(m, constant, at_product + p.convert.latency - 1)
        for lane in range(p.lanes):
            m_both, exponent, nan = self._scales(m, of_query, of_keys.word_select(lane, SCALE.size))
            m_both = delayed(m, m_both, p.dots.latency - 3)
            along = delayed(m, Cat(exponent, nan), at_product - 2)
            dot = dots.dots.word_select(lane, p.dots.dot_bits).as_signed()
            m.submodules[f"convert_{lane}"] = convert = Shared(p.convert)
            m.submodules[f"multiply_{lane}"] = multiply = Shared(p.multiply)
            m.d.comb += [
                convert.enable.eq(1),
                convert.i.eq(registered(m, registered(m, dot * m_both))),
                convert.exponent.eq(along[:-1].as_signed()),
                convert.nan.eq(along[-1]),
                multiply.enable.eq(1),
                multiply.a.eq(convert.o),
                multiply.b.eq(constant),
                queue.i.payload.word_select(lane, F24.bits).eq(multiply.o),
            ]
        present = Signal(p.pipe)
        m.d.sync += present.eq(Cat(step, present))
        m.d.comb += queue.i.valid.eq(present[-1])
        return m

    def _scales(self, m: Module, of_query: Value, of_key: Value) -> tuple[Value, Value, Value]:
        """m_q * m_k two cycles later; e_q + e_k and whether it is NaN one cycle later."""
        query, key = data.View(SCALE, of_query), data.View(SCALE, of_key)
        e_query, e_key = (Value.cast(part.e) for part in (query, key))
        product = registered(m, registered(m, query.m * key.m))
        exponent = registered(m, e_query.as_signed() + e_key.as_signed())
        nan = registered(m, (e_query == E_NOT_FINITE) | (e_key == E_NOT_FINITE))
        return product, exponent, nan

    def _take(self, m: Module, step: Signal, room: Value) -> tuple[Value, Value, Value, Value]:
        """Take rows and their tiles; returns (query, its scale, the constant, whether the first tile is not
        taken yet)."""
        p, fields = self._params, self.i_descriptor.payload
        m.submodules.count = count = CountdownParams(bits=len(fields.rows)).build()
        length, scale, row_scale = (
            Signal(bits, reset_less=True) for bits in (p.length_bits, F24.bits, F24.bits)
        )
        query = Signal(len(self.i_q.payload), reset_less=True)
        query_scale = Signal(len(self.i_q_scale.payload), reset_less=True)
        left = Signal(p.length_bits, reset_less=True)  # positions of the row from this tile on
        active, begins, last, free, taken = Signal(), Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            count.i_count.payload.eq(fields.rows),
            count.i_count.valid.eq(self.i_descriptor.valid),
            self.i_descriptor.ready.eq(count.i_count.ready),
            count.step.eq(taken),
            step.eq(active & room & self.i_k.valid & self.i_k_scale.valid),
            self.i_k.ready.eq(step),
            self.i_k_scale.ready.eq(step),
            free.eq(~active | (step & last)),
            taken.eq(count.active & free & self.i_q.valid & self.i_q_scale.valid),
            self.i_q.ready.eq(taken),
            self.i_q_scale.ready.eq(taken),
        ]
        with m.If(count.taken):
            m.d.sync += [length.eq(fields.length), scale.eq(fields.scale)]
        with m.If(free):
            m.d.sync += [
                active.eq(taken),
                begins.eq(1),
                last.eq(length <= p.lanes),
                left.eq(length),
                row_scale.eq(scale),
                query.eq(self.i_q.payload),
                query_scale.eq(self.i_q_scale.payload),
            ]
        with m.Elif(step):
            m.d.sync += [begins.eq(0), last.eq(left <= 2 * p.lanes), left.eq(left - p.lanes)]
        return query, query_scale, row_scale, begins
