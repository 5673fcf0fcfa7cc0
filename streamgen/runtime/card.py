"""What is linked for a card: kernels of one model or of several, in one binary; and where a host finds it.

A package has `card.json`: the folders of its models, as `Accelerator.write` writes them, and its kernels, in
order.
"""

import dataclasses
import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from streamgen.artifact.manifest import Manifest
from streamgen.base.files import decode, parsed, read_file

CARD_FILE = "card.json"
_DEPTH = 3  # card, model, group


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """folder: where it is written, inside that of the package. name: its top. slr: where the linker puts it;
    None where its own constraints do. banks: the memory bank of each of its buffers, by name."""

    folder: str
    name: str
    slr: str | None
    banks: Mapping[str, int]

    @property
    def unit(self) -> str:
        """Its instance on the card."""
        return f"{self.name}_1"


@dataclass(frozen=True, kw_only=True)
class Card:
    """name: of the binary. models: their folders inside that of the package, "." for a single one."""

    name: str
    models: tuple[str, ...]
    kernels: tuple[Kernel, ...]

    def __post_init__(self) -> None:
        if not self.models or not self.kernels:
            raise ValueError("a card needs at least one model and one kernel")
        for folder in (*self.models, *(kernel.folder for kernel in self.kernels)):
            path = Path(folder)
            if not folder or path.is_absolute() or ".." in path.parts or len(path.parts) >= _DEPTH:
                raise ValueError(f"{folder!r} is no folder inside that of the package")
        for name in (self.name, *(kernel.name for kernel in self.kernels)):
            if not (name.isidentifier() and name.isascii()):
                raise ValueError(f"{name!r} is not a name: letters, digits and _ make one")

    def to_json(self) -> str:
        """Text that `from_json` turns back into an equal card."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> "Card":
        """ValueError for a text that `to_json` did not make."""
        return typing.cast(Card, decode(cls, parsed(text), "card"))

    @classmethod
    def read(cls, folder: Path) -> "Card":
        """The one of a package. ValueError for a folder without one."""
        if not (folder / CARD_FILE).is_file():
            raise ValueError(f"{folder} is no package: no {CARD_FILE}; `streamgen package` writes one")
        try:
            return cls.from_json(read_file(folder, CARD_FILE))
        except ValueError as error:
            raise ValueError(f"{folder / CARD_FILE} cannot be read: {error}") from error

    @staticmethod
    def alone(manifest: Manifest) -> "Card":
        """With one kernel, whose buffers lie in the banks of its channels."""
        banks = {buffer.name: buffer.channel for buffer in manifest.buffers}
        kernel = Kernel(folder=".", name=manifest.top, slr=None, banks=banks)
        return Card(name=manifest.top, models=(".",), kernels=(kernel,))


def card_of(folder: Path) -> tuple[Path, Card]:
    """The package to which the folder of a model, or of one of its groups, belongs: its folder and its card.
    ValueError when it belongs to none."""
    place = folder.resolve()
    for one in (place, *place.parents[: _DEPTH - 1]):
        if (one / CARD_FILE).is_file():
            return one, Card.read(one)
    raise ValueError(f"{folder} is in no package: no {CARD_FILE}; `streamgen package` writes one")
