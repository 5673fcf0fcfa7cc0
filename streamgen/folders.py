"""Folders that are written whole or not at all."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["new_folder"]


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
