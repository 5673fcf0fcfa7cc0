"""Blocks of hardware that one worker has converted, for the other workers of a session: most designs of tests
are made of the same ones.

A file holds a block of `streamgen`, with the keys of those that it instances. It is named by the class of its
params, where that stands, and all that their repr says. Files last as long as the session's folder, so code
that changes between sessions is converted anew.
"""

import hashlib
import os
import pickle
from pathlib import Path

from streamgen.gateware import rtl

__all__ = ["BlocksOfWorkers"]


class BlocksOfWorkers(rtl._KeptBlocks):
    """What this process remembers, and what lies in the folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def get(self, params: rtl.Buildable, name: str) -> rtl._Block | None:
        block = super().get(params, name)
        if block is None and rtl.REMEMBERED and (file := self._file(params)).exists():
            block = rtl._Block(params, name)
            block.text, block.pins, needs = pickle.loads(file.read_bytes())
            found = [self.get(need, rtl.block_name(need)) for need in needs]
            block.needs = [need for need in found if need is not None]
            if len(block.needs) < len(needs):
                return None
            super().keep(block)
        return block

    def keep(self, block: rtl._Block) -> None:
        super().keep(block)
        own = type(block.params).__module__.startswith("streamgen.")
        if own and rtl.REMEMBERED and not block.foreign and not (file := self._file(block.params)).exists():
            whole = block.text, block.pins, [need.params for need in block.needs]
            part = file.with_suffix(f".{os.getpid()}")
            part.write_bytes(pickle.dumps(whole))
            part.replace(file)

    def _file(self, params: rtl.Buildable) -> Path:
        kind = type(params)
        identity = f"{kind.__module__}.{kind.__qualname__} {params!r}"
        return self._folder / hashlib.sha256(identity.encode()).hexdigest()
