"""One number for each row of f24: its sum, the sum of its squares, its greatest element.

    sum        o[r] = sum over k of i[r, k]
    squares    o[r] = sum over k of i[r, k]^2
    max        o[r] = max over k of i[r, k]

Tiles in: (1, lanes), row-major, rows of whole tokens. Tiles out: (1, 1), one for each row.

Sums are exact integers of terms aligned to the greatest exponent of the row, 40 bits of each term kept
(`RowSum`), rounded once to f24: lanes and order cannot matter. A row with NaN or an infinity gives NaN. Of a
row with NaN the greatest element is NaN, as in torch; a zero comes out as +0.

Rows follow one another without a gap, a token a cycle: while one is reduced the next is taken in.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.fifo.queue import QueueParams
from streamgen.gateware.arith import F24
from streamgen.gateware.arith.pipeline import Pipeline
from streamgen.gateware.arith.scaled_integer import ScaledIntegerParams
from streamgen.gateware.stream import descriptor_signature, signature
from streamgen.itensor import ITensor
from streamgen.kernels.norm.align import KEPT_BITS, SPECIAL
from streamgen.kernels.norm.row_sum import RowSumParams, follow
from streamgen.kernels.row_parts import quarter_maxima, tree_stages
from streamgen.kernels.softmax.rows import has_room
from streamgen.kernels.top_k import rising_key

LONGEST = 1 << 16
LEAST = 2.0**-126
FUNCTIONS = ("sum", "squares", "max")
_RESULTS = 32  # sums on their way


@dataclass(frozen=True, kw_only=True)
class RowReductionsParams:
    """function: "sum", "squares" or "max". lanes: elements of a token. max_length: of a row, a multiple of
    lanes. max_rows: of one descriptor.

    Bounds: rows, length (a multiple of lanes), pieces (rows that are side by side in a row of the tensor, 1).
    """

    function: Literal["sum", "squares", "max"]
    lanes: int
    max_length: int
    max_rows: int

    def __post_init__(self) -> None:
        if self.function not in FUNCTIONS:
            raise ValueError(
                f"RowReductions.function is {self.function!r}; {', '.join(map(repr, FUNCTIONS))} are allowed"
            )
        if not 1 <= self.lanes <= 32:
            raise ValueError(f"RowReductions.lanes is {self.lanes}; 1 to 32 are allowed")
        if not self.lanes <= self.max_length <= LONGEST or self.max_length % self.lanes:
            raise ValueError(
                f"RowReductions.max_length is {self.max_length}; a multiple of lanes = {self.lanes} up to "
                f"{LONGEST} is needed"
            )
        if not 1 <= self.max_rows < 1 << 32:
            raise ValueError(f"RowReductions.max_rows is {self.max_rows}; 1 to 2^32 - 1 are allowed")

    @property
    def sums(self) -> RowSumParams:
        """The sums as integers."""
        return RowSumParams(
            lanes=self.lanes,
            max_tokens=self.max_length // self.lanes,
            squares=self.function == "squares",
            head_bits=0,
            lead=1,
        )

    @property
    def convert(self) -> ScaledIntegerParams:
        """The conversion of a sum to f24."""
        return ScaledIntegerParams(width=self.sums.total_bits, form=F24, exponent_bits=11)

    @property
    def queue(self) -> QueueParams:
        """The results that wait for their reader."""
        return QueueParams(bits=F24.bits, depth=_RESULTS, memory="lutram")

    @property
    def scale(self) -> int:
        """The exponent of a sum is G, or 2 · G for squares, less this."""
        return 2 * F24.bias + KEPT_BITS - 2 if self.function == "squares" else F24.bias + KEPT_BITS - 1

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        rows, length, pieces = bounds["rows"], bounds["length"], bounds.get("pieces", 1)
        if pieces == 1:
            trips: tuple[int, ...] = (rows, length // self.lanes)
            return {"i": ITensor((1, self.lanes), "f24", trips, (1, self.lanes), ((0,), (1,)))}
        trips = (rows // pieces, pieces, length // self.lanes)
        return {"i": ITensor((1, self.lanes), "f24", trips, (1, length, self.lanes), ((0,), (1, 2)))}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        pieces = bounds.get("pieces", 1)
        return {"o": ITensor((1, 1), "f24", (bounds["rows"] // pieces, pieces), (1, 1), ((0,), (1,)))}

    def descriptor_fields(self) -> tuple[Field, ...]:
        """rows; end: tokens of a row less one."""
        end_bits = max(1, (self.max_length // self.lanes - 1).bit_length())
        return Field("rows", self.max_rows.bit_length()), Field("end", end_bits)

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        rows, length, pieces = bounds["rows"], bounds["length"], bounds.get("pieces", 1)
        if not 1 <= rows <= self.max_rows:
            raise ValueError(f"RowReductions: rows is {rows}; it must be 1 to {self.max_rows}")
        if not 1 <= length <= self.max_length or length % self.lanes:
            raise ValueError(
                f"RowReductions: length is {length}; it must be a multiple of {self.lanes} up to "
                f"{self.max_length}"
            )
        if pieces < 1 or rows % pieces:
            raise ValueError(f"RowReductions: pieces is {pieces}; it must be a divisor of rows = {rows}")
        return {"rows": rows, "end": length // self.lanes - 1}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        rows, pieces = bounds["rows"], bounds.get("pieces", 1)
        x = inputs["i"].reshape(rows, bounds["length"])
        with np.errstate(invalid="ignore"):  # a signalling NaN is as good as another
            x = x.astype(np.float64)
        x = np.where(np.abs(x) < LEAST, 0.0, x)
        if self.function == "max":
            return {"o": (x.max(axis=1) + 0.0).astype(np.float32).reshape(rows // pieces, pieces)}
        greatest, total = self.sums.golden(x)
        exponent = greatest * (2 if self.function == "squares" else 1) - self.scale
        sums = self.convert.golden(total, exponent, greatest == SPECIAL)
        return {"o": sums.astype(np.float32).reshape(rows // pieces, pieces)}

    def cost(self, bounds: Bounds) -> Cost:
        first = self._first(bounds)
        tokens = bounds["length"] // self.lanes
        return Cost(
            resources=self._resources(),
            ii=1.0,
            latency=first - 1,
            cycles=first + (bounds["rows"] - 1) * tokens + 1,
        )

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        rows, tokens = bounds["rows"], bounds["length"] // self.lanes
        return {
            "i": Curve.nest(1, (rows * tokens, 1)),
            "o": Curve.nest(self._first(bounds), (rows, tokens)),
        }

    def build(self) -> "RowReductions":
        return RowReductions(self)

    def _first(self, bounds: Bounds) -> int:
        """The cycle of the first result. A row that is summed waits in a ring until its exponent is known."""
        tokens = bounds["length"] // self.lanes
        if self.function == "max":
            return tokens + tree_stages(self.lanes) + 4
        return 2 * tokens + self.sums.waits + self.sums.latency + self.convert.latency + 1

    def _resources(self) -> Resources:
        """Fitted to synthesis."""
        bits = sum(field.bits for field in self.descriptor_fields())
        if self.function == "max":
            keys, registers = self.lanes, F24.bits * self.lanes
            for _ in range(tree_stages(self.lanes)):
                keys = -(-keys // 4)
                registers += F24.bits * keys
            registers += F24.bits * (self.lanes + 1)
            compare = Resources(lut=68 * self.lanes + 3 * bits + 15, ff=registers + 2 * bits + 12)
            return self.queue.resources + compare
        control = Resources(lut=4 * bits, ff=bits + 14 * self.lanes)
        return self.sums.resources + self.convert.resources + self.queue.resources + control


class RowReductions(wiring.Component):
    """i -> RowSum and conversion, or a tree of maxima -> queue -> o; a row sets out when the queue has room
    for its result."""

    def __init__(self, params: RowReductionsParams) -> None:
        self._params = params
        bounds = {"rows": 1, "length": params.max_length}
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i": In(signature(params.inputs(bounds)["i"])),
                "o": Out(signature(params.outputs(bounds)["o"])),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self._params
        m.submodules.queue = queue = p.queue.build()
        wiring.connect(m, queue.o, wiring.flipped(self.o))
        went = self.o.valid & self.o.ready
        if p.function == "max":
            self._greatest(m, queue, went)
            return m
        m.submodules.sums = sums = p.sums.build()
        m.submodules.convert = convert = p.convert.build()
        self._take(m, sums)
        greatest = sums.s_greatest
        doubled = p.function == "squares"
        m.d.comb += [
            sums.o_room.eq(has_room(m, sums.o_issue_row, went, _RESULTS)),
            convert.enable.eq(1),
            convert.i.eq(sums.s_total),
            convert.exponent.eq((greatest << 1 if doubled else greatest) - p.scale),
            convert.nan.eq(greatest == SPECIAL),
            queue.i.valid.eq(follow(m, sums.s_valid, p.convert.latency)),
            queue.i.payload.eq(convert.o),
        ]
        return m

    def _greatest(self, m: Module, queue: Any, went: Value) -> None:
        """The greatest key of each row, as an element."""
        p = self._params
        end_bits = p.descriptor_fields()[1].bits
        token = SimpleNamespace(
            **{name: Signal(name=f"token_{name}") for name in ("grant", "grant_row", "room", "special")},
            **{name: Signal(name=f"token_{name}") for name in ("valid", "first", "last")},
            data=Signal(F24.bits * p.lanes, name="token_data"),
            end=Signal(end_bits, name="token_end"),
        )
        self._take(m, token)
        m.d.comb += token.room.eq(has_room(m, token.grant_row, went, _RESULTS))
        pipe = Pipeline(m, Const(1))
        elements = [token.data.word_select(lane, F24.bits) for lane in range(p.lanes)]
        keys: list[Value] = [rising_key(pipe, element, Const(1, 1)) for element in elements]
        s = pipe.stage(first=token.first, last=token.last, **{f"key{k}": key for k, key in enumerate(keys)})
        keys = [getattr(s, f"key{k}") for k in range(len(keys))]
        for _ in range(tree_stages(p.lanes)):
            keys = quarter_maxima(pipe, keys)
            s = pipe.stage(first=s.first, last=s.last, **{f"key{k}": key for k, key in enumerate(keys)})
            keys = [getattr(s, f"key{k}") for k in range(len(keys))]
        valid, best, done = follow(m, token.valid, pipe.depth), Signal(F24.bits, reset_less=True), Signal()
        m.d.sync += done.eq(valid & s.last)
        with m.If(valid & (s.first | (keys[0] > best))):
            m.d.sync += best.eq(keys[0])
        m.d.comb += [
            queue.i.valid.eq(done),
            queue.i.payload.eq(Cat(best[:-1] ^ (~best[-1]).replicate(F24.bits - 1), ~best[-1])),
        ]

    def _take(self, m: Module, sums: Any) -> None:
        """Hand the tokens of a descriptor on, a cycle later."""
        descriptor, given = self.i_descriptor, self.i_descriptor.payload
        rows, end = Signal.like(given.rows, reset_less=True), Signal.like(given.end, reset_less=True)
        left, running, taken, first = Signal.like(end, reset_less=True), Signal(), Signal(), Signal()
        row_ends, last_row = left == 0, rows == 1
        m.d.comb += [
            descriptor.ready.eq(~running | (taken & row_ends & last_row)),
            self.i.ready.eq(running & sums.room),
            taken.eq(self.i.valid & self.i.ready),
            sums.grant.eq(taken),
            sums.grant_row.eq(taken & first),
            sums.special.eq(0),
        ]
        with m.If(descriptor.ready):
            m.d.sync += [
                running.eq(descriptor.valid),
                rows.eq(given.rows),
                end.eq(given.end),
                left.eq(given.end),
                first.eq(1),
            ]
        with m.Elif(taken):
            m.d.sync += [first.eq(row_ends), left.eq(Mux(row_ends, end, left - 1)), rows.eq(rows - row_ends)]
        for target, value in (
            (sums.data, self.i.payload),
            (sums.first, first),
            (sums.last, row_ends),
            (sums.end, end),
        ):
            register = Signal(len(target), reset_less=True)
            m.d.sync += register.eq(value)
            m.d.comb += target.eq(register)
        valid = Signal()
        m.d.sync += valid.eq(taken)
        m.d.comb += sums.valid.eq(valid)
