"""The vendor's tools: find them, check their release, run them, and explain their failures."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from streamgen.base.errors import ToolError
from streamgen.base.progress import Progress
from streamgen.package.steps import ToolStep
from streamgen.platform.boards import Board, shell_of

VIVADO, VPP = "vivado", "v++"
_RELEASE = re.compile(r"\bv(\d{4}\.\d)\b")
_ERROR = re.compile(r"^(ERROR\b|CRITICAL WARNING: \[(?:Timing|Route))", re.IGNORECASE)
_MOST = 12  # lines of a log that an error shows
_WIDTH = 100  # characters of a line of progress
_HINTS = (
    (
        r"licen[sc]e",
        "get a licence for the part: `report_environment` in `vivado -mode tcl` lists the licences",
    ),
    (
        r"platform",
        "install the platform: v++ looks in /opt/xilinx/platforms and in PLATFORM_REPO_PATHS",
    ),
    (
        r"part\b.*(not found|invalid|unknown)|no parts matched",
        "install the device files of the board in Vivado",
    ),
    (r"timing", "compile again with a lower clock_mhz, or with fewer multipliers"),
)


@dataclass(frozen=True)
class Tools:
    """Paths of vivado and v++ by name. Both have the same release."""

    paths: dict[str, str]
    release: str


def find_tools(board: Board) -> Tools | None:
    """The tools on PATH; None if one of them is missing.

    Raises ValueError for a board without a shell; ToolError if a tool does not print its release, if the
    releases differ, or if they are too old for the platform.
    """
    shell = shell_of(board)
    paths = {name: path for name in (VIVADO, VPP) if (path := shutil.which(name)) is not None}
    if len(paths) < 2:
        return None
    releases = {name: _release(path) for name, path in paths.items()}
    told = ", ".join(f"{paths[name]} is {release}" for name, release in releases.items())
    if len(set(releases.values())) > 1:
        raise ToolError(f"vivado and v++ must have the same release; {told}. Source only one settings64.sh")
    release = releases[VIVADO]
    if release < shell.tools:
        raise ToolError(
            f"the platform {shell.platform} needs vivado and v++ {shell.tools} or later; {told}. "
            "--files-only writes the package for another machine"
        )
    return Tools(paths, release)


def run_step(step: ToolStep, tools: Tools, folder: Path, progress: Progress) -> Path:
    """Run a command in the folder of a package and return the path of its product. progress: called with the
    output of the tool.

    Raises ToolError if the tool fails, with its errors, hints and the path of the log. An interruption ends
    the tool and all processes that it started.
    """
    log, product = folder / step.log, folder / step.product
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [tools.paths[step.tool], *step.arguments]
    progress(f"{step.tool}: {step.doing}")
    with log.open("w") as file, _running(command, folder) as process:
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            if text := line.strip():
                progress(f"{step.tool}: {text}"[:_WIDTH])
    if process.returncode:
        raise ToolError(_explained(step, f"ended with exit code {process.returncode}", log))
    if not product.is_file():
        raise ToolError(_explained(step, f"ended without an error, but did not write {product.name}", log))
    return product


@contextmanager
def _running(command: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process in its own process group. The group is ended when the block is left with an exception."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        with process:
            yield process
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        raise


def _explained(step: ToolStep, how: str, log: Path) -> str:
    printed = [line.rstrip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in printed if _ERROR.match(line)]
    shown = list(dict.fromkeys(errors))[:_MOST] or printed[-_MOST:]
    text = "\n".join(errors)
    hints = [hint for pattern, hint in _HINTS if re.search(pattern, text, re.IGNORECASE)]
    kind = "its errors:" if errors else "it printed last:" if printed else "it printed nothing."
    lines = [f"{step.tool} {how} while {step.doing}; {kind}", *(f"  {line}" for line in shown)]
    lines += [f"What may help: {hint}" for hint in hints]
    return "\n".join([*lines, f"The whole log: {log}"])


def _release(path: str) -> str:
    option = "-version" if Path(path).name == VIVADO else "--version"
    try:
        done = subprocess.run(
            [path, option],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=120,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolError(f"{path} {option} does not print its release: {error}") from error
    if done.returncode or (release := _RELEASE.search(done.stdout)) is None:
        printed = done.stdout.strip().splitlines()
        raise ToolError(
            f"{path} {option} does not print its release; it printed: "
            f"{printed[-1].strip() if printed else 'nothing'}"
        )
    return release[1]
