"""Concat: one token of each of C inputs becomes one token, C elements wide on the last dimension.

    o[..., j * C + c] = i_c[..., j]                        c = 0 ... C - 1

All inputs send the same tiles in the same order; tiles of extent 1 on the last dimension leave with
extent C, in that order. So the columns of a matmul, column c owning the rows n with n % C == c, meet.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from amaranth import Cat, Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.fifo.clocks import Clocks, pipe
from streamgen.gateware.stream import (
    Countdown,
    CountdownParams,
    add_skid,
    descriptor_signature,
    skid_resources,
)
from streamgen.itensor import ITensor
from streamgen.numbers import formats


@dataclass(frozen=True, kw_only=True)
class ConcatParams:
    """ways: inputs `i_0` ... dtype, element_shape: of an input token, whose last extent is 1.

    max_tokens: the longest execution. Bounds: {"itensor": ITensor}, the stream of one input.
    """

    ways: int
    dtype: str
    element_shape: tuple[int, ...]
    max_tokens: int
    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("ways", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} of a concat must be at least 1, not {getattr(self, name)}")
        if not self.element_shape or self.element_shape[-1] != 1 or min(self.element_shape) < 1:
            raise ValueError(
                f"element_shape of a concat must be positive and end in 1, not {self.element_shape}"
            )
        formats.bits(self.dtype)  # raises for a format without a width of its own

    @property
    def element_bits(self) -> int:
        return formats.bits(self.dtype)

    @property
    def rows(self) -> int:
        """Elements of an input token."""
        return int(np.prod(self.element_shape))

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {f"i_{way}": self._itensor(bounds) for way in range(self.ways)}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        itensor = self._itensor(bounds)
        last = len(self.element_shape) - 1
        steps = tuple(
            step * self.ways if loop in itensor.iter_map[last] else step
            for loop, step in enumerate(itensor.steps)
        )
        base = (*itensor.base[:last], itensor.base[last] * self.ways)
        shape = (*self.element_shape[:last], self.ways)
        return {"o": ITensor(shape, self.dtype, itensor.tripcounts, steps, itensor.iter_map, base)}

    def descriptor_fields(self) -> tuple[Field, ...]:
        return (Field("tokens", self.max_tokens.bit_length()),)

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        return {"tokens": self._itensor(bounds).token_count}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        parts = [np.asarray(inputs[f"i_{way}"]) for way in range(self.ways)]
        return {"o": np.stack(parts, -1).reshape(*parts[0].shape[:-1], -1)}

    def cost(self, bounds: Bounds) -> Cost:
        count = CountdownParams(bits=self.max_tokens.bit_length()).resources
        join = Resources(lut=self.ways // 4 + 3, ff=0)
        return Cost(
            resources=count + join + skid_resources(self.ways * self.rows * self.element_bits, 1),
            ii=1.0,
            latency=1,
            cycles=2 + self._itensor(bounds).token_count,
        )

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        tokens = self._itensor(bounds).token_count
        taken = Curve.nest(1, (tokens, 1))
        return {**{f"i_{way}": taken for way in range(self.ways)}, "o": Curve.nest(2, (tokens, 1))}

    def clocks(self, bounds: Bounds) -> Clocks:
        inputs = tuple(f"i_{way}" for way in range(self.ways))
        return pipe(inputs, ("o",), self._itensor(bounds).token_count, 1, 2)

    def build(self) -> "ConcatKernel":
        return ConcatKernel(self)

    def _itensor(self, bounds: Bounds) -> ITensor:
        itensor: ITensor = bounds["itensor"]
        if (itensor.dtype, itensor.element_shape) != (self.dtype, self.element_shape):
            raise ValueError(f"a concat of {self.dtype} tiles {self.element_shape} cannot take {itensor}")
        if itensor.token_count > self.max_tokens:
            raise ValueError(
                f"a concat of at most {self.max_tokens} tokens cannot run {itensor.token_count}: {itensor}"
            )
        return itensor


class ConcatKernel(wiring.Component):
    """`i_0` … `i_{ways-1}` to `o`, which is registered."""

    def __init__(self, params: ConcatParams) -> None:
        self._params = p = params
        bits = p.rows * p.element_bits
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(p.descriptor_fields())),
                **{f"i_{way}": In(stream.Signature(bits)) for way in range(p.ways)},
                "o": Out(stream.Signature(bits * p.ways)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self._params
        m.submodules.count = count = Countdown(CountdownParams(bits=p.max_tokens.bit_length()))
        inputs = [getattr(self, f"i_{way}") for way in range(p.ways)]
        joined = stream.Signature(len(self.o.payload)).create()
        add_skid(m, joined, [wiring.flipped(self.o)])
        elements = [i.payload.word_select(row, p.element_bits) for row in range(p.rows) for i in inputs]
        m.d.comb += [
            *count.takes(self.i_descriptor, self.i_descriptor.payload.tokens),
            count.step.eq(joined.valid & joined.ready),
            joined.valid.eq(Cat(i.valid for i in inputs).all() & count.active),
            joined.payload.eq(Cat(elements)),
        ]
        for i in inputs:
            m.d.comb += i.ready.eq(joined.valid & joined.ready)
        return m
