"""GGUF files: opening detects every truncation; tensors are read as float32 and, if they have one, as a grid.

A Q4_1 tensor holds groups of 32 weights d * q + m, a Q4_0 tensor d * (q - 8), with 4-bit q (ggml's block_q4_1
and block_q4_0: the first 16 weights in the low nibbles, the next 16 in the high ones). A Q4_K tensor holds
256 weights under one d and one e: eight groups of 32, d * s * q - e * m with s and m of 6 bits (block_q4_K:
of every 64 weights the first 32 in the low nibbles, the next 32 in the high ones).
"""

import copy
import struct
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFReader, GGUFValueType, ReaderTensor
from gguf.quants import dequantize

from streamgen.base.errors import CheckpointError
from streamgen.base.gguf_metadata import require_gguf
from streamgen.model.frontend.tensor_file import TensorFile, require_finite_rows
from streamgen.numbers.quantisation import GroupGrid
from streamgen.numbers.stored import StoredArray, StoredGrid, TensorRows
from streamgen.numbers.weights import BYTES

GROUP = 32
GROUPS = 8  # of a block of Q4_K
FLOATS = {Kind.F32, Kind.F16, Kind.BF16, Kind.F64}
FACTORS = (".scale", ".input_scale", "rope_freqs.weight")  # endings of the names of factors and divisors
TEXT, TOKENS = "tokenizer.", "tokenizer.ggml.tokens"
SPLIT_COUNT, SPLIT_NUMBER, SPLIT_TENSORS = "split.count", "split.no", "split.tensors.count"
GRIDS = {Kind.Q4_0, Kind.Q4_1, Kind.Q4_K}
# The errors that gguf's reader raises for corrupt bytes.
CORRUPT = (ValueError, IndexError, KeyError, ArithmeticError, TypeError, OSError)


class MappedReader(GGUFReader):
    """Refuses to read past the end of the file; gguf's own reader returns fewer bytes than asked for.

    The file is mapped, but not as numpy's class memmap, because slices of that class take most of the time of
    reading. Each array is cut in one loop, because a vocabulary has up to a million values. files: by name of
    a tensor, the file that holds it.
    """

    data: npt.NDArray[Any]
    files: dict[str, TensorFile]

    def _get(
        self, offset: int, dtype: npt.DTypeLike, count: int = 1, override_order: Any = None
    ) -> npt.NDArray[Any]:
        self.data = np.asarray(self.data)
        end = int(offset) + int(count) * np.dtype(dtype).itemsize
        if end > len(self.data):
            raise ValueError(f"byte {end} is needed; the file has {len(self.data)}")
        return super()._get(int(offset), dtype, count, override_order)

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[npt.NDArray[Any]], list[int], list[GGUFValueType]]:
        if raw_type != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        start = int(orig_offs)
        kind, count = self._get(start, np.uint32), self._get(start + 4, np.uint64)
        of, number, begin = GGUFValueType(int(kind[0])), int(count[0]), start + 12
        types = [GGUFValueType.ARRAY, *([of] if number else [])]
        dtype = self.gguf_scalar_to_np.get(of)
        if dtype is not None:
            values = self._get(begin, dtype, number)
            parts = [values[index : index + 1] for index in range(number)]
            return 12 + values.nbytes, [kind, count, *parts], list(range(2, 2 + number)), types
        if of != GGUFValueType.STRING:
            raise ValueError(f"an array of {of.name}")
        end, parts = self._strings(begin, number)
        return end - start, [kind, count, *parts], list(range(3, 3 + 2 * number, 2)), types

    def _strings(self, at: int, count: int) -> tuple[int, list[npt.NDArray[Any]]]:
        """The end of `count` strings, and the length and the bytes of each."""
        data, room = self.data, len(self.data)
        parts: list[npt.NDArray[Any]] = []
        length, held = struct.Struct("<Q"), data.data
        for _ in range(count):
            begin = at + 8
            if begin > room:
                raise ValueError(f"byte {begin} is needed; the file has {room}")
            end = begin + length.unpack_from(held, at)[0]
            if end > room:
                raise ValueError(f"byte {end} is needed; the file has {room}")
            parts += (data[at:begin].view(np.uint64), data[begin:end])
            at = end
        return at, parts


