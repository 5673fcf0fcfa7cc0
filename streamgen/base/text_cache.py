"""Texts in the user's cache, each under a key that is a digest of everything that the text depends on.

A file is the SHA-256 of its text in hex, a line break, and the text. It appears in one atomic rename. A text
that is damaged, missing or cannot be written is made again, so no method raises an error. Nothing in a file
is run. The texts that were not read for the longest time are deleted first.
"""

import hashlib
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from streamgen.base.folders import new_file

MOST_FILES = 1000
MOST_BYTES = 100_000_000  # of all files together
_NAME = re.compile(r"[0-9a-f]{32,128}")


@dataclass(frozen=True)
class TextCache:
    """A folder of texts. count, size: the most files, and the most bytes of all files."""

    folder: Path
    count: int = MOST_FILES
    size: int = MOST_BYTES

    def read(self, key: str) -> str | None:
        """The text that was last written under a key; None if there is none or the file is damaged."""
        try:
            content = self._file(key).read_bytes()
            digest, _, text = content.partition(b"\n")
            if hashlib.sha256(text).hexdigest().encode() != digest:
                return None
            with suppress(OSError):  # a folder that cannot be written still gives its texts
                os.utime(self._file(key))
            return text.decode()
        except (OSError, ValueError):
            return None

    def write(self, key: str, text: str) -> None:
        """Keep a text under a key, and delete old texts if the folder is full."""
        content = text.encode()
        if len(content) > self.size:
            return
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            with new_file(self._file(key)) as file:
                file.write(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
            self._prune()

    def _file(self, key: str) -> Path:
        if not _NAME.fullmatch(key):
            raise ValueError(f"the key is {key!r}; 32 to 128 hex digits are needed")
        return self.folder / key

    def _prune(self) -> None:
        """Delete the files that were used least recently, until the others keep both limits."""
        found = []
        for file in self.folder.iterdir():
            with suppress(FileNotFoundError):  # another process deleted it
                found.append((file.stat(), file))
        found.sort(key=lambda pair: pair[0].st_mtime_ns, reverse=True)
        room = self.size
        for number, (status, file) in enumerate(found):
            room -= status.st_size
            if (number >= self.count or room < 0) and file.is_file():
                file.unlink(missing_ok=True)
