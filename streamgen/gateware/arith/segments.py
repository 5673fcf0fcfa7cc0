"""A function of one variable cut into segments, with a polynomial in each, from its float64 definition.

Every sign, exponent E and half of an octave of operands has a row of 2^k segments of equal width, with the
least k for which quadratic polynomials keep the tolerance:

    x = ±2^E·(1 + half/2 + (j + t) / 2^(k + 1)),   j < 2^k,   0 <= t < 1
    |f(x)| = (c0 + c1·t + c2·t²)·2^(scale + 1 - bits)

The polynomials meet f in the three Chebyshev nodes of their segment, which is within a few percent of the
least error that a quadratic has (Muller, Elementary Functions, section 4.3). Below the lowest exponent and
above the highest f is a constant or a multiple of x, one segment, or two, that all such rows share.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

import numpy as np
from numpy import ndarray

_MOST_PLACES = 9  # k at most: 512 segments in half an octave
_KEPT = 0.9  # share of the tolerance that the points of the fit may use
_POINTS = 33  # of each segment, at which it is checked
_T_BITS = 16
_NOTHING = 2.0**-146  # beside the least number of all formats
_FLUSHED = 2.0**-127  # below half of the least number of all formats
_BEYOND = 2.0**200
_INFINITE = 2.0**129  # twice what all formats have
_EXPONENTS = range(-126, 128)
_LEAST_SLOPE = 2.0**-24  # of a multiple of x
_NODES = 0.5 + 0.5 * np.cos((2 * np.arange(3) + 1) * np.pi / 6)
_TO_COEFFICIENTS = np.linalg.inv(np.vander(_NODES, increasing=True)).T


@dataclass(frozen=True)
class FittedCurve:
    """A function, of float64 arrays, and how far its segments may lie from it, relative·|f(x)| + operand·|x|.

    It is a number at all finite numbers; where they are small it is constant or a multiple of x, where they
    are great likewise, or beyond all formats. At infinities it is what this says, or NaN. Two curves of one
    design have two names. symmetry: "odd" and "even" functions are fitted above 0 alone.
    """

    name: str
    function: Callable[[ndarray], ndarray] = field(repr=False)
    relative: float
    operand: float = 0.0
    symmetry: Literal["", "odd", "even"] = field(default="", repr=False)

    def __call__(self, x: ndarray) -> ndarray:
        """f(x), without warnings; what is beyond all formats is one number, for which they have infinity."""
        with np.errstate(all="ignore"):
            return np.clip(self.function(np.asarray(x, np.float64)), -_BEYOND, _BEYOND)

    def allows(self, x: ndarray, y: ndarray, least: float = 0.0) -> ndarray:
        """The greatest difference from y = f(x) at points of the fit."""
        return _KEPT * (self.relative * np.abs(y) + self.operand * np.abs(x)) + least


@dataclass(frozen=True)
class Row:
    """2^places segments from `base` on, a multiple of their number. follows: scales count from E."""

    base: int
    places: int
    follows: bool


@dataclass(frozen=True)
class _Words:
    """Segments of a row: int64 arrays, of one length."""

    c0: ndarray
    c1: ndarray
    c2: ndarray
    scale: ndarray
    negative: ndarray
    follows: bool = False

    @property
    def columns(self) -> ndarray:
        return np.stack([self.c0, self.c1, self.c2, self.scale, self.negative])

    def values(self, t: ndarray, bits: int) -> ndarray:
        """What hardware makes of t, an array of integers in units of 2^-bits, for all segments."""
        h = self.c1[:, None] + ((self.c2[:, None] * t) >> bits)
        return self.c0[:, None] + ((h * t) >> bits)


@dataclass(frozen=True, eq=False)
class SegmentTable:
    """The rows and segments of a curve. bits: of values.

    rows[sign][r][half]; r is 0 below `lowest`, then E - lowest + 1, and the last one above `highest`.
    words: int64 [5, segments], c0, c1, c2, scale and sign. vanishes: f(0) is 0, and has the sign of x.
    undefined: whether f(infinity) and f(-infinity) are NaN. unbounded: whether they are infinite although
    the greatest numbers have a constant.
    """

    bits: int
    lowest: int
    highest: int
    rows: tuple[tuple[tuple[Row, Row], ...], ...]
    words: ndarray
    vanishes: bool
    undefined: tuple[bool, bool]
    unbounded: tuple[bool, bool]

    @property
    def places(self) -> int:
        """The most places of a row."""
        return max(row.places for sign in self.rows for halves in sign for row in halves)


@cache
def segments(curve: FittedCurve, bits: int) -> SegmentTable:
    """The fit with values of `bits` bits; ValueError where no row of quadratics keeps the tolerance."""
    low, high = ([_tail(curve, sign * edge, bits) for sign in (1, -1)] for edge in (2.0**-126, 2.0**127))
    lowest = next((e for e in _EXPONENTS if not _both(curve, e, low, bits)), 0)
    highest = next((e for e in reversed(_EXPONENTS) if not _both(curve, e, high, bits)), lowest - 1)
    highest = max(highest, lowest - 1)  # where both tails hold, the upper one is taken
    signs: list[list[list[_Words]]] = []
    for k, sign in enumerate((1,) if curve.symmetry else (1, -1)):
        inner = [
            [_row(curve, sign, e, half, (low[k], high[k]), bits) for half in (0, 1)]
            for e in range(lowest, highest + 1)
        ]
        signs.append([low[k], *inner, high[k]])
    rows, words = _laid(signs * (2 // len(signs)))
    ends = curve(np.array([np.inf, -np.inf]))
    undefined, bounded = np.isnan(ends), np.abs(curve(np.array([2.0**127, -(2.0**127)]))) < 2.0**126
    unbounded = (np.abs(ends) == _BEYOND) & bounded
    vanishes = not curve(np.zeros(1))[0]
    return SegmentTable(
        bits,
        lowest,
        highest,
        rows,
        words,
        vanishes,
        (bool(undefined[0]), bool(undefined[1])),
        (bool(unbounded[0]), bool(unbounded[1])),
    )


def _points(sign: int, exponent: int, half: int, places: int, t: ndarray) -> ndarray:
    """Operands [segments, len(t)] of a row."""
    j = np.arange(1 << places)[:, None]
    return sign * 2.0**exponent * (1 + half / 2 + (j + t) / 2.0 ** (places + 1))


def _tail(curve: FittedCurve, edge: float, bits: int) -> list[_Words]:
    """Both halves of the octave of `edge`, of which one continues f: a multiple of x, or the constant."""
    y = float(curve(np.array([edge]))[0])
    if not np.isfinite(y):
        raise ValueError(f"{curve.name}({edge:g}) is {y}; a number is needed")
    slope = y / abs(edge)
    if follows := _LEAST_SLOPE < abs(slope) < 1 / _LEAST_SLOPE:
        coefficients = slope * np.array([[1.0, 0.5, 0.0], [1.5, 0.5, 0.0]])
    else:
        coefficients = np.array([[y, 0.0, 0.0]] * 2) * (abs(y) >= _FLUSHED)
    return [_words(row[None], np.signbit([y]), bits, follows) for row in coefficients]


def _words(coefficients: ndarray, negative: ndarray, bits: int, follows: bool = False) -> _Words:
    """Segments with these coefficients, [segments, 3], and signs."""
    t = _grid() / 2.0**_T_BITS
    greatest = np.abs(coefficients @ np.stack([t**0, t, t**2])).max(axis=1)
    coefficients = np.where(negative[:, None], -coefficients, coefficients)
    scale = np.floor(np.log2(np.where(greatest > 0, greatest, 1))).astype(np.int64)
    rounded = _rounded(coefficients, scale, negative, bits, follows)
    scale += rounded.values(_grid(), _T_BITS).max(axis=1) >= 1 << bits
    return _rounded(coefficients, scale, negative, bits, follows)


def _grid() -> ndarray:
    """Integers t, in units of 2^-16, at which segments are checked."""
    return np.linspace(0, (1 << _T_BITS) - 1, _POINTS).astype(np.int64)


def _rounded(coefficients: ndarray, scale: ndarray, negative: ndarray, bits: int, follows: bool) -> _Words:
    """Integers in units of 2^(scale + 1 - bits); no value is negative."""
    c0, c1, c2 = np.rint(coefficients * 2.0 ** (bits - 1 - scale[:, None])).astype(np.int64).T
    words = _Words(c0, c1, c2, scale, negative.astype(np.int64), follows)
    under = np.minimum(words.values(_grid(), _T_BITS).min(axis=1), 0)
    return replace(words, c0=c0 - under)


def _keeps(
    curve: FittedCurve, words: _Words, sign: int, exponent: int, half: int, bits: int, least: float
) -> bool:
    """Whether segments keep the tolerance in half an octave."""
    places = len(words.c0).bit_length() - 1
    x = _points(sign, exponent, half, places, _grid() / 2.0**_T_BITS)
    y = curve(x)
    scale = words.scale[:, None] + 1 - bits + (exponent if words.follows else 0)
    values = np.ldexp(words.values(_grid(), _T_BITS).astype(np.float64), scale.astype(np.int32))
    results = np.where(words.negative[:, None], -values, values)
    beyond = (np.minimum(np.abs(results), np.abs(y)) > _INFINITE) & ((results > 0) == (y > 0))
    return bool((beyond | (np.abs(results - y) <= curve.allows(x, y, least))).all())


def _both(curve: FittedCurve, exponent: int, tails: list[list[_Words]], bits: int) -> bool:
    """Whether tails continue f in an octave of both signs."""
    return all(
        _keeps(curve, tail[half], sign, exponent, half, bits, _FLUSHED)
        for sign, tail in zip((1, -1), tails, strict=True)
        for half in (0, 1)
    )


def _row(
    curve: FittedCurve,
    sign: int,
    exponent: int,
    half: int,
    tails: tuple[list[_Words], list[_Words]],
    bits: int,
) -> _Words:
    """A tail if it continues f here, or the fewest segments that keep the tolerance."""
    for tail in tails:
        if _keeps(curve, tail[half], sign, exponent, half, bits, _FLUSHED):
            return tail[half]
    for least in (0.0, _NOTHING):
        for places in range(_MOST_PLACES + 1):
            y = curve(_points(sign, exponent, half, places, _NODES))
            words = _words(y @ _TO_COEFFICIENTS, np.signbit(y[:, 1]), bits)
            if _keeps(curve, words, sign, exponent, half, bits, least):
                return words
    side = "-" if sign < 0 else ""
    raise ValueError(
        f"{curve.name} needs more than {1 << _MOST_PLACES} segments beside {side}{2.0**exponent:g}; "
        f"a tolerance above {curve.relative:g} of it, or one of the operand, is needed"
    )


def _laid(signs: list[list[list[_Words]]]) -> tuple[tuple[tuple[tuple[Row, Row], ...], ...], ndarray]:
    """Rows with their places in one table, the longest first, so that bases are multiples of lengths."""
    keys = [
        [[(words.columns.tobytes(), words.follows) for words in halves] for halves in sign] for sign in signs
    ]
    each = {
        key: words
        for of_sign, sign in zip(keys, signs, strict=True)
        for of_halves, halves in zip(of_sign, sign, strict=True)
        for key, words in zip(of_halves, halves, strict=True)
    }
    rows, parts, base = {}, [], 0
    for key, words in sorted(each.items(), key=lambda item: -len(item[1].c0)):
        rows[key] = Row(base, len(words.c0).bit_length() - 1, words.follows)
        parts.append(words.columns)
        base += len(words.c0)
    laid = tuple(tuple((rows[a], rows[b]) for a, b in sign) for sign in keys)
    return laid, np.concatenate(parts, axis=1)
