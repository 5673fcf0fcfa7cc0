"""The metadata of a GGUF file, without its tensors: names and values (source: ggml's specification of GGUF).

A file begins with "GGUF", a version (u32), the number of tensors and of fields (u64 each); then comes each
field: its name, the type of its value (u32), the value. A string is its length (u64) and UTF-8; an array the
type of its elements (u32), their number (u64) and the elements. All is little-endian; versions 2 and 3 are
read.

A vocabulary is 150,000 values: this takes 0.1 s, where the reader of the package gguf, which keeps a view of
the file for each of them, takes three.
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
# Types of numbers: as `struct` and `array` write them; bool is a byte.
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def require_gguf(path: Path) -> None:
    """CheckpointError for what is no file, or begins otherwise."""
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such file")
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise CheckpointError(f"{path}: not a GGUF file; it starts with {magic!r}, not b'GGUF'")


def read_metadata(path: Path) -> dict[str, Any]:
    """Values by name: numbers, strings and lists. CheckpointError says what is wrong with a file."""
    require_gguf(path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _Cursor(data).all()
        except (struct.error, ValueError) as error:
            raise CheckpointError(f"{path}: truncated or corrupt GGUF: {error}") from error


class _Cursor:
    """What follows the magic; struct.error or ValueError where the file ends or makes no sense."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 4

    def all(self) -> dict[str, Any]:
        version, _, count = (self._number(code) for code in "IQQ")
        if version not in VERSIONS:
            raise ValueError(f"the version is {version}; 2 and 3 can be read")
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
            raise ValueError("an array of arrays")
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
            raise ValueError(f"byte {end} is needed, the file has {len(self._data)}")
        start, self._at = self._at, end
        return self._data[start:end]


def _code(kind: int) -> str:
    if kind not in NUMBERS:
        raise ValueError(f"there is no type {kind}")
    return NUMBERS[kind]
