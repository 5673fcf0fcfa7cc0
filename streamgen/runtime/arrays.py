"""Between the arrays of a user and the token streams of a manifest: checks, rounding, padding, tokens.

A buffer with a `tile_loop` holds tokens along its first dimension, as many tiles of them as a run has. A
user's array has any leading dimensions in their place.
"""

from dataclasses import replace
from math import prod

import numpy as np

from streamgen import formats
from streamgen.itensor import ITensor
from streamgen.manifest import Buffer

__all__ = ["checked_input", "cropped", "joined", "padded", "stream_of"]


def checked_input(info: Buffer, array: np.ndarray) -> tuple[np.ndarray, tuple[int, ...] | None]:
    """One input in its port's format, tokens first, and its leading dimensions if it has tokens."""
    dtype = ITensor.parse(_text(info)).dtype
    integer = dtype[0] in "iu"
    if array.dtype.kind not in ("iub" if integer else "fiu"):
        raise TypeError(f"input {info.name!r} takes {dtype}; numpy's {array.dtype} is given")
    shape = _shape(info)
    fixed = shape if info.tile_loop is None else shape[1:]
    split = array.ndim - len(fixed)
    if split < 0 or array.shape[split:] != fixed or (info.tile_loop is None and split):
        wanted = ", ".join(map(str, fixed))
        raise ValueError(
            f"input {info.name!r} must have shape ({'' if info.tile_loop is None else '..., '}{wanted}); "
            f"it has {array.shape}"
        )
    if not integer:
        if not np.isfinite(array).all():
            raise ValueError(f"input {info.name!r} holds NaN or infinite values")
        with np.errstate(over="ignore"):
            array = formats.round_f24(array) if dtype == "f24" else array.astype(formats.numpy_dtype(dtype))
        if not np.isfinite(array).all():
            raise ValueError(f"input {info.name!r} holds values too large for {dtype}")
    if info.tile_loop is None:
        return array, None
    return array.reshape(prod(array.shape[:split]), *fixed), array.shape[:split]


def _text(info: Buffer) -> str:
    if info.itensor is None:
        raise ValueError(f"the manifest gives no itensor for buffer {info.name!r}")
    return info.itensor


def _shape(info: Buffer) -> tuple[int, ...]:
    if info.shape is None:
        raise ValueError(f"the manifest gives no shape for buffer {info.name!r}")
    return info.shape


def stream_of(info: Buffer, tiles: int) -> ITensor:
    """The token stream of a buffer in a run of so many token tiles."""
    stream = ITensor.parse(_text(info))
    if info.tile_loop is None:
        return stream
    trips = list(stream.tripcounts)
    trips[info.tile_loop] *= tiles
    return replace(stream, tripcounts=tuple(trips))


def padded(info: Buffer, array: np.ndarray, tokens: slice, tiles: int) -> np.ndarray:
    """These tokens of an input (all of one without tokens), with zeros up to the extents of its itensor."""
    if info.tile_loop is not None:
        array = array[tokens]
    result = np.zeros(stream_of(info, tiles).shape, array.dtype)
    result[tuple(slice(extent) for extent in array.shape)] = array
    return result


def cropped(info: Buffer, array: np.ndarray, tokens: int) -> np.ndarray:
    """The logical part of an output."""
    extents = _shape(info) if info.tile_loop is None else (tokens, *_shape(info)[1:])
    return array[tuple(slice(extent) for extent in extents)]


def joined(info: Buffer, parts: list[np.ndarray], leading: tuple[int, ...]) -> np.ndarray:
    """The outputs of several runs, with the leading dimensions of the inputs."""
    if info.tile_loop is None:
        if not parts:
            raise ValueError(f"output {info.name!r} does not depend on tokens, and no tokens are given")
        return parts[-1]
    features = _shape(info)[1:]
    if not parts:
        return np.zeros((*leading, *features), formats.numpy_dtype(ITensor.parse(_text(info)).dtype))
    return np.concatenate(parts).reshape(*leading, *features)
