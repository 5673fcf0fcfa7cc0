"""GGUF files: opened with every truncation noticed, tensors as float32 and, where they have one, as a grid.

A Q4_1 tensor holds groups of 32 weights d * q + m, a Q4_0 tensor d * (q - 8), with 4-bit q (ggml's
block_q4_1 and block_q4_0: the first 16 weights in the low nibbles, the next 16 in the high ones). A Q4_K
tensor holds 256 weights under one d and one e: eight groups of 32, d * s * q - e * m with s and m of 6 bits
(block_q4_K: of every 64 weights the first 32 in the low nibbles, the next 32 in the high ones).
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize

from streamgen.errors import CheckpointError
from streamgen.numbers.quantisation import GroupGrid

__all__ = ["CORRUPT", "StoredTensor", "architecture_of", "field_of", "open_gguf", "read_tensor"]

GROUP = 32
GROUPS = 8  # of a block of Q4_K
FLOATS = {Kind.F32, Kind.F16, Kind.BF16, Kind.F64}
# What gguf's reader lets through when the bytes make no sense.
CORRUPT = (ValueError, IndexError, KeyError, ArithmeticError, TypeError, OSError)


class _Reader(GGUFReader):
    """Refuses to read past the end of the file, where gguf's own reader returns less than was asked.

    The file is mapped, but not as numpy's class memmap: slices of that take most of the time of reading.
    """

    data: npt.NDArray[Any]

    def _get(
        self, offset: int, dtype: npt.DTypeLike, count: int = 1, override_order: Any = None
    ) -> npt.NDArray[Any]:
        self.data = np.asarray(self.data)
        end = int(offset) + int(count) * np.dtype(dtype).itemsize
        if end > len(self.data):
            raise ValueError(f"byte {end} is needed, the file has {len(self.data)}")
        return super()._get(int(offset), dtype, count, override_order)


def open_gguf(path: Path) -> GGUFReader:
    """The reader of a file; CheckpointError where it is none, or damaged."""
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such file")
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise CheckpointError(f"{path}: not a GGUF file; it starts with {magic!r}, not b'GGUF'")
    try:
        with np.errstate(over="raise"):
            reader = _Reader(path)
    except CORRUPT as error:
        raise CheckpointError(
            f"{path}: truncated or corrupt GGUF: {type(error).__name__}: {error}"
        ) from error
    if reader.byte_order == "S":
        raise CheckpointError(f"{path}: the file is of the other byte order; only little-endian can be read")
    return reader


def field_of(path: Path, reader: GGUFReader, key: str) -> Any:
    """The value of a field, or None."""
    try:
        field = reader.get_field(key)
        return None if field is None else field.contents()
    except CORRUPT as error:
        raise CheckpointError(f"{path}: corrupt GGUF: {key}: {type(error).__name__}: {error}") from error


def architecture_of(path: Path, reader: GGUFReader) -> str:
    """The name of the architecture; CheckpointError when there is none."""
    found = field_of(path, reader, "general.architecture")
    if not isinstance(found, str):
        raise CheckpointError(f"{path}: general.architecture is {found!r}; a name is needed")
    return found


class StoredTensor(NamedTuple):
    """array: float32. grid: of 4 bits, where the tensor has one. asked: "w8" where it is otherwise
    quantised."""

    array: np.ndarray
    grid: GroupGrid | None = None
    asked: str | None = None


def read_tensor(path: Path, tensor: ReaderTensor) -> StoredTensor:
    """A tensor with its own grid when it is Q4_0, Q4_1 or Q4_K."""
    try:
        grid = _grid(tensor)
        array = grid.dequantise() if grid else dequantize(tensor.data, tensor.tensor_type)
    except (ValueError, NotImplementedError) as error:
        raise CheckpointError(f"{path}: tensor {tensor.name}: {error}") from error
    array = array.astype(np.float32)  # a copy: F32 tensors are mapped from the file
    finite = np.isfinite(array)
    if not finite.all():
        position = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise CheckpointError(f"{path}: tensor {tensor.name}{list(position)} is {array[position]}")
    return StoredTensor(array, grid, None if grid or tensor.tensor_type in FLOATS else "w8")


def _grid(tensor: ReaderTensor) -> GroupGrid | None:
    """The 4-bit grid of a tensor that has one."""
    if tensor.tensor_type == Kind.Q4_K:
        return _grid_of_blocks(tensor)
    if tensor.tensor_type == Kind.Q4_1:
        head = 4
    elif tensor.tensor_type == Kind.Q4_0:
        head = 2
    else:
        return None
    N = tensor.data.shape[0]
    blocks = np.asarray(tensor.data).reshape(N, -1, head + GROUP // 2)
    reals = np.ascontiguousarray(blocks[..., :head]).view(np.float16).astype(np.float32)
    scale = reals[..., 0]
    minimum = reals[..., 1] if head == 4 else -8 * scale
    nibbles = blocks[..., head:]
    codes = np.concatenate([nibbles & 15, nibbles >> 4], axis=-1).reshape(N, -1)
    return GroupGrid(codes, scale, minimum)


def _grid_of_blocks(tensor: ReaderTensor) -> GroupGrid:
    """The grid of a Q4_K tensor."""
    N = tensor.data.shape[0]
    blocks = np.asarray(tensor.data).reshape(N, -1, 4 + 12 + GROUPS * GROUP // 2)
    factors = np.ascontiguousarray(blocks[..., :4]).view(np.float16).astype(np.float32)
    packed, rest = np.split(blocks[..., 4:16], [8], axis=-1)
    low, high = packed & 63, packed >> 6
    # Scales and minimums of groups 0 to 3 lie in six bits, of the others in a nibble and two bits.
    steps = np.concatenate([low[..., :4], rest & 15 | high[..., :4] << 4], axis=-1)
    starts = np.concatenate([low[..., 4:], rest >> 4 | high[..., 4:] << 4], axis=-1)
    nibbles = blocks[..., 16:].reshape(N, -1, GROUPS // 2, GROUP)
    codes = np.stack([nibbles & 15, nibbles >> 4], axis=3).reshape(N, -1)
    scale, minimum = factors[..., :1] * steps, -factors[..., 1:] * starts
    return GroupGrid(codes, scale.reshape(N, -1), minimum.reshape(N, -1))
