"""Damaged files of written folders: the right result, or one error, soon and in little memory."""

import io
import random
import resource
import shutil
import time
import zipfile
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

import streamgen
from streamgen.base.errors import StreamgenError
from tests.shared.accelerators import tiny
from tests.shared.campaigns import sampled
from tests.shared.damage import damaged

SECONDS, BYTES = 2.0, 500 << 20
X = np.linspace(-1, 1, 80, dtype=np.float32).reshape(2, 40)
FILES = ("manifest.json", "graph.json", "notes.json", "interface.json", "constants.npz")


def _nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny().write(tmp_path_factory.mktemp("written") / "written")


def _tried(folder: Path, name: str, content: bytes, *, changed: bool = False) -> str:
    """What loading and computing says with another content of a file: an error's text, or nothing. changed:
    it is to be taken as it is."""
    (folder / name).write_bytes(content)
    begun, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        accelerator = streamgen.load(folder, changed_files=changed)
        assert (accelerator.golden(X) == tiny().golden(X)).all()
        accelerator.report()
        found = ""
    except (StreamgenError, ValueError) as error:
        found = str(error)
        assert found
    taken = time.process_time() - begun
    assert taken < max(SECONDS, 10 * _undamaged()), f"{name}: {taken:.1f} s"  # also where the machine is slow
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < BYTES
    return found


@cache
def _undamaged() -> float:
    """Processor seconds of the same for a folder as it was written."""
    with TemporaryDirectory() as place:
        folder = tiny().write(Path(place) / "whole")
        begun = time.process_time()
        assert (streamgen.load(folder).golden(X) == tiny().golden(X)).all()
        return time.process_time() - begun


def _folder(written: Path, place: Path) -> Path:
    return Path(shutil.copytree(written, place / "damaged"))


CASES, QUICK = 40, 2  # of 250 damages each


@pytest.mark.slow
@pytest.mark.parametrize("case", sampled(range(CASES), range(QUICK)))
def test_damaged_files(case: int, seed: int, written: Path, tmp_path: Path) -> None:
    draw, folder = random.Random(f"{seed} {case}"), _folder(written, tmp_path)
    for name in FILES:
        assert _tried(folder, name, (written / name).read_bytes()) == ""
    for number in range(250):
        name = draw.choice(FILES)
        content = (written / name).read_bytes()
        changed = damaged(name, content, draw)
        try:
            _tried(folder, name, changed)
        except Exception as error:
            (tmp_path / name).write_bytes(changed)
            raise AssertionError(
                f"damage {number} of {name}: {error!r}, kept in {tmp_path / name}"
            ) from error
        (folder / name).write_bytes(content)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".json")])
def test_nested_too_deeply(name: str, written: Path, tmp_path: Path) -> None:
    assert "nested too deeply" in _tried(_folder(written, tmp_path), name, _nested(100_000), changed=True)


def _header(shape: str) -> bytes:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def _archive(content: bytes, kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as archive:
        archive.writestr("a.npy", content)
    return file.getvalue()


def _encrypted() -> bytes:
    found = bytearray(_archive(_header("(1,)") + bytes(4)))
    found[6] |= 1
    found[found.index(b"PK\x01\x02") + 8] |= 1
    return bytes(found)


ARCHIVES = {
    "header": (
        lambda: _archive(_header("(1000000000000,)") + bytes(64)),
        "has 64 bytes for shape (1000000000000,)",
    ),
    "negative": (lambda: _archive(_header("(-1, -1)") + bytes(4)), "a.npy"),
    "bomb": (lambda: _archive(_header(f"({1 << 28},)") + bytes(1 << 30)), "would take 10737"),
    "encrypted": (_encrypted, "is encrypted"),
    "bzip2": (
        lambda: _archive(_header("(1,)") + bytes(4), zipfile.ZIP_BZIP2),
        "a way that numpy does not use",
    ),
    "lzma": (lambda: _archive(_header("(1,)") + bytes(4), zipfile.ZIP_LZMA), "a way that numpy does not use"),
    "no archive": (lambda: b"PK", "it is not an archive of arrays"),
    "nothing": (lambda: b"", "it is not an archive of arrays"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHIVES)
def test_archives(name: str, written: Path, tmp_path: Path) -> None:
    make, message = ARCHIVES[name]
    content = make()
    assert message in (found := _tried(_folder(written, tmp_path), "constants.npz", content, changed=True))
    assert "constants.npz" in found


@pytest.mark.parametrize("name", [*FILES, "design.v", "weights_0.bin"])
def test_links_out_of_the_folder(name: str, written: Path, tmp_path: Path) -> None:
    folder = _folder(written, tmp_path)
    (folder / name).rename(tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    with pytest.raises((StreamgenError, ValueError), match="is a link out of its folder"):
        streamgen.load(folder).run(X)


@pytest.mark.parametrize("name", [name for name in FILES if name != "manifest.json"])
def test_changed_files_are_asked_for(name: str, written: Path, tmp_path: Path) -> None:
    folder = _folder(written, tmp_path)
    (folder / name).write_bytes((folder / name).read_bytes() + b" ")
    with pytest.raises(StreamgenError, match=f"{name} is not the file that was written"):
        streamgen.load(folder).golden(X)
