"""Sums over rows of reals that do not depend on order or lanes: aligned integers, added exactly.

Each element, or its square, becomes an integer relative to the greatest exponent of its row (`Align`). That
exponent is known when the row is complete, so tokens wait in a ring (`RowRing`). They are sent on, with their
sum some cycles later, while the next row comes in. An element is f24; for elements with exponent 0, which are
zeros, the lowest fraction bit marks padding.
"""

from dataclasses import dataclass
from operator import add
from typing import Any

from amaranth import Const, Module, Mux, Signal, Value, signed
from amaranth.lib.wiring import Component, In, Out
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith import F24
from streamgen.gateware.arith.pipeline import Pipeline
from streamgen.gateware.rtl import Shared
from streamgen.kernels.norm.align import KEPT_BITS, AlignParams
from streamgen.kernels.norm.row_ring import RowRingParams
from streamgen.kernels.row_parts import halve, maximum


def follow(m: Module, value: Value, cycles: int) -> Value:
    """The value `cycles` later, 0 after reset."""
    for _ in range(cycles):
        register = Signal(len(value), name="follow")
        m.d.sync += register.eq(value)
        value = register
    return value


def delay(pipe: Pipeline, value: Value, stages: int) -> Value:
    """The value that many stages of the pipe later."""
    for _ in range(stages):
        value = pipe.stage(waiting=value).waiting
    return value


@dataclass(frozen=True, kw_only=True)
class RowSumParams:
    """lanes: elements of a token. max_tokens: the longest row. squares: whether squares are summed.

    head_bits: of the data that comes with a row and leaves with its tokens and its sum. lead: cycles from the
    grant of a token to its arrival.
    """

    lanes: int
    max_tokens: int
    squares: bool
    head_bits: int
    lead: int

    @property
    def align(self) -> AlignParams:
        return AlignParams(square=self.squares)

    @property
    def tree_stages(self) -> int:
        """Stages of a tree over the lanes, of two levels each."""
        return (self.lanes - 1).bit_length() + 1 >> 1

    @property
    def waits(self) -> int:
        """Cycles from the last token of a row to the first one that leaves."""
        return self.tree_stages + 2

    @property
    def latency(self) -> int:
        """Cycles from the last token that leaves to the sum."""
        return self.align.latency + self.tree_stages + 1

    @property
    def total_bits(self) -> int:
        """Width of a sum, signed."""
        return 1 + KEPT_BITS + (self.max_tokens * self.lanes - 1).bit_length()

    @property
    def ring(self) -> RowRingParams:
        return RowRingParams(
            bits=self.lanes * F24.bits,
            head_bits=self.head_bits,
            tail_bits=8,
            max_tokens=self.max_tokens,
            ahead=self.lead + self.waits + 4,
        )

    @property
    def resources(self) -> Resources:
        tree = (self.lanes - 1) * (KEPT_BITS + 3)
        maxima = 16 * self.lanes
        control = Resources(lut=65 + self.head_bits, ff=47 + self.total_bits + self.head_bits)
        tree_costs = Resources(lut=tree + maxima, ff=tree / 2 + maxima / 2)
        return self.ring.resources + self.lanes * self.align.resources + control + tree_costs

    def golden(self, x: ndarray) -> tuple[ndarray, ndarray]:
        """Rows [T, K] of values of f24 -> (G [T], sums [T]), int64; sums of rows of G = 255 are 0."""
        greatest, terms = self.align.golden(x)
        return greatest, terms.sum(axis=1)

    def build(self) -> "RowSum":
        return RowSum(self)


