"""Folders and files that are written whole or not at all."""

import filecmp
import os
import shutil
import tempfile
import weakref
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_TAKEN = "{} exists and {}; give a new name or remove it"


@contextmanager
def new_folder(target: Path, marks: Collection[str] = ()) -> Iterator[Path]:
    """A folder to fill, which becomes `target`, an absolute path, when the block ends without an error.

    marks: files of which folders like this one have one. Where there is such a folder, before or by then, it
    stays as it is if all that is written is in it, byte for byte.

    FileExistsError when the target exists and is not empty, OSError when it cannot be written. After an error
    nothing is left, nor folders above the target that were made for it.
    """
    require_free(target, marks)
    created = [place for place in target.parents if not place.exists()]
    partial = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        with _named(target):
            yield partial
        partial.chmod(0o755)
        try:
            partial.replace(target)
        except OSError:
            if not require_free(target, marks):
                raise
            if (other := _other(partial, target)) is not None:
                raise FileExistsError(_TAKEN.format(target, f"has another {other}, or none")) from None
            shutil.rmtree(partial)
    except BaseException:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)
        for place in created:
            with suppress(OSError):
                place.rmdir()
        raise


def require_free(target: Path, marks: Collection[str] = ()) -> bool:
    """Whether there is a folder already that may be the same as one to be written, as `new_folder` has it.
    FileExistsError for a file, and for a folder with anything else in it."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return False
    if not any((target / mark).is_file() for mark in marks):
        raise FileExistsError(_TAKEN.format(target, "is not an empty folder"))
    return True


def _other(new: Path, old: Path) -> Path | None:
    """The first file of a folder that another folder does not have, or not with the same content."""
    for place, _, names in sorted(os.walk(new)):
        for file in (Path(place, name) for name in sorted(names)):
            same = old / file.relative_to(new)
            if not (same.is_file() and filecmp.cmp(file, same, shallow=False)):
                return file.relative_to(new)
    return None


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
        with _named(target), os.fdopen(handle, "wb") as file:
            yield file
        partial.chmod(0o644)
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def folder_of(owner: object) -> Path:
    """A temporary folder that lives as long as an object; forked processes leave it to their parent."""
    place = Path(tempfile.mkdtemp(prefix="streamgen-"))
    weakref.finalize(owner, _remove, place, os.getpid())
    return place


def _remove(place: Path, maker: int) -> None:
    if os.getpid() == maker:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for the time of the block. OSError, with its place, when it cannot be written."""
    with tempfile.TemporaryDirectory(prefix="streamgen-") as name, _named(Path(name).parent):
        yield Path(name)


@contextmanager
def _named(place: Path) -> Iterator[None]:
    """An error of a file that is open, as of a full disk, does not know where that is: it is told."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(place)
        raise
