"""The sine, at any number: sin(x) = sin(π/4·r) with r in eighths of a turn, between -2 and 2.

    x = m·2^k, m an integer;   x/π mod 2 = m·(2^k/π mod 2) mod 2,   of which 1/4 is an eighth of a turn

1. 2^k/π mod 2 comes from a table by k, to a fraction of a half turn that m cannot bring to light (Payne and
   Hanek, Radian reduction for trigonometric functions, 1983). Below 1/8 nothing is whole, and the exponent of
   x is that of r.
2. The product, and for the cosine half a turn's half more; an odd number of half turns turns the sign.
3. r is rounded to the format, or to f24 if that is wider, and sin(π/4·r) comes from fitted segments. r
   is above x where x is small, so it is not too small for the format.
"""

from dataclasses import dataclass

import numpy as np
from amaranth import Cat, Const, Module, Mux, Value, unsigned
from amaranth.lib.memory import Memory
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith import Composed, FittedCurve, Float, PiecewiseParams, UnitParams
from streamgen.gateware.arith.format import round_magnitude
from streamgen.gateware.arith.multiply import round_stages
from streamgen.gateware.arith.pipeline import Pipeline, normalise_step, operand, resize_signed
from streamgen.gateware.arith.tables import table_style
from streamgen.gateware.functions.composed import composed
from streamgen.gateware.functions.function import ErrorBound, Function

_PLACES = 62  # bits below a half turn at most; products with one bit more are computed modulo 2^64
_GUARD = 43  # bits of a half turn below those of m
_LOWEST = -3  # exponent below which sines have no table
_PI_BITS = 300


