"""Convert between a user's arrays and the token streams of a manifest: check, round, pad, pack, unpack, crop.

A buffer with a `tile_loop` has tokens along its first dimension; a run decides how many tiles of them. A
user's array has any number of leading dimensions in the place of this dimension.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from streamgen.artifact.manifest import Buffer
from streamgen.artifact.packing import BEAT_BYTES, MemoryLayout
from streamgen.base.errors import DeviceError
from streamgen.itensor import ITensor
from streamgen.numbers import formats

Parts = Iterable[tuple[Mapping[str, np.ndarray], int]]
Pass = Callable[[Parts], Iterable[Mapping[str, np.ndarray]]]


def require_count(name: str, value: object) -> None:
    """Raise TypeError if a number that a user gives is not an integer, ValueError if it is below 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} is {value!r}; an integer is needed")
    if value < 1:
        raise ValueError(f"{name} is {value}; at least 1 is needed")


def require_seconds(name: str, value: object) -> None:
    """Raise TypeError if a time that a user gives is not a number, ValueError if it is not above 0. Infinity
    is allowed."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name} is {value!r}; a number of seconds is needed")
    if not value > 0:
        raise ValueError(f"{name} is {value}; a number of seconds above 0 is needed")


def in_passes(
    inputs: Sequence[Buffer],
    outputs: Sequence[Buffer],
    most: int,
    whole: bool,
    each: Pass,
    given: Sequence[np.ndarray],
) -> tuple[np.ndarray, ...]:
    """Compute the outputs for the inputs that a user gives, at most `most` tokens at a time.

    whole: if true, a sequence (the last of the leading dimensions) is not divided. each: function that
    computes parts in order. A part is a pair: the checked and rounded inputs by name, and the number of
    tokens. The result for a part is the cropped outputs by name. `each` may take several parts before it
    yields the first outputs.

    Raises TypeError and ValueError as `checked_inputs`, and ValueError for a sequence that is too long.
    """
    arrays, leading = checked_inputs(inputs, given)
    tokens, size = prod(leading), most
    if whole and leading:
        size = max(1, leading[-1])
        if size > most:
            raise ValueError(
                f"a sequence has {size} tokens; the accelerator takes at most {most} (max_tokens), because "
                "each token depends on the whole sequence"
            )

    def divided() -> Iterator[tuple[Mapping[str, np.ndarray], int]]:
        for first in range(0, tokens, size):
            count = min(size, tokens - first)
            yield (
                {
                    info.name: array if info.tile_loop is None else array[first : first + count]
                    for info, array in zip(inputs, arrays, strict=True)
                },
                count,
            )

    parts = list(each(divided()))
    outer = leading[:-1] if whole else ()
    return tuple(joined(info, [part[info.name] for part in parts], leading, outer) for info in outputs)


def checked_inputs(
    infos: Sequence[Buffer], given: Sequence[np.ndarray]
) -> tuple[list[np.ndarray], tuple[int, ...]]:
    """Check inputs: return them as arrays [tokens, ...] in the formats of their buffers, and the leading
    dimensions. Raises TypeError for a wrong number of inputs, ValueError if their leading dimensions differ,
    and all errors of `checked_input`."""
    if len(given) != len(infos):
        names = ", ".join(info.name for info in infos)
        raise TypeError(f"run takes {len(infos)} inputs ({names}); {len(given)} are given")
    arrays, leading = [], None
    for info, value in zip(infos, given, strict=True):
        array, here = checked_input(info, np.asarray(value))
        arrays.append(array)
        if here is not None:
            if leading is not None and here != leading:
                raise ValueError(
                    f"input {info.name!r} has the leading dimensions {here}, but inputs before it have "
                    f"{leading}"
                )
            leading = here
    return arrays, (1,) if leading is None else leading


def checked_input(info: Buffer, array: np.ndarray) -> tuple[np.ndarray, tuple[int, ...] | None]:
    """Check an input: return it as an array [tokens, ...] in the format of its buffer, and its leading
    dimensions. An input without tokens keeps its shape, and its leading dimensions are None.

    Raises TypeError for a wrong dtype; ValueError for a wrong shape, and for values that are not finite or
    too large for the format.
    """
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
    """The token stream of a buffer in a run of `tiles` token tiles."""
    stream = ITensor.parse(_text(info))
    if info.tile_loop is None:
        return stream
    trips = list(stream.tripcounts)
    if not 0 <= info.tile_loop < len(trips):
        raise ValueError(f"tile_loop is {info.tile_loop}; its itensor has {len(trips)} loops")
    trips[info.tile_loop] *= tiles
    return replace(stream, tripcounts=tuple(trips))


def padded(info: Buffer, array: np.ndarray, tiles: int) -> np.ndarray:
    """The array, cropped and padded with zeros to the shape of the buffer's itensor in a run of `tiles`
    tiles."""
    result = np.zeros(stream_of(info, tiles).shape, array.dtype)
    place = tuple(slice(min(extents)) for extents in zip(array.shape, result.shape, strict=True))
    result[place] = array[place]
    return result


def image_bytes(info: Buffer, tiles: int) -> int:
    """Bytes of a buffer that a run of `tiles` token tiles reads or writes."""
    stream = stream_of(info, tiles)
    return MemoryLayout.of(stream).beats(stream.token_count) * BEAT_BYTES


def packed(info: Buffer, array: np.ndarray, tiles: int) -> bytes:
    """The memory image of a padded array."""
    stream = stream_of(info, tiles)
    return MemoryLayout.of(stream).pack(stream, array)


def unpacked(info: Buffer, image: bytes, tiles: int) -> np.ndarray:
    """Inverse of `packed`. Raises DeviceError if the image has bits that are not a number of the format."""
    stream = stream_of(info, tiles)
    try:
        return MemoryLayout.of(stream).unpack(stream, image)
    except ValueError as error:
        wrong = str(error).partition(";")[0]  # the rest advises the caller of `packed`
        message = f"the device wrote values to buffer {info.name!r} that are not {stream.dtype}: {wrong}"
        raise DeviceError(message) from error


def cropped(info: Buffer, array: np.ndarray, tokens: int) -> np.ndarray:
    """The part of an output without padding."""
    extents = _shape(info) if info.tile_loop is None else (tokens, *_shape(info)[1:])
    return array[tuple(slice(extent) for extent in extents)]


def random_inputs(infos: Sequence[Buffer], tokens: int, seed: int) -> list[np.ndarray]:
    """Random inputs for `tokens` tokens: normally distributed floats, or uniformly distributed integers of
    the format."""
    rng = np.random.default_rng(seed)
    arrays: list[np.ndarray] = []
    for info in infos:
        shape = _shape(info) if info.tile_loop is None else (tokens, *_shape(info)[1:])
        dtype = ITensor.parse(_text(info)).dtype
        if dtype[0] in "iu":
            bits = int(dtype[1:])
            low = -(1 << bits - 1) if dtype[0] == "i" else 0
            arrays.append(rng.integers(low, low + (1 << bits), shape))
        else:
            arrays.append(rng.normal(size=shape).astype(np.float32))
    return arrays


def joined(
    info: Buffer, parts: list[np.ndarray], leading: tuple[int, ...], outer: tuple[int, ...]
) -> np.ndarray:
    """Join the outputs of several runs, with the leading dimensions of the inputs. An output without tokens
    is the same in all runs, or has one value for each sequence in the dimensions `outer`."""
    if info.tile_loop is None:
        if not parts:
            raise ValueError(f"output {info.name!r} has no dimension for tokens: give at least one token")
        return np.stack(parts).reshape(*outer, *parts[0].shape) if outer else parts[-1]
    features = _shape(info)[1:]
    if not parts:
        return np.zeros((*leading, *features), formats.numpy_dtype(ITensor.parse(_text(info)).dtype))
    return np.concatenate(parts).reshape(*leading, *features)


def array_of(value: Any, name: str) -> Any:
    """Convert a value to an array; torch tensors may need gradients. Tuples, lists and dicts of arrays stay
    as they are, with arrays inside; other mappings, such as those of tokenizers, become dicts. name: name of
    the value in messages.

    Raises TypeError for values that are not numbers, and ValueError for rows of different lengths.
    """
    if isinstance(value, tuple | list) and any(hasattr(part, "shape") for part in value):
        return type(value)(array_of(part, f"{name}[{index}]") for index, part in enumerate(value))
    if isinstance(value, Mapping):
        return {key: array_of(part, f"{name}[{key!r}]") for key, part in value.items()}
    if hasattr(value, "detach"):
        value = value.detach()
        if str(value.dtype) == "torch.bfloat16":  # numpy has none; float32 holds all of its values
            value = value.float()
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} is not an array: its rows have different lengths") from error
    if array.dtype.kind not in "biufc":
        kind = f"numpy's {array.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
        raise TypeError(f"{name} is {kind}; an array of numbers is needed")
    return array
