"""Softmax over rows of f24 scores of run-time length, with the true maximum of each row, normalised.

    o = exp(i - max) / sum(exp(i - max))

Tiles in: `i` (1, lanes) f24, row-major, rows padded to whole tokens. Out: `o` (1, lanes) f24, in that order.
Masks and padding are in `masked_rows`, the steps for an element in `softmax_terms`. Of each exponential 40
bits are added up, as integers; the total is rounded once, and its reciprocal (to 2^-14) is the factor of the
row. All-masked rows give zeros, rows that attend to NaN or +infinity NaN, in the padding too.

lanes elements a cycle. A row waits for its maximum in a buffer of two rows, its exponentials for their sum
in another one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.utils import ceil_log2
from numpy import ndarray

from streamgen.contract import Bounds
from streamgen.contract.cost import Curve, Resources
from streamgen.fifo.queue import QueueParams
from streamgen.gateware.arith import F24, MultiplyParams, ReciprocalParams, UnitParams
from streamgen.gateware.arith.pipeline import operand
from streamgen.gateware.rtl import Shared
from streamgen.itensor import ITensor
from streamgen.kernels.row_parts import ring_resources, ring_style
from streamgen.kernels.softmax.rows import SoftmaxRowsParams, add_lanes, add_sum, has_room, softmax_ports
from streamgen.kernels.softmax.terms import E_BITS, TERM_FRACTION, ExponentialParams

ROWS_UNDER_WAY = 64  # factors that their memory holds; a row of one token spends up to 40 cycles on the way
PRODUCTS_UNDER_WAY = 16  # tokens of o behind the second buffer, which takes 7 cycles
RECIPROCAL = ReciprocalParams(form=F24)
MULTIPLY = MultiplyParams(form=F24)


@dataclass(frozen=True, kw_only=True)
class SoftmaxParams(SoftmaxRowsParams):
    """The normalised form."""

    @property
    def lane(self) -> ExponentialParams:
        return ExponentialParams()

    @property
    def held_bits(self) -> int:
        """Of an element that waits for the factor of its row."""
        return E_BITS

    @property
    def of_row(self) -> UnitParams:
        """The unit that makes the factor of a row from its sum."""
        return RECIPROCAL

    @property
    def of_element(self) -> UnitParams:
        """The unit that combines an element with the factor of its row."""
        return MULTIPLY

    def add_factor(self, m: Module, total: Value) -> Value:
        """The factor of a row in hardware, `of_row.latency` cycles after its sum."""
        m.submodules.reciprocal = reciprocal = RECIPROCAL.build()
        m.d.comb += [reciprocal.enable.eq(1), reciprocal.i.eq(total)]
        parts = operand(F24, reciprocal.o)
        raised = Cat(parts.fraction, (parts.exponent + TERM_FRACTION)[:8])
        return Mux(parts.exponent.all(), 0, raised)

    @property
    def ring_depth(self) -> int:
        """Tokens of exponentials that wait for their sum: two rows, or one row and the tokens in flight."""
        tokens = self.rows.max_tokens
        return 1 << ceil_log2(max(2 * tokens, tokens + 64))

    @property
    def queue(self) -> QueueParams:
        """The queue of results for the reader."""
        return QueueParams(bits=self.lanes * F24.bits, depth=PRODUCTS_UNDER_WAY, memory="lutram")

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"o": self.rows.itensor(bounds)}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        scores, negated = self.rows.golden(bounds, inputs["i"])
        e, terms = self.lane.golden(scores, negated)
        total = self.convert.golden(terms.sum(axis=1, keepdims=True))
        factor = np.where(total == 0, 0.0, RECIPROCAL.golden(total) * 2.0**TERM_FRACTION)
        factor = np.where(np.isnan(negated), np.nan, factor)
        return {"o": MULTIPLY.golden(e, factor).astype(np.float32)}

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        rows, tokens, begin = bounds["rows"], self.rows.tokens(bounds), self._terms_begin(bounds)
        factor = begin + tokens - 1 + self.sums.latency + self.convert.latency + self.of_row.latency
        return {
            "i": Curve.nest(3, (rows * tokens, 1)),
            "o": Curve.nest(factor + 3 + self.of_element.latency, (rows * tokens, 1)),
        }

    def resources(self) -> Resources:
        return (
            self.rows.resources
            + self.lanes * (self.lane.resources + self.of_element.resources)
            + self.sums.resources
            + self.convert.resources
            + self.of_row.resources
            + self.queue.resources
            + ring_resources(self.lanes * self.held_bits, self.ring_depth)
            + Resources(lut=40, ff=40)
        )

    def build(self) -> "SoftmaxKernel":
        return SoftmaxKernel(self)


class SoftmaxKernel(wiring.Component):
    """The hardware of a SoftmaxParams."""

    def __init__(self, params: SoftmaxParams) -> None:
        self._params = params
        super().__init__(softmax_ports(params))

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        params = self._params
        rows, lanes, valid, last, nan = add_lanes(m, self, params)

        # Exponentials wait in a ring for the factor of their row.
        m.submodules.ring = ring = Memory(
            shape=data.ArrayLayout(params.held_bits, params.lanes),
            depth=params.ring_depth,
            init=[],
            attrs=ring_style(params.ring_depth),
        )
        write, read = ring.write_port(), ring.read_port()
        m.d.comb += [
            write.en.eq(valid),
            Value.cast(write.data).eq(Cat(lane.e for lane in lanes)),
            read.en.eq(1),
        ]
        m.d.sync += write.addr.eq(write.addr + valid)
        drained, sent, row_sent, factor = self._drain(m, lanes, valid, last, nan)
        m.d.comb += read.addr.eq(drained)

        m.submodules.results = results = params.queue.build()
        wiring.connect(m, results.o, wiring.flipped(self.o))
        moving, held = Signal(1 + params.of_element.latency), Signal(F24.bits, reset_less=True)
        m.d.sync += [moving.eq(Cat(sent, moving)), held.eq(factor)]
        m.d.comb += results.i.valid.eq(moving[-1])
        for lane in range(params.lanes):
            m.submodules[f"product_{lane}"] = product = Shared(params.of_element)
            m.d.comb += [
                product.enable.eq(1),
                product.a.eq(read.data[lane]),
                product.b.eq(held),
                results.i.payload.word_select(lane, F24.bits).eq(product.o),
            ]
        m.d.comb += [
            rows.room.eq(has_room(m, rows.sent, sent, params.ring_depth)),
            rows.row_room.eq(has_room(m, rows.row_sent, row_sent, ROWS_UNDER_WAY)),
        ]
        return m

    def _drain(
        self, m: Module, lanes: list[Any], valid: Value, last: Value, nan: Value
    ) -> tuple[Signal, Signal, Value, Value]:
        """Which token of the ring is read, whether it is sent, whether its row ends, and the row's factor."""
        params = self._params
        drained, sent = Signal(range(params.ring_depth)), Signal()
        end_shape, factor_shape = max(1, ceil_log2(params.rows.max_tokens)), F24.bits
        of_rows = {"depth": ROWS_UNDER_WAY, "attrs": ring_style(ROWS_UNDER_WAY)}
        m.submodules.ends = ends = Memory(shape=end_shape, init=[], **of_rows)
        m.submodules.factors = factors = Memory(shape=factor_shape, init=[], **of_rows)
        end_in, factor_in = ends.write_port(), factors.write_port()
        end_out, factor_out = ends.read_port(domain="comb"), factors.read_port(domain="comb")

        # The number of tokens of a row.
        index = Signal(end_shape)
        m.d.comb += [end_in.en.eq(valid & last), end_in.data.eq(index)]
        with m.If(valid):
            m.d.sync += [index.eq(Mux(last, 0, index + 1)), end_in.addr.eq(end_in.addr + last)]

        # Its factor: the reciprocal of the sum, which counts units of 2^-TERM_FRACTION; a sum of 0 gives 0.
        done, total, is_nan = add_sum(m, params, [lane.term for lane in lanes], valid, last, nan)
        factor_of_row = params.add_factor(m, total)
        stored, came = Signal(range(2 * ROWS_UNDER_WAY)), Signal(params.of_row.latency)
        not_a_number = Signal(params.of_row.latency, reset_less=True)
        m.d.sync += [
            came.eq(Cat(done, came)),
            not_a_number.eq(Cat(is_nan, not_a_number)),
            stored.eq(stored + came[-1]),
        ]
        m.d.comb += [
            factor_in.en.eq(came[-1]),
            factor_in.addr.eq(stored),
            factor_in.data.eq(Mux(not_a_number[-1], F24.nan, factor_of_row)),
        ]

        # The next token of a row whose factor is there.
        rows_drained, position = Signal.like(stored), Signal(end_shape)
        at_end = position == end_out.data
        room = has_room(m, sent, self.o.valid & self.o.ready, PRODUCTS_UNDER_WAY)
        m.d.comb += [
            end_out.addr.eq(rows_drained),
            factor_out.addr.eq(rows_drained),
            sent.eq((rows_drained != stored) & room),
        ]
        with m.If(sent):
            m.d.sync += [
                drained.eq(drained + 1),
                position.eq(Mux(at_end, 0, position + 1)),
                rows_drained.eq(rows_drained + at_end),
            ]
        return drained, sent, sent & at_end, factor_out.data
