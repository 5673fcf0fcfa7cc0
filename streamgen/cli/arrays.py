"""Arrays of a run: checks of inputs, and outputs in .npy files."""

from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np

from streamgen.base.folders import new_file
from streamgen.base.wording import counted


def require_inputs(names: Sequence[str], arrays: Sequence[np.ndarray]) -> None:
    """Raise click's UsageError unless there is one array for each input."""
    if len(arrays) != len(names):
        times = counted(len(arrays), "time")
        raise click.UsageError(
            f"--input must be given once for each of {', '.join(names)}; it is given {times}"
        )


def write_outputs(arrays: Sequence[np.ndarray], files: Sequence[Path]) -> None:
    """Write each array to its file. A file appears whole or not at all."""
    for array, file in zip(arrays, files, strict=True):
        with new_file(file) as stream:
            np.save(stream, array, allow_pickle=False)
