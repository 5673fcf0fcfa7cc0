"""A function of one variable by quadratic polynomials, from its float64 definition alone.

    f(x) = ±(c0 + c1·t + c2·t²)·2^scale          (streamgen.gateware.arith.segments, which fits them)

1. The sign, the exponent and the upper fraction bit of x choose a row: where its segments lie, and how many.
2. The next fraction bits choose the segment, t are those behind them.
3. h = c1 + floor(c2·t), value = c0 + floor(h·t), in units of 2^(scale + 1 - bits) of the segment.
4. Rounded once. Rows of multiples of x take scales from the exponent of x: x itself is exact.

The error is the tolerance of the curve beside that rounding: as of the fit at the operands that it checks,
held over all of them by tests. Results need not be monotone from one segment to the next.
"""

from dataclasses import dataclass

import numpy as np
from amaranth import Cat, Const, Module, Mux, Value, unsigned
from amaranth.lib.memory import Memory
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.format import Float, round_magnitude
from streamgen.gateware.arith.multiply import round_stages
from streamgen.gateware.arith.pipeline import (
    Pipeline,
    flags,
    normalise_step,
    operand,
    resize_signed,
    signed_width,
)
from streamgen.gateware.arith.segments import FittedCurve, SegmentTable, segments
from streamgen.gateware.arith.unit import UnitParams

_VALUE_BITS = 21  # at least
_LUT_WORDS = 256  # of a table: more take as many LUTs as the rest of the unit


