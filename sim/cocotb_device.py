"""A device whose runs happen under cocotb: the same host code on another host, memory and simulator.

    device = CocotbDevice(folder, manifest)
    Execution(folder, device=device).run(x)     # compare with the simulated device: results and cycles

The design is built by cocotb's own runner: for Verilator, or for Icarus, which knows four values and both
languages. Every run starts from reset in a new process; what the host wrote so far is handed over as a job.
"""

import pickle
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from cocotb_tools.runner import Runner

import sim.cocotb_top
from streamgen.artifact.manifest import Buffer as BufferInfo
from streamgen.artifact.manifest import Manifest
from streamgen.base.errors import DeviceError
from streamgen.package.cosim.tools import Language, built, run
from streamgen.runtime.device import Device, DeviceBuffer
from streamgen.runtime.memory import Fault, MemoryModel

__all__ = ["CocotbDevice", "IcarusDevice", "Job"]

PAGE = 4096


@dataclass
class Job:
    """What the process of one run gets, and gives back changed."""

    memory: MemoryModel
    ports: list[tuple[str, dict[int, bytearray]]]
    faults: dict[int, Fault]
    registers: list[tuple[int, int]]
    reads: list[int]
    timeout_cycles: int
    four_valued: bool
    interruptions: list[int]
    answers: list[int] = field(default_factory=list)


class CocotbDevice(Device):
    """`reads`: registers to read after every run, into `answers`. A run may take `timeout_cycles`."""

    _four_valued = False
    _started = False
    _failure: DeviceError | None = None

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        memory: MemoryModel | None = None,
        reads: tuple[int, ...] = (),
        timeout_cycles: int = 1_000_000,
    ) -> None:
        super().__init__(manifest)
        self.memory = memory or MemoryModel()
        self._reads, self._timeout_cycles = list(reads), timeout_cycles
        self._offsets = {argument.name: argument.offset for argument in manifest.arguments}
        self._content: dict[int, dict[int, bytearray]] = {port.channel: {} for port in manifest.ports}
        self._registers: dict[int, int] = {}
        self._place = tempfile.TemporaryDirectory(prefix="cocotb-")
        self.faults: dict[int, Fault] = {}
        self.interruptions: list[int] = []
        """Cycles after the start of runs that a reset ends, before the one that counts."""
        self.answers: list[int] = []
        self._runner = self._build(
            [Path(folder, name).resolve() for name in manifest.verilog_files], manifest.top
        )

    def _build(self, sources: list[Path], top: str) -> Runner:
        return built("verilator", sources, top, Path(self._place.name))

    def start(self, slot: int = 0) -> None:
        """Runs at once, when somebody asks whether it is done."""
        self._started, self._failure = True, None

    def done(self, slot: int = 0, wait: bool = False) -> bool:
        if self._started:
            self._started = False
            try:
                self._run()
            except DeviceError as error:
                self._failure = error
        if self._failure is not None:  # whoever asks again is told again
            raise self._failure
        return True

    def _run(self) -> None:
        ports = [(port.name, self._content[port.channel]) for port in self.manifest.ports]
        registers = sorted(self._registers.items())
        job = Job(
            memory=self.memory.on(self.manifest.memory),
            ports=ports,
            faults=self.faults,
            registers=registers,
            reads=self._reads,
            timeout_cycles=self._timeout_cycles,
            four_valued=self._four_valued,
            interruptions=self.interruptions,
        )
        path = Path(self._place.name, "job.pickle")
        path.write_bytes(pickle.dumps(job))
        place, module = Path(self._place.name), sim.cocotb_top.__name__
        run(self._runner, self.manifest.top, module, place, {sim.cocotb_top.JOB: str(path)})
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

    def _allocate(self, info: BufferInfo, size: int) -> DeviceBuffer:
        buffers = self._content[info.channel]
        ends = [address + -(-len(content) // PAGE) * PAGE for address, content in buffers.items()]
        address = max(ends, default=info.channel * self.manifest.board.channel_bytes)
        buffers[address] = bytearray(b"\xa5" * size)
        offset = self._offsets[info.name]
        self._registers |= {offset: address & 0xFFFFFFFF, offset + 4: address >> 32}
        return _CocotbBuffer(address, buffers[address])

    def _set_scalar(self, name: str, value: int, slot: int) -> None:
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
        return built("icarus", sources, top, Path(self._place.name), language=self._language)


class _CocotbBuffer(DeviceBuffer):
    def __init__(self, address: int, content: bytearray) -> None:
        self.address, self.size, self._content = address, len(content), content

    def _write(self, data: bytes, offset: int) -> None:
        self._content[offset : offset + len(data)] = data

    def _read(self, size: int, offset: int) -> bytes:
        return bytes(self._content[offset : offset + size])
