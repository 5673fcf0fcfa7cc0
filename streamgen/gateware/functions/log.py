"""The natural logarithm, to a relative error below 2^-15 at any value above 0.

    x = 2^E · m, 1 <= m < 2;  where m >= 3/2, E + 1 and m/2 take their places, so that 3/4 <= m < 3/2
    log(x) = E · ln(2) + u · g(u),   u = m - 1,   g(u) = log(1 + u) / u

1. u is exact, g(u) comes from a table of lines in units of 2^-20.
2. The product and E · ln(2) are added as integers. They cancel nowhere: beside 1, E is 0, and u · g(u) keeps
   its relative error; elsewhere |E · ln(2)| is 1.7 times |log(m)| or more.
3. Normalised and rounded once. log(1) is +0, log(±0) is -infinity, of numbers below 0 it is NaN.
"""

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np
from amaranth import Cat, Const, Module, Mux, Value, unsigned
from amaranth.lib.memory import Memory
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.format import Float, round_magnitude
from streamgen.gateware.arith.multiply import round_stages
from streamgen.gateware.arith.pipeline import Pipeline, flags, normalise_step, operand, resize_signed
from streamgen.gateware.arith.tables import INDEX_BITS, TABLE_BITS, Table, table_style
from streamgen.gateware.arith.unit import UnitParams
from streamgen.gateware.functions.function import ErrorBound, Function

_G_BITS = 20


def _g(fraction: ndarray) -> ndarray:
    """log(1 + u) / u of the fraction of m, for u above -1/4 and below 1/2."""
    u = np.where(fraction < 0.5, fraction, (fraction - 1) / 2)
    return np.where(u == 0, 1.0, np.log1p(u) / np.where(u == 0, 1.0, u))


@cache
def _lines(factor: float) -> Table:
    """Lines that meet factor · g at both of their ends; g falls on both sides of 1/2, where it jumps."""
    left = np.arange(2**INDEX_BITS) / 2**INDEX_BITS
    right = left + 2.0**-INDEX_BITS
    starts = np.rint(factor * _g(left) * 2**_G_BITS).astype(np.int64)
    inside = np.where(right == 0.5, np.log1p(0.5) / 0.5, _g(right))
    ends = np.rint(factor * inside * 2**_G_BITS).astype(np.int64)
    return Table(tuple(starts.tolist()), tuple((ends - starts).tolist()))


