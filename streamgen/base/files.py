"""Read the files of a written folder: each file once and whole. Its digest is checked first, then its schema.

A folder is untrusted data. It may be damaged, or made to do harm. Every file must be a regular file in the
folder itself, not a link out of it. JSON is decoded into the types of annotations; an error names the file
and the field. Memory for an array is allocated only if the archive has its bytes, so a header alone cannot
ask for memory.
"""

import collections.abc
import dataclasses
import hashlib
import io
import json
import math
import os
import tokenize
import types
import typing
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from streamgen.base.errors import CheckpointError

DEFLATED_BYTES = 1 << 26
"""Limit on the bytes of all compressed arrays of an archive together. Other arrays take as many bytes as
their file."""

PIECE = 16 << 20  # bytes of a file that are in memory at a time

Digest = hashlib.sha256
"""The fastest hash of the standard library without known collisions; 64 hex digits."""

_FORMATS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def safe_path(folder: Path, name: str) -> Path:
    """The path of a regular file of a folder. Raises ValueError if the name is not a plain file name, and if
    the file is missing, not a regular file or a link out of the folder."""
    path = folder / name
    if Path(name).name != name or name in ("", ".", ".."):
        raise ValueError(f"{name!r} is not the name of a file in {folder}")
    try:
        if path.resolve().parent != folder.resolve():
            raise ValueError(f"{path} is a link out of its folder; put the file itself there")
        if path.exists() and not path.is_file():
            raise ValueError(f"{path} is not a regular file")
        path.stat()
    except (OSError, RuntimeError) as error:
        raise ValueError(f"{path} is missing or cannot be read") from error
    return path


def read_file(folder: Path, name: str) -> bytes:
    """The content of a file of a folder. Raises the errors of `safe_path`."""
    return b"".join(read_pieces(folder, name))


def read_pieces(folder: Path, name: str, size: int | None = None, what: str = "") -> Iterator[bytes]:
    """The content of a file of a folder, piece by piece, so that weights need not fit the memory of the host.
    size: bytes that the file must have, because `what` takes so many.

    Raises the errors of `safe_path`, and CheckpointError if the file has another size.
    """
    path = safe_path(folder, name)
    try:
        with path.open("rb") as file:
            if size is not None and (length := os.fstat(file.fileno()).st_size) != size:
                raise CheckpointError(f"{path} has {length} bytes; {what} takes {size}")
            while piece := file.read(PIECE):
                yield piece
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error


def parsed(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError for any other text."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not text: {error}") from error