class RowSum(Component):
    """valid, data, first, last: a token for which room was granted; head, end: of its row, with the first.

    special: makes G of the row 255, with the last token. o_room: whether tokens may leave.
    o_issue, o_issue_row: one leaves, the first one of a row; o_valid, o_data, o_first, o_last, o_head, o_end:
    the token, a cycle later. s_valid, s_total, s_head, s_greatest: a sum.
    """

    def __init__(self, params: RowSumParams) -> None:
        self._params = params
        ring = params.ring
        super().__init__(
            {
                "room": Out(1),
                "grant": In(1),
                "grant_row": In(1),
                "valid": In(1),
                "data": In(ring.bits),
                "first": In(1),
                "last": In(1),
                "head": In(ring.head_bits),
                "end": In(ring.end_bits),
                "special": In(1),
                "o_room": In(1),
                "o_issue": Out(1),
                "o_issue_row": Out(1),
                "o_valid": Out(1),
                "o_data": Out(ring.bits),
                "o_first": Out(1),
                "o_head": Out(ring.head_bits),
                "o_end": Out(ring.end_bits),
                "s_valid": Out(1),
                "s_total": Out(signed(params.total_bits)),
                "s_head": Out(ring.head_bits),
                "s_greatest": Out(8),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.ring = ring = self._params.ring.build()
        m.d.comb += [
            self.room.eq(ring.room),
            ring.grant.eq(self.grant),
            ring.grant_row.eq(self.grant_row),
            ring.write.eq(self.valid),
            ring.data.eq(self.data),
            ring.first.eq(self.first),
            ring.head.eq(self.head),
            ring.end.eq(self.end),
        ]
        self._greatest(m, ring)
        last, greatest = Signal(reset_less=True), Signal(8, reset_less=True)
        m.d.comb += [
            self.o_issue.eq(ring.row & self.o_room),
            self.o_issue_row.eq(self.o_issue & ring.begins),
            ring.step.eq(self.o_issue),
            ring.enable.eq(1),
            self.o_data.eq(ring.o_data),
        ]
        m.d.sync += [
            self.o_valid.eq(self.o_issue),
            self.o_first.eq(ring.begins),
            self.o_head.eq(ring.o_head),
            self.o_end.eq(ring.o_end),
            last.eq(ring.last),
            greatest.eq(ring.o_tail),
        ]
        self._sum(m, last, greatest)
        return m

    def _elements(self, token: Value) -> list[Value]:
        return [token.word_select(lane, F24.bits) for lane in range(self._params.lanes)]

    def _greatest(self, m: Module, ring: Any) -> None:
        """Complete a row in the ring with its greatest exponent."""
        pipe = Pipeline(m, Const(1))
        partial = [x[F24.fraction_bits : -1] for x in self._elements(self.data)]
        along = {"first": self.first, "last": self.last, "special": self.special}
        for _ in range(self._params.tree_stages):
            partial = halve(halve(partial, maximum), maximum)
            names = {f"max{index}": value for index, value in enumerate(partial)}
            s = pipe.stage(**along, **names)
            partial = [getattr(s, name) for name in names]
            along = {name: getattr(s, name) for name in along}
        valid = follow(m, self.valid, pipe.depth)
        so_far, greatest = Signal(8, reset_less=True), Signal(8)
        of_row = Mux(along["first"], partial[0], maximum(so_far, partial[0]))
        m.d.comb += [
            greatest.eq(of_row | along["special"].replicate(8)),
            ring.complete.eq(valid & along["last"]),
            ring.tail.eq(greatest),
        ]
        with m.If(valid):
            m.d.sync += so_far.eq(greatest)

    def _sum(self, m: Module, last: Value, greatest: Value) -> None:
        """The terms of the token that leaves, their tree, the sum of the row."""
        params = self._params
        terms: list[Value] = []
        for lane, x in enumerate(self._elements(self.o_data)):
            m.submodules[f"align_{lane}"] = align = Shared(params.align)
            m.d.comb += [align.x.eq(x), align.greatest.eq(greatest)]
            terms.append(align.o)
        pipe = Pipeline(m, Const(1))
        for _ in range(params.tree_stages):
            terms = halve(halve(terms, add), add)
            names = {f"term{index}": value for index, value in enumerate(terms)}
            s = pipe.stage(**names)
            terms = [getattr(s, name) for name in names]
        behind = params.latency - 1
        valid, first = follow(m, self.o_valid, behind), delay(pipe, self.o_first, behind)
        with m.If(valid):
            m.d.sync += self.s_total.eq(Mux(first, 0, self.s_total) + terms[0])
        m.d.sync += self.s_valid.eq(valid & delay(pipe, last, behind))
        m.d.comb += [
            self.s_head.eq(delay(pipe, self.o_head, behind + 1)),
            self.s_greatest.eq(delay(pipe, greatest, behind + 1)),
        ]
