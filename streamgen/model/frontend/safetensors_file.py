"""Folders with config.json and safetensors files: what they hold, read tensor by tensor."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from streamgen.base.errors import CheckpointError

FLOATS = ("F64", "F32", "F16", "BF16")  # as safetensors names them
INTEGERS = ("I32", "I64")


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a folder; CheckpointError when there is none, no object in it, or its model_type is
    no name."""
    config = _json(file := folder / "config.json")
    if not isinstance(kind := config.get("model_type", ""), str):
        raise CheckpointError(f"{file}: model_type is {kind!r}; the name of one is needed")
    return config


class TensorFolder:
    """The tensors of all files of a folder. shapes, types: of each of them.

    CheckpointError for files that are missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.types: dict[str, str] = {}
        self._files: dict[str, tuple[Path, Any]] = {}
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
        """Tensors that are in two files, and those of `names` that are no floats."""
        return [*self._repeated, *(one for name in names if (one := self._unlike(name, FLOATS)))]

    def integers(self, name: str) -> np.ndarray:
        """A tensor of integers as it is; CheckpointError for another one."""
        array: np.ndarray = self._read(name, INTEGERS).numpy()
        return array

    def floats(self, name: str) -> np.ndarray:
        """A tensor as float32; CheckpointError unless it is of floats, and all of them finite."""
        array: np.ndarray = self._read(name, FLOATS).float().numpy()
        if not np.isfinite(array).all():
            position = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
            raise CheckpointError(f"{self.folder}: tensor {name}{list(position)} is {array[position]}")
        return array

    def _read(self, name: str, types: tuple[str, ...]) -> Any:
        if wrong := self._unlike(name, types):
            raise CheckpointError(f"{self.folder}: {wrong}")
        return self._files[name][1].get_tensor(name)

    def _unlike(self, name: str, types: tuple[str, ...]) -> str | None:
        """What is wrong with a tensor that is to have one of these types."""
        kind = self.types[name]
        return None if kind in types else f"tensor {name} is {kind}; {', '.join(types)} can be read"


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
    """The files of weights: model.safetensors, else those of the index, else all there are. An index beside
    model.safetensors is left over: transformers does not read it either. CheckpointError for an index that
    is no index, and for files that are not there."""
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
