"""A device whose runs happen under cocotb: the same host code on another host, memory and simulator.

    device = CocotbDevice(folder, manifest)
    Execution(folder, device=device).run(x)     # compare with the simulated device: results and cycles

The design is built by cocotb's own runner: for Verilator, or for Icarus, which knows four values and both
languages. Every run starts from reset in a new process; what the host wrote so far is handed over as a job.
"""

import os
import pickle
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Literal

from cocotb_tools.runner import Icarus, Runner, Verilator, get_results

import sim.cocotb_top
from streamgen.errors import DeviceError, MissingToolError
from streamgen.manifest import Buffer as BufferInfo
from streamgen.manifest import Manifest
from streamgen.runtime.device import Device, DeviceBuffer
from streamgen.runtime.memory import MemoryModel
from streamgen.runtime.verilator import package_folder

__all__ = ["LANGUAGES", "CocotbDevice", "IcarusDevice", "Job", "Language", "require_icarus"]

PAGE = 4096
FLAGS = (
    "-Wno-fatal",
    "-Wno-lint",
    "-O3",
    "--x-assign",
    "fast",
    "--x-initial",
    "fast",
    "--output-split",
    "20000",
)
MAKEFLAGS = (
    "CXX=g++ LINK=g++ AR=ar PERL=perl PYTHON3=python3 CFG_CXXFLAGS_PCH_I=-include "
    "CFG_CXXFLAGS_COROUTINES=-fcoroutines CFG_LDLIBS_THREADS=-pthread"
)

Language = Literal["Verilog-2005", "SystemVerilog-2012"]
LANGUAGES: dict[Language, str] = {"Verilog-2005": "-g2005", "SystemVerilog-2012": "-g2012"}


@dataclass
class Job:
    """What the process of one run gets, and gives back changed."""

    memory: MemoryModel
    ports: list[tuple[str, dict[int, bytearray]]]
    errors: set[int]
    registers: list[tuple[int, int]]
    reads: list[int]
    timeout_cycles: int
    four_valued: bool
    interruptions: list[int]
    answers: list[int] = field(default_factory=list)


