"""Unzip: splits a token into one token for each of C outputs; neighbouring elements stay together.

    o_c[..., j * lanes + l] = i[..., (j * C + c) * lanes + l]              c = 0 ... C - 1

It separates the gates and the factors of a gated product, each of which half of a matmul's columns compute.
Tiles are (1, lanes * C) and (1, lanes), in the same order, one token per cycle; each output takes its token
at its own time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from amaranth import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.gateware.stream import CountdownParams, add_skid, descriptor_signature, skid_resources
from streamgen.itensor import ITensor
from streamgen.numbers import formats


@dataclass(frozen=True, kw_only=True)
class UnzipParams:
    """ways: outputs `o_0` ... dtype, lanes: of an output token. max_tokens: the longest execution.

    Bounds: {"itensor": ITensor}, the stream that comes in.
    """

    ways: int
    dtype: str
    lanes: int
    max_tokens: int
    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name, least in (("ways", 2), ("lanes", 1), ("max_tokens", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} of an unzip must be at least {least}, not {getattr(self, name)}")
        formats.bits(self.dtype)  # raises for a format without a width of its own

    @property
    def part_bits(self) -> int:
        """Bits of an output token."""
        return self.lanes * formats.bits(self.dtype)

    @property
    def count(self) -> CountdownParams:
        return CountdownParams(bits=self.max_tokens.bit_length())

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"i": self._itensor(bounds)}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        itensor = self._itensor(bounds)
        steps = tuple(
            step // self.ways if loop in itensor.iter_map[1] else step
            for loop, step in enumerate(itensor.steps)
        )
        part = ITensor((1, self.lanes), self.dtype, itensor.tripcounts, steps, itensor.iter_map)
        return {f"o_{way}": part for way in range(self.ways)}

    def descriptor_fields(self) -> tuple[Field, ...]:
        return (Field("tokens", self.count.bits),)

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        return {"tokens": self._itensor(bounds).token_count}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        x = inputs["i"]
        parts = x.reshape(len(x), -1, self.ways, self.lanes)
        return {f"o_{way}": parts[:, :, way].reshape(len(x), -1) for way in range(self.ways)}

    def cost(self, bounds: Bounds) -> Cost:
        join = Resources(lut=self.ways // 4 + 3, ff=0)
        return Cost(
            resources=self.count.resources + join + skid_resources(self.ways * self.part_bits, self.ways),
            ii=1.0,
            latency=1,
            cycles=2 + self._itensor(bounds).token_count,
        )

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        tokens = self._itensor(bounds).token_count
        sent = Curve.nest(2, (tokens, 1))
        return {"i": Curve.nest(1, (tokens, 1)), **{f"o_{way}": sent for way in range(self.ways)}}

    def build(self) -> "Unzip":
        return Unzip(self)

    def _itensor(self, bounds: Bounds) -> ITensor:
        itensor: ITensor = bounds["itensor"]
        if (itensor.dtype, itensor.element_shape) != (self.dtype, (1, self.lanes * self.ways)):
            raise ValueError(
                f"an unzip takes {self.dtype} tiles (1, {self.lanes * self.ways}), it cannot take {itensor}"
            )
        if itensor.token_count > self.max_tokens:
            raise ValueError(
                f"an unzip of at most {self.max_tokens} tokens cannot run {itensor.token_count}: {itensor}"
            )
        if any(itensor.base) or any(itensor.steps[loop] % self.ways for loop in itensor.iter_map[1]):
            raise ValueError(f"the columns of {itensor} do not lie in groups of {self.ways}")
        return itensor


class Unzip(wiring.Component):
    """`i` to `o_0` … `o_{ways-1}`."""

    def __init__(self, params: UnzipParams) -> None:
        self._params = params
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i": In(stream.Signature(params.ways * params.part_bits)),
                **{f"o_{way}": Out(stream.Signature(params.part_bits)) for way in range(params.ways)},
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self._params
        m.submodules.count = count = p.count.build()
        passed = stream.Signature(p.ways * p.part_bits).create()
        sent = [stream.Signature(p.ways * p.part_bits).create(path=(f"sent_{way}",)) for way in range(p.ways)]
        add_skid(m, passed, sent)
        m.d.comb += [
            *count.takes(self.i_descriptor, self.i_descriptor.payload.tokens),
            count.step.eq(passed.valid & passed.ready),
            passed.valid.eq(self.i.valid & count.active),
            passed.payload.eq(self.i.payload),
            self.i.ready.eq(passed.ready & count.active),
        ]
        for way, whole in enumerate(sent):
            o = getattr(self, f"o_{way}")
            part = whole.payload.word_select(way, p.part_bits)
            m.d.comb += [o.valid.eq(whole.valid), o.payload.eq(part), whole.ready.eq(o.ready)]
        return m
