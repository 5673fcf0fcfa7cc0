"""Weights as the matmul hardware holds them: integer codes under integer group scales.

    w4   weight[n, k] = row_scale[n] * (scale[n, g] * code[n, k] + minimum[n, g])     g = k // group
    w8   weight[n, k] = row_scale[n] * code[n, k]

Codes of w4 are -8..7. Scales and minimums are two's complement integers of `scale_bits` bits that share
one f24 per output row, r = max(|scale|, |minimum|) / (2^(scale_bits - 1) - 1), so the hardware stays in
exact integers until the end of a row. A weight that comes with its own 4-bit grid (codes 0..15, scale d,
minimum m, as in a GGUF Q4_1 tensor) keeps its codes; centring them, code q - 8 and minimum m + 8 d, makes
the minimum small, and 8 bits enough for it.

Weights are not padded here: a last group may be shorter than the others. Row scales below the least
normal f24 are flushed to zero with their rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache

import numpy as np

from streamgen.base.threads import side_by_side
from streamgen.numbers import formats

__all__ = [
    "CODE_MAX",
    "CODE_MIN",
    "F24_BYTES",
    "MATMUL_FORMATS",
    "GroupGrid",
    "Numbers",
    "QuantisedWeight",
    "is_uniform",
    "quantise",
    "quantise_grid",
    "quantise_w4",
    "quantise_w8",
    "require_finite",
    "row_sum",
    "scale_bits",
]

MATMUL_FORMATS = ("w4", "w8")
TABLE_FORMATS = ("f24", "w8")
F24_BYTES = 4  # in memory
CODE_MIN, CODE_MAX = -8, 7
CENTRE = 8
W8_MAX = 127
_ROWS = 1024  # at a time
_AT_ONCE = 1 << 17  # elements
_ARRAYS = ("codes", "scale", "minimum", "row_scale")  # of a QuantisedWeight, by rows
STRETCHES = np.linspace(1.0, 1.25, 65)[1:]  # of a row scale: which steps suit a row best is chance


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """The numbers that an accelerator computes with.

    weights: "w4" or "w8" of all matmuls that `by_layer` does not name; None: what the checkpoint has, "w4"
    where it has floats. by_layer: formats by the path of a matmul or a table, or a pattern of paths ("head",
    "layers[[]0].*"); the first that fits and that its kind can have: matmuls w4 and w8, tables w8 and f24.
    table_bytes: tables beyond it are w8 where `by_layer` does not name them. group, scale_bits, minimum: of
    w4 (`quantise`). p_bits: of the integers of the softmax, 8 to 16.
    """

    weights: str | None = None
    by_layer: Mapping[str, str] = field(default_factory=dict, hash=False)
    table_bytes: int = 256 << 20
    group: int = 32
    scale_bits: int = 8
    minimum: bool = True
    p_bits: int = 12

    def __post_init__(self) -> None:
        known = {*MATMUL_FORMATS, *TABLE_FORMATS}
        for name, law, holds in (
            ("weights", "None, 'w4' or 'w8'", self.weights in (None, *MATMUL_FORMATS)),
            ("by_layer", "'w4', 'w8' or 'f24' for each", all(f in known for f in self.by_layer.values())),
            ("group", "32, 64 or 128", self.group in (32, 64, 128)),
            ("scale_bits", "8 to 16", 8 <= self.scale_bits <= 16),
            ("p_bits", "8 to 16", 8 <= self.p_bits <= 16),
        ):
            if not holds:
                raise ValueError(f"{type(self).__name__}.{name} is {getattr(self, name)!r}; allowed is {law}")

    def weight_format(self, path: str, asked: str | None = None) -> str:
        """Of the matmul at a path, for which its checkpoint asks for a format or for none."""
        return self._named(path, MATMUL_FORMATS) or self.weights or asked or "w4"

    def table_format(self, path: str, elements: int) -> str:
        """Of the table at a path."""
        large = elements * F24_BYTES > self.table_bytes
        return self._named(path, TABLE_FORMATS) or ("w8" if large else "f24")

    def _named(self, path: str, allowed: Sequence[str]) -> str | None:
        """What the user says of a path; ValueError where the path itself gets what its kind cannot have."""
        own = self.by_layer.get(path)
        if own not in (None, *allowed):
            raise ValueError(f"by_layer gives it {own!r}; {' and '.join(map(repr, allowed))} are allowed")
        named = (
            form
            for pattern, form in self.by_layer.items()
            if form in allowed and (pattern == path or fnmatchcase(path, pattern))
        )
        return next(named, None)


def require_finite(name: str, array: np.ndarray) -> None:
    """ValueError naming the first position that holds NaN or an infinity."""
    rows = np.atleast_1d(array[(slice(1),) * array.ndim] if is_uniform(array) else array)
    step = max(1, _AT_ONCE * len(rows) // max(1, rows.size))
    for first in range(0, len(rows), step):
        finite = np.isfinite(rows[first : first + step])
        if not finite.all():
            within, *rest = (int(i) for i in np.argwhere(~finite)[0])
            position = [first + within, *rest][: array.ndim]
            raise ValueError(f"{name}{position} is {array[tuple(position)]}; all must be finite")


@dataclass(frozen=True, eq=False)
class GroupGrid:
    """A weight already on a 4-bit grid: weight[n, k] = scale[n, g] * codes[n, k] + minimum[n, g].

    codes: uint8 [N, K], 0..15. scale, minimum: float16 or float32 [N, K / group].
    """

    codes: np.ndarray
    scale: np.ndarray
    minimum: np.ndarray

    def __post_init__(self) -> None:
        if self.codes.ndim != 2 or self.codes.dtype != np.uint8 or not self.codes.size:
            raise ValueError(
                f"GroupGrid.codes is {self.codes.dtype}{list(self.codes.shape)}; it must be uint8 [N, K]"
            )
        N, K = self.codes.shape
        for name in ("scale", "minimum"):
            array: np.ndarray = getattr(self, name)
            if array.ndim != 2 or array.shape[0] != N or not array.shape[1] or K % array.shape[1]:
                raise ValueError(
                    f"GroupGrid.{name} has shape {list(array.shape)}; codes [{N}, {K}] "
                    f"need [{N}, {K} / group]"
                )
            _require_float(f"GroupGrid.{name}", array)
            require_finite(f"GroupGrid.{name}", array)
        if self.scale.shape != self.minimum.shape:
            raise ValueError(
                f"GroupGrid.scale and .minimum differ in shape: {list(self.scale.shape)}, "
                f"{list(self.minimum.shape)}"
            )
        if self.codes.max() > 15:
            raise ValueError(f"GroupGrid.codes reach {self.codes.max()}; they must be 0 to 15")

    @property
    def group(self) -> int:
        """Weights along K that share a scale and a minimum."""
        return int(self.codes.shape[1] // self.scale.shape[1])

    def dequantise(self) -> np.ndarray:
        """The weights, float64 [N, K]."""
        weights = self.codes.reshape(*self.scale.shape, self.group) * self.scale.astype(np.float64)[..., None]
        weights += self.minimum.astype(np.float64)[..., None]
        return weights.reshape(self.codes.shape)


@dataclass(frozen=True, eq=False)
class QuantisedWeight:
    """What the packer lays into memory for one weight [N, K].

    codes: int8 [N, K]. scale, minimum: int32 [N, ceil(K / group)] or None. row_scale: float32 [N] of f24
    values. format: "w4" or "w8". group: weights along K that share a scale (w4), else None.
    """

    codes: np.ndarray
    scale: np.ndarray | None
    minimum: np.ndarray | None
    row_scale: np.ndarray
    format: str
    group: int | None

    def dequantise(self) -> np.ndarray:
        """The weights that the hardware multiplies with, float64 [N, K]."""
        integers = self.codes.astype(np.float64)
        if self.group is not None:
            K = integers.shape[1]
            if self.scale is not None:
                integers *= _spread(self.scale, self.group, K)
            if self.minimum is not None:
                integers += _spread(self.minimum, self.group, K)
        return integers * self.row_scale.astype(np.float64)[:, None]


def scale_bits(weights: Sequence[QuantisedWeight]) -> int:
    """Of the group scales and minimums of weights: the greatest of each row reaches the greatest integer."""
    parts = [part for w in weights for part in (w.scale, w.minimum) if part is not None]
    return max(8, 1 + max(int(np.abs(part).max()) for part in parts).bit_length())


def row_sum(weights: Sequence[QuantisedWeight]) -> int:
    """The greatest sum of magnitudes of a row's integers: what activations of 1 give at most."""
    most = 0
    for weight in weights:
        rows = 1 if is_uniform(weight.codes) else len(weight.codes)
        for first in range(0, rows, _ROWS):
            part = slice(first, min(first + _ROWS, rows))
            integers = weight.codes[part].astype(np.int32)
            K = integers.shape[1]
            if weight.group is not None and weight.scale is not None:
                integers *= _spread(weight.scale[part], weight.group, K)
            if weight.group is not None and weight.minimum is not None:
                integers += _spread(weight.minimum[part], weight.group, K)
            most = max(most, int(np.abs(integers).sum(1, dtype=np.int64).max()))
    return most


