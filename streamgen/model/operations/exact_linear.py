"""Matmuls in exact integers by floating-point GEMM: the same bits as `kernels.matmul`, but fast.

    sum[t,n] = sum over k of a[t,k] * w[n,k]        a = code * f * 2^(15 - d), 0 where d is 16
    y[t,n]   = f24(f24(sum) * r[n]) * 2^(E[t] - 15)  w = scale * multiplicand + minimum

A column of the hardware adds (scale * dot + minimum * sum) * f * 2^(15 - d) over groups. The integers w and a
give the same sum, and a sum of integers does not depend on the order. GEMM in float64 is exact as long as
every partial sum, in any order and with any fusing of multiplication and addition, is at most 2^53:

    |partial sum| <= K * max|a| * max|w|        max|a| = 127 * 8 * 2^15

With 8-bit scales and minimums max|w| <= 127 * 8 + 127, so K may be up to 236,000; with 16 bits up to 917. A
larger K is cut into pieces that meet this bound. Their sums are added as int64, which has the width of the
hardware's 64-bit accumulator.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from streamgen.base.kept import ROOM
from streamgen.base.threads import side_by_side
from streamgen.gateware.arith import F24, AddParams, ScaleAccumulatorParams
from streamgen.gateware.arith.scale import ACCUMULATOR_FRACTION
from streamgen.kernels.matmul.quantise import golden as quantise
from streamgen.numbers.formats import (
    E_NOT_FINITE,
    MX_GROUP,
    MX_LEAST_FACTOR,
    MX_MAX_FACTOR,
    MX_MAX_SHIFT,
    round_f24,
)
from streamgen.numbers.quantisation import IntegerWeight, QuantisedWeight

EXACT = 1 << 53
"""float64 holds every integer up to this one."""
LARGEST_ACTIVATION = 127 * MX_MAX_FACTOR << ACCUMULATOR_FRACTION
SCALER = ScaleAccumulatorParams(width=64, form=F24)
ADD = AddParams(form=F24)
ROWS_AT_ONCE = 256  # rows of a weight; in float64 they fit the cache
KEPT_INTEGER_BYTES = 2  # of most weights
ELEMENTS_AT_ONCE = 1 << 19  # of a weight that is read in each call; they fit the cache


@dataclass(frozen=True, eq=False)
class Activations:
    """Quantised rows: integers a, float64 [T, K] with K padded to groups, and E, int16 [T]."""

    integers: ndarray
    exponents: ndarray

    def reals(self) -> ndarray:
        """The values of the rows, float64 [T, padded K], exact; NaN in a row that is not finite."""
        finite = self.exponents != E_NOT_FINITE
        e = np.where(finite, self.exponents, 0).astype(np.int32) - ACCUMULATOR_FRACTION
        return np.where(finite[:, None], np.ldexp(self.integers, e[:, None]), np.nan)


def quantise_activations(x: ndarray) -> Activations:
    """Quantise rows of f24 values [T, K] as the quantiser of the hardware does."""
    T, K = x.shape
    padded = np.pad(x, ((0, 0), (0, -K % MX_GROUP)))
    mx, exponents = quantise(padded, K)
    groups = mx.reshape(T, -1, MX_GROUP)
    shift, step = (groups[name][:, :, 0].astype(np.int32) for name in ("shift", "step"))
    factor = np.ldexp(MX_LEAST_FACTOR + step.astype(np.float64), ACCUMULATOR_FRACTION - shift)
    factor = np.where(shift < MX_MAX_SHIFT, factor, 0.0)
    integers = groups["code"] * factor[:, :, None]
    return Activations(integers.reshape(padded.shape), exponents)


class ExactLinear:
    """y = x @ weight.T [+ bias] as the hardware computes it; a bias is added in f24.

    Raises ValueError if a sum may exceed 64 bits.
    """

    def __init__(self, weight: QuantisedWeight, bias: ndarray | None = None) -> None:
        integers = weight.integers()
        largest = max(1, int(np.abs(integers).max()))
        K = integers.shape[1]
        if K * LARGEST_ACTIVATION * largest >= 1 << 63:
            raise ValueError(f"a sum of {K} products with weights up to {largest} can leave 64 bits")
        narrow = np.int16 if largest < 1 << 15 else np.int32
        self.weight = np.pad(integers.astype(narrow), ((0, 0), (0, -K % MX_GROUP)))
        self.piece = (EXACT - 1) // (LARGEST_ACTIVATION * largest)
        """The largest number of columns whose sum is exact in float64."""
        self.row_scale = weight.row_scale
        self.bias = None if bias is None else round_f24(bias)

    def __call__(self, x: Activations) -> ndarray:
        """float32 array [T, N] of f24 values."""
        T, N = len(x.integers), len(self.weight)
        result = np.empty((T, N), np.float32)
        exponents = x.exponents[:, None]
        for first in range(0, N, ROWS_AT_ONCE):
            rows = slice(first, first + ROWS_AT_ONCE)
            y = SCALER.golden(self._sums(x.integers, rows), self.row_scale[rows], exponents)
            result[:, rows] = y if self.bias is None else ADD.golden(y, self.bias[rows])
        return result

    def sums(self, x: Activations) -> ndarray:
        """The exact sums of the accumulators, int64 [T, N]."""
        return self._sums(x.integers, slice(None)).astype(np.int64)

    def _sums(self, integers: ndarray, rows: slice) -> ndarray:
        """Sums for some rows of the weight: float64 if they are certainly exact, else int64."""
        weight = self.weight[rows].astype(np.float64)
        pieces = range(0, weight.shape[1], self.piece)
        if len(pieces) == 1:
            return integers @ weight.T + 0.0  # a sum of zeros is +0
        total = np.zeros((len(integers), len(weight)), np.int64)
        for first in pieces:
            part = slice(first, first + self.piece)
            total += (integers[:, part] @ weight[:, part].T).astype(np.int64)
        return total


def exact_linear(weight: IntegerWeight, bias: ndarray | None = None) -> Callable[[Activations], ndarray]:
    """The function of `ExactLinear`. A weight that is not in memory is read in each call, unless there is
    room to keep it (`base.kept`)."""
    if isinstance(weight, QuantisedWeight):
        return ExactLinear(weight, bias)
    return _ReadLinear(weight, bias)


class _ReadLinear:
    """The function of a weight that is not in memory, some rows at a time."""

    def __init__(self, weight: IntegerWeight, bias: ndarray | None) -> None:
        self._weight, self._bias = weight, bias
        self._kept: list[ExactLinear] | None = None

    def __call__(self, x: Activations) -> ndarray:
        """float32 array [T, N] of f24 values."""
        N, K = self._weight.shape
        if self._kept is None and ROOM.take(self, N * K * KEPT_INTEGER_BYTES):
            self._kept = side_by_side(self._parts(), self._rows())
        if self._kept is not None:
            return np.concatenate(side_by_side(lambda part: part(x), self._kept), axis=1)
        parts = self._parts()
        return np.concatenate(side_by_side(lambda rows: parts(rows)(x), self._rows()), axis=1)

    def _rows(self) -> list[slice]:
        N, K = self._weight.shape
        step = max(1, ELEMENTS_AT_ONCE // K)
        return [slice(first, first + step) for first in range(0, N, step)]

    def _parts(self) -> Callable[[slice], ExactLinear]:
        """Read the weight. The result is the function of some of its rows."""
        whole = self._weight.read()
        return lambda rows: ExactLinear(whole.read(rows), None if self._bias is None else self._bias[rows])
