"""Compiling, writing and loading: the same bytes every time, all or nothing on the disk, clear refusals."""

import errno
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import streamgen
from streamgen.api import accelerator
from streamgen.artifact.packing import MemoryLayout
from streamgen.base import folders
from streamgen.base.errors import BudgetError, GraphError, UnsupportedOperationError
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.emit import design
from streamgen.compiler.lower import GraphBuilder
from streamgen.itensor import ITensor
from streamgen.kernels.elementwise import BinaryParams
from streamgen.kernels.norm.norm import NormParams
from streamgen.model.graph import storage
from streamgen.numbers.formats import round_f24
from tests.shared.accelerators import TINY, contents, same, tiny, tiny_module, values

FILES = ("constants.npz", "design.v", "graph.json", "interface.json", "manifest.json", "notes.json")
FILES += ("plan.json", "weights_0.bin")
X = values(3, 40)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of the tiny accelerator."""
    return contents(tiny().write(tmp_path_factory.mktemp("tiny") / "written"))


@pytest.fixture
def folder(written: dict[str, bytes], tmp_path: Path) -> Path:
    """A written accelerator that a test may damage."""
    place = tmp_path / "written"
    place.mkdir()
    for name, content in written.items():
        (place / name).write_bytes(content)
    return place


@pytest.mark.slow
def test_same_bytes_in_this_process(written: dict[str, bytes], tmp_path: Path) -> None:
    assert set(written) == set(FILES)
    again = streamgen.compile(tiny_module(), torch.ones(1, 40), TINY)
    assert contents(again.write(tmp_path / "again")) == written


@pytest.mark.slow
def test_arithmetic_runs() -> None:
    """Differences, quotients, squares, an input that is returned: the hardware gives the bits of golden."""

    class Arithmetic(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (x - y) / 3 + (1 - x) ** 2, -y, x

    config = CompileConfig(name="arithmetic", max_tokens=2, multipliers=64, channels=1)
    accelerator = streamgen.compile(Arithmetic(), (torch.zeros(2, 8), torch.zeros(2, 8)), config)
    x, y = values(2, 8), values(2, 8)[::-1] * np.float32(3)
    found, expected = accelerator.run(x, y), accelerator.golden(x, y)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(found[1], round_f24(-y))
    np.testing.assert_array_equal(found[2], round_f24(x))
    np.testing.assert_allclose(found[0], (x - y) / 3 + (1 - x) ** 2, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_same_bytes_in_another_process(written: dict[str, bytes], tmp_path: Path) -> None:
    script = "import sys; from tests.shared import accelerators; accelerators.tiny().write(sys.argv[1])"
    environment = os.environ | {"PYTHONHASHSEED": "4711", "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", script, str(tmp_path / "again")]
    subprocess.run(command, env=environment, check=True)
    assert contents(tmp_path / "again") == written


@pytest.mark.slow
def test_other_weights_change_no_hardware(written: dict[str, bytes], tmp_path: Path) -> None:
    module = tiny_module()
    module.weight.data.mul_(torch.linspace(0.5, 2, 40))
    other = contents(streamgen.compile(module, torch.ones(1, 40), TINY).write(tmp_path / "other"))
    assert {name for name in FILES if other[name] != written[name]} == {
        *("weights_0.bin", "constants.npz", "manifest.json")  # which has their digests
    }


def test_loaded_accelerator(written: dict[str, bytes], folder: Path, tmp_path: Path) -> None:
    loaded = streamgen.load(folder)
    assert loaded.manifest == tiny().manifest and str(loaded.graph) == str(tiny().graph)
    assert same(loaded.golden(X), tiny().golden(X))
    assert loaded.report() == streamgen.load(folder).report()
    assert loaded.write(folder) == folder, "the same is there"
    assert loaded.write(tmp_path / "copy") == tmp_path / "copy"
    assert contents(tmp_path / "copy") == written
    (tmp_path / "copy" / "weights_0.bin").write_bytes(bytes(len(written["weights_0.bin"])))
    inside = loaded.write(tmp_path / "copy" / "inside")  # what the files hold now, and no folder in it
    assert contents(inside) == written | {"weights_0.bin": bytes(len(written["weights_0.bin"]))}


def test_relative_folders(
    written: dict[str, bytes], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    loaded = streamgen.load("written")
    loaded.write("new")
    monkeypatch.chdir("/")
    assert same(loaded.golden(X), tiny().golden(X)) and contents(tmp_path / "new") == written


@pytest.mark.parametrize("kind", ["full folder", "file"])
def test_existing_target(folder: Path, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "there"
    if kind == "file":
        target.write_text("mine")
    else:
        target.mkdir()
        (target / "mine").write_text("mine")
    with pytest.raises(FileExistsError, match="there exists and is not an empty folder; give a new name"):
        streamgen.load(folder).write(target)
    assert (target if kind == "file" else target / "mine").read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["there", "written"]


def test_the_same_again(folder: Path, tmp_path: Path) -> None:
    """A folder into which the same was written stays as it is, what else is in it too; of others nothing is
    written over."""
    target = streamgen.load(folder).write(tmp_path / "again")
    (target / "mine.npy").write_bytes(b"mine")
    times = {file: file.stat().st_mtime_ns for file in target.iterdir()}
    for one in (tiny(), streamgen.load(folder), streamgen.load(target)):
        assert one.write(target) == target
    assert {file: file.stat().st_mtime_ns for file in target.iterdir()} == times
    image = next(target.glob("weights_*.bin"))
    for change in (lambda: image.write_bytes(image.read_bytes()[:-1] + b"\xff"), image.unlink):
        change()
        with pytest.raises(
            FileExistsError, match=f"again exists and has no {image.name} with the same content"
        ):
            tiny().write(target)
        assert sorted(place.name for place in tmp_path.iterdir()) == ["again", "written"]


def test_empty_and_deep_targets(written: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for target in (tmp_path / "empty", tmp_path / "a" / "b" / "c"):
        assert contents(tiny().write(target)) == written


def test_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match="file"):
        tiny().write(tmp_path / "file" / "written")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def _fails(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, at: int, error: BaseException) -> None:
    """Let the call number `at` of a function fail."""
    real: Callable = getattr(owner, name)
    calls = 0

    def function(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls > at:
            raise error
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, function)


FULL = OSError(errno.ENOSPC, "No space left on device")
FAILURES = {
    "read-only": (folders.tempfile, "mkdtemp", 0, PermissionError(errno.EACCES, "Permission denied")),
    "full at once": (Path, "write_bytes", 0, FULL),
    "full later": (Path, "write_bytes", 1, FULL),
    "full in the weights": (MemoryLayout, "pack", 0, FULL),
    "full in the text": (Path, "write_text", 0, FULL),
    "full in the arrays": (storage.np.lib.format, "write_array", 0, FULL),
    "full at the end": (Path, "write_text", 1, FULL),
    "interrupted": (Path, "replace", 0, KeyboardInterrupt()),
}


@pytest.mark.parametrize("owner, name, at, error", FAILURES.values(), ids=FAILURES)
def test_failed_write_leaves_nothing(
    written: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    at: int,
    error: BaseException,
) -> None:
    with monkeypatch.context() as patch:
        _fails(patch, owner, name, at, error)
        with pytest.raises(type(error)):
            tiny().write(tmp_path / "new" / "folder" / "written")
    assert list(tmp_path.iterdir()) == []
    assert contents(tiny().write(tmp_path / "written")) == written


MOMENTS = {
    "at once": (folders.tempfile, "mkdtemp"),
    "in the texts": (Path, "write_bytes"),
    "in the weights": (MemoryLayout, "pack"),
    "in the manifest": (accelerator, "sealed"),
    "before the end": (Path, "replace"),
}


@pytest.mark.parametrize("owner, name", MOMENTS.values(), ids=MOMENTS)
def test_a_killed_write_leaves_no_folder(
    written: dict[str, bytes], tmp_path: Path, owner: object, name: str
) -> None:
    """The next write removes what the killed process left beside it."""
    model, target = tiny(), tmp_path / "written"
    reached, say = os.pipe()
    if not (child := os.fork()):
        real = getattr(owner, name)

        def stop(*given: object, **named: object) -> None:
            if name == "mkdtemp":
                real(*given, **named)
            os.write(say, b"!")
            time.sleep(600)

        setattr(owner, name, stop)
        model.write(target)
        os._exit(1)
    try:
        assert os.read(reached, 1) == b"!"
        left = list(tmp_path.iterdir())
        assert len(left) == 1 and left[0] != target and left[0].name.startswith(".")
        if name != "mkdtemp":  # then the process holds the folder in which it makes its own
            assert contents(model.write(target)) == written
            assert sorted(tmp_path.iterdir()) == sorted([*left, target]), "the process still lives"
            shutil.rmtree(target)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert not target.exists()
    assert contents(model.write(target)) == written
    assert list(tmp_path.iterdir()) == [target]
    os.close(reached)
    os.close(say)


def test_a_disk_that_is_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before anything is packed or written."""
    model, target = tiny(), tmp_path / "new" / "written"
    needed = sum(buffer.bytes for buffer in model.manifest.buffers if buffer.role == "weights")
    usage = shutil.disk_usage(tmp_path)._replace(free=needed - 1)
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda place: usage)
    monkeypatch.setattr(MemoryLayout, "pack", None)
    with pytest.raises(
        OSError, match=r"its disk has only .* left; make room for 1 bytes, or choose"
    ) as caught:
        model.write(target)
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == str(target)
    assert list(tmp_path.iterdir()) == []


