"""A written design on disk: its manifest, and the files beside it, held to the digests in the manifest."""

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
WRITTEN = (MANIFEST, CHAIN_FILE)  # one of which every written accelerator has


@dataclass(frozen=True)
class WrittenFolder:
    """changed: files may be others than were written."""

    path: Path
    manifest: Manifest
    changed: bool = False

    @classmethod
    def read(cls, path: Path, *, changed: bool = False) -> "WrittenFolder":
        """ValueError for a folder without a manifest, or with one that cannot be read; CheckpointError for
        one that was changed."""
        if not (path / MANIFEST).exists():
            raise ValueError(f"{path} holds no written accelerator: no {MANIFEST}")
        try:
            manifest = Manifest.from_json(read_file(path, MANIFEST))
        except ValueError as error:
            raise ValueError(f"{path / MANIFEST} is no manifest: {error}") from error
        if manifest.files and not changed and manifest.files.count(_own(manifest)) != 1:
            raise CheckpointError(f"{path / MANIFEST} is not the file that was written; write it again")
        return cls(path, manifest, changed)

    def content(self, name: str) -> bytes:
        """Of a file beside the manifest, as `pieces` gives it."""
        return b"".join(self.pieces(name))

    def pieces(self, name: str) -> Iterator[bytes]:
        """The content of a file beside the manifest, piece by piece. ValueError when it is missing or a link
        out of the folder, CheckpointError when it has another size than its buffer, and behind the last piece
        when it is not what was written."""
        sizes = {buffer.file: (buffer.bytes, f"buffer {buffer.name!r}") for buffer in self.manifest.buffers}
        digest = Digest()
        for piece in read_pieces(self.path, name, *sizes.get(name, ())):
            digest.update(piece)
            yield piece
        found, known = digest.hexdigest(), self.manifest.digest_of(name)
        if found != known and not self.changed:
            raise CheckpointError(
                f"{self.path / name} is not the file that was written: its SHA-256 begins with {found[:16]}, "
                f"the manifest says {known[:16]}. Write the folder again; a change of your own is used by "
                "load(folder, changed_files=True), or --changed-files"
            )

    def held(self, name: str) -> str:
        """The digest that a file beside the manifest must have; where files may be changed, has."""
        if not self.changed:
            return self.manifest.digest_of(name)
        return _sealed(self.path / name).digest


def sealed(manifest: Manifest, folder: Path) -> Manifest:
    """The same, with the digests of all files that are written beside it, and of itself without that one."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and path.name != MANIFEST)
    files = tuple(side_by_side(_sealed, (folder / name for name in names)))
    found = dataclasses.replace(manifest, files=files)
    return dataclasses.replace(found, files=(*found.files, _own(found)))


def _own(manifest: Manifest) -> WrittenFile:
    """The digest of a manifest without it."""
    others = tuple(file for file in manifest.files if file.name != MANIFEST)
    text = dataclasses.replace(manifest, files=others).to_json()
    return WrittenFile(name=MANIFEST, digest=Digest(text.encode()).hexdigest())


def _sealed(path: Path) -> WrittenFile:
    with path.open("rb") as file:
        return WrittenFile(name=path.name, digest=hashlib.file_digest(file, Digest).hexdigest())
