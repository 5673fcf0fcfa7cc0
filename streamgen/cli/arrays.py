"""Inputs of a run from .npy files or by chance, outputs to .npy files."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np

from streamgen.itensor import ITensor
from streamgen.manifest import Buffer

__all__ = ["random_inputs", "read_inputs", "write_outputs"]


def read_inputs(infos: Sequence[Buffer], files: Sequence[Path]) -> list[np.ndarray]:
    """An array from each file, in the order of the inputs."""
    if len(files) != len(infos):
        names = ", ".join(info.name for info in infos)
        raise click.UsageError(f"--input is needed once for each of {names}; it is given {len(files)} times")
    arrays = []
    for file in files:
        try:
            array = np.load(file, allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise ValueError(f"{file} is no .npy file") from error
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{file} holds several arrays; a .npy file with one is needed")
        arrays.append(array)
    return arrays


def random_inputs(infos: Sequence[Buffer], tokens: int, seed: int) -> list[np.ndarray]:
    """Normal numbers, or all integers of a format alike, for so many tokens."""
    rng = np.random.default_rng(seed)
    arrays = []
    for info in infos:
        assert info.shape is not None and info.itensor is not None
        shape = info.shape if info.tile_loop is None else (tokens, *info.shape[1:])
        dtype = ITensor.parse(info.itensor).dtype
        if dtype[0] in "iu":
            bits = int(dtype[1:])
            low = -(1 << bits - 1) if dtype[0] == "i" else 0
            arrays.append(rng.integers(low, low + (1 << bits), shape))
        else:
            arrays.append(rng.normal(size=shape).astype(np.float32))
    return arrays


def write_outputs(arrays: Sequence[np.ndarray], files: Sequence[Path]) -> None:
    """Each array to its file, which appears as a whole or not at all."""
    for array, file in zip(arrays, files, strict=True):
        handle, partial = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                np.save(stream, array, allow_pickle=False)
            Path(partial).chmod(0o644)
            Path(partial).replace(file)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise
