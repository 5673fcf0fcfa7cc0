"""Elementwise kernels in f24: each element of each token by itself, in whatever order tokens come.

    UnaryParams    o = function(i)                relu, sigmoid, silu
    BinaryParams   o = i_a + i_b  or  i_a · i_b   add, multiply

Tokens go out in the order they come in, one a cycle. The order is part of the bounds, not of the hardware:
bounds = {"itensor": ITensor} is the itensor of every port; of a binary kernel "b" may give i_b another one
of the same token count (a re-use loop, say, to add a row to many). The descriptor is the number of tokens.

All lanes are one pipe under one clock enable, behind it a register slice, so that the enable depends on
registers only. Tokens of the next descriptor follow those of this one without a gap.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
from amaranth import Cat, Module, Signal, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.arith import F24, AddParams, MultiplyParams, ReluParams, SigmoidParams
from streamgen.contract import Bounds, Field
from streamgen.cost import Cost, Curve, Resources
from streamgen.itensor import ITensor
from streamgen.rtl import Shared
from streamgen.stream import CountdownParams, add_skid, descriptor_signature, skid_resources

__all__ = ["BINARY_OPERATIONS", "UNARY_FUNCTIONS", "BinaryParams", "Elementwise", "UnaryParams"]


class _Unit(Protocol):
    """Params of an arithmetic unit; the ports of the unit are `i`, or `a` and `b`, and `o`."""

    @property
    def latency(self) -> int: ...

    @property
    def resources(self) -> Resources: ...

    def golden(self, *operands: ndarray) -> ndarray: ...

    def build(self) -> wiring.Component: ...


UNARY_FUNCTIONS: dict[str, Any] = {
    "relu": ReluParams(form=F24),
    "sigmoid": SigmoidParams(form=F24),
    "silu": SigmoidParams(form=F24, times_x=True),
}
BINARY_OPERATIONS: dict[str, Any] = {
    "add": AddParams(form=F24),
    "multiply": MultiplyParams(form=F24),
}


@dataclass(frozen=True, kw_only=True)
class _ElementwiseParams(ABC):
    """lanes: elements of a token. max_tokens: the most tokens of one descriptor."""

    lanes: int
    max_tokens: int

    def __post_init__(self) -> None:
        if self.lanes < 1:
            raise ValueError(f"lanes is {self.lanes}; at least 1 is needed")
        if not 1 <= self.max_tokens < 1 << 32:
            raise ValueError(f"max_tokens is {self.max_tokens}; 1 to 2^32 - 1 are allowed")

    @property
    @abstractmethod
    def unit(self) -> _Unit:
        """The arithmetic of one lane."""

    @property
    @abstractmethod
    def operands(self) -> tuple[str, ...]:
        """The input ports."""

    @property
    def latency(self) -> int:
        """Cycles from an input token to its output token: the unit and the register slice."""
        return self.unit.latency + 1

    @abstractmethod
    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        """The itensor of each input port; ValueError when its tokens are not `lanes` elements of f24."""

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        """The itensor of `o`, the one of the bounds."""
        return {"o": self._itensor(bounds, "itensor")}

    def descriptor_fields(self) -> tuple[Field, ...]:
        """The number of tokens."""
        return (Field("tokens", self.max_tokens.bit_length()),)

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        """The value of each descriptor field; ValueError for more tokens than `max_tokens`."""
        tokens = self._itensor(bounds, "itensor").token_count
        if tokens > self.max_tokens:
            raise ValueError(f"itensor has {tokens} tokens; max_tokens is {self.max_tokens}")
        return {"tokens": tokens}

    def cost(self, bounds: Bounds) -> Cost:
        """Exact cycles: a descriptor, a token a cycle, the latency of the unit."""
        tokens = self.describe(bounds)["tokens"]
        count = CountdownParams(bits=self.descriptor_fields()[0].bits)
        control = Resources(lut=8, ff=self.unit.latency) + skid_resources(self.lanes * F24.bits, 1)
        return Cost(
            resources=self.lanes * self.unit.resources + count.resources + control,
            ii=1.0,
            latency=self.latency,
            cycles=1 + tokens + self.latency,
        )

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        """A token a cycle, from cycle 1 on the inputs, a latency later on the output."""
        tokens = self.describe(bounds)["tokens"]
        curves = {port: Curve.nest(1, (tokens, 1)) for port in self.inputs(bounds)}
        return curves | {"o": Curve.nest(1 + self.latency, (tokens, 1))}

    def build(self) -> "Elementwise":
        """The component."""
        return Elementwise(self)

    def _itensor(self, bounds: Bounds, name: str) -> ITensor:
        itensor = bounds[name]
        if itensor.dtype != "f24" or prod(itensor.element_shape) != self.lanes:
            raise ValueError(f"{name} must have tokens of {self.lanes} elements of f24; it is {itensor}")
        return itensor


@dataclass(frozen=True, kw_only=True)
class UnaryParams(_ElementwiseParams):
    """A function of UNARY_FUNCTIONS; ports i and o."""

    function: str

    def __post_init__(self) -> None:
        if self.function not in UNARY_FUNCTIONS:
            known = ", ".join(UNARY_FUNCTIONS)
            raise ValueError(f"function is {self.function!r}; one of {known} is needed")
        super().__post_init__()

    @property
    def unit(self) -> _Unit:
        return UNARY_FUNCTIONS[self.function]

    @property
    def operands(self) -> tuple[str, ...]:
        return ("i",)

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"i": self._itensor(bounds, "itensor")}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        """o = function(i), float32 of the same shape."""
        return {"o": self.unit.golden(inputs["i"]).astype(np.float32)}


@dataclass(frozen=True, kw_only=True)
class BinaryParams(_ElementwiseParams):
    """An operation of BINARY_OPERATIONS; ports i_a, i_b and o."""

    operation: str

    def __post_init__(self) -> None:
        if self.operation not in BINARY_OPERATIONS:
            known = ", ".join(BINARY_OPERATIONS)
            raise ValueError(f"operation is {self.operation!r}; one of {known} is needed")
        super().__post_init__()

    @property
    def unit(self) -> _Unit:
        return BINARY_OPERATIONS[self.operation]

    @property
    def operands(self) -> tuple[str, ...]:
        return ("i_a", "i_b")

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        a = self._itensor(bounds, "itensor")
        b = self._itensor(bounds, "b") if "b" in bounds else a
        if a.token_count != b.token_count:
            raise ValueError(
                f"b must have as many tokens as itensor, {a.token_count}; it has {b.token_count}"
            )
        return {"i_a": a, "i_b": b}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        """o = i_a (operation) i_b, token by token; float32, elements that no token covers are 0."""
        ports = self.inputs(bounds)
        a = ports["i_a"].to_tokens(inputs["i_a"])
        b = ports["i_b"].to_tokens(inputs["i_b"]).reshape(a.shape)
        return {"o": ports["i_a"].from_tokens(self.unit.golden(a, b).astype(np.float32), fill=0)}


class Elementwise(wiring.Component):
    """The hardware of UnaryParams and BinaryParams: one unit a lane."""

    def __init__(self, params: _ElementwiseParams) -> None:
        self._params = params
        token = stream.Signature(unsigned(params.lanes * F24.bits))
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                **{name: In(token) for name in params.operands},
                "o": Out(token),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        unit = self._params.unit
        inputs = [getattr(self, name) for name in self._params.operands]
        count = CountdownParams(bits=self._params.descriptor_fields()[0].bits).build()
        m.submodules.count = count
        descriptor = self.i_descriptor
        m.d.comb += [
            count.i_count.payload.eq(descriptor.payload.tokens),
            count.i_count.valid.eq(descriptor.valid),
            descriptor.ready.eq(count.i_count.ready),
        ]

        results = stream.Signature(self._params.lanes * F24.bits).create()
        add_skid(m, results, [wiring.flipped(self.o)])
        move, step = Signal(), Signal()
        m.d.comb += [
            move.eq(~results.valid | results.ready),
            step.eq(move & count.active & Cat(i.valid for i in inputs).all()),
            count.step.eq(step),
            *(i.ready.eq(step) for i in inputs),
        ]
        full = Signal(unit.latency)
        with m.If(move):
            m.d.sync += full.eq(Cat(step, full))
        m.d.comb += results.valid.eq(full[-1])

        for lane in range(self._params.lanes):
            block = Shared(unit)
            m.submodules[f"lane_{lane}"] = block
            at = slice(lane * F24.bits, (lane + 1) * F24.bits)
            m.d.comb += [block.enable.eq(move), results.payload[at].eq(block.o)]
            for name, i in zip(self._params.operands, inputs, strict=True):
                m.d.comb += getattr(block, name.removeprefix("i_")).eq(i.payload[at])
        return m
