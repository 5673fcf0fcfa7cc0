"""The vendor's tools: which tools are found, how they are called, and how their failures are explained."""

import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamgen import cli
from streamgen.base.errors import ToolError
from streamgen.package import build, find_tools, package
from streamgen.platform.boards import board_of, shell_of
from tests.shared.accelerators import tiny
from tests.unit.package.packages import pins_of
from tests.unit.package.vendor import install

U55C = board_of("u55c")
COMMANDS = (
    "  vivado -mode batch -nojournal -nolog -source package.tcl\n"
    "  v++ --link --target hw --config link.cfg --temp_dir build/link --log_dir build/logs "
    "--output build/tiny.xclbin build/tiny.xo\n"
)
Install = Callable[..., None]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny accelerator, written."""
    return tiny().write(tmp_path_factory.mktemp("tools") / "tiny")


@pytest.fixture
def tools(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts stand-ins on PATH, each with its behaviour (`tests.unit.package.vendor`). A tool that is None is
    left out."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")

    def put(vivado: dict[str, Any] | None = {}, vpp: dict[str, Any] | None = {}) -> None:  # noqa: B006
        for name, behaviour in (("vivado", vivado), ("v++", vpp)):
            if behaviour is not None:
                install(tmp_path / "bin", name, pins=pins_of(written), **behaviour)

    return put


def built(written: Path, target: Path, progress: Callable[[str], None] = lambda message: None) -> Path:
    """Write a package and build it."""
    installed = find_tools(U55C)
    assert installed is not None
    return build(package(written, target), installed, progress)


def test_both_are_run(written: Path, tmp_path: Path, tools: Install) -> None:
    tools()
    told: list[str] = []
    binary = built(written, tmp_path / "card", told.append)
    assert binary == tmp_path / "card" / "build" / "tiny.xclbin" and binary.read_text() == "xclbin of tiny"
    assert told[0] == "vivado: packaging the kernel tiny"
    assert "v++: linking tiny, which takes hours" in told and told[-1] == ""
    assert "v++: INFO: [v++ 60-1443] [10:00:00] Run run_link: Step vpl: Started" in told
    assert "Run run_link" in (tmp_path / "card" / "build" / "v++.log").read_text()
    assert "wrote" in (tmp_path / "card" / "build" / "vivado.log").read_text()


def test_make_does_the_same(written: Path, tmp_path: Path, tools: Install) -> None:
    tools()
    folder = package(written, tmp_path / "card")

    def make(*targets: str) -> str:
        done = subprocess.run(["make", "-C", str(folder), *targets], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = make()
    assert (folder / "build" / "tiny.xclbin").read_text() == "xclbin of tiny"
    assert "Run run_link" in first and "Run run_link" in (folder / "build" / "v++.log").read_text()
    assert "Nothing to be done" in make()
    make("clean")
    assert not (folder / "build").exists()
    tools(vpp={"code": 1})
    done = subprocess.run(["make", "-C", str(folder)], capture_output=True, text=True)
    assert done.returncode != 0 and not (folder / "build" / "tiny.xclbin").exists()


def test_they_are_missing(tools: Install) -> None:
    assert find_tools(U55C) is None
    tools(vpp=None)
    assert find_tools(U55C) is None


@pytest.mark.parametrize(
    ("vivado", "vpp", "message"),
    [
        (
            "2022.1",
            "2023.2",
            r"vivado and v\+\+ must have the same release; \S+/vivado is 2022\.1, \S+/v\+\+ is 2023\.2\. "
            "Source only one",
        ),
        (
            "2021.2",
            "2021.2",
            r"the platform xilinx_u55c_gen3x16_xdma_3_202210_1 needs vivado and v\+\+ 2022\.1 or later; "
            r"\S+/vivado is 2021\.2, \S+/v\+\+ is 2021\.2\. --files-only writes the package for another",
        ),
        ("new", "2022.1", r"\S+/vivado -version does not print its release; it printed: \*{4} SW Build"),
    ],
)
def test_their_releases(
    written: Path, tmp_path: Path, tools: Install, vivado: str, vpp: str, message: str
) -> None:
    """The error comes before anything is written."""
    tools({"release": vivado}, {"release": vpp})
    with pytest.raises(ToolError, match=message):
        find_tools(U55C)
    target = tmp_path / "card"
    assert cli.main(["package", str(written), "-o", str(target)]) == 1
    assert not target.exists()


def test_later_releases_are_taken(tools: Install) -> None:
    tools({"release": "2023.2"}, {"release": "2023.2"})
    installed = find_tools(U55C)
    assert installed is not None and installed.release == "2023.2"
    with pytest.raises(ToolError, match=r"needs vivado and v\+\+ 2024\.1 or later"):
        find_tools(replace(U55C, shell=replace(shell_of(U55C), tools="2024.1")))


def test_a_program_that_cannot_be_run(tmp_path: Path, tools: Install) -> None:
    tools()
    (tmp_path / "bin" / "vivado").write_text("#!/nowhere/python\n")
    with pytest.raises(ToolError, match=r"bin/vivado -version does not print its release: .*No such file"):
        find_tools(U55C)


TIMING = "ERROR: [VPL 60-773] timing is not met\n"
ERRORS = f"INFO: start\n{TIMING}WARNING: odd\n{TIMING}"
FAILURES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "errors of v++": (
        {},
        {"code": 1, "says": ERRORS},
        "v++ ended with exit code 1 while linking tiny, which takes hours; its errors:\n"
        "  ERROR: [VPL 60-773] timing is not met\n"
        "What may help: compile again with a lower clock_mhz, or with fewer multipliers\n"
        "The whole log: LOG/v++.log",
    ),
    "an unknown platform": (
        {},
        {"code": 1, "says": "ERROR: [v++ 60-602] Unable to find the platform xilinx_u55c"},
        "v++ ended with exit code 1 while linking tiny, which takes hours; its errors:\n"
        "  ERROR: [v++ 60-602] Unable to find the platform xilinx_u55c\n"
        "What may help: install the platform: v++ looks in /opt/xilinx/platforms and in "
        "PLATFORM_REPO_PATHS\n"
        "The whole log: LOG/v++.log",
    ),
    "words of vivado": (
        {"code": 3, "says": "one\n\ntwo"},
        {},
        "vivado ended with exit code 3 while packaging the kernel tiny; it printed last:\n  one\n  two\n"
        "The whole log: LOG/vivado.log",
    ),
    "no words": (
        {"code": 2},
        {},
        "vivado ended with exit code 2 while packaging the kernel tiny; it printed nothing.\n"
        "The whole log: LOG/vivado.log",
    ),
    "no product": (
        {"code": 0, "says": "ready"},
        {},
        "vivado ended without an error, but did not write tiny.xo while packaging the kernel tiny; it "
        "printed last:\n  ready\nThe whole log: LOG/vivado.log",
    ),
}


@pytest.mark.parametrize(("vivado", "vpp", "message"), FAILURES.values(), ids=FAILURES)
def test_failures_are_explained(
    written: Path, tmp_path: Path, tools: Install, vivado: dict[str, Any], vpp: dict[str, Any], message: str
) -> None:
    """The package and the log are kept."""
    tools(vivado, vpp)
    with pytest.raises(ToolError) as caught:
        built(written, tmp_path / "card")
    assert str(caught.value) == message.replace("LOG", str(tmp_path / "card" / "build"))
    assert Path(str(caught.value).rsplit("The whole log: ")[1]).is_file()
    assert (tmp_path / "card" / "package.tcl").is_file()


def test_what_vivado_refuses_is_shown(written: Path, tmp_path: Path, tools: Install) -> None:
    tools()
    folder = package(written, tmp_path / "card")
    script = folder / "package.tcl"
    script.write_text(script.read_text().replace("set masters {m_axi_gmem0}", "set masters {}"))
    installed = find_tools(U55C)
    assert installed is not None
    with pytest.raises(ToolError, match=r"interface m_axi_gmem0 has no clock\n.*vivado\.log$"):
        build(folder, installed)


def test_an_interruption_ends_what_was_started(written: Path, tmp_path: Path, tools: Install) -> None:
    tools({"sleeps": True})

    def interrupt(message: str) -> None:
        if message == "vivado: sleeping":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        built(written, tmp_path / "card", interrupt)
    processes = [int(word) for word in (tmp_path / "card" / "build" / "sleeper").read_text().split()]
    for _ in range(100):
        if not any(map(_alive, processes)):
            return
        time.sleep(0.1)
    raise AssertionError("a process that the tool has started goes on")


def _alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_the_command_line(
    written: Path, tmp_path: Path, tools: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = cli.main(["package", *map(str, arguments)])
        return code, *capsys.readouterr()

    target = tmp_path / "card"
    code, out, err = call(written, "-o", target)
    assert (code, err) == (0, "")
    hint = "To build it with vivado and v++ on PATH, run `make` in that folder, or these commands\n"
    assert out == f"written to {target}\n{hint}in {target}:\n{COMMANDS}"
    code, out, err = call(written, "-o", target)
    assert (code, out) == (2, "")
    assert err == f"streamgen: {target} exists and is not an empty folder; give a new name or remove it\n"
    code, out, err = call(tmp_path, "-o", tmp_path / "other")
    assert (code, out) == (2, "") and "holds no written accelerator: no manifest.json" in err
    tools()
    code, out, _ = call(written, "-o", tmp_path / "files", "--files-only")
    assert code == 0 and out.endswith(COMMANDS) and not (tmp_path / "files" / "build").exists()
    code, out, _ = call(written, "-o", tmp_path / "built")
    binary = tmp_path / "built" / "build" / "tiny.xclbin"
    assert (code, out) == (0, f"written to {tmp_path / 'built'}\nbuilt {binary}\n") and binary.is_file()
    tools(vpp={"code": 1})
    code, out, err = call(written, "-o", tmp_path / "failed")
    assert code == 1 and err.startswith("streamgen: v++ ended with exit code 1 while linking tiny")