@dataclass(frozen=True, kw_only=True)
class LogParams(UnitParams):
    """log(x) in `form`, times `factor`, with `whole_bits` for factor · 128 · ln(2)."""

    form: Float
    latency = 11
    factor: ClassVar[float] = 1.0
    whole_bits: ClassVar[int] = 7

    @property
    def table(self) -> Table:
        """The lines of factor · g."""
        return _lines(self.factor)

    @property
    def unit_bits(self) -> int:
        """The sum is in units of 2^-unit_bits."""
        return self.form.fraction_bits + 1 + _G_BITS

    @property
    def ln_2(self) -> int:
        """In units of the sum."""
        return round(self.factor * float(np.log(2)) * 2.0**self.unit_bits)

    @property
    def resources(self) -> Resources:
        """What synthesis uses, within a fifth, in formats of 16 to 32 bits."""
        p, words = self.form.precision, 1 << self.form.exponent_bits
        bits = self.unit_bits + self.whole_bits + 1
        in_luts = words < 256 or bits > 36  # else half a block RAM holds E · ln(2)
        return Resources(
            lut=27 * p + 170 + in_luts * words * bits / 64,
            ff=8.3 * p + 254 - (not in_luts) * 2 * bits,
            dsp=1 if p <= 10 else 2 if p <= 17 else 3,
            bram=0 if in_luts else 0.5,
        )

    def golden(self, i: ndarray) -> ndarray:
        """float64 array of the function of values of the format."""
        form, x = self.form, np.asarray(i, np.float64)
        significand, exponent = form.decompose(x)
        fraction = significand & ((1 << form.fraction_bits) - 1)
        upper = fraction >> (form.fraction_bits - 1)
        u = np.where(upper, fraction - (1 << form.fraction_bits), 2 * fraction)
        places = TABLE_BITS - form.fraction_bits
        g = self.table.golden(fraction << places if places >= 0 else fraction >> -places)
        total = u * g + (exponent + form.fraction_bits + upper) * self.ln_2
        rounded, raised = round_magnitude(np.abs(total).astype(np.uint64), form.precision)
        result = form.compose(total < 0, rounded, raised - self.unit_bits)
        result = np.where(x == 0, -np.inf, np.where(x == np.inf, np.inf, result))
        return np.where(np.isnan(x) | (x < 0), np.nan, result)

    def stages(self, m: Module, pipe: Pipeline, i: Value) -> Value:
        form = self.form
        x = operand(form, i)
        upper = x.fraction[-1]
        places = TABLE_BITS - form.fraction_bits
        s = pipe.stage(
            at=Cat(Const(0, places), x.fraction) if places >= 0 else x.fraction[-places:],
            u=Mux(upper, Cat(x.fraction, Const(3, 2)), Cat(Const(0, 1), x.fraction, Const(0, 1))),
            exponent=(x.exponent + upper)[: form.exponent_bits],  # of infinity, whatever it is
            zero=x.zero,
            infinite=x.infinite,
            nan=x.nan | (x.sign & ~x.zero),
        )
        special = {"zero": s.zero, "infinite": s.infinite, "nan": s.nan}
        whole = self._whole(m, s.exponent)
        s = self.table.stages(m, pipe, "lines", s.at, u=s.u, whole=whole, **special)
        special = {"zero": s.zero, "infinite": s.infinite, "nan": s.nan}
        s = pipe.stage(product=s.u.as_signed() * s.value, whole=s.whole, **special)
        special = {"zero": s.zero, "infinite": s.infinite, "nan": s.nan}
        width = self.unit_bits + self.whole_bits
        s = pipe.stage(total=(s.product + s.whole)[: width + 1].as_signed(), **special)

        s = pipe.stage(
            value=Mux(s.total[-1], -s.total, s.total)[:width],
            sign=s.total[-1] & ~s.infinite | s.zero,
            zero=~s.total.any() & ~s.zero & ~s.infinite,
            infinite=s.infinite | s.zero,
            nan=s.nan,
        )
        coarse, shift_16 = normalise_step(pipe, s.value, 16)
        s = pipe.stage(value=coarse, shift=shift_16, **flags(s))
        middle, shift_4 = normalise_step(pipe, s.value, 4)
        normal, shift_1 = normalise_step(pipe, middle, 1)
        exponent = form.bias + self.whole_bits - 1 - Cat(shift_1, shift_4, s.shift)
        s = pipe.stage(normal=normal, exponent=exponent, **flags(s))
        return round_stages(
            pipe,
            form,
            normal=s.normal,
            exponent=resize_signed(s.exponent, form.exponent_bits + 3),
            **flags(s),
        )

    def _whole(self, m: Module, exponent: Value) -> Value:
        """E · ln(2) by table, of the biased E."""
        bits = self.unit_bits + self.whole_bits + 1
        words = [(e - self.form.bias) * self.ln_2 % (1 << bits) for e in range(1 << self.form.exponent_bits)]
        memory = Memory(shape=unsigned(bits), depth=len(words), init=words, attrs=table_style(len(words)))
        m.submodules.whole = memory
        port = memory.read_port(domain="comb")
        m.d.comb += port.addr.eq(exponent)
        return port.data.as_signed()


def _log(x: ndarray) -> ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(x)


FUNCTION = Function(
    name="log",
    title="log",
    reference=_log,
    own=LogParams,
    error=ErrorBound(
        relative=0.7 * 2.0**-16,
        reason="in units of 2^-16: lines h²/8·g'' with h = 2^-7 and g'' below 2/3, 0.1; entries and cut, "
        "0.1; twice that where E · ln(2) has another sign",
    ),
    torch=("aten.log.default", "aten.log_.default"),
)