def as_text(document: Mapping[str, Any]) -> str:
    """A document as JSON, with one field on each line. Dataclasses become objects of their fields. It is fast
    for megabytes."""
    lines = (f"{json.dumps(name)}: {json.dumps(value, default=vars)}" for name, value in document.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def decode(kind: Any, value: Any, where: str) -> Any:
    """Convert a value that `json` returned to the type of the annotation `kind`: a dataclass, a tuple, a
    named tuple, a mapping, a union with None, a literal or a plain type. where: name of the value in errors.

    Raises ValueError with the name of the first field that is missing, unknown or of another type.
    """
    arguments, origin = typing.get_args(kind), typing.get_origin(kind)
    if dataclasses.is_dataclass(kind):
        return _instance(kind, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{where}: expected a list, not {_shown(value)}")
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return _items(kinds, value, where)
    if isinstance(kind, type) and issubclass(kind, tuple):
        return kind(*_items(list(_hints(kind).values()), value, where))
    if origin is collections.abc.Mapping:
        if not isinstance(value, dict):
            raise ValueError(f"{where}: expected an object, not {_shown(value)}")
        return {
            _key(arguments[0], k, where): decode(arguments[1], v, f"{where}[{k!r}]") for k, v in value.items()
        }
    if origin in (types.UnionType, typing.Union):
        return None if value is None else decode(arguments[0], value, where)
    if origin is Literal:
        if not any(value is arg or (type(value) is type(arg) and value == arg) for arg in arguments):
            raise ValueError(f"{where}: expected one of {arguments}, not {_shown(value)}")
        return value
    if kind is float and type(value) is int:
        return value
    if kind is not Any and type(value) is not kind:
        raise ValueError(f"{where}: expected {kind.__name__}, not {_shown(value)}")
    if kind is float and not math.isfinite(value):
        raise ValueError(f"{where}: expected a number, not {value}")
    return value


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    """The types of the fields of a class, which take time to find."""
    return typing.get_type_hints(kind)


def _items(kinds: Sequence[Any], values: Any, where: str) -> tuple[Any, ...]:
    """Decode a list into a tuple; `kinds` has the type of each item."""
    if not isinstance(values, list) or len(values) != len(kinds):
        raise ValueError(f"{where}: expected a list of {len(kinds)}, not {_shown(values)}")
    pairs = enumerate(zip(kinds, values, strict=True))
    return tuple(decode(kind, value, f"{where}[{i}]") for i, (kind, value) in pairs)


def _instance(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected an object, not {_shown(value)}")
    hints = _hints(kind)
    if set(value) != set(hints):
        missing, unknown = sorted(set(hints) - set(value)), sorted(set(value) - set(hints))
        raise ValueError(
            f"{where}: expected the fields {sorted(hints)}: missing {missing}, unknown {unknown}"
        )
    fields = {name: decode(hints[name], value[name], f"{where}.{name}") for name in hints}
    try:
        return kind(**fields)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _key(kind: Any, key: str, where: str) -> Any:
    if kind is not int:
        return key
    if not key.isdecimal():
        raise ValueError(f"{where}: expected a number as key, not {key!r}")
    return int(key)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# Errors that numpy raises for a bad header, because it parses headers as Python.
_HEADERS = (SyntaxError, tokenize.TokenError, TypeError, KeyError, OverflowError, RecursionError)


def read_arrays(content: bytes) -> dict[str, np.ndarray]:
    """The arrays of an archive that numpy wrote, by name. Raises ValueError for an archive that is damaged or
    encrypted, that numpy did not write, or that asks for more memory than its arrays need."""
    if content[:2] != b"PK":  # zipfile would search for an archive behind other bytes
        raise ValueError("it is not an archive of arrays")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            packed = sum(entry.file_size for entry in entries if entry.compress_type != zipfile.ZIP_STORED)
            stored = sum(entry.file_size for entry in entries if entry.compress_type == zipfile.ZIP_STORED)
            if packed > DEFLATED_BYTES or stored > len(content):
                raise ValueError(f"its arrays would take {packed + stored} bytes, it has {len(content)}")
            return {entry.filename.removesuffix(".npy"): _array(archive, entry) for entry in entries}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        raise ValueError(f"it is not an archive of arrays: {error}") from error
    except (*_HEADERS, MemoryError) as error:
        raise ValueError(f"one of its entries is not an array: {error}") from error


def read_array(file: Path) -> np.ndarray:
    """The array of a .npy file. Raises ValueError for any other file."""
    try:
        with file.open("rb") as stream:
            array = np.load(stream, allow_pickle=False)
    except MemoryError as error:  # a header of a few bytes can ask for any amount
        raise ValueError(f"{file} declares an array that does not fit in memory") from error
    except (ValueError, EOFError, zipfile.BadZipFile, *_HEADERS) as error:
        raise ValueError(f"{file} is not a .npy file") from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise ValueError(f"{file} holds several arrays; a .npy file with one array is needed")
    return array


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    if entry.flag_bits & 1:
        raise ValueError(f"{entry.filename!r} is encrypted")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{entry.filename!r} is compressed in a way that numpy does not use")
    content = archive.read(entry)
    file = io.BytesIO(content)
    read = _FORMATS.get(np.lib.format.read_magic(file))
    if read is None:
        raise ValueError(f"{entry.filename!r} has a format that streamgen does not write")
    shape, order, dtype = read(file)
    if dtype.hasobject:
        raise ValueError(f"{entry.filename!r} holds objects")
    needed = math.prod(shape) * dtype.itemsize
    if needed != len(content) - file.tell() or min(shape, default=0) < 0:
        raise ValueError(
            f"{entry.filename!r} has {len(content) - file.tell()} bytes for shape {shape}, {dtype}"
        )
    values = np.frombuffer(content, dtype, offset=file.tell()) if needed else np.zeros(0, dtype)
    return values.reshape(shape, order="F" if order else "C").copy(order="K")
