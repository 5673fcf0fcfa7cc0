"""Inputs of a run as they are needed, outputs to .npy files."""

from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np

from streamgen.artifact.manifest import Buffer
from streamgen.base.folders import new_file
from streamgen.base.wording import counted

__all__ = ["require_inputs", "write_outputs"]


def require_inputs(infos: Sequence[Buffer], arrays: Sequence[np.ndarray]) -> None:
    """click's UsageError unless there is an array for each input."""
    if len(arrays) != len(infos):
        names = ", ".join(info.name for info in infos)
        times = counted(len(arrays), "time")
        raise click.UsageError(f"--input is needed once for each of {names}; it is given {times}")


def write_outputs(arrays: Sequence[np.ndarray], files: Sequence[Path]) -> None:
    """Each array to its file, which appears as a whole or not at all."""
    for array, file in zip(arrays, files, strict=True):
        with new_file(file) as stream:
            np.save(stream, array, allow_pickle=False)
