"""Folders and files that are written whole or not at all."""

import errno
import fcntl
import filecmp
import glob
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
def new_folder(target: Path, marks: Collection[str] = (), needed: int = 0) -> Iterator[Path]:
    """Yield a new folder to fill. It becomes `target`, an absolute path, if the block ends without an error.

    marks: file names; every folder of this kind has at least one of them. If the target is such a folder
    already, or becomes one during the block, it stays as it is, provided that it holds all written files with
    the same bytes. needed: bytes that the block will write.

    Raises FileExistsError if the target exists and is not empty, and OSError if it cannot be written or if
    its disk has less room than needed. An error leaves nothing behind, not even parent folders that were
    created for the target. If the process is killed, a hidden folder is left beside the target; the next call
    for the same target removes it.
    """
    require_free(target, marks)
    created = [place for place in target.parents if not place.exists()]
    partial, held = None, None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.parent):
            _remove_abandoned(target)
            require_room(target, needed)
            partial = Path(tempfile.mkdtemp(prefix=_prefix(target), dir=target.parent))
            held = os.open(partial, os.O_RDONLY)
            _lock(held)
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
    finally:
        if held is not None:
            os.close(held)


def require_room(target: Path, needed: int) -> None:
    """Raise OSError if the disk of a folder that will be written has less room than `needed` bytes."""
    free = shutil.disk_usage(target.parent).free
    if free < needed:
        raise OSError(
            errno.ENOSPC,
            f"it needs {_sized(needed)}, but its disk has only {_sized(free)} left; "
            f"make room for {_sized(needed - free)}, or choose a place on another disk",
            str(target),
        )


def _sized(count: int) -> str:
    """A number of bytes for a message, in a unit that suits it."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def _prefix(target: Path) -> str:
    """The beginning of the names of the hidden folders that become a target."""
    return f".{target.name}.unfinished-"


def _remove_abandoned(target: Path) -> None:
    """Remove the hidden folders of processes that were killed. A process holds the lock of its own."""
    for place in target.parent.glob(f"{glob.escape(_prefix(target))}*"):
        with suppress(OSError):
            folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(place, ignore_errors=True)
            finally:
                os.close(folder)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, so that no other process sees a new folder in it before that is locked."""
    held = os.open(folder, os.O_RDONLY)
    try:
        _lock(held)
        yield
    finally:
        os.close(held)


def _lock(folder: int) -> None:
    """Take the lock of an open folder, if its file system has locks."""
    with suppress(OSError):
        fcntl.flock(folder, fcntl.LOCK_EX)


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
