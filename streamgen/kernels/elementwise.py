"""Elementwise kernels in f24: each element of each token by itself, in whatever order tokens come.

    UnaryParams    o = function(i)                those of streamgen.gateware.functions
    BinaryParams   o = i_a + i_b  or  i_a · i_b   add, multiply
                   o = function(i_a) · i_b        silu_multiply (SwiGLU) and others: functions that gate
    ScalarParams   o = i · c                      scale
                   o = c · tanh(i · (1/c))        soft_cap
                   o = max(i, c) or min(i, c)     maximum, minimum
                   o = i if i > 0, else i · c     leaky
                   o = i if i > c, else 0         threshold
                   o = i if |i| > c, else 0       hardshrink

Tokens go out in the order they come in, one a cycle. The order is part of the bounds, not of the hardware:
bounds = {"itensor": ITensor} is the itensor of every port; of a binary kernel "b" may give i_b another one
of the same token count (a re-use loop, say, to add a row to many); "constant" is c of a scalar kernel. The
descriptor is the number of tokens and the constant, so that every execution may have another.

Each operation rounds once to f24: a product of a function twice, soft_cap three times, and c and 1/c too.

All lanes are one pipe under one clock enable, behind it a register slice, so that the enable depends on
registers only. Tokens of the next descriptor follow those of this one without a gap.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Protocol

import numpy as np
from amaranth import Cat, Module, Signal, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2
from numpy import ndarray

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.fifo.clocks import Clocks, pipe
from streamgen.gateware.arith import (
    F24,
    AboveParams,
    AddParams,
    GatedParams,
    LeakyParams,
    MaximumParams,
    MinimumParams,
    MultiplyParams,
    SoftCapParams,
)
from streamgen.gateware.functions import FUNCTIONS
from streamgen.gateware.rtl import Shared
from streamgen.gateware.stream import (
    CountdownParams,
    add_rows,
    add_skid,
    descriptor_signature,
    skid_resources,
)
from streamgen.itensor import ITensor


class _Unit(Protocol):
    """Params of an arithmetic unit. The ports of the unit are `i`, or `a`, `b` and `c`, and `o`."""

    @property
    def latency(self) -> int: ...

    @property
    def resources(self) -> Resources: ...

    def golden(self, *operands: ndarray) -> ndarray: ...

    def build(self) -> wiring.Component: ...


UNARY_FUNCTIONS: dict[str, Any] = {name: function.unit(F24) for name, function in FUNCTIONS.items()}
BINARY_OPERATIONS: dict[str, Any] = {
    "add": AddParams(form=F24),
    "multiply": MultiplyParams(form=F24),
    **{
        f"{name}_multiply": GatedParams(function=UNARY_FUNCTIONS[name])
        for name, function in FUNCTIONS.items()
        if function.gates
    },
}
SCALAR_FUNCTIONS: dict[str, Any] = {
    "scale": MultiplyParams(form=F24),
    "soft_cap": SoftCapParams(form=F24),
    "maximum": MaximumParams(form=F24),
    "minimum": MinimumParams(form=F24),
    "leaky": LeakyParams(form=F24),
    "threshold": AboveParams(form=F24),
    "hardshrink": AboveParams(form=F24, magnitude=True),
}
COMPARING = ("maximum", "minimum", "threshold", "hardshrink")


@dataclass(frozen=True, kw_only=True)
class ElementwiseParams(ABC):
    """What these kernels have in common.

    lanes: elements of a token. max_tokens: the most tokens of a row. max_rows: the most rows of a
    descriptor. If there may be several rows, lanes are a power of two, bounds["rows"] is the number of rows,
    and bounds["length"] the number of elements of a row whose last token is not full."""

    lanes: int
    max_tokens: int
    max_rows: int = 1

    def __post_init__(self) -> None:
        if self.lanes < 1:
            raise ValueError(f"lanes is {self.lanes}; at least 1 is needed")
        if not 1 <= self.max_tokens < 1 << 32:
            raise ValueError(f"max_tokens is {self.max_tokens}; 1 to 2^32 - 1 are allowed")
        if not 1 <= self.max_rows < 1 << 32:
            raise ValueError(f"max_rows is {self.max_rows}; 1 to 2^32 - 1 are allowed")
        if self.max_rows > 1 and self.lanes & (self.lanes - 1):
            raise ValueError(f"lanes is {self.lanes}; with several rows it must be a power of two")

    @property
    @abstractmethod
    def unit(self) -> _Unit:
        """The arithmetic of one lane."""

    @property
    @abstractmethod
    def operands(self) -> tuple[str, ...]:
        """The input ports."""

    @property
    def constants(self) -> tuple[str, ...]:
        """The descriptor fields that hold numbers, which are combined with every token."""
        return ()

    @property
    def pins(self) -> Mapping[str, str]:
        """The pin of the unit for each operand and constant."""
        return {name: name.removeprefix("i_") for name in self.operands}

    @property
    def squares(self) -> frozenset[str]:
        """Ports whose streams have a number of rows and of tokens of a row: all, if there may be several
        rows."""
        return frozenset({*self.operands, "o"}) if self.max_rows > 1 else frozenset()

    @property
    def latency(self) -> int:
        """Cycles from an input token to its output token: the unit and the register slice."""
        return self.unit.latency + 1

    @abstractmethod
    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        """The itensor of each input port; ValueError if its tokens are not `lanes` elements of f24."""

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        """The itensor of `o`, the one of the bounds."""
        return {"o": self.itensor(bounds, "itensor")}

    def descriptor_fields(self) -> tuple[Field, ...]:
        """The number of tokens, or of elements of a row and of rows; the constants as bits of f24."""
        if self.max_rows == 1:
            counts = [Field("tokens", self.max_tokens.bit_length())]
        else:
            length = (self.max_tokens * self.lanes).bit_length()
            counts = [Field("length", length), Field("rows", self.max_rows.bit_length())]
        return *counts, *(Field(name, F24.bits) for name in self.constants)

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        """The value of each descriptor field; ValueError if there are too many tokens or rows."""
        count, rows = self.itensor(bounds, "itensor").token_count, bounds.get("rows", 1)
        if not 1 <= rows <= self.max_rows:
            raise ValueError(f"rows is {rows}; 1 to max_rows, {self.max_rows}, are allowed")
        if count % rows:
            raise ValueError(f"itensor has {count} tokens, which are no {rows} rows")
        if count // rows > self.max_tokens:
            raise ValueError(f"itensor has {count // rows} tokens; max_tokens is {self.max_tokens}")
        if self.max_rows == 1:
            return {"tokens": count}
        length = bounds.get("length", count // rows * self.lanes)
        if -(-length // self.lanes) != count // rows:
            raise ValueError(f"length is {length}; a row has {count // rows} tokens of {self.lanes} elements")
        return {"length": length, "rows": rows}

    def cost(self, bounds: Bounds) -> Cost:
        """Exact cycles: a descriptor, one token per cycle, the latency of the unit."""
        constants = F24.bits * len(self.constants)
        control = Resources(lut=8, ff=self.unit.latency + constants)
        control += CountdownParams(bits=self.max_tokens.bit_length()).resources
        if self.max_rows > 1:
            control += CountdownParams(bits=self.max_rows.bit_length()).resources
            control += Resources(lut=0, ff=self.max_tokens.bit_length() + constants)
        control += skid_resources(self.lanes * F24.bits, 1)
        return Cost(
            resources=self.lanes * self.unit.resources + control,
            ii=1.0,
            latency=self.latency,
            cycles=self._begin + self.itensor(bounds, "itensor").token_count + self.latency,
        )

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        """One token per cycle on the inputs; the output follows a latency later."""
        self.describe(bounds)  # which checks the bounds
        tokens = self.itensor(bounds, "itensor").token_count
        curves = {port: Curve.nest(self._begin, (tokens, 1)) for port in self.inputs(bounds)}
        return curves | {"o": Curve.nest(self._begin + self.latency, (tokens, 1))}

    @property
    def _begin(self) -> int:
        """The cycle of the first token: a descriptor takes one cycle, and one more to count rows."""
        return 1 if self.max_rows == 1 else 2

    def clocks(self, bounds: Bounds) -> Clocks:
        """A pipe that stops while its last stage waits."""
        tokens = self.itensor(bounds, "itensor").token_count
        return pipe(self.operands, ("o",), tokens, self.latency, self.latency + 1, self._begin)

    def build(self) -> "Elementwise":
        """The component."""
        return Elementwise(self)

    def itensor(self, bounds: Bounds, name: str) -> ITensor:
        """An itensor of the bounds; ValueError if its tokens are not `lanes` elements of f24."""
        itensor = bounds[name]
        if itensor.dtype != "f24" or prod(itensor.element_shape) != self.lanes:
            raise ValueError(f"{name} must have tokens of {self.lanes} elements of f24; it is {itensor}")
        return itensor


@dataclass(frozen=True, kw_only=True)
class UnaryParams(ElementwiseParams):
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
        return {"i": self.itensor(bounds, "itensor")}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        """o = function(i), float32 of the same shape."""
        return {"o": self.unit.golden(inputs["i"]).astype(np.float32)}


@dataclass(frozen=True, kw_only=True)
class BinaryParams(ElementwiseParams):
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
        a = self.itensor(bounds, "itensor")
        b = self.itensor(bounds, "b") if "b" in bounds else a
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


@dataclass(frozen=True, kw_only=True)
class ScalarParams(ElementwiseParams):
    """A function of SCALAR_FUNCTIONS of i and a run-time constant; ports i and o.

    bounds["constant"] is c, rounded to f24: 2^-126 to 2^126 for soft_cap, any finite number for the others.
    """

    function: str

    def __post_init__(self) -> None:
        if self.function not in SCALAR_FUNCTIONS:
            known = ", ".join(SCALAR_FUNCTIONS)
            raise ValueError(f"function is {self.function!r}; one of {known} is needed")
        super().__post_init__()

    @property
    def unit(self) -> _Unit:
        return SCALAR_FUNCTIONS[self.function]

    @property
    def operands(self) -> tuple[str, ...]:
        return ("i",)

    @property
    def constants(self) -> tuple[str, ...]:
        return ("constant", "inverse") if self.function == "soft_cap" else ("constant",)

    def cost(self, bounds: Bounds) -> Cost:
        """As for the other kernels; lanes that compare with the constant share its key."""
        cost = super().cost(bounds)
        if self.function not in COMPARING:
            return cost
        shared = (self.lanes - 1) * Resources(lut=F24.bits, ff=F24.bits)
        lut, ff = cost.resources.lut - shared.lut, cost.resources.ff - shared.ff
        return replace(cost, resources=replace(cost.resources, lut=lut, ff=ff))

    @property
    def pins(self) -> Mapping[str, str]:
        return dict(zip((*self.operands, *self.constants), "abc", strict=False))

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"i": self.itensor(bounds, "itensor")}

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        """As for the other kernels, with the bits of c and 1/c; ValueError for a c that is not allowed."""
        values = map(F24.encode, self._values(bounds))
        return {**super().describe(bounds), **dict(zip(self.constants, map(int, values), strict=True))}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        """o = function(i, c), float32 of the same shape."""
        return {"o": self.unit.golden(inputs["i"], *self._values(bounds)).astype(np.float32)}

    def _values(self, bounds: Bounds) -> tuple[ndarray, ...]:
        """c, and 1/c if it is used, as values of f24."""
        given = float(bounds["constant"])
        constant = F24.round(np.array(given))
        if not np.isfinite(constant):
            raise ValueError(f"constant is {given}; a finite number of f24 is needed")
        if self.function != "soft_cap":
            return (constant,)
        if not 2.0**-126 <= constant <= 2.0**126:
            raise ValueError(f"constant is {given}; soft_cap takes 2^-126 to 2^126")
        return constant, F24.round(1 / constant)


class Elementwise(wiring.Component):
    """The hardware of these kernels: one unit a lane."""

    def __init__(self, params: ElementwiseParams) -> None:
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
        unit, pins = self._params.unit, self._params.pins
        inputs = [getattr(self, name) for name in self._params.operands]
        count = CountdownParams(bits=self._params.max_tokens.bit_length()).build()
        m.submodules.count = count
        row = add_rows(m, self._params.max_rows, self.i_descriptor)
        m.d.comb += [
            count.i_count.payload.eq(self._tokens(row.payload)),
            count.i_count.valid.eq(row.valid),
            row.ready.eq(count.i_count.ready),
        ]
        constants = {name: Signal(F24.bits, name=name, reset_less=True) for name in self._params.constants}
        with m.If(count.taken):
            m.d.sync += (value.eq(row.payload[name]) for name, value in constants.items())

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
                m.d.comb += getattr(block, pins[name]).eq(i.payload[at])
            m.d.comb += (getattr(block, pins[name]).eq(value) for name, value in constants.items())
        return m

    def _tokens(self, fields: Any) -> Any:
        """Bits of the number of elements of a row."""
        if self._params.max_rows == 1:
            return fields.tokens
        lanes = self._params.lanes
        return (fields.length + (lanes - 1)) >> ceil_log2(lanes)
