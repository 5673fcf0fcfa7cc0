"""Inputs of a run from .npy files, outputs to .npy files."""

from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np

from streamgen.files import read_array
from streamgen.folders import new_file
from streamgen.manifest import Buffer

__all__ = ["read_inputs", "write_outputs"]


def read_inputs(infos: Sequence[Buffer], files: Sequence[Path]) -> list[np.ndarray]:
    """An array from each file, in the order of the inputs."""
    if len(files) != len(infos):
        names = ", ".join(info.name for info in infos)
        raise click.UsageError(f"--input is needed once for each of {names}; it is given {len(files)} times")
    return [read_array(file) for file in files]


def write_outputs(arrays: Sequence[np.ndarray], files: Sequence[Path]) -> None:
    """Each array to its file, which appears as a whole or not at all."""
    for array, file in zip(arrays, files, strict=True):
        with new_file(file) as stream:
            np.save(stream, array, allow_pickle=False)