@dataclass(frozen=True, kw_only=True)
class PiecewiseParams(UnitParams):
    """The function of `curve` in `form`."""

    form: Float
    curve: FittedCurve
    latency = 11

    @property
    def fitted(self) -> SegmentTable:
        """The segments; ValueError when the curve has too many."""
        return segments(self.curve, max(_VALUE_BITS, self.form.precision + 1))

    @property
    def odd(self) -> bool:
        """Whether the result changes its sign with the operand."""
        return self.curve.symmetry == "odd"

    @property
    def t_bits(self) -> int:
        """Fraction bits behind the first, of which those behind the segment are t."""
        return max(self.form.fraction_bits - 1, self.fitted.places)

    @property
    def resources(self) -> Resources:
        """Estimate of what synthesis finds, fitted to 4 to 859 segments, in formats of 8 to 32 bits."""
        form, fitted, rows = self.form, self.fitted, _row_table(self.fitted)
        p, e, count = form.precision, form.exponent_bits, fitted.words.shape[1]
        word, row, squares = _bits(fitted.words), _bits(rows), _bits(fitted.words[2:3])
        c2 = int(fitted.words[2].min()), int(fitted.words[2].max())
        in_luts, rows_in_luts = count <= _LUT_WORDS, rows.shape[1] <= _LUT_WORDS
        return Resources(
            lut=68
            + 60 * (not rows_in_luts)  # where there are more exponents to choose from
            + 5.5 * p
            + 2.3 * word * count / 64 * in_luts
            + 4.5 * row * rows.shape[1] / 64 * rows_in_luts,
            ff=5.4 * p + 110
            if c2 == (0, 0)  # lines, without the registers of the square
            else 7 * p + 5.5 * e + 9 * row + 5 * squares + 1.05 * word * in_luts - 40,
            dsp=_dsps(*c2, self.t_bits) + _dsps(*_slopes(fitted), self.t_bits),
            bram=(not in_luts and _block_rams(count, word))
            + (not rows_in_luts and _block_rams(rows.shape[1], row)),
        )

    def golden(self, i: ndarray) -> ndarray:
        """float64 array of the function of values of the format."""
        form, fitted, x = self.form, self.fitted, np.asarray(i, np.float64)
        significand, exponent = form.decompose(x)
        exponent = exponent + form.fraction_bits
        ordinary = significand != 0
        r = np.where(ordinary, np.clip(exponent - fitted.lowest + 1, 0, len(fitted.rows[0]) - 1), 0)
        r = np.where(np.isinf(x), len(fitted.rows[0]) - 1, r)
        fraction = significand & ((1 << form.fraction_bits) - 1)
        half = fraction >> (form.fraction_bits - 1)
        rows = np.array([[[(h.base, h.places, h.follows) for h in pair] for pair in s] for s in fitted.rows])
        base, places, follows = np.moveaxis(rows[np.signbit(x).astype(int), r, half], -1, 0)
        rest = (fraction & ((1 << (form.fraction_bits - 1)) - 1)) << (self.t_bits - form.fraction_bits + 1)
        shifted = rest << places
        c0, c1, c2, scale, negative = fitted.words[:, base + (shifted >> self.t_bits)]
        negative = negative ^ (np.signbit(x) & self.odd)
        t = shifted & ((1 << self.t_bits) - 1)
        value = c0 + (((c1 + ((c2 * t) >> self.t_bits)) * t) >> self.t_bits)
        rounded, raised = round_magnitude(value.astype(np.uint64), form.precision)
        scale = scale + np.where(follows, exponent, 0) + 1 - fitted.bits
        result = form.compose(negative == 1, rounded, scale + raised)
        zero = np.where(negative, -0.0, 0.0)
        result = np.where(~ordinary & np.isfinite(x) & fitted.vanishes, zero, result)
        infinite = (follows == 1) | np.where(np.signbit(x), fitted.unbounded[1], fitted.unbounded[0])
        result = np.where(np.isinf(x) & infinite, np.where(negative, -np.inf, np.inf), result)
        undefined = np.isinf(x) & np.where(np.signbit(x), fitted.undefined[1], fitted.undefined[0])
        return np.where(np.isnan(x) | undefined, np.nan, result)

    def stages(self, m: Module, pipe: Pipeline, i: Value) -> Value:
        form, fitted, t_bits = self.form, self.fitted, self.t_bits

        x = operand(form, i)
        last = len(fitted.rows[0]) - 1
        low, high = form.bias + fitted.lowest, form.bias + fitted.highest
        r = Mux(x.zero | (x.exponent < max(low, 0)), 0, x.exponent - (low - 1))
        r = Mux(x.exponent.all() | (x.exponent > max(high, -1)), last, r)
        s = pipe.stage(row=Cat(x.fraction[-1], r[: last.bit_length()], x.sign), x=i)

        base, places, follows = _read(m, "rows", s.row, _row_table(fitted))
        s = pipe.stage(base=base, places=places, follows=follows, x=s.x)

        x = operand(form, s.x)
        rest = Cat(Const(0, t_bits - form.fraction_bits + 1), x.fraction[:-1])
        shifted = pipe.wire((rest << s.places)[: t_bits + fitted.places])
        undefined = Mux(x.sign, *(Const(int(fitted.undefined[k]), 1) for k in (1, 0)))
        unbounded = Mux(x.sign, *(Const(int(fitted.unbounded[k]), 1) for k in (1, 0)))
        s = pipe.stage(
            segment=(s.base | shifted[t_bits:])[: len(s.base)],
            t=shifted[:t_bits],
            exponent=Mux(s.follows, x.exponent, form.bias),
            **({"flip": x.sign} if self.odd else {}),
            zero=x.zero & Const(int(fitted.vanishes), 1),
            infinite=x.infinite & (s.follows | unbounded if any(fitted.unbounded) else s.follows),
            nan=x.nan | (x.infinite & undefined),
        )

        c0, c1, c2, scale, sign = _read(m, "segments", s.segment, fitted.words)
        sign = sign ^ s.flip if self.odd else sign
        carried = {"zero": s.zero, "infinite": s.infinite, "nan": s.nan}
        s = pipe.stage(c0=c0, c1=c1, c2=c2, scale=scale, sign=sign, t=s.t, exponent=s.exponent, **carried)
        exponents = signed_width(*_exponents(form, fitted))
        carried = flags(s)
        s = pipe.stage(
            product=s.c2 * s.t,
            c0=s.c0,
            c1=s.c1,
            t=s.t,
            exponent=resize_signed(s.exponent + s.scale, exponents),
            **carried,
        )
        carried = {name: getattr(s, name) for name in (*carried, "exponent")}
        least, most = _slopes(fitted)
        h = (s.c1 + s.product.shift_right(t_bits))[: _width(least, most)]
        s = pipe.stage(h=h.as_signed() if least < 0 else h, c0=s.c0, t=s.t, **carried)
        carried = {name: getattr(s, name) for name in carried}
        s = pipe.stage(product=s.h * s.t, c0=s.c0, **carried)
        carried = {name: getattr(s, name) for name in carried}
        s = pipe.stage(value=(s.c0 + s.product.shift_right(t_bits))[: fitted.bits], **carried)

        carried = {name: getattr(s, name) for name in carried}
        carried["zero"] = s.zero | ~s.value.any()
        coarse, shift_16 = normalise_step(pipe, s.value, 16)
        middle, shift_4 = normalise_step(pipe, coarse, 4)
        s = pipe.stage(value=middle, shift=Cat(shift_4, shift_16), **carried)
        normal, shift_1 = normalise_step(pipe, s.value, 1)
        return round_stages(
            pipe,
            form,
            normal=normal,
            exponent=resize_signed(s.exponent - Cat(shift_1, s.shift), exponents),
            **flags(s),
        )


