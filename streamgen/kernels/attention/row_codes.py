"""Scales of eight bits and the codes they give: the arithmetic of `kernels.attention.quantise_rows`.

    greatest |x| of a group = S * 2^(b - 142), S of 16 bits with its leading one, b the biased exponent of f24
    m1 = ceil(S / 254)    m, k = m1, 0 where m1 < 256, else ceil(m1 / 2), 1    e = b + k - 141
    code = x / (m * 2^e), to nearest even

m is 128 to 255 and the scale the least of its kind with which no code is above 127, so nothing clamps and
|x - code * scale| is at most half a scale. Division is exact:

    m1 = (129 * S + floor(S / 128) + 32767) >> 15 for each of the 32,768 values of S
    floor(T / m) = T * R >> 24, R = ceil(2^24 / m), T a significand shifted so that 2 * |x| / scale = T / m

T is a multiple of m exactly if bits 16 to 23 of T * R are zero, since T < 2^16 and R * m - 2^24 < m < 2^8.
"""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from amaranth import Cat, Const, Module, Mux, Value, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.pipeline import Pipeline
from streamgen.gateware.arith.tables import table_style
from streamgen.numbers.formats import E_NOT_FINITE

FRACTION = 15
MAGNITUDE_BITS = FRACTION + 8
SCALE_DTYPE = "i24"
"""A scale as a token: m + 2^8 * e, m unsigned, e signed."""
SCALE = data.StructLayout({"m": 8, "e": 16})
SCALE_STAGES = 4
E_ZERO = -141
"""The exponent of a group of zeros, one below that of any other: it takes no part in a maximum."""
_E_BIAS = 141
_NOT_FINITE = 255
_NO_M = 128  # of a group of zeros, or with a NaN or an infinity
_RECIPROCAL_BITS = 18
_RECIPROCALS = tuple(-(-(1 << 24) // m) for m in range(128, 256))


def join_scale(m: ndarray, e: ndarray) -> ndarray:
    """int32 tokens of scales."""
    return (np.asarray(m, np.int32) + (np.asarray(e, np.int32) << 8)).astype(np.int32)


def split_scale(token: ndarray) -> tuple[ndarray, ndarray]:
    """(m, e) of tokens of scales, int32."""
    token = np.asarray(token, np.int32)
    return token & 255, token >> 8


def scales_of(values: ndarray) -> tuple[ndarray, ndarray]:
    """(m, e), int32, of the groups along the last axis of float64 values of f24."""
    finite = np.isfinite(values).all(axis=-1)
    greatest = np.where(finite, np.abs(np.where(np.isfinite(values), values, 0)).max(axis=-1), 0)
    mantissa, exponent = np.frexp(greatest)  # 1/2 <= mantissa < 1
    significand = np.ldexp(mantissa, FRACTION + 1).astype(np.int64)
    m = -(-significand // 254)
    beyond = m > 255
    m = np.where(beyond, (m + 1) // 2, m)
    e = exponent - FRACTION + beyond
    m = np.where(greatest > 0, m, _NO_M)
    e = np.where(greatest > 0, e, E_ZERO)
    return m.astype(np.int32), np.where(finite, e, E_NOT_FINITE).astype(np.int32)


def codes_of(values: ndarray, m: ndarray, e: ndarray) -> ndarray:
    """int8 codes of float64 groups with these scales; zeros where the group is not finite.

    The quotient is a tie only if it is one exactly, and then float64 holds it: there is one rounding.
    """
    finite = (e != E_NOT_FINITE)[..., None]
    scale = np.ldexp(m.astype(np.float64), np.where(finite[..., 0], e, 0))[..., None]
    return np.rint(np.where(finite, values, 0) / scale).astype(np.int8)


def scale_stages(m: Module, pipe: Pipeline, greatest: Value) -> SimpleNamespace:
    """SCALE_STAGES stages from the greatest magnitude (fraction, exponent) of a group to its scale.

    Gives token (of SCALE_DTYPE), reciprocal (R, 0 for a group that is not finite) and top, b + k.
    """
    fraction, exponent = greatest[:FRACTION], greatest[FRACTION:]
    significand = Cat(fraction, Const(1, 1))
    s = pipe.stage(
        sum=(significand << 7) + significand,
        rest=(significand >> 7) + Const(32767, 15),
        exponent=exponent,
    )
    s = pipe.stage(m=(s.sum + s.rest)[FRACTION : FRACTION + 9], exponent=s.exponent)
    special = (s.exponent == 0) | (s.exponent == _NOT_FINITE)
    beyond = s.m[8] & ~special
    # 256 to 259 become 128, 129, 129, 130.
    halved = Cat(s.m[0] ^ s.m[1], s.m[0] & s.m[1], Const(0b100000, 6))
    s = pipe.stage(
        m=Mux(special, _NO_M, Mux(beyond, halved, s.m[:8])),
        top=(s.exponent + beyond)[:8],
        not_finite=s.exponent == _NOT_FINITE,
    )
    table = Memory(
        shape=unsigned(_RECIPROCAL_BITS),
        depth=len(_RECIPROCALS),
        init=_RECIPROCALS,
        attrs=table_style(len(_RECIPROCALS)),
    )
    m.submodules.reciprocals = table
    port = table.read_port(domain="comb")
    m.d.comb += port.addr.eq(s.m[:7])
    e = Mux(s.not_finite, E_NOT_FINITE, (s.top - _E_BIAS).as_signed())
    return pipe.stage(token=Cat(s.m, e[:16]), reciprocal=Mux(s.not_finite, 0, port.data), top=s.top)


@dataclass(frozen=True, kw_only=True)
class RowCodeParams:
    """One lane: the code of an element of f24. Nothing to choose."""

    @property
    def latency(self) -> int:
        """Stages, hence enabled cycles from element to code."""
        return 5

    @property
    def resources(self) -> Resources:
        """What synthesis uses, within a fifth."""
        return Resources(lut=79, ff=110, dsp=1)

    def build(self) -> "RowCode":
        return RowCode(self)


class RowCode(wiring.Component):
    """i: the bits of an element; top, reciprocal: of its group; o: its code, `latency` cycles later."""

    def __init__(self, params: RowCodeParams) -> None:
        super().__init__(
            {
                "enable": In(1),
                "i": In(unsigned(MAGNITUDE_BITS + 1)),
                "top": In(8),
                "reciprocal": In(_RECIPROCAL_BITS),
                "o": Out(8),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        pipe = Pipeline(m, self.enable)
        exponent = self.i[FRACTION:MAGNITUDE_BITS]
        s = pipe.stage(
            distance=(self.top - exponent)[:8],
            fraction=self.i[:FRACTION],
            zero=exponent == 0,
            sign=self.i[-1],
            reciprocal=self.reciprocal,
        )
        # Beyond 15 places less than a half of a code is left: no code, whatever is lost.
        shifted = (Cat(Const(0, FRACTION), s.fraction, Const(1, 1)) >> s.distance[:4])[: 2 * FRACTION + 1]
        zero = s.zero | s.distance[4:].any()
        s = pipe.stage(
            twice=shifted[FRACTION:] & (~zero).replicate(FRACTION + 1),
            lost=shifted[:FRACTION].any(),
            sign=s.sign,
            reciprocal=s.reciprocal,
        )
        s = pipe.stage(product=s.twice * s.reciprocal, lost=s.lost, sign=s.sign)
        rest = s.lost | s.product[16:24].any()
        half, kept = s.product[24], s.product[25:32]
        s = pipe.stage(kept=kept, up=half & (rest | kept[0]), sign=s.sign)
        code = (Cat(s.kept, Const(0, 1)) ^ s.sign.replicate(8)) + (s.up ^ s.sign)
        m.d.comb += self.o.eq(pipe.stage(code=code[:8]).code)
        return m
