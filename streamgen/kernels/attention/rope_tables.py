"""Tables of the rotary position embedding: cosines and sines in f24 for every base and scaling.

    angle(p, j) = p·frequency(j),   frequency(j) = base^(-2j / dims),   j = 0 ... dims/2 - 1

computed in float64 and rounded once to f24: relative error 2^-16 of each entry. `dims` are the dimensions
that rotate (all of a head, or its first ones). Two bases in one model (Gemma 3: 10,000 in local layers,
1,000,000 in global ones) are two tables.

Scalings change the frequencies (Llama 3: `rope_scaling` of its published configuration, type llama3):

    LinearScaling    frequency / factor
    Llama3Scaling    w = 2π/frequency, the wavelength in tokens, n = original_positions / w, the turns in the
                     context trained on: unchanged for n > high, / factor for n < low, in between
                     ((1 - s) / factor + s)·frequency with s = (n - low) / (high - low)
"""

from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from streamgen.numbers.formats import round_f24


@dataclass(frozen=True, kw_only=True)
class LinearScaling:
    """All frequencies divided by `factor`: positions lie closer together."""

    factor: float

    def __post_init__(self) -> None:
        _check_positive(factor=self.factor)

    def apply(self, frequencies: ndarray) -> ndarray:
        """float64 array of the frequencies to use."""
        return frequencies / self.factor


@dataclass(frozen=True, kw_only=True)
class Llama3Scaling:
    """Low frequencies divided by `factor`, high ones kept; low, high: turns in `original_positions`."""

    factor: float
    low: float
    high: float
    original_positions: int

    def __post_init__(self) -> None:
        _check_positive(factor=self.factor, low=self.low, original_positions=self.original_positions)
        if not self.low < self.high:
            raise ValueError(f"high is {self.high}; it must be above low, {self.low}")

    def apply(self, frequencies: ndarray) -> ndarray:
        """float64 array of the frequencies to use."""
        turns = self.original_positions * frequencies / (2 * np.pi)
        kept = np.clip((turns - self.low) / (self.high - self.low), 0.0, 1.0)
        return ((1 - kept) / self.factor + kept) * frequencies


Scaling = LinearScaling | Llama3Scaling


def rope_frequencies(dims: int, base: float, scaling: Scaling | None = None) -> ndarray:
    """float64 array [dims / 2], radians for each position.

    ValueError unless dims is even and at least 2 and base is positive and finite.
    """
    if dims < 2 or dims % 2:
        raise ValueError(f"dims is {dims}; an even number from 2 on is needed")
    _check_positive(base=base)
    frequencies = float(base) ** (-np.arange(0, dims, 2, dtype=np.float64) / dims)
    return frequencies if scaling is None else scaling.apply(frequencies)


def rotation_table(positions: int | ndarray, frequencies: ndarray) -> ndarray:
    """float32 array of f24 values [positions, 2, dims / 2]: cosines, then sines.

    positions: their number, from 0 on, or an array of them. frequencies: radians a position, float64
    [dims / 2]. ValueError when a position is negative, or there is none.
    """
    places = np.arange(positions) if isinstance(positions, int) else np.asarray(positions)
    if places.ndim != 1 or not places.size or (places < 0).any():
        raise ValueError("positions must be at least one number from 0 on")
    angles = places.astype(np.float64)[:, None] * frequencies
    return round_f24(np.stack([np.cos(angles), np.sin(angles)], axis=1))


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < float("inf"):
            raise ValueError(f"{name} is {value}; a positive number is needed")