def quantise(
    weight: np.ndarray,
    grid: GroupGrid | None = None,
    *,
    form: str = "w4",
    group: int = 32,
    scale_bits: int = 8,
    minimum: bool = True,
) -> QuantisedWeight:
    """A weight, float [N, K], as `form` "w4" or "w8" holds it; one that brings a 4-bit grid keeps it in w4.
    One that is one number everywhere is quantised once, and stays a view of few numbers.

    ValueError as the functions below, and for a form that is neither.
    """
    if form not in ("w4", "w8"):
        raise ValueError(f"form is {form!r}; 'w4' and 'w8' are allowed")
    if grid is None and weight.ndim == 2 and is_uniform(weight):
        _check(weight[:1, :1])
        return _uniform(float(weight.flat[0]), *weight.shape, form, group, scale_bits, minimum)
    if form == "w8":
        return quantise_w8(weight)
    if grid is not None:
        return quantise_grid(grid, scale_bits=scale_bits, symmetric=not minimum)
    return quantise_w4(weight, group=group, scale_bits=scale_bits, symmetric=not minimum)


def _by_rows(
    shape: tuple[int, ...], one: Callable[[slice], QuantisedWeight], at_once: int = _AT_ONCE
) -> QuantisedWeight:
    """A weight [N, K], made a few rows at a time on all processors: rows do not depend on one another, and
    numbers of that many elements stay in the cache."""
    N, K = shape
    step = max(1, at_once // K)
    if step >= N:
        return one(slice(N))
    start = one(slice(step))
    parts = {name: part for name in _ARRAYS if (part := getattr(start, name)) is not None}
    whole = {name: np.empty((N, *part.shape[1:]), part.dtype) for name, part in parts.items()}

    def put(first: int) -> None:
        rows = slice(first, first + step)
        part = one(rows) if first else start
        for name, array in whole.items():
            array[rows] = getattr(part, name)

    side_by_side(put, range(0, N, step))
    return QuantisedWeight(
        whole["codes"],
        whole.get("scale"),
        whole.get("minimum"),
        whole["row_scale"],
        format=start.format,
        group=start.group,
    )


def is_uniform(array: np.ndarray) -> bool:
    """Whether an array is a view of one number."""
    return array.size > 1 and not any(array.strides)


@lru_cache
def _uniform(
    value: float, n: int, k: int, form: str, group: int, scale_bits: int, minimum: bool
) -> QuantisedWeight:
    """The weight [n, k] that has this value everywhere: all of its rows and groups are alike, so one is
    quantised. The same object for equal weights."""
    one = np.full((1, min(k, group)), value, np.float32)
    found = quantise(one, form=form, group=group, scale_bits=scale_bits, minimum=minimum)

    def spread(part: np.ndarray | None, *shape: int) -> np.ndarray | None:
        return None if part is None else np.broadcast_to(part.flat[0], shape)

    groups = -(-k // group)
    codes, row_scale = spread(found.codes, n, k), spread(found.row_scale, n)
    assert codes is not None and row_scale is not None
    scale, minimums = spread(found.scale, n, groups), spread(found.minimum, n, groups)
    return QuantisedWeight(codes, scale, minimums, row_scale, form, found.group)


def quantise_w8(weight: np.ndarray) -> QuantisedWeight:
    """int8 per row: weight float [N, K] -> codes -127..127 under one f24 a row."""
    _check(weight)
    return _by_rows(weight.shape, lambda rows: _rounded_w8(weight[rows].astype(np.float64)))


def _rounded_w8(weight: np.ndarray) -> QuantisedWeight:
    """A few rows, float64."""
    row_scale = formats.round_f24(np.abs(weight).max(axis=1) / W8_MAX)
    codes = _codes(weight / _divisor(row_scale)[:, None], -W8_MAX, W8_MAX)
    return QuantisedWeight(codes, None, None, row_scale, "w8", None)


def quantise_w4(
    weight: np.ndarray, *, group: int = 32, scale_bits: int = 8, symmetric: bool = False
) -> QuantisedWeight:
    """Fit 4-bit groups to float weights [N, K]: from least to greatest weight, or around zero.

    A symmetric group maps the extreme that is greater in magnitude to -8 or beyond no code, so its
    scale may be negative. Codes are chosen under the rounded scale and minimum, not the fitted ones.
    Small models lose 20-35 % of perplexity when fitted this way; int8 (`quantise_w8`) costs almost nothing.
    """
    _check(weight)
    if group not in (32, 64, 128):
        raise ValueError(f"group is {group}; 32, 64 and 128 are allowed")
    return _by_rows(
        weight.shape, lambda rows: _rounded_w4(weight[rows].astype(np.float64), group, scale_bits, symmetric)
    )


def _rounded_w4(weight: np.ndarray, group: int, scale_bits: int, symmetric: bool) -> QuantisedWeight:
    """A few rows, float64."""
    K = weight.shape[1]
    starts = np.arange(0, K, group)
    low = np.minimum.reduceat(weight, starts, axis=1)
    high = np.maximum.reduceat(weight, starts, axis=1)
    if symmetric:
        sign = np.where(high > -low, -1.0, 1.0)
        near, far = np.minimum(np.abs(low), np.abs(high)), np.maximum(np.abs(low), np.abs(high))
        opposite = np.where(low * high < 0, near, 0.0)
        fitted = sign * np.maximum(far / -CODE_MIN, opposite / CODE_MAX)
        centre = None
    else:
        fitted = (high - low) / (CODE_MAX - CODE_MIN)
        centre = low - CODE_MIN * fitted
    scale, minimum, row_scale = _share(fitted, centre, scale_bits)
    scale = np.where(scale == 0, np.sign(fitted), scale).astype(np.int32)  # a step too wide beats none
    offset = 0.0 if minimum is None else _spread(minimum, group, K)
    levels = weight / _divisor(row_scale)[:, None]
    levels -= offset
    levels /= _spread(_divisor(scale), group, K)
    codes = _codes(levels, CODE_MIN, CODE_MAX)
    return QuantisedWeight(codes, scale, minimum, row_scale, "w4", group)


def quantise_grid(grid: GroupGrid, *, scale_bits: int = 8, symmetric: bool = False) -> QuantisedWeight:
    """The codes of a grid as they are, centred; only scales and minimums are rounded to integers, under the
    row scale of some that loses least of the weights.

    symmetric: leave the minimums out; ValueError unless all are zero once centred (a Q4_0 tensor).
    """
    if grid.group not in (32, 64, 128):
        raise ValueError(f"the grid has groups of {grid.group}; 32, 64 and 128 are allowed")
    if symmetric and np.any(_centred(grid.scale, grid.minimum)):
        raise ValueError("the grid has minimums; it cannot be held by symmetric groups")
    return _by_rows(
        grid.codes.shape,
        lambda rows: _kept(grid.codes[rows], grid.scale[rows], grid.minimum[rows], scale_bits, symmetric),
        1 << 19,
    )


def _centred(scale: np.ndarray, minimum: np.ndarray) -> np.ndarray:
    """Minimums of codes that are centred, float64."""
    centre: np.ndarray = minimum.astype(np.float64) + CENTRE * scale.astype(np.float64)
    return centre


def _kept(
    codes: np.ndarray, scale: np.ndarray, minimum: np.ndarray, scale_bits: int, symmetric: bool
) -> QuantisedWeight:
    """A few rows of a grid."""
    fitted = scale.astype(np.float64)
    centre = None if symmetric else _centred(scale, minimum)
    codes = (codes.astype(np.int16) - CENTRE).astype(np.int8)
    groups = codes.reshape(*fitted.shape, -1).astype(np.int32)
    sums, squares = groups.sum(axis=2), np.square(groups).sum(axis=2)

    def lost(scale: np.ndarray, minimum: np.ndarray | None, row_scale: np.ndarray) -> np.ndarray:
        """Sum of the squared errors of the weights of each row: of (a * code + b)^2, from sums of codes."""
        row = row_scale.astype(np.float64)[:, None]
        a = fitted - row * scale
        found: np.ndarray = a * a * squares
        if centre is not None and minimum is not None:
            b = centre - row * minimum
            found += 2 * a * b * sums + groups.shape[2] * b * b
        return found.sum(axis=1)

    best = _share(fitted, centre, scale_bits)
    least = lost(*best)
    for stretch in STRETCHES:
        tried = _share(fitted, centre, scale_bits, stretch)
        losing = lost(*tried)
        better = losing < least
        least[better] = losing[better]
        for held, new in zip(best, tried, strict=True):
            if held is not None and new is not None:
                held[better] = new[better]
    return QuantisedWeight(codes, *best, "w4", groups.shape[2])


def _require_float(name: str, array: np.ndarray) -> None:
    if array.dtype not in (np.float16, np.float32):
        raise TypeError(f"{name} is {array.dtype}; it must be float16 or float32")


def _check(weight: np.ndarray) -> None:
    if weight.ndim != 2 or not weight.size:
        raise ValueError(f"weight has shape {list(weight.shape)}; it must be [N, K] with N, K >= 1")
    _require_float("weight", weight)
    require_finite("weight", weight)


def _share(
    scale: np.ndarray, minimum: np.ndarray | None, scale_bits: int, stretch: float = 1.0
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Integer scales and minimums under one f24 per row, by `stretch` more than the least."""
    if not 8 <= scale_bits <= 16:
        raise ValueError(f"scale_bits is {scale_bits}; 8 to 16 are allowed")
    top = 2 ** (scale_bits - 1) - 1
    greatest = np.abs(scale).max(axis=1)
    if minimum is not None:
        greatest = np.maximum(greatest, np.abs(minimum).max(axis=1))
    row_scale = formats.round_f24(greatest / top * stretch)

    divisor = _divisor(row_scale)[:, None]

    def integers(values: np.ndarray) -> np.ndarray:
        found = values / divisor
        np.rint(found, out=found)
        return np.clip(found, -top, top, out=found).astype(np.int32)

    return integers(scale), None if minimum is None else integers(minimum), row_scale


def _divisor(by: np.ndarray) -> np.ndarray:
    """float64 to divide finite numbers by, so that those over 0 become 0."""
    return np.where(by == 0, np.inf, by.astype(np.float64))


def _codes(levels: np.ndarray, least: int, most: int) -> np.ndarray:
    """The nearest codes, int8; levels are lost."""
    np.rint(levels, out=levels)
    return np.clip(levels, least, most, out=levels).astype(np.int8)


def _spread(per_group: np.ndarray, group: int, K: int) -> np.ndarray:
    return np.repeat(per_group, group, axis=1)[:, :K]