@contextmanager
def lent(reader: GGUFReader) -> Iterator[None]:
    """Within the block, every `gguf.GGUFReader` opened is the given reader: transformers opens a file each
    time it looks something up, and gguf's own reader is slow. For the tokenizer it gets only the tokens,
    whose number it needs; in place of a tensor that cannot be read it gets zeros."""
    before, less = gguf.GGUFReader, copy.copy(reader)
    less.fields = OrderedDict(
        (k, v) for k, v in reader.fields.items() if k == TOKENS or not k.startswith(TEXT)
    )
    less.tensors = [t if _readable(t.tensor_type) else _zeros(t) for t in reader.tensors]
    gguf.GGUFReader = lambda path: less
    try:
        yield
    finally:
        gguf.GGUFReader = before


def open_gguf(path: Path) -> MappedReader:
    """The reader of a file, with the tensors of all files that the model was split into.

    Raises CheckpointError if the file is not a GGUF file or is damaged, if it is not the first of several
    files, or if one of these is missing.
    """
    reader = _open(path)
    count = field_of(path, reader, SPLIT_COUNT)
    if isinstance(count, int) and count > 1:
        _join(path, reader, count)
    return reader


def _open(path: Path) -> MappedReader:
    """The reader of one file."""
    require_gguf(path)
    try:
        with np.errstate(over="raise"):
            reader = MappedReader(path)
        file = TensorFile(path)
    except CORRUPT as error:
        raise CheckpointError(
            f"{path}: truncated or corrupt GGUF: {type(error).__name__}: {error}"
        ) from error
    if reader.byte_order == "S":
        raise CheckpointError(f"{path}: the file is big-endian; only little-endian files can be read")
    reader.files = {tensor.name: file for tensor in reader.tensors}
    return reader


def _join(path: Path, reader: MappedReader, count: int) -> None:
    """Add the tensors of the other files to the reader of the first. File names end with the number of the
    file: -00001-of-00003.gguf."""
    stem = path.name.removesuffix(_part(1, count))
    if field_of(path, reader, SPLIT_NUMBER) != 0 or stem == path.name:
        raise CheckpointError(
            f"{path}: the model is split into {count} files; give the first, which ends "
            f"with {_part(1, count)}"
        )
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    for number in range(2, count + 1):
        part = path.with_name(f"{stem}{_part(number, count)}")
        if not part.is_file():
            raise CheckpointError(f"{path}: the model is split into {count} files; {part.name} is missing")
        other = _open(part)
        if (said := field_of(part, other, SPLIT_NUMBER)) != number - 1:
            raise CheckpointError(f"{part}: {SPLIT_NUMBER} is {said!r}; {number - 1} is needed")
        for tensor in other.tensors:
            if tensor.name in tensors:
                raise CheckpointError(f"{part}: tensor {tensor.name} is in another file too")
            tensors[tensor.name] = tensor
        reader.files |= other.files
    total = field_of(path, reader, SPLIT_TENSORS)
    if total not in (None, len(tensors)):
        raise CheckpointError(
            f"{path}: {SPLIT_TENSORS} is {total!r}; the {count} files have {len(tensors)} tensors"
        )
    reader.tensors = [*tensors.values()]


def _part(number: int, count: int) -> str:
    """The ending of the name of a part."""
    return f"-{number:05d}-of-{count:05d}.gguf"


def field_of(path: Path, reader: GGUFReader, key: str) -> Any:
    """The value of a field, or None if there is none."""
    try:
        field = reader.get_field(key)
        return None if field is None else field.contents()
    except CORRUPT as error:
        raise CheckpointError(f"{path}: corrupt GGUF: {key}: {type(error).__name__}: {error}") from error


def architecture_of(path: Path, reader: GGUFReader) -> str:
    """The name of the architecture; CheckpointError if there is none."""
    architecture = field_of(path, reader, "general.architecture")
    if not isinstance(architecture, str):
        raise CheckpointError(f"{path}: general.architecture is {architecture!r}; a name is needed")
    return architecture


class StoredTensor(NamedTuple):
    """array: float32. grid: the 4-bit grid, if the tensor has one. asked: "w8" if it is quantised in another
    way."""

    array: np.ndarray
    grid: GroupGrid | None = None
    asked: str | None = None


StoredMatrix = tuple[StoredArray, StoredGrid[GroupGrid] | None, str | None]
"""What `StoredTensor` has, of a matrix in its file."""


def read_tensor(path: Path, tensor: ReaderTensor) -> StoredTensor:
    """A tensor, with its own grid if it is Q4_0, Q4_1 or Q4_K."""
    try:
        grid = _grid(tensor.tensor_type, np.asarray(tensor.data))
        array = grid.dequantise() if grid else dequantize(tensor.data, tensor.tensor_type)
    except (ValueError, NotImplementedError) as error:
        raise CheckpointError(f"{path}: tensor {tensor.name}: {error}") from error
    array = array.astype(np.float32)  # a copy: F32 tensors are mapped from the file
    finite = np.isfinite(array)
    if not finite.all():
        position = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise CheckpointError(f"{path}: tensor {tensor.name}{list(position)} is {array[position]}")
    return StoredTensor(array, grid, asked_of(tensor))