def _exponents(form: Float, fitted: SegmentTable) -> tuple[int, int]:
    """The least and the greatest biased exponent of a result before its limits, with room for one."""
    scales = fitted.words[3]
    return int(scales.min()) - 64, 2 * form.bias + 2 + max(0, int(scales.max()))


def _row_table(fitted: SegmentTable) -> ndarray:
    """int64 [3, rows]: base, places and follows by sign, r and half; zeros where no r is."""
    count = 1 << (len(fitted.rows[0]) - 1).bit_length()
    table = np.zeros((2, count, 2, 3), np.int64)
    for sign, of_sign in enumerate(fitted.rows):
        for r, halves in enumerate(of_sign):
            table[sign, r] = [(row.base, row.places, row.follows) for row in halves]
    return table.reshape(-1, 3).T


def _slopes(fitted: SegmentTable) -> tuple[int, int]:
    """The least and the greatest c1 + c2·t."""
    ends = np.stack([fitted.words[1], fitted.words[1] + fitted.words[2]])
    return int(ends.min()), int(ends.max())


def _width(least: int, most: int) -> int:
    """Bits of the numbers from least to most, at least 1, signed if some are negative."""
    return signed_width(least, max(0, most)) if least < 0 else max(1, most.bit_length())


def _bits(columns: ndarray) -> int:
    """Of a word of a table."""
    return sum(_width(int(column.min()), int(column.max())) for column in columns)


def _dsps(least: int, most: int, t_bits: int) -> int:
    """DSPs of a product with t: none of a single bit, two where no side fits 18 bits or one is above 27."""
    if _width(least, most) == 1:
        return 0
    narrow, wide = sorted((signed_width(min(least, -1), most), t_bits + 1))
    return 1 if narrow <= 18 and wide <= 27 else 2


def _block_rams(words: int, bits: int) -> float:
    """RAMB36 of a table: halves of 512 x 36, 1024 x 18 bits and so on, or whole ones of 512 x 72 bits."""
    depth = max(512, 1 << (words - 1).bit_length())
    return min(-(-bits * depth // (512 * 36)) / 2, -(-words // 512) * -(-bits // 72))


def _read(m: Module, name: str, address: Value, columns: ndarray) -> list[Value]:
    """The columns of a table at an address, to be registered."""
    ends = [(int(column.min()), int(column.max())) for column in columns]
    words = [0] * columns.shape[1]
    at = 0
    for column, end in zip(columns.tolist(), ends, strict=True):
        bits = _width(*end)
        words = [word | (value & ((1 << bits) - 1)) << at for word, value in zip(words, column, strict=True)]
        at += bits
    style = {"rom_style": "distributed" if len(words) <= _LUT_WORDS else "block"}
    memory = Memory(shape=unsigned(at), depth=len(words), init=words, attrs=style)
    m.submodules[name] = memory
    port = memory.read_port(domain="comb")
    m.d.comb += port.addr.eq(address)
    values, at = [], 0
    for end in ends:
        part = port.data[at : at + _width(*end)]
        values.append(part.as_signed() if end[0] < 0 else part)
        at += _width(*end)
    return values
