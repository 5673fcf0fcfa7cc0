"""Truth values and integers that a design takes as floats."""

import numpy as np

KINDS = ("bool", "uint8", "int8", "int16", "int32", "int64")
MOST = 1 << 16  # the greatest integer up to which f24 holds all


def as_floats(name: str, array: np.ndarray, kind: str) -> np.ndarray:
    """An argument as float32. Raises TypeError for floats and ValueError for numbers that f24 does not
    hold, or that are no truth values."""
    if array.dtype.kind not in "biu":
        raise TypeError(f"input {name!r} takes {kind}; numpy's {array.dtype} is given")
    low, high = (0, 1) if kind == "bool" else (-MOST, MOST)
    if kind in ("uint8", "int8", "int16"):
        low, high = np.iinfo(kind).min, np.iinfo(kind).max
    wrong = (array > high) | (array < low)
    if wrong.any():
        place = np.argwhere(wrong)[0].tolist()
        allowed = "truth values" if kind == "bool" else f"integers from {low} to {high}"
        raise ValueError(f"input {name!r}{place} is {array[tuple(place)]}; {allowed} are needed")
    return array.astype(np.float32)


def of_kind(numbers: np.ndarray, kind: str) -> np.ndarray:
    """Random floats as truth values or integers."""
    return numbers > 0 if kind == "bool" else np.abs(np.rint(numbers * 4)).astype(kind)
