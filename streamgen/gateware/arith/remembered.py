"""A unit of one operand, its results remembered: what a model in numpy asks again and again.

A format of 24 bits has 2^24 values, few of them in use at a time. Their results, which the unit's own
`golden` gives, are kept in blocks of one sign and exponent. A block is filled when as many values of it have
been asked for as it holds; before that `golden` is asked, so the memory never costs more than it saves.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy import ndarray

from streamgen.gateware.arith.unit import UnitParams

LARGEST = 24  # bits of a format whose results are remembered
EXPONENT_BITS = 8  # of it, those of float32


@cache
def remembered(unit: UnitParams) -> Callable[[ndarray], ndarray]:
    """The `golden` of a unit of one operand, from memory if its format has at most 24 bits, with the
    exponents of float32."""
    form = getattr(unit, "form", None)
    small = form is not None and form.exponent_bits == EXPONENT_BITS and form.bits <= LARGEST
    return _Memory(unit) if small else unit.golden


class _Memory:
    def __init__(self, unit: UnitParams) -> None:
        form = unit.form
        self._golden = unit.golden
        self._spare = 32 - form.bits
        self._fraction_bits = form.fraction_bits
        blocks = 1 << form.exponent_bits + 1
        self._results = np.zeros((blocks, 1 << form.fraction_bits), np.float32)
        self._known = np.zeros(blocks, bool)
        self._asked = np.zeros(blocks, np.int64)

    def __call__(self, i: ndarray) -> ndarray:
        values = np.asarray(i)
        words = np.atleast_1d(values.astype(np.float32)).view(np.uint32) >> self._spare
        block = words >> self._fraction_bits
        results = self._results.reshape(-1)[words].astype(np.float64)
        if not self._known[block].all():
            missing = np.nonzero(~self._known[block])
            results[missing] = self._golden(values.reshape(words.shape)[missing])
            self._ask(block[missing])
        return results.reshape(values.shape)

    def _ask(self, blocks: ndarray) -> None:
        """Count what is asked for, and fill what is asked for enough."""
        self._asked += np.bincount(blocks, minlength=len(self._asked))
        size = self._results.shape[1]
        for block in np.flatnonzero((self._asked >= size) & ~self._known):
            words = (np.arange(size, dtype=np.uint32) | np.uint32(block * size)) << self._spare
            with np.errstate(invalid="ignore"):  # a signalling NaN is as good as another
                self._results[block] = self._golden(words.view(np.float32))
            self._known[block] = True
