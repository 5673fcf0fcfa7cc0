"""Stand-ins for the vendor's tools, as programs on PATH.

`vivado` runs its script in `tests.unit.package.vivado`. `v++` checks its options and the files that it links.
Both can be made to fail.
"""

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.unit.package.vivado import Vivado

ROOT = Path(__file__).parents[3]
OPTIONS = "--target hw --config link.cfg --temp_dir build/link --log_dir build/logs --output"
LINK = ["--link", *OPTIONS.split()]


def install(place: Path, name: str, **behaviour: Any) -> None:
    """Put a tool into a folder.

    release: the release that it prints. pins: pins of the top module, for vivado. says: text that it prints
    before it works. code: its exit code; it does no work. sleeps: it waits for a process that it starts, and
    `build/sleeper` holds the ids of both processes.
    """
    program = place / name
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        f"from tests.unit.package.vendor import run\nsys.exit(run({name!r}, sys.argv[1:], **{behaviour!r}))\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def run(
    name: str,
    arguments: list[str],
    pins: dict[str, int],
    release: str = "2022.1",
    says: str = "",
    code: int | None = None,
    sleeps: bool = False,
) -> int:
    """Run the tool and return its exit code."""
    if arguments in (["-version"], ["--version"]):
        stars = "****** " if name == "v++" else ""
        print(f"\n{stars}{name} v{release} (64-bit)\n  **** SW Build 3526262 on Mon Apr 18 15:47:01 MDT 2022")
        return 0
    print(says, flush=True)
    if sleeps:
        with subprocess.Popen(["sleep", "600"]) as sleeper:
            Path("build", "sleeper").write_text(f"{os.getpid()} {sleeper.pid}")
            print("sleeping", flush=True)
    if code is not None:
        return code
    if name == "vivado":
        _package(arguments, pins)
    else:
        _link(arguments)
    return 0


def _package(arguments: list[str], pins: dict[str, int]) -> None:
    *options, script = arguments
    assert options == ["-mode", "batch", "-nojournal", "-nolog", "-source"], arguments
    assert Path(script).name == "package.tcl", arguments
    vivado = Vivado(pins)
    vivado.source(Path.cwd() / script)
    print(f"INFO: [Vivado 12-12407] wrote {vivado.xo}")


def _link(arguments: list[str]) -> None:
    assert arguments[: len(LINK)] == LINK, arguments
    binary, *kernels = arguments[len(LINK) :]
    lines = Path("link.cfg").read_text().splitlines()
    tops = [Path(kernel).read_text() for kernel in kernels]
    assert [line for line in lines if line.startswith("nk=")] == [f"nk={top}:1:{top}_1" for top in tops]
    assert Path(binary).parent == Path("build")
    print("INFO: [v++ 60-1443] [10:00:00] Run run_link: Step vpl: Started")
    Path(binary).write_text(f"xclbin of {', '.join(tops)}")
