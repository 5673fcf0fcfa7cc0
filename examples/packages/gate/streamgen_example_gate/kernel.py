"""Gate: a row passes if its first feature is above a limit; otherwise zeros take its place.

    o[r, f] = i[r, f] if i[r, 0] > limit else 0              a limit of 0 or more; NaN is above nothing

Tokens of `lanes` f24 values go out in the order in which they come in, row after row, one a cycle. Bounds:
{"rows": int, "features": int, "limit": float}, features a multiple of lanes. The limit is a field of the
descriptor, so it may change with every execution.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from amaranth import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.gateware.stream import Countdown, CountdownParams, descriptor_signature
from streamgen.itensor import ITensor
from streamgen.numbers import formats

__all__ = ["GateRowsKernel", "GateRowsParams"]

BITS = 24  # sign, 8 bits of exponent, 15 of fraction: without the sign, values compare as integers
MAGNITUDE = BITS - 1
INFINITY = 0xFF << 15


@dataclass(frozen=True, kw_only=True)
class GateRowsParams:
    """lanes: values of a token. max_rows, max_row_tokens: of an execution, of a row."""

    lanes: int
    max_rows: int
    max_row_tokens: int

    def __post_init__(self) -> None:
        for name in ("lanes", "max_rows", "max_row_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} of a gate must be at least 1, not {getattr(self, name)}")

    @property
    def count(self) -> CountdownParams:
        """Of the tokens of an execution."""
        return CountdownParams(bits=(self.max_rows * self.max_row_tokens).bit_length())

    @property
    def end_bits(self) -> int:
        """Of the number of a token in its row."""
        return max(1, (self.max_row_tokens - 1).bit_length())

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"i": self._itensor(bounds)}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"o": self._itensor(bounds)}

    def descriptor_fields(self) -> tuple[Field, ...]:
        """end: tokens of a row less one."""
        return Field("tokens", self.count.bits), Field("end", self.end_bits), Field("limit", MAGNITUDE)

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        limit = np.float32(bounds["limit"])
        if not limit >= 0 or limit != formats.round_f24(limit):
            raise ValueError(f"limit of a gate must be a value of f24 from 0 on, not {bounds['limit']}")
        rows, row = self._itensor(bounds).tripcounts
        return {"tokens": rows * row, "end": row - 1, "limit": int((limit + 0.0).view(np.uint32)) >> 8}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        x = inputs["i"]
        return {"o": np.where(x[:, :1] > np.float32(bounds["limit"]), x, np.float32(0))}

    def cost(self, bounds: Bounds) -> Cost:
        row = Resources(lut=2 * self.end_bits + 20, ff=2 * self.end_bits + MAGNITUDE + 1)
        gate = Resources(lut=self.lanes * BITS, ff=self.lanes * BITS + 1)
        tokens = self._itensor(bounds).token_count
        return Cost(resources=self.count.resources + row + gate, ii=1.0, latency=1, cycles=2 + tokens)

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        tokens = self._itensor(bounds).token_count
        return {"i": Curve.nest(1, (tokens, 1)), "o": Curve.nest(2, (tokens, 1))}

    def build(self) -> "GateRowsKernel":
        return GateRowsKernel(self)

    def _itensor(self, bounds: Bounds) -> ITensor:
        rows, features = bounds["rows"], bounds["features"]
        row, rest = divmod(features, self.lanes)
        if rest or not 1 <= row <= self.max_row_tokens:
            raise ValueError(
                f"features of a gate of {self.lanes} lanes must be a multiple of them up to "
                f"{self.lanes * self.max_row_tokens}, not {features}"
            )
        if not 1 <= rows <= self.max_rows:
            raise ValueError(f"rows of a gate must be 1 to {self.max_rows}, not {rows}")
        return ITensor((1, self.lanes), "f24", (rows, row), (1, self.lanes), ((0,), (1,)))


class GateRowsKernel(wiring.Component):
    """`i` to `o`, which is registered."""

    def __init__(self, params: GateRowsParams) -> None:
        self._params = params
        token = stream.Signature(params.lanes * BITS)
        descriptor = descriptor_signature(params.descriptor_fields())
        super().__init__({"i_descriptor": In(descriptor), "i": In(token), "o": Out(token)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.count = count = Countdown(self._params.count)
        end, place, limit = (
            Signal(self._params.end_bits),
            Signal(self._params.end_bits),
            Signal(MAGNITUDE),
        )
        free, above, passed, passes = Signal(), Signal(), Signal(), Signal()
        first = self.i.payload[:BITS]
        magnitude = first[:MAGNITUDE]
        m.d.comb += [
            count.i_count.valid.eq(self.i_descriptor.valid),
            count.i_count.payload.eq(self.i_descriptor.payload.tokens),
            self.i_descriptor.ready.eq(count.i_count.ready),
            free.eq(~self.o.valid | self.o.ready),
            self.i.ready.eq(count.active & free),
            count.step.eq(self.i.valid & self.i.ready),
            above.eq(~first[MAGNITUDE] & (magnitude > limit) & (magnitude <= INFINITY)),
            passes.eq(Mux(place == 0, above, passed)),
        ]
        with m.If(count.taken):
            m.d.sync += [end.eq(self.i_descriptor.payload.end), limit.eq(self.i_descriptor.payload.limit)]
            m.d.sync += place.eq(0)
        with m.If(count.step):
            m.d.sync += [place.eq(Mux(place == end, 0, place + 1)), passed.eq(passes)]
        with m.If(free):
            m.d.sync += [self.o.valid.eq(count.step), self.o.payload.eq(Mux(passes, self.i.payload, 0))]
        return m
