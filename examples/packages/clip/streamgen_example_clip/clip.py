"""Clip: values beyond a limit become the limit.

    o = min(max(i, -limit), limit)                       NaN stays NaN

Tokens of `lanes` f24 values go out in the order in which they come in, one a cycle. Bounds: {"itensor":
ITensor, "limit": float}. The limit is a field of the descriptor, so it may change with every execution.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.gateware.stream import Countdown, CountdownParams, descriptor_signature
from streamgen.itensor import ITensor
from streamgen.numbers import formats

__all__ = ["Clip", "ClipParams"]

BITS = 24  # sign, 8 bits of exponent, 15 of fraction: without the sign, values compare as integers
MAGNITUDE = BITS - 1
INFINITY = 0xFF << 15


@dataclass(frozen=True, kw_only=True)
class ClipParams:
    """lanes: values of a token. max_tokens: the longest execution."""

    lanes: int
    max_tokens: int

    def __post_init__(self) -> None:
        for name in ("lanes", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} of a clip must be at least 1, not {getattr(self, name)}")

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"i": self._itensor(bounds)}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"o": self._itensor(bounds)}

    def descriptor_fields(self) -> tuple[Field, ...]:
        return Field("tokens", self.max_tokens.bit_length()), Field("limit", MAGNITUDE)

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        limit = np.float32(bounds["limit"])
        if not limit >= 0 or limit != formats.round_f24(limit):
            raise ValueError(f"limit of a clip must be a value of f24 from 0 on, not {bounds['limit']}")
        return {"tokens": self._itensor(bounds).token_count, "limit": int(limit.view(np.uint32)) >> 8}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        limit = np.float32(bounds["limit"])
        return {"o": np.clip(inputs["i"], -limit, limit)}

    def cost(self, bounds: Bounds) -> Cost:
        count = CountdownParams(bits=self.max_tokens.bit_length()).resources
        clip = Resources(lut=self.lanes * 45, ff=self.lanes * BITS + MAGNITUDE + 1)
        return Cost(resources=count + clip, ii=1.0, latency=1, cycles=2 + self._itensor(bounds).token_count)

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        tokens = self._itensor(bounds).token_count
        return {"i": Curve.nest(1, (tokens, 1)), "o": Curve.nest(2, (tokens, 1))}

    def build(self) -> "Clip":
        return Clip(self)

    def _itensor(self, bounds: Bounds) -> ITensor:
        itensor: ITensor = bounds["itensor"]
        if itensor.dtype != "f24" or prod(itensor.element_shape) != self.lanes:
            raise ValueError(f"a clip of {self.lanes} lanes of f24 cannot take {itensor}")
        if itensor.token_count > self.max_tokens:
            raise ValueError(f"a clip of at most {self.max_tokens} tokens cannot run {itensor}")
        return itensor


class Clip(wiring.Component):
    """`i` to `o`, which is registered."""

    def __init__(self, params: ClipParams) -> None:
        self._params = params
        token = stream.Signature(params.lanes * BITS)
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i": In(token),
                "o": Out(token),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        count = Countdown(CountdownParams(bits=self._params.max_tokens.bit_length()))
        m.submodules.count = count
        limit = Signal(MAGNITUDE)
        free = Signal()
        m.d.comb += [
            count.i_count.valid.eq(self.i_descriptor.valid),
            count.i_count.payload.eq(self.i_descriptor.payload.tokens),
            self.i_descriptor.ready.eq(count.i_count.ready),
            free.eq(~self.o.valid | self.o.ready),
            self.i.ready.eq(count.active & free),
            count.step.eq(self.i.valid & self.i.ready),
        ]
        with m.If(count.taken):
            m.d.sync += limit.eq(self.i_descriptor.payload.limit)
        with m.If(free):
            m.d.sync += [
                self.o.valid.eq(count.step),
                self.o.payload.eq(Cat(self._lane(value, limit) for value in self._values())),
            ]
        return m

    def _values(self) -> list[Any]:
        return [self.i.payload.word_select(lane, BITS) for lane in range(self._params.lanes)]

    def _lane(self, value: Any, limit: Signal) -> Any:
        magnitude = value[:MAGNITUDE]
        beyond = (magnitude > limit) & (magnitude <= INFINITY)
        return Cat(Mux(beyond, limit, magnitude), value[MAGNITUDE])
