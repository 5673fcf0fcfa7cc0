"""The kernels of one or several models that are linked into one binary for a card.

The file `card.json` of a package holds the folders of the models, as `Accelerator.write` writes them, and the
kernels in order. A host finds the binary through this file.
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
    """A linked kernel. folder: its folder inside the folder of the package. name: name of its top module.
    slr: the SLR on which the linker places it; None if the kernel has its own constraints. banks: for each
    buffer, by name, its memory bank."""

    folder: str
    name: str
    slr: str | None
    banks: Mapping[str, int]

    @property
    def unit(self) -> str:
        """Name of its instance on the card."""
        return f"{self.name}_1"


@dataclass(frozen=True, kw_only=True)
class Card:
    """A linked card. name: name of the binary. models: folders of the models inside the folder of the
    package; "." for a single model. Raises ValueError for bad names and folders."""

    name: str
    models: tuple[str, ...]
    kernels: tuple[Kernel, ...]

    def __post_init__(self) -> None:
        if not self.models or not self.kernels:
            raise ValueError("a card needs at least one model and one kernel")
        for folder in (*self.models, *(kernel.folder for kernel in self.kernels)):
            path = Path(folder)
            if not folder or path.is_absolute() or ".." in path.parts or len(path.parts) >= _DEPTH:
                raise ValueError(f"{folder!r} is not a folder inside the folder of the package")
        for name in (self.name, *(kernel.name for kernel in self.kernels)):
            if not (name.isidentifier() and name.isascii()):
                raise ValueError(f"{name!r} is not a name; letters, digits and _ are allowed")

    def to_json(self) -> str:
        """JSON text; `from_json` turns it back into an equal card."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> "Card":
        """Inverse of `to_json`. Raises ValueError for any other text."""
        return typing.cast(Card, decode(cls, parsed(text), "card"))

    @classmethod
    def read(cls, folder: Path) -> "Card":
        """Read the card of a package. Raises ValueError for a folder that is not a package."""
        if not (folder / CARD_FILE).is_file():
            raise ValueError(
                f"{folder} is not a package, since it has no {CARD_FILE}; `streamgen package` writes one"
            )
        try:
            return cls.from_json(read_file(folder, CARD_FILE))
        except ValueError as error:
            raise ValueError(f"{folder / CARD_FILE} cannot be read: {error}") from error

    @staticmethod
    def alone(manifest: Manifest) -> "Card":
        """A card with one kernel. Its buffers lie in the banks of their channels."""
        banks = {buffer.name: buffer.channel for buffer in manifest.buffers}
        kernel = Kernel(folder=".", name=manifest.top, slr=None, banks=banks)
        return Card(name=manifest.top, models=(".",), kernels=(kernel,))


def card_of(folder: Path) -> tuple[Path, Card]:
    """Find the package of a folder of a model or of one of its groups: the folder and the card of the
    package. Raises ValueError if the folder does not belong to a package."""
    place = folder.resolve()
    for package in (place, *place.parents[: _DEPTH - 1]):
        if (package / CARD_FILE).is_file():
            return package, Card.read(package)
    raise ValueError(
        f"{folder} does not belong to a package: neither it nor a folder above it has {CARD_FILE}; "
        "`streamgen package` writes one"
    )
