"""Join rows: joins the rows of several streams to the rows of one stream.

    o[r] = i_0[r], i_1[r] ...        r = 0 ... rows - 1

Tiles in and out: (1, lanes), row-major, one token per cycle; while the tokens of one input pass, the others
wait. Rows may have several lines, as those of cosines and sines do: tiles then are (1, lines, lanes). One
register stage holds the token of the output.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.gateware.stream import add_skid, descriptor_signature, skid_resources
from streamgen.itensor import ITensor
from streamgen.kernels.moves.passing import RowsParams
from streamgen.numbers import formats


@dataclass(frozen=True, kw_only=True)
class JoinRowsParams(RowsParams):
    """ways: inputs `i_0` ... dtype, lanes, lines: of a token. max_tokens: the most tokens of one descriptor.

    Bounds: rows, parts (elements of a line of each input, multiples of lanes).
    """

    ways: int
    dtype: str
    lanes: int
    max_tokens: int
    lines: int = 1

    def __post_init__(self) -> None:
        for name, least in (("ways", 2), ("lanes", 1), ("lines", 1), ("max_tokens", self.ways)):
            if getattr(self, name) < least:
                raise ValueError(f"JoinRows.{name} is {getattr(self, name)}; at least {least} is needed")
        if self.max_tokens >= 1 << 32:
            raise ValueError(f"JoinRows.max_tokens is {self.max_tokens}; at most 2^32 - 1 are allowed")
        formats.token_bits(self.dtype, self.tile)  # raises for a dtype without such a token

    @property
    def tile(self) -> tuple[int, ...]:
        """The shape of a token."""
        return (1, self.lanes) if self.lines == 1 else (1, self.lines, self.lanes)

    @property
    def token_bits(self) -> int:
        return formats.token_bits(self.dtype, self.tile)

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {f"i_{way}": self._rows(bounds["rows"], part) for way, part in enumerate(bounds["parts"])}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"o": self._rows(bounds["rows"], sum(bounds["parts"]))}

    def descriptor_fields(self) -> tuple[Field, ...]:
        """The number of tokens of the output, and the tokens of a row of each input, minus one."""
        bits = self.counter.bits
        return Field("tokens", bits), *(Field(f"part_{way}", bits) for way in range(self.ways))

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        rows, parts = bounds["rows"], bounds["parts"]
        if len(parts) != self.ways or any(part < 1 or part % self.lanes for part in parts):
            raise ValueError(
                f"JoinRows: parts are {parts}; {self.ways} multiples of lanes, {self.lanes}, are needed"
            )
        tokens = rows * sum(parts) // self.lanes
        if not 1 <= tokens <= self.max_tokens:
            raise ValueError(
                f"JoinRows: rows is {rows}; it must be 1 to {self.max_tokens} tokens of {self.lanes}, "
                f"of which a row takes {sum(parts) // self.lanes}"
            )
        return {"tokens": tokens} | {f"part_{way}": part // self.lanes - 1 for way, part in enumerate(parts)}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        """o [rows, sum of parts] of i_<way> [rows, part]; with several lines, [rows, lines, ...]."""
        return {"o": np.concatenate([inputs[f"i_{way}"] for way in range(self.ways)], axis=-1)}

    def cost(self, bounds: Bounds) -> Cost:
        bits = self.counter.bits
        # the register takes one of two inputs in its own LUTs, of more through multiplexers before it
        choose = (0.7 * (self.ways - 2) + 0.2 * (self.ways > 2)) * self.token_bits
        own = Resources(
            lut=1.3 * (self.ways + 1) * bits + 2 * self.ways + choose, ff=(self.ways + 1) * bits + self.ways
        )
        return Cost(
            resources=self.counter.resources + own + skid_resources(self.token_bits, 1),
            ii=1.0,
            latency=1,
            cycles=2 + self.describe(bounds)["tokens"],
        )

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        tokens = self.describe(bounds)["tokens"]
        whole, first = tokens // bounds["rows"], 1
        curves = {}
        for way, part in enumerate(bounds["parts"]):
            own = part // self.lanes
            curves[f"i_{way}"] = Curve.nest(first, (bounds["rows"], whole), (own, 1))
            first += own
        return curves | {"o": Curve.nest(2, (tokens, 1))}

    def build(self) -> "JoinRows":
        return JoinRows(self)

    def _rows(self, rows: int, features: int) -> ITensor:
        if self.lines == 1:
            return super()._rows(rows, features)
        trips = (rows, 1, features // self.lanes)
        return ITensor(self.tile, self.dtype, trips, self.tile, ((0,), (1,), (2,)))


class JoinRows(wiring.Component):
    """`i_0` … `i_{ways-1}` to `o`, which is registered."""

    def __init__(self, params: JoinRowsParams) -> None:
        self._params = params
        token = stream.Signature(params.token_bits)
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                **{f"i_{way}": In(token) for way in range(params.ways)},
                "o": Out(token),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p, fields = self._params, self.i_descriptor.payload
        m.submodules.count = count = p.counter.build()
        inputs = [getattr(self, f"i_{way}") for way in range(p.ways)]
        joined = stream.Signature(p.token_bits).create()
        add_skid(m, joined, [wiring.flipped(self.o)])

        chosen = Signal(p.ways, reset_less=True)  # one-hot
        left = Signal.like(fields.part_0, reset_less=True)  # tokens of the part that follow this one
        # Parts of a row, in a ring: in front is the one behind that which passes.
        parts = [Signal.like(left, name=f"part_{way}", reset_less=True) for way in range(p.ways)]

        valid = (Cat(i.valid for i in inputs) & chosen).any()
        m.d.comb += [
            *count.takes(self.i_descriptor, fields.tokens),
            joined.valid.eq(valid & count.active),
            count.step.eq(joined.valid & joined.ready),
        ]
        payload = inputs[0].payload
        for way, i in enumerate(inputs):
            m.d.comb += i.ready.eq(chosen[way] & count.active & joined.ready)
            payload = Mux(chosen[way], i.payload, payload)
        m.d.comb += joined.payload.eq(payload)
        with m.If(count.step):
            m.d.sync += left.eq(left - 1)
            with m.If(left == 0):
                m.d.sync += [chosen.eq(chosen.rotate_left(1)), left.eq(parts[0])]
                m.d.sync += [here.eq(after) for here, after in zip(parts, parts[1:] + parts[:1], strict=True)]
        with m.If(count.taken):
            m.d.sync += [chosen.eq(1), left.eq(fields.part_0)]
            m.d.sync += [here.eq(fields[f"part_{(way + 1) % p.ways}"]) for way, here in enumerate(parts)]
        return m
