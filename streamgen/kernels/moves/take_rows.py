"""Take rows: `count` rows of a row-major stream pass, from row `first` on; the others are dropped.

    o[r] = i[first + r]                                    r = 0 ... count - 1

Tiles in and out: (1, lanes), row-major. Every token of `i` is taken, a token a cycle: what is dropped does
not wait for the reader of `o`. So a decoder sends only the last token of a prompt to its LM head. With a
count of 0 all rows are dropped, and `o` rests; a run sees by `done` that the last one has come.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from amaranth import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.contract import Bounds, Field
from streamgen.cost import Cost, Curve, Resources
from streamgen.itensor import ITensor
from streamgen.numbers import formats
from streamgen.stream import CountdownParams, add_skid, descriptor_signature, skid_resources

__all__ = ["TakeRows", "TakeRowsParams"]


@dataclass(frozen=True, kw_only=True)
class TakeRowsParams:
    """dtype, lanes: of a token. max_tokens: the most tokens of one descriptor.

    Bounds: rows, features (elements of a row, a multiple of lanes), first, count (rows that pass).
    """

    dtype: str
    lanes: int
    max_tokens: int

    drops: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.lanes < 1:
            raise ValueError(f"TakeRows.lanes is {self.lanes}; at least 1 is needed")
        if not 1 <= self.max_tokens < 1 << 32:
            raise ValueError(f"TakeRows.max_tokens is {self.max_tokens}; 1 to 2^32 - 1 are allowed")
        formats.token_bits(self.dtype, (1, self.lanes))  # raises for what has no such token

    @property
    def token_bits(self) -> int:
        return formats.token_bits(self.dtype, (1, self.lanes))

    @property
    def counter(self) -> CountdownParams:
        """Counts the tokens of a descriptor."""
        return CountdownParams(bits=self.max_tokens.bit_length())

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"i": self._rows(bounds, bounds["rows"])}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"o": self._rows(bounds, bounds["count"])} if bounds["count"] else {}

    def descriptor_fields(self) -> tuple[Field, ...]:
        """Tokens in all, tokens before the first one that passes, tokens that pass."""
        return tuple(Field(name, self.counter.bits) for name in ("tokens", "before", "passing"))

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        rows, features, first, count = (bounds[name] for name in ("rows", "features", "first", "count"))
        row = features // self.lanes
        for name, value, law, holds in (
            (
                "features",
                features,
                f"a multiple of lanes, {self.lanes}",
                features >= self.lanes and features % self.lanes == 0,
            ),
            (
                "rows",
                rows,
                f"1 to {self.max_tokens} tokens of {self.lanes}",
                1 <= rows * row <= self.max_tokens,
            ),
            ("first", first, f"0 to {rows - 1}", 0 <= first < rows),
            ("count", count, f"0 to {rows - first}", 0 <= count <= rows - first),
        ):
            if not holds:
                raise ValueError(f"TakeRows: {name} is {value}; it must be {law}")
        return {"tokens": rows * row, "before": first * row if count else 0, "passing": count * row}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        """o [count, features] of i [rows, features]."""
        return {"o": inputs["i"][bounds["first"] :][: bounds["count"]]} if bounds["count"] else {}

    def cost(self, bounds: Bounds) -> Cost:
        described = self.describe(bounds)
        before, passing = described["before"], described["passing"]
        skip = Resources(lut=4.7 * self.counter.bits + 6, ff=2 * self.counter.bits + 2)
        return Cost(
            resources=self.counter.resources + skip + skid_resources(self.token_bits, 1),
            ii=1.0,
            latency=1 + before,
            cycles=2 + before + passing if passing else 1 + described["tokens"],
        )

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        described = self.describe(bounds)
        taken = {"i": Curve.nest(1, (described["tokens"], 1))}
        if not described["passing"]:
            return taken
        return taken | {"o": Curve.nest(2 + described["before"], (described["passing"], 1))}

    def build(self) -> "TakeRows":
        return TakeRows(self)

    def _rows(self, bounds: Bounds, rows: int) -> ITensor:
        trips = (rows, bounds["features"] // self.lanes)
        return ITensor((1, self.lanes), self.dtype, trips, (1, self.lanes), ((0,), (1,)))


class TakeRows(wiring.Component):
    """`i` to `o`, which is registered; `done`: for a cycle, when a descriptor's last token was taken."""

    def __init__(self, params: TakeRowsParams) -> None:
        self._params = params
        token = stream.Signature(params.token_bits)
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i": In(token),
                "o": Out(token),
                "done": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        fields = self.i_descriptor.payload
        m.submodules.count = count = self._params.counter.build()
        passed = stream.Signature(self._params.token_bits).create()
        add_skid(m, passed, [wiring.flipped(self.o)])
        passes, step = Signal(), Signal()
        before, left = (
            Signal.like(fields.before, reset_less=True),
            Signal.like(fields.passing, reset_less=True),
        )
        m.d.comb += [
            count.i_count.valid.eq(self.i_descriptor.valid),
            count.i_count.payload.eq(fields.tokens),
            self.i_descriptor.ready.eq(count.i_count.ready),
            count.step.eq(step),
            passed.valid.eq(self.i.valid & count.active & passes),
            passed.payload.eq(self.i.payload),
            self.i.ready.eq(count.active & (passed.ready | ~passes)),
            step.eq(self.i.valid & self.i.ready),
        ]
        m.d.sync += self.done.eq(step & count.last)
        with m.If(count.taken):
            m.d.sync += [
                passes.eq((fields.before == 0) & (fields.passing != 0)),
                before.eq(fields.before),
                left.eq(fields.passing),
            ]
        with m.Elif(step & passes):
            m.d.sync += [passes.eq(left != 1), left.eq(left - 1)]
        with m.Elif(step):
            # Behind the rows that pass, or without any, it counts on from 0 and does not come to 1 again.
            m.d.sync += [passes.eq(before == 1), before.eq(before - 1)]
        return m
