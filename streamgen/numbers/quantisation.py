"""Weights in the form of the matmul hardware: integer codes under integer group scales.

Each format is a file of `numbers.weights`, which defines its equation. Weights are not padded here: the last
group may be shorter than the others. Row scales below the least normal f24 become zero, with their rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache

import numpy as np

from streamgen.base.threads import side_by_side
from streamgen.base.wording import alternatives
from streamgen.numbers.stored import Rows, StoredArray, StoredGrid
from streamgen.numbers.weights import BYTES, DEFAULT, FORMATS, GRID, Rounded
from streamgen.numbers.weights.group_scales import spread
from streamgen.numbers.weights.w4 import centred

TABLE_FORMATS = ("f24", BYTES.name)
F24_BYTES = 4  # in memory
_AT_ONCE = 1 << 17  # elements


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """The numbers that an accelerator computes with.

    weights: the format (`numbers.weights.FORMATS`) of all matmuls that `by_layer` does not name; None: the
    format of the checkpoint, "w4" for floats. by_layer: formats by the path of a matmul or a table, or by a
    pattern of paths ("head", "layers[[]0].*"). The first pattern that matches, with a format that is
    possible, decides; tables can be w8 and f24. table_bytes: larger tables are w8, unless `by_layer` names
    them. group, scale_bits, minimum: of formats with groups (`quantise`). p_bits: bits of the integers of the
    softmax, 8 to 16.
    """

    weights: str | None = None
    by_layer: Mapping[str, str] = field(default_factory=dict, hash=False)
    table_bytes: int = 256 << 20
    group: int = 32
    scale_bits: int = 8
    minimum: bool = True
    p_bits: int = 12

    def __post_init__(self) -> None:
        known = dict.fromkeys([*FORMATS, *TABLE_FORMATS])
        for name, law, holds in (
            ("weights", f"None, {alternatives(FORMATS)}", self.weights in (None, *FORMATS)),
            ("by_layer", f"{alternatives(known)} for each", known.keys() >= {*self.by_layer.values()}),
            ("group", "32, 64 or 128", self.group in (32, 64, 128)),
            ("scale_bits", "8 to 16", 8 <= self.scale_bits <= 16),
            ("p_bits", "8 to 16", 8 <= self.p_bits <= 16),
        ):
            if not holds:
                raise ValueError(f"{type(self).__name__}.{name} is {getattr(self, name)!r}; it must be {law}")

    def weight_format(self, path: str, asked: str | None = None) -> str:
        """The format of the matmul at a path; `asked` is the format that its checkpoint asks for, or None."""
        return self._named(path, [*FORMATS]) or self.weights or asked or DEFAULT.name

    def table_format(self, path: str, elements: int) -> str:
        """The format of the table at a path."""
        large = elements * F24_BYTES > self.table_bytes
        return self._named(path, TABLE_FORMATS) or (BYTES.name if large else "f24")

    def _named(self, path: str, allowed: Sequence[str]) -> str | None:
        """The user's format for a path; None if there is none. ValueError if the path itself has an
        impossible format."""
        own = self.by_layer.get(path)
        if own not in (None, *allowed):
            raise ValueError(f"by_layer gives it {own!r}; it must be {alternatives(allowed)}")
        named = (
            form
            for pattern, form in self.by_layer.items()
            if form in allowed and (pattern == path or fnmatchcase(path, pattern))
        )
        return next(named, None)


def require_finite(name: str, array: np.ndarray) -> None:
    """Raise ValueError with the first position that holds NaN or an infinity."""
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
    """A weight on a 4-bit grid: weight[n, k] = scale[n, g] * codes[n, k] + minimum[n, g].

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
    def shape(self) -> tuple[int, ...]:
        """N and K."""
        return self.codes.shape

    @property
    def group(self) -> int:
        """The number of weights along K that share a scale and a minimum."""
        return int(self.codes.shape[1] // self.scale.shape[1])

    def __getitem__(self, rows: Rows) -> "GroupGrid":
        """The grid of some rows."""
        return GroupGrid(self.codes[rows], self.scale[rows], self.minimum[rows])

    def taken(self, order: np.ndarray) -> "GroupGrid":
        """The grid with its rows in another order."""
        return self[order]

    def dequantise(self) -> np.ndarray:
        """The weights, float64 [N, K]."""
        weights = self.codes.reshape(*self.scale.shape, self.group) * self.scale.astype(np.float64)[..., None]
        weights += self.minimum.astype(np.float64)[..., None]
        return weights.reshape(self.codes.shape)


class IntegerWeight(ABC):
    """A weight [N, K] as the hardware multiplies with it. Its integers are in memory (`QuantisedWeight`), or
    they are made or read each time that they are asked for.

    format: its name. group: weights along K that share a scale, None in formats without groups. grouped,
    minimums: whether groups have scales, and minimums.
    """

    format: str
    group: int | None
    grouped: bool
    minimums: bool
    shape: tuple[int, ...]

    @abstractmethod
    def read(self, rows: Rows | None = None) -> "QuantisedWeight":
        """The integers of some rows; None: of all."""

    @property
    def scale_bits(self) -> int:
        """Bits of the scales and minimums of groups, at least 8: the greatest of each row reaches the
        greatest integer."""
        return max(8, 1 + self._greatest[0].bit_length())

    @property
    def row_sum(self) -> int:
        """The greatest sum of magnitudes of a row's integers: what activations of 1 give at most."""
        return self._greatest[1]

    @property
    def known_row_sum(self) -> int | None:
        """`row_sum` if it has been computed."""
        return self.row_sum if {"row_sum", "_greatest"} & vars(self).keys() else None

    @cached_property
    def _greatest(self) -> tuple[int, int]:
        """The greatest scale or minimum, and the greatest sum of a row; all rows are read, some at a time."""
        N, K = self.shape
        step = max(1, _AT_ONCE // K)
        parts = side_by_side(
            lambda first: self.read(slice(first, min(first + step, N)))._greatest_of_all, range(0, N, step)
        )
        scales, sums = zip(*parts, strict=True)
        return max(scales), max(sums)


@dataclass(frozen=True, eq=False)
class QuantisedWeight(IntegerWeight):
    """What the packer lays into memory for one weight [N, K].

    codes: int8 [N, K]. scale, minimum: int32 [N, ceil(K / group)] or None. row_scale: float32 [N] of f24
    values. format, group: see `IntegerWeight`.
    """

    codes: np.ndarray
    scale: np.ndarray | None
    minimum: np.ndarray | None
    row_scale: np.ndarray
    format: str
    group: int | None

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.codes.shape

    @property
    def grouped(self) -> bool:  # type: ignore[override]
        return self.scale is not None

    @property
    def minimums(self) -> bool:  # type: ignore[override]
        return self.minimum is not None

    def read(self, rows: Rows | None = None) -> "QuantisedWeight":
        if rows is None:
            return self
        scale, minimum = (None if part is None else part[rows] for part in (self.scale, self.minimum))
        return QuantisedWeight(
            self.codes[rows], scale, minimum, self.row_scale[rows], self.format, self.group
        )

    def integers(self) -> np.ndarray:
        """scale * multiplicand + minimum: what activations are multiplied with, int32 [N, K]."""
        integers: np.ndarray = FORMATS[self.format].integers(self.codes).astype(np.int32)
        if self.group is not None:
            K = integers.shape[1]
            if self.scale is not None:
                integers *= spread(self.scale, self.group, K)
            if self.minimum is not None:
                integers += spread(self.minimum, self.group, K)
        return integers

    def dequantise(self) -> np.ndarray:
        """The weights that the hardware multiplies with, float64 [N, K]."""
        return self.integers() * self.row_scale.astype(np.float64)[:, None]

    @property
    def scale_bits(self) -> int:
        return max(8, 1 + self._greatest_scale.bit_length())

    @cached_property
    def row_sum(self) -> int:
        return self.read(slice(1))._greatest_of_all[1] if is_uniform(self.codes) else self._greatest[1]

    @cached_property
    def _greatest_scale(self) -> int:
        parts = [part for part in (self.scale, self.minimum) if part is not None]
        return max((int(np.abs(part).max()) for part in parts), default=0)

    @property
    def _greatest_of_all(self) -> tuple[int, int]:
        """`_greatest` of all rows at once."""
        return self._greatest_scale, int(np.abs(self.integers()).sum(1, dtype=np.int64).max())


def scale_bits(weights: Sequence[IntegerWeight]) -> int:
    """Of the group scales and minimums of weights: the greatest of each row reaches the greatest integer."""
    return max(weight.scale_bits for weight in weights if weight.grouped)


def row_sum(weights: Sequence[IntegerWeight]) -> int:
    """The greatest sum of magnitudes of a row's integers: what activations of 1 give at most."""
    return max(weight.row_sum for weight in weights)


def quantise(
    weight: np.ndarray,
    grid: GroupGrid | None = None,
    *,
    form: str = DEFAULT.name,
    group: int = 32,
    scale_bits: int = 8,
    minimum: bool = True,
) -> QuantisedWeight:
    """A weight, float [N, K], in the format `form`; a weight with a 4-bit grid keeps it if the format can. A
    weight that is one number everywhere is quantised once, and stays a view of few numbers.

    group, scale_bits, minimum: of formats with groups: the number of weights that share a scale, the bits of
    scales and minimums, and whether groups have minimums. Raises ValueError for an unknown form, group or
    scale_bits, for a weight that is not finite, and as `quantise_grid`; TypeError for another dtype than
    float16 or float32.
    """
    if form not in FORMATS:
        raise ValueError(f"form is {form!r}; it must be {alternatives(FORMATS)}")
    own = FORMATS[form]
    if grid is not None and own.keep is not None:
        return quantise_grid(grid, scale_bits=scale_bits, symmetric=not minimum)
    if grid is None and weight.ndim == 2 and is_uniform(weight):
        _check(weight[:1, :1])
        return _uniform(float(weight.flat[0]), *weight.shape, form, group, scale_bits, minimum)
    _check(weight)
    return rounded(weight, form, own.group(group), scale_bits, minimum and own.minimums)


def rounded(
    weight: np.ndarray | StoredArray, form: str, group: int, scale_bits: int, minimum: bool
) -> QuantisedWeight:
    """A weight in a format, without any check. group: 0 for none."""
    own = FORMATS[form]
    return _by_rows(
        weight.shape,
        lambda rows: own.round(weight[rows].astype(np.float64), group, scale_bits, minimum),
        form,
        group or None,
    )


def quantise_grid(
    grid: "GroupGrid | StoredGrid[GroupGrid]", *, scale_bits: int = 8, symmetric: bool = False
) -> QuantisedWeight:
    """Keep the codes of a grid, centred; only scales and minimums are rounded to integers, under the one of
    several row scales that loses the least of the weights.

    symmetric: leave the minimums out; ValueError unless all are zero after centring (a Q4_0 tensor), and for
    a group that the format does not have.
    """
    assert GRID.keep is not None
    keep = GRID.keep
    if grid.group not in GRID.groups:
        raise ValueError(f"the grid has groups of {grid.group}; 32, 64 and 128 are allowed")

    def kept(rows: slice) -> Rounded:
        part = grid[rows]
        if symmetric and np.any(centred(part.scale, part.minimum)):
            raise ValueError("the grid has minimums; it cannot be held by symmetric groups")
        return keep(part.codes, part.scale, part.minimum, scale_bits, not symmetric)

    return _by_rows(grid.shape, kept, GRID.name, grid.group, 1 << 19)


def _by_rows(
    shape: tuple[int, ...],
    one: Callable[[slice], Rounded],
    form: str,
    group: int | None,
    at_once: int = _AT_ONCE,
) -> QuantisedWeight:
    """A weight [N, K], computed a few rows at a time on all processors. Rows are independent, and numbers of
    that many elements stay in the cache."""
    N, K = shape
    step = max(1, at_once // K)
    start = one(slice(min(step, N)))
    if step >= N:
        return QuantisedWeight(*start, format=form, group=group)
    parts = {name: part for name, part in start._asdict().items() if part is not None}
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
        format=form,
        group=group,
    )


def is_uniform(array: np.ndarray) -> bool:
    """Whether an array is a view of one number."""
    return array.size > 1 and not any(array.strides)


@lru_cache
def _uniform(
    value: float, n: int, k: int, form: str, group: int, scale_bits: int, minimum: bool
) -> QuantisedWeight:
    """The weight [n, k] with this value everywhere. All rows and groups are alike, so only one is quantised.
    The same object for equal weights."""
    row = np.full((1, min(k, group)), value, np.float32)
    quantised = quantise(row, form=form, group=group, scale_bits=scale_bits, minimum=minimum)

    def spread(part: np.ndarray | None, *shape: int) -> np.ndarray | None:
        return None if part is None else np.broadcast_to(part.flat[0], shape)

    groups = -(-k // (quantised.group or k))
    codes, row_scale = spread(quantised.codes, n, k), spread(quantised.row_scale, n)
    assert codes is not None and row_scale is not None
    scale, minimums = spread(quantised.scale, n, groups), spread(quantised.minimum, n, groups)
    return QuantisedWeight(codes, scale, minimums, row_scale, form, quantised.group)


def _require_float(name: str, array: np.ndarray) -> None:
    if array.dtype not in (np.float16, np.float32):
        raise TypeError(f"{name} is {array.dtype}; it must be float16 or float32")


def _check(weight: np.ndarray) -> None:
    if weight.ndim != 2 or not weight.size:
        raise ValueError(f"weight has shape {list(weight.shape)}; it must be [N, K] with N, K >= 1")
    _require_float("weight", weight)
    require_finite("weight", weight)
