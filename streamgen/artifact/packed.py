"""Weights of a written model: they lie in the weight files of its folder and nowhere else.

A stored model has records in their place, which say where they lie. A record that knows its folder reads
them: parts of the files are mapped into memory and unpacked, as the hardware unpacks them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import Lock

import numpy as np

from streamgen.artifact.packing import BEAT_BYTES, MemoryLayout
from streamgen.artifact.row_order import RowOrder
from streamgen.artifact.weight_layout import WeightLayout
from streamgen.artifact.written import WrittenFolder
from streamgen.base.errors import CheckpointError
from streamgen.base.threads import side_by_side
from streamgen.itensor import ITensor
from streamgen.numbers.quantisation import IntegerWeight, QuantisedWeight
from streamgen.numbers.stored import Rows, StoredArray, gathered
from streamgen.numbers.weights import BYTES

NOT_STORED = {"stored": False}
"""Metadata of a field that is not part of a record."""


class WeightFiles:
    """The weight files of a folder. Each is compared with its digest before it is first read."""

    def __init__(self, folder: WrittenFolder) -> None:
        self._folder = folder
        self._sizes = {buffer.file: buffer.bytes for buffer in folder.manifest.buffers if buffer.file}
        self._known: set[str] = set()
        self._turn = Lock()
        self._last: tuple[PackedColumns, dict[str, np.ndarray]] | None = None

    def bytes(self, name: str, first: int, count: int) -> np.ndarray:
        """Bytes of a file, mapped: uint8. Raises CheckpointError for bytes that are not in the file, and the
        errors of `WrittenFolder.pieces`."""
        if not 0 <= first <= first + count <= self._sizes.get(name, 0):
            raise CheckpointError(
                f"{self._folder.path}: the model has weights at bytes {first} to {first + count} of {name}, "
                f"which has {self._sizes.get(name, 0)}"
            )
        with self._turn:
            if name not in self._known:
                for _ in self._folder.pieces(name):
                    pass
                self._known.add(name)
        return np.memmap(self._folder.path / name, np.uint8, "r", first, (count,))

    def joined(self, columns: "PackedColumns") -> dict[str, np.ndarray]:
        """What the columns read, unpacked and joined: codes "w", row scales "r" and, in formats with groups,
        "s", each [rows, ...]. The last result is kept, because the matmuls of one operand are read in
        turn."""
        with self._turn:
            last = self._last
        if last is None or last[0] != columns:
            last = columns, columns.unpacked(self)
            with self._turn:
                self._last = last
        return last[1]


@dataclass(frozen=True, kw_only=True)
class PackedColumns:
    """The weights of columns that compute matmuls of one operand in one walk. order: of the rows. w, r, s:
    orders of the streams of a column (`WeightLayout`), as text. places: file and first byte of each column.
    last_beats: see `WeightLayout`."""

    order: RowOrder
    w: str
    r: str
    s: str | None
    places: tuple[tuple[str, int], ...]
    last_beats: int | None = None

    @classmethod
    def of(
        cls, order: RowOrder, layout: WeightLayout, places: tuple[tuple[str, int], ...]
    ) -> "PackedColumns":
        """The record of columns with this layout."""
        s = None if layout.s is None else str(layout.s)
        return cls(
            order=order, w=str(layout.w), r=str(layout.r), s=s, places=places, last_beats=layout.last_beats
        )

    def unpacked(self, files: WeightFiles) -> dict[str, np.ndarray]:
        """See `WeightFiles.joined`."""
        s = None if self.s is None else ITensor.parse(self.s)
        layout = WeightLayout.of(ITensor.parse(self.w), ITensor.parse(self.r), s, self.last_beats)
        count, size = self.order.columns, layout.beats * BEAT_BYTES
        beats = [files.bytes(name, first, size).reshape(-1, BEAT_BYTES) for name, first in self.places]
        if len(beats) != count or sum(self.order.rows) != count * layout.w.shape[0]:
            raise CheckpointError(f"{len(beats)} columns do not have the rows of {self.order}")
        joined: dict[str, np.ndarray] = {}

        def unpack(column: int) -> None:
            for name, part in layout.unpack(beats[column]).items():
                joined[name][column::count] = part

        for name, part in layout.unpack(beats[0]).items():
            joined[name] = np.empty((count * len(part), *part.shape[1:]), part.dtype)
        side_by_side(unpack, range(count))
        return joined


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedWeight(IntegerWeight):
    """A weight of a matmul. number: of the matmul among those of its columns. bits, sums: `scale_bits` and
    `row_sum`, if they are known. The others: see `IntegerWeight`."""

    columns: PackedColumns
    number: int
    shape: tuple[int, ...]
    format: str
    group: int | None
    grouped: bool
    minimums: bool
    bits: int | None
    sums: int | None
    files: WeightFiles | None = field(default=None, repr=False, metadata=NOT_STORED)

    @property
    def scale_bits(self) -> int:
        return super().scale_bits if self.bits is None else self.bits

    @property
    def row_sum(self) -> int:
        return super().row_sum if self.sums is None else self.sums

    def read(self, rows: Rows | None = None) -> QuantisedWeight:
        joined, (N, K) = _files(self.files).joined(self.columns), self.shape
        places = self.columns.order.places(self.number)[:N]
        if rows is not None:
            places = places[rows]
        scale = minimum = None
        if self.grouped:
            assert self.group is not None
            groups = joined["s"][places, : -(-K // self.group)].astype(np.int32)
            scale, minimum = groups[..., 0], groups[..., 1] if self.minimums else None
        row_scale = joined["r"][places]
        return QuantisedWeight(
            joined["w"][places, :K],
            scale,
            minimum,
            row_scale if row_scale.ndim == 1 else row_scale[:, 0],
            self.format,
            self.group,
        )


@dataclass(frozen=True, kw_only=True)
class PackedRows:
    """Rows of a table, one after the other. Each row lies in one or more parts, which follow one another.
    parts: of each part the file, its first byte, and the order of its rows as text."""

    parts: tuple[tuple[str, int, str], ...]

    def read(self, files: WeightFiles, first: int, end: int) -> np.ndarray:
        """The rows from one number up to another, [rows, ...]."""
        return np.concatenate([_rows(files, *part, first, end) for part in self.parts], axis=-1)


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedTable(IntegerWeight):
    """A table of 8-bit codes. shape: rows and features. codes, scales: its rows, and the scales of its
    rows."""

    shape: tuple[int, ...]
    codes: PackedRows
    scales: PackedRows
    files: WeightFiles | None = field(default=None, repr=False, metadata=NOT_STORED)
    format = BYTES.name
    group = None
    grouped = False
    minimums = False

    def read(self, rows: Rows | None = None) -> QuantisedWeight:
        numbers = np.arange(self.shape[0])[slice(None) if rows is None else rows]
        codes, scales = (_reader(part, self.files) for part in (self.codes, self.scales))
        return QuantisedWeight(
            gathered(codes, numbers)[..., : self.shape[1]],
            None,
            None,
            gathered(scales, numbers)[..., 0],
            self.format,
            None,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedFloats(StoredArray):
    """A table of f24 values. shape: rows and features. rows: its rows."""

    shape: tuple[int, ...]
    rows: PackedRows
    files: WeightFiles | None = field(default=None, repr=False, metadata=NOT_STORED)

    def read(self, first: int, end: int) -> np.ndarray:
        return self.rows.read(_files(self.files), first, end)[:, : self.shape[1]]


RECORDS = (PackedColumns, PackedFloats, PackedRows, PackedTable, PackedWeight, RowOrder)


def _rows(files: WeightFiles, file: str, place: int, itensor: str, first: int, end: int) -> np.ndarray:
    """The part of some rows that begins at a place in a file."""
    whole = ITensor.parse(itensor)
    layout = MemoryLayout.of(whole)
    size = layout.beats(whole.token_count // whole.tripcounts[0]) * BEAT_BYTES
    content = files.bytes(file, place + first * size, (end - first) * size)
    some = replace(whole, tripcounts=(end - first, *whole.tripcounts[1:]))
    return layout.unpack(some, content.tobytes())


def _files(files: WeightFiles | None) -> WeightFiles:
    if files is None:
        raise CheckpointError(
            "the weights of the model lie in the weight files of its folder; load the folder"
        )
    return files


def _reader(rows: PackedRows, files: WeightFiles | None) -> Callable[[int, int], np.ndarray]:
    return lambda first, end: rows.read(_files(files), first, end)