class CocotbDevice(Device):
    """`reads`: registers to read after every run, into `answers`. A run may take `timeout_cycles`."""

    _four_valued = False

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        memory: MemoryModel | None = None,
        reads: tuple[int, ...] = (),
        timeout_cycles: int = 1_000_000,
    ) -> None:
        super().__init__(manifest)
        timing = manifest.memory
        self.memory = memory or MemoryModel(
            rate=Fraction(timing.beats, timing.cycles), latency=timing.latency
        )
        self._reads, self._timeout_cycles = list(reads), timeout_cycles
        self._offsets = {argument.name: argument.offset for argument in manifest.arguments}
        self._content: dict[int, dict[int, bytearray]] = {port.channel: {} for port in manifest.ports}
        self._registers: dict[int, int] = {}
        self._place = tempfile.TemporaryDirectory(prefix="cocotb-")
        self.errors: set[int] = set()
        self.interruptions: list[int] = []
        """Cycles after the start of runs that a reset ends, before the one that counts."""
        self.answers: list[int] = []
        with _Tools():
            self._runner = self._build(
                [Path(folder, name).resolve() for name in manifest.verilog_files], manifest.top
            )

    def _build(self, sources: list[Path], top: str) -> Runner:
        pins = Path(self._place.name, "pins.vlt")  # cocotb sees the pins; Verilator optimises the rest
        pins.write_text(
            "`verilator_config\n"
            + "".join(f'public_flat_rw -module "{top}" -var "{p}_*"\n' for p in ("ap", "s_axi", "m_axi"))
        )
        return self._built(Verilator(), [pins, *sources], top, ["--no-public-flat-rw", *FLAGS])

    def _built(self, runner: Runner, sources: list[Path], top: str, flags: list[str]) -> Runner:
        runner.build(
            sources=sources,
            hdl_toplevel=top,
            build_dir=self._place.name,
            build_args=flags,
            timescale=("1ns", "1ps"),
            log_file=str(Path(self._place.name, "build.log")),
        )
        return runner

    def start(self) -> None:
        """Runs at once, in `wait`."""

    def wait(self, timeout: float = 600.0) -> None:
        ports = [(port.name, self._content[port.channel]) for port in self.manifest.ports]
        registers = sorted(self._registers.items())
        job = Job(
            memory=self.memory,
            ports=ports,
            errors=self.errors,
            registers=registers,
            reads=self._reads,
            timeout_cycles=self._timeout_cycles,
            four_valued=self._four_valued,
            interruptions=self.interruptions,
        )
        path = Path(self._place.name, "job.pickle")
        path.write_bytes(pickle.dumps(job))
        log, results = Path(self._place.name, "run.log"), Path(self._place.name, "results.xml")
        results.unlink(missing_ok=True)
        with _Tools(), suppress(SystemExit):
            self._runner.test(
                test_module=sim.cocotb_top.__name__,
                hdl_toplevel=self.manifest.top,
                test_dir=self._place.name,
                results_xml=str(results),
                extra_env={sim.cocotb_top.JOB: str(path)},
                log_file=str(log),
            )
        if not results.exists() or get_results(results) != (1, 0):
            raise DeviceError(f"the run under cocotb failed:\n{log.read_text()}")
        done = pickle.loads(path.read_bytes())
        for (_, buffers), (_, contents) in zip(ports, done.ports, strict=True):
            for address, content in contents.items():
                buffers[address][:] = content
        self.answers = done.answers

    def address(self, name: str) -> int:
        """Where a buffer is."""
        buffer = self.allocate(name)
        assert isinstance(buffer, _CocotbBuffer)
        return buffer.address

    def close(self) -> None:
        self._place.cleanup()

    def _allocate(self, info: BufferInfo) -> DeviceBuffer:
        buffers = self._content[info.channel]
        ends = [address + -(-len(content) // PAGE) * PAGE for address, content in buffers.items()]
        address = max(ends, default=info.channel * self.manifest.board.channel_bytes)
        buffers[address] = bytearray(b"\xa5" * info.bytes)
        offset = self._offsets[info.name]
        self._registers |= {offset: address & 0xFFFFFFFF, offset + 4: address >> 32}
        return _CocotbBuffer(address, buffers[address])

    def _set_scalar(self, name: str, value: int) -> None:
        self._registers[self._offsets[name]] = value

    def _reset_hard(self) -> None:
        """Nothing: every run starts from reset."""


class IcarusDevice(CocotbDevice):
    """The Verilog read as `language`. A pin of the accelerator that is X or Z after reset fails the run."""

    _four_valued = True

    def __init__(self, folder: Path, manifest: Manifest, language: Language) -> None:
        self._language = language
        super().__init__(folder, manifest, reads=(manifest.error_offset,))

    def _build(self, sources: list[Path], top: str) -> Runner:
        require_icarus()
        return self._built(Icarus(), sources, top, [LANGUAGES[self._language]])


def require_icarus() -> None:
    """MissingToolError without Icarus Verilog, the one tool of the tests that no Python package carries."""
    if not shutil.which("iverilog"):
        raise MissingToolError("these tests need Icarus Verilog: apt-get install iverilog")


class _CocotbBuffer(DeviceBuffer):
    def __init__(self, address: int, content: bytearray) -> None:
        self.address, self.size, self._content = address, len(content), content

    def _write(self, data: bytes, offset: int) -> None:
        self._content[offset : offset + len(data)] = data

    def _read(self, size: int, offset: int) -> bytes:
        return bytes(self._content[offset : offset + size])


class _Tools:
    """The environment in which cocotb's runner finds the Verilator of the package."""

    def __enter__(self) -> None:
        package = package_folder()
        self._saved = dict(os.environ)
        os.environ.update(
            VERILATOR_ROOT=str(package),
            PATH=f"{package / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
            MAKEFLAGS=MAKEFLAGS,
        )

    def __exit__(self, *_: object) -> None:
        os.environ.clear()
        os.environ.update(self._saved)