def stored_matrix(path: Path, reader: MappedReader, tensor: ReaderTensor) -> StoredMatrix:
    """A tensor of two dimensions that is read when it is asked for; it is read once now, to find values that
    are not finite. Raises the errors of `read_tensor`."""
    kind, file = tensor.tensor_type, reader.files[tensor.name]
    N, K = (int(n) for n in tensor.shape[::-1])
    dtype, row = tensor.data.dtype, tensor.data.shape[1:]
    size = int(np.prod(row, dtype=np.int64)) * dtype.itemsize

    def data(first: int, end: int) -> np.ndarray:
        content = file.bytes(int(tensor.data_offset) + first * size, (end - first) * size)
        return content.view(dtype).reshape(end - first, *row)

    def grid(first: int, end: int) -> GroupGrid:
        try:
            found = _grid(kind, data(first, end))
        except ValueError as error:
            if first:  # the message counts rows from the first one
                return grid(0, end)[first:]
            raise CheckpointError(f"{path}: tensor {tensor.name}: {error}") from error
        assert found is not None
        return found

    def floats(first: int, end: int) -> np.ndarray:
        array = grid(first, end).dequantise() if kind in GRIDS else dequantize(data(first, end), kind)
        return array.astype(np.float32, copy=False)

    def refuse(position: list[int], value: np.ndarray) -> Exception:
        return CheckpointError(f"{path}: tensor {tensor.name}{position} is {value}")

    array = TensorRows((N, K), floats)
    require_finite_rows(array, refuse)
    return array, StoredGrid((N, K), GROUP, grid) if kind in GRIDS else None, asked_of(tensor)


def unreadable_tensors(tensors: Iterable[ReaderTensor]) -> list[str]:
    """Problems with those of some tensors whose type cannot be read."""
    known = "F32, F16, BF16 and quantised types can be read"
    unread = (tensor for tensor in tensors if not _readable(tensor.tensor_type))
    return [f"tensor {tensor.name} is {tensor.tensor_type.name}; {known}" for tensor in unread]


@cache
def _readable(kind: Kind) -> bool:
    """Whether the library can make floats of a type; this is tried on one block."""
    try:
        dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _zeros(tensor: ReaderTensor) -> ReaderTensor:
    """A tensor of the same name and shape."""
    data = np.zeros([int(n) for n in tensor.shape[::-1]], np.float32)
    return tensor._replace(tensor_type=Kind.F32, data=data, n_bytes=data.nbytes)


def changes_nothing(tensor: ReaderTensor) -> bool:
    """Whether a tensor changes no result wherever it is used: a bias of zeros, or factors or divisors of
    ones."""
    if tensor.tensor_type not in FLOATS:
        return False
    neutral = 0 if tensor.name.endswith(".bias") else 1 if tensor.name.endswith(FACTORS) else None
    return neutral is not None and bool((dequantize(tensor.data, tensor.tensor_type) == neutral).all())


def has_grid(tensor: ReaderTensor) -> bool:
    """Whether a tensor has a 4-bit grid."""
    return tensor.tensor_type in GRIDS


def asked_of(tensor: ReaderTensor) -> str | None:
    """The format that a tensor asks for: "w8" if it is quantised, but not on a 4-bit grid."""
    return None if has_grid(tensor) or tensor.tensor_type in FLOATS else BYTES.name


def _grid(kind: Kind, data: np.ndarray) -> GroupGrid | None:
    """The 4-bit grid of rows of a tensor of this type; None if the type has none."""
    if kind not in GRIDS:
        return None
    if kind == Kind.Q4_K:
        return _grid_of_blocks(data)
    head = 4 if kind == Kind.Q4_1 else 2
    N = len(data)
    blocks = data.reshape(N, -1, head + GROUP // 2)
    reals = np.ascontiguousarray(blocks[..., :head]).view(np.float16).astype(np.float32)
    scale = reals[..., 0]
    minimum = reals[..., 1] if head == 4 else -8 * scale
    nibbles = blocks[..., head:]
    codes = np.concatenate([nibbles & 15, nibbles >> 4], axis=-1).reshape(N, -1)
    return GroupGrid(codes, scale, minimum)


def _grid_of_blocks(data: np.ndarray) -> GroupGrid:
    """The grid of rows of a Q4_K tensor."""
    N = len(data)
    blocks = data.reshape(N, -1, 4 + 12 + GROUPS * GROUP // 2)
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
