"""GGUF files: opened with every truncation noticed, tensors as float32 and, where they have one, as a grid.

A Q4_1 tensor holds groups of 32 weights d * q + m, a Q4_0 tensor d * (q - 8), with 4-bit q (ggml's
block_q4_1 and block_q4_0: the first 16 weights in the low nibbles, the next 16 in the high ones).
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFReader, ReaderTensor
from gguf.quants import dequantize

from streamgen.errors import CheckpointError
from streamgen.numbers.quantisation import GroupGrid

__all__ = ["CORRUPT", "open_gguf", "read_tensor"]

GROUP = 32
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
    """The reader of a file of architecture llama; CheckpointError for any other file."""
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such file")
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise CheckpointError(f"{path}: not a GGUF file; it starts with {magic!r}, not b'GGUF'")
    try:
        with np.errstate(over="raise"):
            reader = _Reader(path)
            field = reader.get_field("general.architecture")
            architecture = field.contents() if field else None
    except CORRUPT as error:
        raise CheckpointError(
            f"{path}: truncated or corrupt GGUF: {type(error).__name__}: {error}"
        ) from error
    if reader.byte_order == "S":
        raise CheckpointError(f"{path}: the file is of the other byte order; only little-endian can be read")
    if architecture != "llama":
        raise CheckpointError(f"{path}: the architecture is {architecture!r}; only 'llama' can be read")
    return reader


def read_tensor(path: Path, tensor: ReaderTensor) -> tuple[np.ndarray, GroupGrid | None]:
    """A tensor as float32, and its own grid when it is Q4_0 or Q4_1."""
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
    return array, grid


def _grid(tensor: ReaderTensor) -> GroupGrid | None:
    """The 4-bit grid of a Q4_0 or Q4_1 tensor, else None."""
    if tensor.tensor_type == GGMLQuantizationType.Q4_1:
        head = 4
    elif tensor.tensor_type == GGMLQuantizationType.Q4_0:
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
