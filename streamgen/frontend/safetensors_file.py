"""Folders with config.json and safetensors files: what they hold, read tensor by tensor."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from streamgen.errors import CheckpointError

__all__ = ["FLOATS", "TensorFolder", "read_config"]

FLOATS = ("F32", "F16", "BF16")


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a folder; CheckpointError when there is none, or no object in it."""
    return _json(folder / "config.json")


class TensorFolder:
    """The tensors of all files of a folder. kinds: types that are allowed, as safetensors names them.

    CheckpointError for files that are missing or damaged, tensors of other types, and tensors in two files.
    """

    def __init__(self, folder: Path, kinds: Collection[str] = FLOATS) -> None:
        self.folder = folder
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._files: dict[str, Any] = {}
        for path in _paths(folder):
            try:
                file = safe_open(path, framework="pt")
                for name in file.keys():  # noqa: SIM118 - the file is no mapping
                    if name in self._files:
                        raise CheckpointError(f"{path}: tensor {name} is in another file too")
                    part = file.get_slice(name)
                    if part.get_dtype() not in kinds:
                        raise CheckpointError(
                            f"{path}: tensor {name} is {part.get_dtype()}; {', '.join(kinds)} can be read"
                        )
                    self._files[name] = file
                    self.shapes[name] = tuple(part.get_shape())
            except (SafetensorError, OSError, ValueError) as error:
                raise CheckpointError(f"{path}: truncated or corrupt safetensors: {error}") from error

    def integers(self, name: str) -> np.ndarray:
        """A tensor of integers as it is."""
        array: np.ndarray = self._files[name].get_tensor(name).numpy()
        if array.dtype.kind != "i":
            raise CheckpointError(f"{self.folder}: tensor {name} is {array.dtype}; integers are needed")
        return array

    def floats(self, name: str) -> np.ndarray:
        """A tensor as float32; CheckpointError unless all of it is finite."""
        array: np.ndarray = self._files[name].get_tensor(name).float().numpy()
        if not np.isfinite(array).all():
            position = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
            raise CheckpointError(f"{self.folder}: tensor {name}{list(position)} is {array[position]}")
        return array


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such file")
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: a JSON object is needed, not {type(found).__name__}")
    return found


def _paths(folder: Path) -> list[Path]:
    """The files of weights: those of the index, else model.safetensors, else all there are."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        named = _json(index).get("weight_map")
        if not isinstance(named, dict) or not all(isinstance(file, str) for file in named.values()):
            raise CheckpointError(f"{index}: weight_map must name a file for each tensor")
        paths = [folder / file for file in sorted(set(named.values()))]
    else:
        whole = folder / "model.safetensors"
        paths = [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))
    if not paths:
        raise CheckpointError(f"{folder}: there is no safetensors file")
    for path in paths:
        if not path.is_file():
            raise CheckpointError(f"{path}: there is no such file")
    return paths
