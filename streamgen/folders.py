"""Folders and files that are written whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

__all__ = ["new_file", "new_folder", "require_place"]


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `target`, an absolute path, when the block ends without an error.

    FileExistsError when the target exists and is not empty, OSError when it cannot be written. After an error
    nothing is left, nor folders above the target that were made for it.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"{target} exists and is not an empty folder; give a new name or remove it")
    made = [place for place in target.parents if not place.exists()]
    partial = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        yield partial
        partial.chmod(0o755)
        partial.replace(target)
    except BaseException:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)
        for place in made:
            with suppress(OSError):
                place.rmdir()
        raise


def require_place(path: str | Path) -> Path:
    """The path of a file to write. FileNotFoundError when its folder is not there, IsADirectoryError for a
    folder."""
    place = Path(path)
    if place.is_dir():
        raise IsADirectoryError(f"{place} is a folder; a file is needed")
    if not place.absolute().parent.is_dir():
        raise FileNotFoundError(f"{place}: there is no folder {place.parent}")
    return place


@contextmanager
def new_file(target: Path) -> Iterator[BinaryIO]:
    """A file to fill, which takes the place of `target` when the block ends without an error; else nothing is
    left of it, and what was there stays. OSError when it cannot be written."""
    handle, name = tempfile.mkstemp(dir=target.absolute().parent, prefix=f".{target.name}.")
    partial = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        partial.chmod(0o644)
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