def test_failed_copy_leaves_nothing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = streamgen.load(folder)
    with monkeypatch.context() as patch:
        _fails(patch, accelerator.shutil, "copyfile", 3, FULL)
        with pytest.raises(OSError, match="No space left"):
            loaded.write(tmp_path / "copy")
    assert [p.name for p in tmp_path.iterdir()] == ["written"]


def test_nothing_to_load(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing holds no written accelerator"):
        streamgen.load(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file holds no written accelerator"):
        streamgen.load(tmp_path / "file")


@pytest.mark.parametrize(
    "name, error, message",
    [
        ("graph.json", GraphError, "holds no readable program"),
        ("constants.npz", GraphError, "holds no readable program"),
        ("notes.json", ValueError, "notes.json cannot be read"),
        ("interface.json", ValueError, "interface.json cannot be read"),
        ("manifest.json", ValueError, "no(t a)? manifest"),
    ],
)
def test_missing_and_broken_files(
    written: dict[str, bytes], folder: Path, name: str, error: type[Exception], message: str
) -> None:
    content = written[name]
    (folder / name).unlink()
    with pytest.raises((error, ValueError), match=rf"{message}|{name} is missing"):
        streamgen.load(folder, changed_files=True)
    for broken in (b"", content[: len(content) // 2], b"\xff\xfe" + content, b"[]", b"{}", b"3"):
        (folder / name).write_bytes(broken)
        with pytest.raises(error, match=message):
            streamgen.load(folder, changed_files=True)
    (folder / name).write_bytes(content)
    streamgen.load(folder)


@pytest.mark.parametrize("name", ["graph.json", "constants.npz", "notes.json", "manifest.json"])
@pytest.mark.parametrize("seed", range(40))
def test_damaged_bytes(written: dict[str, bytes], folder: Path, name: str, seed: int) -> None:
    """A few wrong bytes anywhere are refused, or harm nothing that loading looks at."""
    rng = random.Random(f"{name}{seed}")
    content = bytearray(written[name])
    for _ in range(rng.randint(1, 4)):
        content[rng.randrange(len(content))] = (
            rng.choice(b'0}{]["x,:') if name.endswith("json") else rng.randrange(256)
        )
    (folder / name).write_bytes(content)
    try:
        streamgen.load(folder, changed_files=True)
    except (ValueError, GraphError) as error:
        assert str(folder) in str(error) or name in str(error)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", ["weight", "bias"])
def test_weights_that_are_not_finite(value: float, place: str) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    getattr(module[2], place).data[1] = value
    with pytest.raises(ValueError, match=rf"^2\.{place}\[1.* is {value}; all must be finite$"):
        streamgen.compile(module, torch.zeros(1, 8))


class Odd(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.lgamma(self.linear(torch.digamma(x)))


def test_unsupported_operations() -> None:
    with pytest.raises(UnsupportedOperationError) as error:
        streamgen.compile(Odd(), torch.zeros(1, 8))
    assert "digamma" in str(error.value) and "lgamma" in str(error.value)
    assert str(error.value).count("test_compiler.py:") == 2


@pytest.mark.parametrize("example", [torch.zeros(1, 39), [], [torch.zeros(1, 40)] * 2, "x", None])
def test_example_inputs_that_do_not_fit(example) -> None:
    with pytest.raises((TypeError, ValueError)):
        streamgen.compile(tiny_module(), example, TINY)


@pytest.mark.slow
def test_more_multipliers_than_the_budget() -> None:
    """Two matmuls follow one another where one fits; a matmul that does not fit is refused."""
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    config = CompileConfig(max_tokens=1, multipliers=32)
    assert len(streamgen.compile(module, torch.zeros(1, 8), config).groups) == 2
    with pytest.raises(BudgetError, match=r"at least 64 multipliers .* the budget is 32, 32 too few"):
        streamgen.compile(module, torch.zeros(1, 8), replace(config, max_tokens=2, token_lanes=2))


def test_more_than_the_card_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(design, "to_verilog", None)  # refused before that takes its time
    config = CompileConfig(max_tokens=1, multipliers=64, channels=1, weights="w8", prefetch_beats=1 << 20)
    head = (
        r"'accelerator' does not fit the card: it needs [\d,]+ of [\d,]+ URAM in SLR0\nA design may fill 75%"
    )
    with pytest.raises(BudgetError, match=f"^{head} of each SLR") as error:
        streamgen.compile(torch.nn.Linear(256, 256), torch.zeros(1, 256), config)
    assert re.search(r"most URAM: load_\w+ \(Load\) 2,048\n", str(error.value))
    assert str(error.value).endswith("\nWhat helps: leave out prefetch_beats=1048576")


@pytest.mark.slow
def test_a_constant_with_two_readers() -> None:
    """y = norm(x * c) * c: what the last product awaits of c must not hold back what the first one needs."""
    rows = ITensor((1, 4), "f24", (3, 16), (1, 4), ((0,), (1,)))
    row = replace(rows, tripcounts=(1, 16))
    b = GraphBuilder("twice")
    x = b.load("x", rows, shape=(3, 64), channel=0)
    c = b.load("c", rows, shape=(3, 64), channel=1, data=round_f24(values(3, 64, seed=1)))
    weight = b.load("weight", row, shape=(1, 64), channel=1, data=round_f24(values(1, 64, seed=2)))
    multiply = BinaryParams(operation="multiply", lanes=4, max_tokens=48)
    norm = NormParams(kind="rms", lanes=4, max_k=64, max_rows=3)
    first = b.kernel("first", multiply, {"itensor": rows}, i_a=x, i_b=c)["o"]
    bounds = {"t": 3, "k": 64, "valid_k": 64, "epsilon": 1e-5}
    normed = b.kernel("norm", norm, bounds, i=first, i_weight=weight)["o"]
    last = b.kernel("last", multiply, {"itensor": rows}, i_a=normed, i_b=c)["o"]
    b.store("y", last, shape=(3, 64), channel=0)
    accelerator = streamgen.assemble(b.build())
    x_rows = values(3, 64)
    assert same(accelerator.run(x_rows), accelerator.golden(x_rows))
