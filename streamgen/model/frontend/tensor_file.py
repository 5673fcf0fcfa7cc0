"""Tensors that stay in their files: rows are read when they are asked for, if the file is still the same."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from streamgen.base.errors import CheckpointError
from streamgen.base.threads import side_by_side
from streamgen.numbers.stored import StoredArray

_AT_ONCE = 1 << 22  # elements that are checked at a time by each processor


class TensorFile:
    """A file of tensors. Raises OSError if it cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._state = self._now()

    def bytes(self, first: int, count: int) -> np.ndarray:
        """Bytes of the file, uint8. CheckpointError if the file is missing or not the same any more."""
        content = np.empty(count, np.uint8)
        try:
            same = self._now() == self._state
            if same:
                with self.path.open("rb", buffering=0) as file:
                    file.seek(first)
                    done = 0
                    while done < count and (more := file.readinto(content[done:].data)):
                        done += more
                    same = done == count
        except OSError as error:
            raise CheckpointError(
                f"{self.path} cannot be read any more: {error.strerror}. {_KEEP}"
            ) from error
        if not same:
            raise CheckpointError(f"{self.path} has changed since it was opened. {_KEEP}")
        return content

    def _now(self) -> tuple[int, int]:
        state = self.path.stat()
        return state.st_size, state.st_mtime_ns


_KEEP = "The weights are read when they are written: keep the checkpoint until then, or compile again"


def require_finite_rows(array: StoredArray, refuse: Callable[[list[int], np.ndarray], Exception]) -> None:
    """Read all rows and raise the error that `refuse` makes of the first position whose value is not finite
    and of the value."""
    rows = len(array)
    step = max(1, _AT_ONCE * rows // max(1, array.size))

    def check(first: int) -> None:
        part = array[first : first + step]
        finite = np.isfinite(part)
        if not finite.all():
            within = tuple(int(i) for i in np.argwhere(~finite)[0])
            raise refuse([first + within[0], *within[1:]], part[within])

    side_by_side(check, range(0, rows, step))
