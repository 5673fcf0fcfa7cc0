"""Take rows: passes `count` rows of a stream, from row `first` on, and drops the others.

    o[r] = i[first + r]                                    r = 0 ... count - 1

Tiles in and out: (1, lanes), row-major, or `tile` features of all rows before the next ones. Every token of
`i` is taken, one per cycle: dropped tokens do not wait for the reader of `o`. A decoder uses this to send
only the last token of a prompt to its LM head. With a count of 0 all rows are dropped, and `o` rests; `done`
shows a run that the last row has come.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from amaranth import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.gateware.stream import add_skid, descriptor_signature, skid_resources
from streamgen.itensor import ITensor
from streamgen.kernels.moves.passing import RowsParams


@dataclass(frozen=True, kw_only=True)
class TakeRowsParams(RowsParams):
    """dtype, lanes: of a token. max_tokens: the most tokens of one descriptor.

    Bounds: rows, features (elements of a row, a multiple of lanes), first, count (the number of rows that
    pass); tile, if features come in tiles of all rows (a multiple of lanes that divides features).
    """

    dtype: str
    lanes: int
    max_tokens: int

    moves: ClassVar[bool] = True
    drops: ClassVar[bool] = True

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"i": self._stream(bounds, bounds["rows"])}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"o": self._stream(bounds, bounds["count"])} if bounds["count"] else {}

    def descriptor_fields(self) -> tuple[Field, ...]:
        """The number of all tokens; of a tile, the tokens before the first one that passes and those that
        pass; the tokens between the last one that passes and the first one of the next tile."""
        return tuple(Field(name, self.counter.bits) for name in ("tokens", "before", "passing", "between"))

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        rows, features, first, count = (bounds[name] for name in ("rows", "features", "first", "count"))
        row, tile = features // self.lanes, bounds.get("tile", features)
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
            (
                "tile",
                tile,
                f"a multiple of lanes, {self.lanes}, that divides {features} features",
                tile >= self.lanes and tile % self.lanes == 0 and features % tile == 0,
            ),
            ("first", first, f"0 to {rows - 1}", 0 <= first < rows),
            ("count", count, f"0 to {rows - first}", 0 <= count <= rows - first),
        ):
            if not holds:
                raise ValueError(f"TakeRows: {name} is {value}; it must be {law}")
        width = tile // self.lanes
        return {
            "tokens": rows * row,
            "before": first * width if count else 0,
            "passing": count * width,
            "between": (rows - count) * width if count else 0,
        }

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        """o [count, features] of i [rows, features]."""
        return {"o": inputs["i"][bounds["first"] :][: bounds["count"]]} if bounds["count"] else {}

    def cost(self, bounds: Bounds) -> Cost:
        described = self.describe(bounds)
        before, passing, tokens = (described[name] for name in ("before", "passing", "tokens"))
        last = tokens - described["between"] + before  # tokens up to the last one that passes
        skip = Resources(lut=4.7 * self.counter.bits + 6, ff=4 * self.counter.bits + 2)
        return Cost(
            resources=self.counter.resources + skip + skid_resources(self.token_bits, 1),
            ii=1.0,
            latency=1 + before,
            cycles=2 + last if passing else 1 + tokens,
        )

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        described = self.describe(bounds)
        taken = {"i": Curve.nest(1, (described["tokens"], 1))}
        if not described["passing"]:
            return taken
        passing, each = described["passing"], described["passing"] + described["between"]
        tiles = (described["tokens"] // each, each)
        return taken | {"o": Curve.nest(2 + described["before"], tiles, (passing, 1))}

    def build(self) -> "TakeRows":
        return TakeRows(self)

    def _stream(self, bounds: Bounds, rows: int) -> ITensor:
        features, tile = bounds["features"], bounds.get("tile", bounds["features"])
        if tile == features:
            return self._rows(rows, features)
        trips, steps = (features // tile, rows, tile // self.lanes), (tile, 1, self.lanes)
        return ITensor((1, self.lanes), self.dtype, trips, steps, ((1,), (0, 2)))


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
        before, left, passing, between = (Signal.like(fields.before, reset_less=True) for _ in range(4))
        m.d.comb += [
            *count.takes(self.i_descriptor, fields.tokens),
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
                Cat(left, passing).eq(fields.passing.replicate(2)),
                between.eq(fields.between),
            ]
        with m.Elif(step & passes & (left == 1)):
            m.d.sync += [passes.eq(between == 0), before.eq(between), left.eq(passing)]
        with m.Elif(step & passes):
            m.d.sync += left.eq(left - 1)
        with m.Elif(step):
            # Where no rows pass it counts on from 0 and does not come to 1 again.
            m.d.sync += [passes.eq(before == 1), before.eq(before - 1)]
        return m
