"""Room in memory for what can be made again: it is kept while there is room, and made again otherwise."""

import weakref
from threading import Lock

KEPT_BYTES = 1 << 30  # of all kept values of the process


class KeptRoom:
    """So many bytes, shared by all owners of a process."""

    def __init__(self, count: int = KEPT_BYTES) -> None:
        self._left, self._lock = count, Lock()

    def take(self, owner: object, count: int) -> bool:
        """Whether so many bytes are left. They are then the owner's as long as it lives."""
        with self._lock:
            if count > self._left:
                return False
            self._left -= count
        weakref.finalize(owner, self._give, count).atexit = False
        return True

    def _give(self, count: int) -> None:
        self._left += count  # a finalizer may run while the lock is held, so it takes none


ROOM = KeptRoom()