def _pi() -> int:
    """π in units of 2^-300, by Machin's formula."""

    def arc_cotangent(x: int) -> int:
        term = total = (1 << (_PI_BITS + 20)) // x
        n, sign = 3, -1
        while term:
            term //= x * x
            total += sign * (term // n)
            n, sign = n + 2, -sign
        return total

    return 4 * (4 * arc_cotangent(5) - arc_cotangent(239)) >> 20


@dataclass(frozen=True, kw_only=True)
class EighthsParams(UnitParams):
    """The r between -2 and 2 with sin(π/4·r) = sin(x), or cos(x), in `form`, which has 8 exponent bits."""

    form: Float
    cosine: bool = False
    latency = 10

    @property
    def places(self) -> int:
        """Bits below a half turn."""
        return min(self.form.precision + _GUARD, _PLACES)

    @property
    def piece(self) -> int:
        """Bits of a word that one DSP multiplies by a significand."""
        return 26 if self.form.precision <= 17 else 17

    @property
    def lowest(self) -> int:
        """The exponent of the first row of the table."""
        return -self.places if self.cosine else _LOWEST

    @property
    def rows(self) -> list[int]:
        """2^k/π mod 2 in units of 2^-places, for the exponents from `lowest` on."""
        first = self.lowest - self.form.fraction_bits
        shifts = range(first + self.places, self.form.bias + 1 - self.form.fraction_bits + self.places)
        inverse = (1 << 2 * _PI_BITS) // _pi()  # in units of 2^-300
        return [(inverse << shift + 64 >> _PI_BITS + 64) % (2 << self.places) for shift in shifts]

    @property
    def resources(self) -> Resources:
        """What synthesis uses, within a fifth, in formats of 24 to 32 bits."""
        places = self.places
        return Resources(
            lut=places * len(self.rows) // 64 + 9 * places + 70,
            ff=9 * places + 26,
            dsp=(places + 1) // self.piece,
        )

    def golden(self, i: ndarray) -> ndarray:
        """float64 array of r for values of the format."""
        form, x, places = self.form, np.asarray(i, np.float64), self.places
        significand, exponent = form.decompose(x)
        exponent = exponent + form.fraction_bits
        row = np.clip(exponent - self.lowest, 0, None)
        words = np.array(self.rows, np.uint64)
        turns = significand.astype(np.uint64) * words[np.where(significand, row, 0)]
        turns += np.uint64((1 << places - 1) << self.cosine)
        turns &= np.uint64((2 << places) - 1)
        odd = (turns >> np.uint64(places)).astype(bool)
        r = (turns & np.uint64((1 << places) - 1)).astype(np.int64) - (1 << places - 1)
        negative = odd ^ (r < 0) ^ (np.signbit(x) & (not self.cosine))
        rounded, raised = round_magnitude(np.abs(r).astype(np.uint64), form.precision)
        small = np.where(significand, np.minimum(exponent - self.lowest, 0), 0) * (not self.cosine)
        result = form.compose(negative, rounded, raised - places + 2 + small)
        result = np.where((x == 0) & (not self.cosine), x, result)
        return np.where(np.isfinite(x), result, np.nan)

    def stages(self, m: Module, pipe: Pipeline, i: Value) -> Value:
        form, places, rows = self.form, self.places, self.rows
        x = operand(form, i)
        first = form.bias + self.lowest
        row = Mux(x.exponent < first, 0, x.exponent - first)
        s = pipe.stage(
            row=row[: (len(rows) - 1).bit_length()],
            m=x.significand & (~x.zero).replicate(form.precision),
            below=Mux(x.exponent < first, first - x.exponent, 0)[: form.exponent_bits],
            sign=x.sign,
            zero=x.zero,
            nan=x.nan | x.infinite,
        )
        memory = Memory(shape=unsigned(places + 1), depth=len(rows), init=rows, attrs=table_style(len(rows)))
        m.submodules.rows = memory
        port = memory.read_port(domain="comb")
        m.d.comb += port.addr.eq(s.row)
        if self.cosine:  # whose rows below the first are 0, as that one is
            s.below, s.sign, s.zero = Const(0, 1), Const(0, 1), Const(0, 1)
        kept = {name: getattr(s, name) for name in ("below", "sign", "zero", "nan")}
        s = pipe.stage(word=port.data, m=s.m, **kept)

        kept = {name: getattr(s, name) for name in kept}
        firsts = range(0, places + 1, self.piece)
        pieces = {f"product_{k}": s.word[k : k + self.piece] * s.m for k in firsts}
        s = pipe.stage(**pieces, **kept)

        kept = {name: getattr(s, name) for name in kept}
        product = sum((getattr(s, f"product_{k}") << k for k in firsts), Const(0, 1))
        s = pipe.stage(turns=product[: places + 1], **kept)

        kept = {name: getattr(s, name) for name in kept}
        turns = pipe.wire((s.turns + ((1 << places - 1) << self.cosine))[: places + 1])
        s = pipe.stage(r=turns[:places], odd=turns[-1], **kept)

        # Here is r + 1/2: from 1/2 on, the bits below the top one are r.
        kept = {name: getattr(s, name) for name in kept}
        above, rest = s.r[-1], s.r[:-1]
        magnitude = Mux(above, Cat(rest, Const(0, 1)), ((1 << places - 1) - rest)[:places])
        kept["sign"] = s.sign ^ s.odd ^ ~above
        s = pipe.stage(value=magnitude[:places], **kept)

        kept = {name: getattr(s, name) for name in kept}
        kept["zero"] = s.zero | ~s.value.any()
        value, far = normalise_step(pipe, s.value, 32)
        s = pipe.stage(value=value, far=far, **kept)
        kept = {name: getattr(s, name) for name in kept}
        value, middle = normalise_step(pipe, s.value, 8)
        s = pipe.stage(value=value, shift=(s.far << 5) + (middle << 3), **kept)
        value, near = normalise_step(pipe, s.value, 2)
        normal, last = normalise_step(pipe, value, 1)
        exponent = form.bias + 1 - (s.shift + (near << 1) + last) - s.below
        return round_stages(
            pipe,
            form,
            normal=normal,
            sign=s.sign,
            exponent=resize_signed(exponent, form.exponent_bits + 3),
            zero=s.zero,
            infinite=Const(0, 1),
            nan=s.nan,
        )


def _of_eighths(r: ndarray) -> ndarray:
    return np.sin(np.pi / 4 * np.clip(r, -2, 2))


SINE_OF_EIGHTHS = FittedCurve("sine of eighths", _of_eighths, 2.0**-16, symmetry="odd")


def sine_network(form: Float, *, cosine: bool = False) -> UnitParams:
    """The sine or the cosine in `form`."""

    def parts(c: Composed) -> int:
        r = c.apply(EighthsParams(form=c.form, cosine=cosine), 0)
        return c.apply(PiecewiseParams(form=c.form, curve=SINE_OF_EIGHTHS), r)

    return composed(form, parts)


def _sin(x: ndarray) -> ndarray:
    with np.errstate(invalid="ignore"):
        return np.sin(x)


ERROR = ErrorBound(
    relative=2.0 * 2.0**-16,
    operand=2.0**-26,
    reason="in units of 2^-16: the rounding of r, which the sine does not increase, 1, what the fit may "
    "use 1; a table of r to 2^-38 of a half turn in formats of up to 32 bits, from 1/8 on",
)
FUNCTION = Function(
    name="sin",
    title="sin",
    reference=_sin,
    own=sine_network,
    error=ERROR,
    torch=("aten.sin.default", "aten.sin_.default"),
)
