"""A written design on disk: its manifest, and the files beside it, checked against the digests in the
manifest."""

import dataclasses
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from streamgen.artifact.manifest import Manifest, WrittenFile
from streamgen.base.errors import CheckpointError
from streamgen.base.files import Digest, read_file, read_pieces
from streamgen.base.threads import side_by_side

MANIFEST = "manifest.json"
CHAIN_FILE = "chain.json"
WRITTEN = (MANIFEST, CHAIN_FILE)  # every written accelerator has one of these files


@dataclass(frozen=True)
class WrittenFolder:
    """A folder with a written design. changed: files may differ from the files that were written."""

    path: Path
    manifest: Manifest
    changed: bool = False

    @classmethod
    def read(cls, path: Path, *, changed: bool = False) -> "WrittenFolder":
        """Read the manifest of a folder. Raises ValueError if it is missing or cannot be read, and
        CheckpointError if it was changed."""
        if not (path / MANIFEST).exists():
            raise ValueError(f"{path} holds no written accelerator: no {MANIFEST}")
        try:
            manifest = Manifest.from_json(read_file(path, MANIFEST))
        except ValueError as error:
            raise ValueError(f"{path / MANIFEST} is not a manifest: {error}") from error
        if manifest.files and not changed and manifest.files.count(_own(manifest)) != 1:
            raise CheckpointError(f"{path / MANIFEST} is not the file that was written; write it again")
        return cls(path, manifest, changed)

    def content(self, name: str) -> bytes:
        """The content of a file beside the manifest. Raises the errors of `pieces`."""
        return b"".join(self.pieces(name))

    def pieces(self, name: str) -> Iterator[bytes]:
        """The content of a file beside the manifest, piece by piece. Raises ValueError if the file is missing
        or a link out of the folder, and CheckpointError if its size is not that of its buffer. After the last
        piece, raises CheckpointError if the file was changed."""
        sizes = {buffer.file: (buffer.bytes, f"buffer {buffer.name!r}") for buffer in self.manifest.buffers}
        digest = Digest()
        for piece in read_pieces(self.path, name, *sizes.get(name, ())):
            digest.update(piece)
            yield piece
        actual, expected = digest.hexdigest(), self.manifest.digest_of(name)
        if actual != expected and not self.changed:
            raise CheckpointError(
                f"{self.path / name} is not the file that was written: its SHA-256 begins with "
                f"{actual[:16]}, the manifest says {expected[:16]}. Write the folder again. If you changed "
                "the file yourself, use load(folder, changed_files=True) or --changed-files"
            )

    def held(self, name: str) -> str:
        """The digest that a file beside the manifest must have. If files may be changed, the digest that it
        has."""
        if not self.changed:
            return self.manifest.digest_of(name)
        return _sealed(self.path / name).digest


def sealed(manifest: Manifest, folder: Path) -> Manifest:
    """The manifest with the digests of all files in the folder, and a digest of the manifest itself, which is
    computed without that entry."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and path.name != MANIFEST)
    files = tuple(side_by_side(_sealed, (folder / name for name in names)))
    listed = dataclasses.replace(manifest, files=files)
    return dataclasses.replace(listed, files=(*listed.files, _own(listed)))


def _own(manifest: Manifest) -> WrittenFile:
    """The digest of a manifest without its own entry."""
    others = tuple(file for file in manifest.files if file.name != MANIFEST)
    text = dataclasses.replace(manifest, files=others).to_json()
    return WrittenFile(name=MANIFEST, digest=Digest(text.encode()).hexdigest())


def _sealed(path: Path) -> WrittenFile:
    with path.open("rb") as file:
        return WrittenFile(name=path.name, digest=hashlib.file_digest(file, Digest).hexdigest())
