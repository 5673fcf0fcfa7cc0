"""Fit rows: changes the length of rows. Longer rows are cut, and shorter rows are filled with zeros.

    o[r, j] = i[r, first + j]    j < min(features - first, fitted)    r = 0 ... rows - 1
              0                  otherwise                            j = 0 ... fitted - 1

Tiles in and out: (1, lanes), row-major. There is one token per cycle on the side with the longer rows:
dropped tokens do not wait for the reader of `o`, and while zeros are sent, the next row waits. Uses: results
of a matmul, whose rows are whole tiles, become heads of any size; rows of any size become whole groups for a
quantiser; a row is split into parts.

The next descriptor is taken with the last token of `i`, before the zeros of the last row are sent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from amaranth import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.fifo.clocks import Clocks
from streamgen.fifo.curves import KernelSide
from streamgen.gateware.stream import add_skid, descriptor_signature, skid_resources
from streamgen.itensor import ITensor
from streamgen.kernels.moves.passing import RowsParams

_HELD = 2  # tokens that the register of the output takes


@dataclass(frozen=True, kw_only=True)
class FitRowsParams(RowsParams):
    """dtype, lanes: of a token. max_tokens: the most tokens of one descriptor, in or out.

    Bounds: rows, features (elements of a row of `i`), fitted (of a row of `o`), first (the first element of a
    row of `i` that is kept, 0 by default; with another one, rows are only cut: first + fitted <= features).
    All are multiples of lanes.
    """

    dtype: str
    lanes: int
    max_tokens: int
    moves: ClassVar[bool] = True

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"i": self._rows(bounds["rows"], bounds["features"])}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"o": self._rows(bounds["rows"], bounds["fitted"])}

    def descriptor_fields(self) -> tuple[Field, ...]:
        """The number of tokens of `i`; of a row: the tokens that pass, the tokens dropped or filled after
        them, and whether they are filled; the tokens with which the first row begins, and whether they are
        dropped."""
        counts = (Field(name, self.counter.bits) for name in ("tokens", "passing", "rest", "begin"))
        return *counts, Field("fills", 1), Field("skips", 1)

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        rows, features, fitted = (bounds[name] for name in ("rows", "features", "fitted"))
        for name, size in (("features", features), ("fitted", fitted)):
            if size < self.lanes or size % self.lanes:
                raise ValueError(f"FitRows: {name} is {size}; it must be a multiple of lanes, {self.lanes}")
        first = bounds.get("first", 0)
        if first and (first % self.lanes or not 0 < first <= features - fitted):
            raise ValueError(
                f"FitRows: first is {first}; it must be a multiple of lanes, {self.lanes}, "
                f"and at most {features - fitted}"
            )
        taken, sent = self._lengths(bounds)
        if not 1 <= rows * max(taken, sent) <= self.max_tokens:
            raise ValueError(
                f"FitRows: rows is {rows}; it must be 1 to {self.max_tokens} tokens of {self.lanes}, "
                f"of which a row takes {max(taken, sent)}"
            )
        return {
            "tokens": rows * taken,
            "passing": min(taken, sent),
            "rest": abs(taken - sent),
            "begin": first // self.lanes or min(taken, sent),
            "fills": int(sent > taken),
            "skips": int(first > 0),
        }

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        """o [rows, fitted] of i [rows, features]."""
        first = bounds.get("first", 0)
        kept = inputs["i"][:, first : first + bounds["fitted"]]
        o = np.zeros((len(kept), bounds["fitted"]), kept.dtype)
        o[:, : kept.shape[1]] = kept
        return {"o": o}

    def cost(self, bounds: Bounds) -> Cost:
        self.describe(bounds)
        taken, sent = self._lengths(bounds)
        bits, first = self.counter.bits, bounds.get("first", 0) // self.lanes
        walk = Resources(lut=9 * bits + 12, ff=4 * bits + 6)
        return Cost(
            resources=self.counter.resources + walk + skid_resources(self.token_bits, 1),
            ii=1.0,
            latency=1 + first,
            cycles=2 + (bounds["rows"] - 1) * max(taken, sent) + first + sent,
        )

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        self.describe(bounds)
        taken, sent = self._lengths(bounds)
        rows = (bounds["rows"], max(taken, sent))
        first = bounds.get("first", 0) // self.lanes
        return {"i": Curve.nest(1, rows, (taken, 1)), "o": Curve.nest(2 + first, rows, (sent, 1))}

    def clocks(self, bounds: Bounds) -> Clocks:
        """Tokens that pass wait for room; dropped tokens do not."""
        taken, sent = self._lengths(bounds)
        curves = {name: curve.cycles() for name, curve in self.curves(bounds).items()}
        take, send = KernelSide("take", curves["i"]), KernelSide("send", curves["o"])
        row, passing = np.arange(bounds["rows"])[:, None], np.arange(min(taken, sent))
        i = (row * taken + bounds.get("first", 0) // self.lanes + passing).reshape(-1)
        o = (row * sent + passing).reshape(-1)
        held = o >= _HELD
        streams = (take.to(send, i, o), send.to(take, o[held] - _HELD, i[held]))
        moves = {port: (part, np.arange(len(part.cycles))) for port, part in (("i", take), ("o", send))}
        return Clocks((take, send), moves, streams)

    def build(self) -> "FitRows":
        return FitRows(self)

    def _lengths(self, bounds: Bounds) -> tuple[int, int]:
        """Tokens of a row of `i` and of a row of `o`."""
        return bounds["features"] // self.lanes, bounds["fitted"] // self.lanes


class FitRows(wiring.Component):
    """`i` to `o`, which is registered."""

    def __init__(self, params: FitRowsParams) -> None:
        self._params = params
        token = stream.Signature(params.token_bits)
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i": In(token),
                "o": Out(token),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        fields = self.i_descriptor.payload
        m.submodules.count = count = self._params.counter.build()
        fitted = stream.Signature(self._params.token_bits).create()
        add_skid(m, fitted, [wiring.flipped(self.o)])

        # A row has two phases: tokens that pass, then those dropped, or zeros; each counts down with `left`.
        # Where rows lose their beginnings, the first begins with a drop, and the drop of the last is shorter.
        zeros, drops = Signal(), Signal(reset_less=True)
        left, last = Signal.like(fields.rest, reset_less=True), Signal(reset_less=True)
        # Of the descriptor; while zeros of the last row are made it may be the next one already.
        passing, rest = Signal.like(fields.passing, reset_less=True), Signal.like(left)
        rests, fills = Signal(reset_less=True), Signal(reset_less=True)
        begin, skips = Signal.like(left), Signal(reset_less=True)  # of the next row

        step, moves, turns = Signal(), Signal(), Signal()
        m.d.comb += [
            *count.takes(self.i_descriptor, fields.tokens),
            count.step.eq(step),
            fitted.valid.eq(zeros | (self.i.valid & count.active & ~drops)),
            fitted.payload.eq(Mux(zeros, 0, self.i.payload)),
            self.i.ready.eq(count.active & ~zeros & (fitted.ready | drops)),
            step.eq(self.i.valid & self.i.ready),
            moves.eq(step | (zeros & fitted.ready)),
            turns.eq(last & rests & ~zeros & ~drops),
        ]
        start, skip = Mux(count.taken, fields.begin, begin), Mux(count.taken, fields.skips, skips)
        with m.If(count.taken):
            m.d.sync += [begin.eq(fields.begin), skips.eq(fields.skips)]
        with m.If(moves & turns & (fills | ~count.taken)):
            m.d.sync += [zeros.eq(fills), drops.eq(~fills), left.eq(rest - 1), last.eq(rest == 1)]
        with m.Elif((moves & last) | (count.taken & ~zeros)):
            m.d.sync += [zeros.eq(0), drops.eq(skip), left.eq(start - 1), last.eq(start == 1)]
            m.d.sync += [begin.eq(Mux(count.taken, fields.passing, passing)), skips.eq(0)]
        with m.Elif(moves):
            m.d.sync += [left.eq(left - 1), last.eq(left == 1)]
        with m.If(count.taken):
            m.d.sync += [
                passing.eq(fields.passing),
                rest.eq(fields.rest),
                rests.eq(fields.rest != 0),
                fills.eq(fields.fills),
            ]
        return m
