"""Inputs of a run from .npy files, outputs to .npy files."""

from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np

from streamgen.folders import new_file
from streamgen.manifest import Buffer

__all__ = ["read_array", "read_inputs", "write_outputs"]


def read_inputs(infos: Sequence[Buffer], files: Sequence[Path]) -> list[np.ndarray]:
    """An array from each file, in the order of the inputs."""
    if len(files) != len(infos):
        names = ", ".join(info.name for info in infos)
        raise click.UsageError(f"--input is needed once for each of {names}; it is given {len(files)} times")
    return [read_array(file) for file in files]


def read_array(file: Path) -> np.ndarray:
    """The array of a .npy file. ValueError for another file."""
    try:
        array = np.load(file, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{file} is no .npy file") from error
    except MemoryError as error:  # which a few bytes can ask for
        raise ValueError(f"{file} says that it holds more than fits in memory") from error
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{file} holds several arrays; a .npy file with one is needed")
    return array


def write_outputs(arrays: Sequence[np.ndarray], files: Sequence[Path]) -> None:
    """Each array to its file, which appears as a whole or not at all."""
    for array, file in zip(arrays, files, strict=True):
        with new_file(file) as stream:
            np.save(stream, array, allow_pickle=False)
