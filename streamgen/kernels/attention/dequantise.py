"""Dequantiser: 8-bit codes and a scale for each group become f24.

    o = code * scale, rounded once to f24

A row of `features` codes is cut into groups of `d`, each with its own scale: one per token (d = features),
one per head, or one per embedding row. Scales of i24 are m * 2^e as `attention.quantise_rows` makes them,
with m of 128 to 255; code * m has at most 15 bits, so nothing is rounded, and e = E_NOT_FINITE gives NaN.
Scales of f24 behave as in any product of two f24: signs multiply, and 0 * infinity is NaN. Results below
2^-126 are zeros, results of 2^128 and more are infinite. -128 is a valid code.

Tiles in: `i_x` (1, lanes) i8, row-major; `i_scale` (1, 1), one per group, taken with the first token of the
group. Out: `o` (1, lanes) f24 in the order of `i_x`, one token per cycle.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from amaranth import Cat, Const, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.gateware.arith import F24
from streamgen.gateware.arith.multiply import multiply_stages
from streamgen.gateware.arith.pipeline import Pipeline, normalise_step, operand
from streamgen.gateware.rtl import Shared
from streamgen.gateware.stream import CountdownParams, add_skid, descriptor_signature
from streamgen.itensor import ITensor
from streamgen.kernels.attention.row_codes import SCALE, SCALE_DTYPE, split_scale
from streamgen.numbers.formats import E_NOT_FINITE

_EXPONENT_BITS = 11  # signed, biased: more than f24 has, so that limits are seen after the product
_FACTOR = data.StructLayout(
    {
        "significand": unsigned(F24.precision),
        "exponent": signed(_EXPONENT_BITS),
        "sign": 1,
        "zero": 1,
        "infinite": 1,
        "nan": 1,
    }
)


@dataclass(frozen=True, kw_only=True)
class DequantiseParams:
    """lanes: codes per token. scale_dtype: i24 (m * 2^e) or f24. max_d: the longest group. max_tokens: the
    most tokens of one descriptor.

    Bounds: t (rows), features (codes of a row), d (codes of a group, a multiple of lanes).
    """

    lanes: int
    scale_dtype: str
    max_d: int
    max_tokens: int

    def __post_init__(self) -> None:
        if self.lanes < 1:
            raise ValueError(f"Dequantise.lanes is {self.lanes}; at least 1 is needed")
        if self.scale_dtype not in (SCALE_DTYPE, "f24"):
            raise ValueError(
                f"Dequantise.scale_dtype is {self.scale_dtype!r}; {SCALE_DTYPE} and f24 are allowed"
            )
        if self.max_d < self.lanes or self.max_d % self.lanes:
            raise ValueError(
                f"Dequantise.max_d is {self.max_d}; it must be a multiple of lanes, {self.lanes}"
            )
        if not 1 <= self.max_tokens < 1 << 32:
            raise ValueError(f"Dequantise.max_tokens is {self.max_tokens}; 1 to 2^32 - 1 are allowed")

    @property
    def latency(self) -> int:
        """Cycles from an input token to its output token: a register, the lanes, the register slice."""
        return ScaleCodeParams().latency + 2

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        t, groups = bounds["t"], bounds["features"] // bounds["d"]
        scales = ITensor((1, 1), self.scale_dtype, (t, groups), (1, 1), ((0,), (1,)))
        return {"i_x": self._rows("i8", bounds), "i_scale": scales}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"o": self._rows("f24", bounds)}

    def descriptor_fields(self) -> tuple[Field, ...]:
        """The number of tokens, and the tokens of a group minus one."""
        length = (self.max_d // self.lanes - 1).bit_length()
        return Field("tokens", self.max_tokens.bit_length()), Field("length", max(1, length))

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        t, features, d = bounds["t"], bounds["features"], bounds["d"]
        limit, fits = self.max_tokens, self.lanes <= d <= self.max_d and d % self.lanes == 0
        for name, value, law, holds in (
            ("d", d, f"a multiple of lanes, {self.lanes}, up to {self.max_d}", fits),
            ("features", features, f"a multiple of d, {d}", features >= d and features % max(d, 1) == 0),
            ("t", t, f"1 to {limit} tokens of {self.lanes}", 1 <= t * features // self.lanes <= limit),
        ):
            if not holds:
                raise ValueError(f"Dequantise: {name} is {value}; it must be {law}")
        return {"tokens": t * features // self.lanes, "length": d // self.lanes - 1}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        """o float32 [t, features] of i_x int8 [t, features] and i_scale [t, groups].

        Raises ValueError for an m below 128.
        """
        codes = inputs["i_x"].astype(np.float64).reshape(bounds["t"], -1, bounds["d"])
        with np.errstate(invalid="ignore", over="ignore"):
            if self.scale_dtype == "f24":
                values = F24.round(codes * inputs["i_scale"].astype(np.float64)[:, :, None])
            else:
                m, e = split_scale(inputs["i_scale"])
                if (m < 128).any():
                    raise ValueError(f"m of a scale is {m[m < 128][0]}; it must be 128 to 255")
                exact = np.ldexp(codes * m[:, :, None], e[:, :, None])
                values = F24.round(np.where(e[:, :, None] == E_NOT_FINITE, np.nan, exact))
        return {"o": values.reshape(inputs["i_x"].shape).astype(np.float32)}

    def cost(self, bounds: Bounds) -> Cost:
        tokens = self.describe(bounds)["tokens"]
        return Cost(resources=self._resources, ii=1.0, latency=self.latency, cycles=1 + tokens + self.latency)

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        described = self.describe(bounds)
        tokens, group = described["tokens"], described["length"] + 1
        return {
            "i_x": Curve.nest(1, (tokens, 1)),
            "i_scale": Curve.nest(1, (tokens // group, group)),
            "o": Curve.nest(1 + self.latency, (tokens, 1)),
        }

    def build(self) -> "Dequantise":
        return Dequantise(self)

    @property
    def _resources(self) -> Resources:
        """Fitted to synthesis: lanes, control, conversion of the scale."""
        tokens = self.descriptor_fields()[0].bits
        control = Resources(lut=25 + 3.6 * tokens, ff=60 if self.scale_dtype == SCALE_DTYPE else 105)
        return control + Resources(lut=97, ff=161, dsp=1) * self.lanes

    def _rows(self, dtype: str, bounds: Bounds) -> ITensor:
        trips = (bounds["t"], bounds["features"] // self.lanes)
        return ITensor((1, self.lanes), dtype, trips, (1, self.lanes), ((0,), (1,)))


class Dequantise(wiring.Component):
    """The dequantiser of a DequantiseParams."""

    def __init__(self, params: DequantiseParams) -> None:
        self.params = params
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i_x": In(stream.Signature(unsigned(params.lanes * 8))),
                "i_scale": In(stream.Signature(unsigned(SCALE.size))),
                "o": Out(stream.Signature(unsigned(params.lanes * F24.bits))),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        fields = self.i_descriptor.payload
        m.submodules.count = count = CountdownParams(bits=len(fields.tokens)).build()
        results = stream.Signature(len(self.o.payload)).create()
        add_skid(m, results, [wiring.flipped(self.o)])

        length = Signal(len(fields.length), reset_less=True)
        index = Signal(len(length))
        first, move, step, may = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            count.i_count.payload.eq(fields.tokens),
            count.i_count.valid.eq(self.i_descriptor.valid),
            self.i_descriptor.ready.eq(count.i_count.ready),
            first.eq(index == 0),
            move.eq(~results.valid | results.ready),
            may.eq(move & count.active),
            step.eq(may & self.i_x.valid & (~first | self.i_scale.valid)),
            self.i_x.ready.eq(may & (~first | self.i_scale.valid)),
            self.i_scale.ready.eq(may & first & self.i_x.valid),
            count.step.eq(step),
        ]
        with m.If(count.taken):
            m.d.sync += length.eq(fields.length)
        factor = Signal(_FACTOR, reset_less=True)
        with m.If(step):
            m.d.sync += index.eq(Mux(index == length, 0, index + 1))
            with m.If(first):
                m.d.sync += factor.eq(self._factor(self.i_scale.payload))

        unit = ScaleCodeParams()
        codes = Signal(len(self.i_x.payload), reset_less=True)
        full = Signal(1 + unit.latency)
        with m.If(move):
            m.d.sync += [codes.eq(self.i_x.payload), full.eq(Cat(step, full))]
        m.d.comb += results.valid.eq(full[-1])
        for lane in range(self.params.lanes):
            m.submodules[f"lane_{lane}"] = block = Shared(unit)
            m.d.comb += [
                block.enable.eq(move),
                block.code.eq(codes.word_select(lane, 8)),
                block.factor.eq(factor),
                results.payload.word_select(lane, F24.bits).eq(block.o),
            ]
        return m

    def _factor(self, scale: Value) -> Value:
        """The form of a scale for the lanes, as bits of _FACTOR."""
        if self.params.scale_dtype == "f24":
            x = operand(F24, scale)
            exponent = Cat(x.exponent, Const(0, _EXPONENT_BITS - len(x.exponent)))
            return Cat(x.significand, exponent, x.sign, x.zero, x.infinite, x.nan)
        parts = data.View(SCALE, scale)
        e = Value.cast(parts.e)
        # m / 128 * 2^(e + 7), biased; an e beyond 9 bits is beyond all limits too.
        high = e[9:15]
        beyond = Mux(e[-1], ~high.all(), high.any())
        near = (e[:10].as_signed() + (F24.bias + 7))[:_EXPONENT_BITS]
        far = Cat((~e[-1]).replicate(_EXPONENT_BITS - 2), Const(0, 1), e[-1])
        exponent = Mux(beyond, far, near)
        significand = Cat(Const(0, F24.precision - 8), parts.m)
        return Cat(significand, exponent, Const(0, 3), parts.e == E_NOT_FINITE)


@dataclass(frozen=True, kw_only=True)
class ScaleCodeParams:
    """One lane: the product of a code and a scale. It has no parameters."""

    @property
    def latency(self) -> int:
        """Stages, which are the enabled cycles from code to result."""
        return 5

    @property
    def resources(self) -> Resources:
        """Resources of synthesis, within a fifth."""
        return Resources(lut=73, ff=161, dsp=1)

    def build(self) -> "ScaleCode":
        return ScaleCode(self)


class ScaleCode(wiring.Component):
    """code, factor: operands; o: the bits of their product in f24, `latency` enabled cycles later."""

    def __init__(self, params: ScaleCodeParams) -> None:
        super().__init__(
            {
                "enable": In(1),
                "code": In(signed(8)),
                "factor": In(_FACTOR),
                "o": Out(unsigned(F24.bits)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        pipe = Pipeline(m, self.enable)
        negative = self.code[-1]
        s = pipe.stage(
            magnitude=((self.code.as_unsigned() ^ negative.replicate(8)) + negative)[:8],
            negative=negative,
            factor=self.factor,
        )
        factor = data.View(_FACTOR, s.factor)
        by_four, fours = normalise_step(pipe, s.magnitude, 4)
        normal, ones = normalise_step(pipe, by_four, 1)
        empty = s.magnitude == 0
        s = pipe.stage(
            a=normal,
            b=factor.significand,
            sign=s.negative ^ factor.sign,
            exponent=(factor.exponent + (7 - Cat(ones, fours[0])))[:_EXPONENT_BITS].as_signed(),
            zero=empty | factor.zero,
            infinite=factor.infinite,
            nan=factor.nan | (factor.infinite & empty),
        )
        m.d.comb += self.o.eq(multiply_stages(pipe, F24, **vars(s)))
        return m
