"""Softmax for attention: unsigned integers that are not normalised, and their sum, row by row.

    o_p = round(exp(i - max) * (2^p_bits - 1))        o_sum = the sum of the row's o_p

Tiles in: `i` (1, lanes) f24, row-major, rows padded to whole tokens. Out: `o_p` (1, lanes) u<p_bits> in the
same order, and `o_sum` (1) f24, one a row, behind the row's last token of o_p. max is the true maximum of
what the row attends to; masks and padding are in `masked_rows`, the steps for an element in `softmax_terms`.
The sum is exact and rounded once. All-masked rows give zeros and the sum 0; rows that attend to NaN or
+infinity give zeros and the sum NaN, so that NaN comes out of the division that follows.

lanes elements a cycle; a row waits for its maximum in a buffer of two rows. `o_sum` may lag behind `o_p`
by up to 60 rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from amaranth import Cat, Module, Mux
from amaranth.lib import wiring
from numpy import ndarray

from streamgen.contract import Bounds
from streamgen.contract.cost import Curve, Resources
from streamgen.fifo.clocks import Clocks
from streamgen.fifo.curves import KernelSide
from streamgen.fifo.queue import QueueParams
from streamgen.gateware.arith import F24
from streamgen.itensor import ITensor
from streamgen.kernels.softmax.rows import SoftmaxRowsParams, add_lanes, add_sum, has_room, softmax_ports
from streamgen.kernels.softmax.terms import ShareParams

ROWS_UNDER_WAY = 64  # sums that the queue of them holds; a row of one token spends up to 40 cycles there
TOKENS_UNDER_WAY = 32  # of o_p, which takes 23 cycles


@dataclass(frozen=True, kw_only=True)
class AttentionSoftmaxParams(SoftmaxRowsParams):
    """p_bits: of the integers that represent 0 to 1; 8 to 16."""

    p_bits: int = 12

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 8 <= self.p_bits <= 16:
            raise ValueError(f"p_bits is {self.p_bits}; 8 to 16 are allowed")

    squares: ClassVar[frozenset[str]] = frozenset({"i", "o_p"})

    @property
    def lane(self) -> ShareParams:
        return ShareParams(p_bits=self.p_bits)

    @property
    def queues(self) -> tuple[QueueParams, QueueParams]:
        """The queues of o_p and of sums for the reader."""
        return (
            QueueParams(bits=self.lanes * self.p_bits, depth=TOKENS_UNDER_WAY, memory="lutram"),
            QueueParams(bits=F24.bits, depth=ROWS_UNDER_WAY, memory="lutram"),
        )

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {
            "o_p": self.rows.itensor(bounds, f"u{self.p_bits}"),
            "o_sum": ITensor((1,), "f24", (bounds["rows"],), (1,), ((0,),)),
        }

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        scores, negated = self.rows.golden(bounds, inputs["i"])
        p = self.lane.golden(scores, negated)
        total = self.convert.golden(p.sum(axis=1))
        total = np.where(np.isnan(negated[:, 0]), np.nan, total)
        return {
            "o_p": p.astype(np.uint16 if self.p_bits > 8 else np.uint8),
            "o_sum": total.astype(np.float32),
        }

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        rows, tokens, begin = bounds["rows"], self.rows.tokens(bounds), self._terms_begin(bounds)
        summed = begin + tokens - 1 + self.sums.latency + self.convert.latency
        return {
            "i": Curve.nest(3, (rows * tokens, 1)),
            "o_p": Curve.nest(begin + 1, (rows * tokens, 1)),
            "o_sum": Curve.nest(summed + 1, (rows, tokens)),
        }

    def clocks(self, bounds: Bounds) -> Clocks:
        """Complete rows go through the lanes; probabilities and sums wait in separate queues."""
        rows, tokens = bounds["rows"], self.rows.tokens(bounds)
        curves = {name: curve.cycles() for name, curve in self.curves(bounds).items()}
        every, row = np.arange(rows * tokens), np.arange(rows)
        first, last, through = row * tokens, (row + 1) * tokens - 1, self.lane.latency + 1
        take, lanes = KernelSide("take", curves["i"]), KernelSide("lanes", curves["o_p"] - through)
        shares, totals = KernelSide("p", curves["o_p"]), KernelSide("sum", curves["o_sum"])
        room, row_room, ring = TOKENS_UNDER_WAY - 1, ROWS_UNDER_WAY - 1, self.rows.ring_depth - 1
        return Clocks(
            (take, lanes, shares, totals),
            {"i": (take, every), "o_p": (shares, every), "o_sum": (totals, row)},
            (
                take.to(lanes, last, first, latency=self.rows.latency),
                lanes.to(shares, every, every, latency=through),
                lanes.to(totals, last, row, latency=self.sums.latency + self.convert.latency + through),
                lanes.to(take, every[:-ring], every[ring:], latency=0),
                shares.to(lanes, every[:-room], every[room:], latency=0),
                totals.to(lanes, row[:-row_room], first[row_room:], latency=0),
            ),
        )

    def resources(self) -> Resources:
        tokens, sums = self.queues
        return (
            self.rows.resources
            + self.lanes * self.lane.resources
            + self.sums.resources
            + self.convert.resources
            + tokens.resources
            + sums.resources
            + Resources(lut=40, ff=40)
        )

    def build(self) -> "AttentionSoftmax":
        return AttentionSoftmax(self)


class AttentionSoftmax(wiring.Component):
    """The hardware of an AttentionSoftmaxParams."""

    def __init__(self, params: AttentionSoftmaxParams) -> None:
        self._params = params
        super().__init__(softmax_ports(params))

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        params = self._params
        rows, lanes, valid, last, nan = add_lanes(m, self, params)
        m.submodules.tokens, m.submodules.totals = tokens, totals = [queue.build() for queue in params.queues]
        wiring.connect(m, tokens.o, wiring.flipped(self.o_p))
        wiring.connect(m, totals.o, wiring.flipped(self.o_sum))
        shares = Cat(lane.o for lane in lanes)
        m.d.comb += [tokens.i.valid.eq(valid), tokens.i.payload.eq(shares)]
        done, total, is_nan = add_sum(m, params, [lane.o for lane in lanes], valid, last, nan)
        m.d.comb += [totals.i.valid.eq(done), totals.i.payload.eq(Mux(is_nan, F24.nan, total))]
        gone, summed = self.o_p.valid & self.o_p.ready, self.o_sum.valid & self.o_sum.ready
        m.d.comb += [
            rows.room.eq(has_room(m, rows.sent, gone, TOKENS_UNDER_WAY)),
            rows.row_room.eq(has_room(m, rows.row_sent, summed, ROWS_UNDER_WAY)),
        ]
        return m
