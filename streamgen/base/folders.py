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
    """Yield a new folder to fill. It becomes `target`, an absolute path, if the block ends without an error.

    marks: file names; every folder of this kind has at least one of them. If the target is such a folder
    already, or becomes one during the block, it stays as it is, provided that it holds all written files with
    the same bytes.

    Raises FileExistsError if the target exists and is not empty, and OSError if it cannot be written. An
    error leaves nothing behind, not even parent folders that were created for the target.
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
                raise FileExistsError(
                    _TAKEN.format(target, f"has no {other} with the same content")
                ) from None
            shutil.rmtree(partial)
    except BaseException:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)
        for place in created:
            with suppress(OSError):
                place.rmdir()
        raise


def require_free(target: Path, marks: Collection[str] = ()) -> bool:
    """Whether the target already is a folder with one of the `marks` (see `new_folder`), which may equal the
    folder to be written. Raises FileExistsError for a file, and for any other folder that is not empty."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return False
    if not any((target / mark).is_file() for mark in marks):
        raise FileExistsError(_TAKEN.format(target, "is not an empty folder"))
    return True


def _other(new: Path, old: Path) -> Path | None:
    """The first file of the new folder that the old folder lacks or has with other content."""
    for place, _, names in sorted(os.walk(new)):
        for file in (Path(place, name) for name in sorted(names)):
            same = old / file.relative_to(new)
            if not (same.is_file() and filecmp.cmp(file, same, shallow=False)):
                return file.relative_to(new)
    return None


def require_place(path: str | Path) -> Path:
    """The path of a file to write. Raises FileNotFoundError if its folder is missing, and IsADirectoryError
    if the path is a folder."""
    place = Path(path)
    if place.is_dir():
        raise IsADirectoryError(f"{place} is a folder; a file is needed")
    if not place.absolute().parent.is_dir():
        raise FileNotFoundError(f"{place}: there is no folder {place.parent}")
    return place


@contextmanager
def new_file(target: Path) -> Iterator[BinaryIO]:
    """Yield a new file to fill. It replaces `target` if the block ends without an error. After an error the
    new file is removed and `target` is unchanged. Raises OSError if the file cannot be written."""
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
    """A temporary folder that is removed with `owner`. Forked processes do not remove it; only the process
    that created it does."""
    place = Path(tempfile.mkdtemp(prefix="streamgen-"))
    weakref.finalize(owner, _remove, place, os.getpid())
    return place


def _remove(place: Path, maker: int) -> None:
    if os.getpid() == maker:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a folder that is removed after the block. Raises OSError with its path if it cannot be
    written."""
    with tempfile.TemporaryDirectory(prefix="streamgen-") as name, _named(Path(name).parent):
        yield Path(name)


@contextmanager
def _named(place: Path) -> Iterator[None]:
    """Add a path to OSErrors without one. The error of a full disk, for example, does not name the file."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(place)
        raise
