"""Folders with config.json and safetensors files: their contents, read tensor by tensor."""

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from streamgen.base.errors import CheckpointError
from streamgen.model.frontend.tensor_file import TensorFile, require_finite_rows
from streamgen.numbers.stored import StoredArray, TensorRows

FLOATS = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}
"""By name of a type in safetensors, the numpy type of its elements; of BF16, of their bits."""
INTEGERS = ("I32", "I64")


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a folder. CheckpointError if there is none, if it holds no object, or if its
    model_type is not a text."""
    config = _json(file := folder / "config.json")
    if not isinstance(kind := config.get("model_type", ""), str):
        raise CheckpointError(f"{file}: model_type is {kind!r}; a text is needed")
    return config


class TensorFolder:
    """The tensors of all files of a folder. shapes, types: by name.

    Raises CheckpointError for files that are missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.types: dict[str, str] = {}
        self._files: dict[str, tuple[Path, Any]] = {}
        self._opened: dict[Path, _Offsets] = {}
        self._repeated: list[str] = []
        for path in weight_files(folder):
            try:
                file = safe_open(path, framework="pt")
                for name in file.keys():  # noqa: SIM118 - the file is no mapping
                    if name in self._files:
                        files = f"{self._files[name][0].name} and {path.name}"
                        self._repeated.append(f"tensor {name} is in two files, {files}")
                        continue
                    part = file.get_slice(name)
                    self._files[name] = path, file
                    self.types[name] = part.get_dtype()
                    self.shapes[name] = tuple(part.get_shape())
            except (SafetensorError, OSError, ValueError) as error:
                raise CheckpointError(f"{path}: truncated or corrupt safetensors: {error}") from error

    def problems(self, names: Iterable[str]) -> list[str]:
        """Problems: tensors that are in two files, and those of `names` that are not floats."""
        return [*self._repeated, *(problem for name in names if (problem := self._unlike(name, FLOATS)))]

    def integers(self, name: str) -> np.ndarray:
        """A tensor of integers; CheckpointError for other types."""
        array: np.ndarray = self._read(name, INTEGERS).numpy()
        return array

    def floats(self, name: str) -> np.ndarray:
        """A tensor as float32; CheckpointError for other types than floats and for values that are not
        finite."""
        return np.asarray(self.stored(name))

    def stored(self, name: str) -> StoredArray:
        """A tensor that is read when it is asked for; it is read once now, to find values that are not
        finite. Raises the errors of `floats`."""
        self._require(name, FLOATS)
        (path, _), shape, kind = self._files[name], self.shapes[name], self.types[name]
        if path not in self._opened:
            self._opened[path] = _Offsets(path)
        offsets = self._opened[path]
        row, rest = shape[:1] or (1,), shape[1:]
        size = int(np.prod(rest, dtype=np.int64)) * np.dtype(FLOATS[kind]).itemsize
        first = offsets.first[name]

        def read(begin: int, end: int) -> np.ndarray:
            content = offsets.file.bytes(first + begin * size, (end - begin) * size)
            return _floats(content.view(FLOATS[kind])).reshape(end - begin, *rest)

        def refuse(position: list[int], value: np.ndarray) -> Exception:
            return CheckpointError(f"{self.folder}: tensor {name}{position[: len(shape)]} is {value}")

        array = TensorRows((*row, *rest), read)
        require_finite_rows(array, refuse)
        return array

    def _read(self, name: str, types: Iterable[str]) -> Any:
        self._require(name, types)
        return self._files[name][1].get_tensor(name)

    def _require(self, name: str, types: Iterable[str]) -> None:
        """Raise CheckpointError for a tensor that does not have one of these types."""
        if wrong := self._unlike(name, types):
            raise CheckpointError(f"{self.folder}: {wrong}")

    def _unlike(self, name: str, types: Iterable[str]) -> str | None:
        """The problem with a tensor that does not have one of these types; None if it has."""
        kind = self.types[name]
        return None if kind in types else f"tensor {name} is {kind}; {', '.join(types)} can be read"


class _Offsets:
    """A file of safetensors whose header is known to be right. first: by name, the first byte of a tensor."""

    def __init__(self, path: Path) -> None:
        self.file = TensorFile(path)
        (length,) = struct.unpack("<Q", self.file.bytes(0, 8).tobytes())
        header = json.loads(self.file.bytes(8, length).tobytes())
        self.first = {
            name: 8 + length + said["data_offsets"][0]
            for name, said in header.items()
            if name != "__metadata__"
        }


def _floats(stored: np.ndarray) -> np.ndarray:
    """Elements as float32; of uint16, the bits of BF16."""
    if stored.dtype == np.uint16:
        wide = stored.astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)
    with np.errstate(over="ignore"):
        return stored.astype(np.float32, copy=False)


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such file")
    try:
        parsed = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise CheckpointError(f"{path}: a JSON object is needed, not {type(parsed).__name__}")
    return parsed


def weight_files(folder: Path) -> list[Path]:
    """The files of weights: model.safetensors, or those of the index, or all safetensors files. Next to
    model.safetensors an index is ignored, as transformers ignores it. CheckpointError for a wrong index and
    for missing files."""
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file():
        paths = [whole]
    elif index.is_file():
        named = _json(index).get("weight_map")
        if not isinstance(named, dict) or not all(isinstance(file, str) for file in named.values()):
            raise CheckpointError(f"{index}: weight_map must name a file for each tensor")
        paths = [folder / file for file in sorted(set(named.values()))]
    else:
        paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise CheckpointError(f"{folder}: there is no safetensors file")
    for path in paths:
        if not path.is_file():
            raise CheckpointError(f"{path}: there is no such file")
    return paths
