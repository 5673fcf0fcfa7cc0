"""Devices that simulate the written Verilog cycle by cycle, with an HBM channel behind each AXI master.

Each device is a kernel on a simulated card. All kernels of a card share its memory and its clock.
"""

import ctypes
import errno
import shutil
import tempfile
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from streamgen.artifact.manifest import DEFAULT_TIMEOUT, BoardFacts, Manifest
from streamgen.artifact.manifest import Buffer as BufferInfo
from streamgen.artifact.packing import BEAT_BYTES
from streamgen.base.errors import DeviceError, DeviceTimeoutError
from streamgen.base.progress import Progress, terminal_progress
from streamgen.runtime.background import BackgroundBuild
from streamgen.runtime.banks import CardMemory, Region
from streamgen.runtime.core import Core
from streamgen.runtime.device import Device, DeviceBuffer, HostCall
from streamgen.runtime.instruments import Instruments
from streamgen.runtime.memory import Fault, MemoryModel
from streamgen.runtime.observed import Observed, Profiled, Watched
from streamgen.runtime.verilator import build, is_built

CONTROL, START, DONE, IDLE, CONTINUE = 0x00, 1 << 0, 1 << 1, 1 << 2, 1 << 4
POLL_CYCLES = 64
CHUNK_CYCLES = 1 << 16  # between two checks of the time
SHARED_CYCLES = 1 << 9  # between two turns of the other kernels of a card
STALL_CYCLES = 4 * DEFAULT_TIMEOUT  # the hardware's watchdog should end the run long before
RECORDED_CYCLES = 1 << 12  # between two checks of the free space on the disk
QUICK_BYTES = (
    1_500_000  # of Verilog: runs of larger designs are so long that an optimised build pays off at once
)
QUICK_SECONDS = 2.0  # of simulation, after which an optimised simulator pays off
WAVES_ROOM = 256 << 20  # twice the buffer of the writer of waves, which ends the process if a disk is full


class SimulatedCard:
    """A simulated card: the memory and the time that its kernels share."""

    def __init__(self, board: BoardFacts) -> None:
        self.board, self.banks = board, CardMemory(board.channels, board.channel_bytes)
        self.kernels: weakref.WeakSet[SimulatedDevice] = weakref.WeakSet()


class OnSimulator:
    """Opens kernels on a simulated card, for `Execution` and `ChainExecution`. All kernels that one object
    opens share a card.

    memory: memory model; by default that of each manifest. instruments: function from a manifest to the
    instruments of its simulator; by default none. A call raises all errors of `simulated`, and DeviceError
    for a kernel of another board or if no memory bank is free.
    """

    def __init__(
        self,
        memory: MemoryModel | None = None,
        progress: Progress | None = None,
        instruments: Callable[[Manifest], Instruments] | None = None,
    ) -> None:
        self._memory, self._progress, self._instruments = memory, progress, instruments
        self._card: SimulatedCard | None = None

    def __call__(self, folder: Path, manifest: Manifest) -> "SimulatedDevice":
        if self._card is None or (self._card.board != manifest.board and not self._card.kernels):
            self._card = SimulatedCard(manifest.board)
        instruments = None if self._instruments is None else self._instruments(manifest)
        device = simulated(folder, manifest, self._memory, self._progress, instruments, self._card)
        if self._progress is not None:
            device.progress = self._progress
        return device


def simulated(
    folder: Path,
    manifest: Manifest,
    memory: MemoryModel | None = None,
    progress: Progress | None = None,
    instruments: Instruments | None = None,
    card: SimulatedCard | None = None,
) -> "SimulatedDevice":
    """Build the simulator of the Verilog in `folder`, or find it in the cache, and reset the design.

    memory: memory model; by default that of the manifest. instruments: by default none. card: the card of the
    kernel; by default its own card.

    A small design is built without optimisation. If its runs become long, an optimised simulator is built in
    the background and does later runs, with the same cycles. This is not done with random delays, because
    they would start again.

    Raises all errors of `streamgen.runtime.verilator.build`, and DeviceError if the top module lacks a pin
    that the manifest names.
    """
    sources = [Path(folder, name) for name in manifest.verilog_files]
    instruments, memory = instruments or Instruments(), memory or MemoryModel()
    design = sources, manifest.top, [port.name for port in manifest.ports]
    small = sum(file.stat().st_size for file in sources) <= QUICK_BYTES
    quick = small and instruments == Instruments() and not memory.delays and not is_built(*design)
    library = build(*design, progress, instruments, quick=quick)
    device = SimulatedDevice(library, manifest, memory, instruments, card)
    if quick:
        device.better = BackgroundBuild(*design)
    return device


def require_room(path: Path) -> None:
    """Raise OSError unless the disks of the file `path` and of temporary files have room for more waves."""
    for place in (path.parent, Path(tempfile.gettempdir())):
        if (free := shutil.disk_usage(place).free) < WAVES_ROOM:
            raise OSError(
                errno.ENOSPC, f"{free >> 20} MB are free; waves need {WAVES_ROOM >> 20} MB", str(place)
            )


class SimulatedDevice(Device):
    """An instance of a simulator. Any number of instances may exist at the same time. card: the card of the
    kernel; by default its own card."""

    slots = 2

    def __init__(
        self,
        library: Path,
        manifest: Manifest,
        memory: MemoryModel,
        instruments: Instruments,
        card: SimulatedCard | None = None,
    ) -> None:
        super().__init__(manifest)
        self.card = card or SimulatedCard(manifest.board)
        if self.card.board != manifest.board:
            raise DeviceError(
                f"kernel {manifest.top!r} is compiled for board {manifest.board.name!r}, but the card is "
                f"board {self.card.board.name!r}"
            )
        self.memory, self.instruments = memory, instruments
        self.progress = terminal_progress()
        """Called with the cycles of a long run, and its expected cycles if a run of as many tokens ended
        before."""
        self.better: BackgroundBuild | None = None
        """The build of an optimised simulator that takes over the runs when it is ready."""
        self._simulated = 0.0  # seconds
        self._core = Core(library, manifest.ports, instruments)
        self._zero: int | None = None
        self._begun, self._sort = 0, (0, 0)  # first cycle of the run under way; its command and tiles
        self._took: dict[tuple[int, int], int] = {}  # cycles of the last run, by command and tiles
        self._least: int | None = None  # least cycles of the run under way, once asked for
        self._registers: dict[int, int] = {}
        self._line: deque[int] = deque()  # slots of the run under way and of waiting runs
        self._scalars: defaultdict[int, dict[str, int]] = defaultdict(dict)
        self._moves = 0, 0  # memory beats so far, and the cycle in which this number last changed
        self.calls: list[HostCall] | None = None
        """A list to which the accesses of the host to new buffers are added; None: they are not kept."""
        self.starts: list[int] = []
        """The start of each run, in cycles of the card."""
        self._window: tuple[Path, int, int] | None = None
        self._recorded: Path | None = None
        self._observed = Observed(self._core, manifest.top, instruments)
        self._offsets = {argument.name: argument.offset for argument in manifest.arguments}
        self._check()
        self._homes = {port.channel: self.card.banks.take(self, port.channel) for port in manifest.ports}
        if (other := next(iter(self.card.kernels), None)) is not None:  # all kernels share one clock
            self._core.join(other._core)
        self.card.kernels.add(self)
        for port in manifest.ports:
            self.configure(port.channel, memory)
        self._reset_hard()

    @property
    def cycles(self) -> int:
        """Clock cycles simulated so far."""
        return self._core.cycles

    @property
    def time(self) -> int:
        """Clock cycles of the card so far."""
        return int(self._core.do("time"))

    def traffic(self, channel: int) -> tuple[int, int]:
        """Beats read and beats written so far by the master of a channel."""
        return self._core.traffic(channel)

    def configure(self, channel: int, memory: MemoryModel) -> None:
        """Give a channel another memory model. Transactions under way on the channel are dropped."""
        self._core.configure(channel, memory.on(self.manifest.memory))

    def moved_bytes(self) -> int:
        return BEAT_BYTES * self._core.moved()

    def idle(self) -> bool:
        """Whether no memory transaction is under way."""
        return bool(self._core.do("idle"))

    def inject(self, name: str, offset: int, fault: Fault | None) -> None:
        """Inject a fault into the beat at a byte offset of a buffer; None removes the fault."""
        buffer = self.allocate(name)
        assert isinstance(buffer, SimulatedBuffer)
        address = buffer.address + offset // BEAT_BYTES * BEAT_BYTES
        (channel,) = (info.channel for info in self.manifest.buffers if info.name == name)
        self._core.inject(channel, address, fault)

    def watch(self, tokens: Sequence[np.ndarray]) -> None:
        """Compare the next tokens of each of the instruments' streams with these: uint8 [count, bytes] per
        stream.

        The next `start` is cycle 0. A run raises DeviceError at the first token that is not the expected one.
        """
        self._zero = None
        self._observed.watch(tokens)

    def watched(self) -> Watched:
        """The results since `watch`. A reset ends the comparison but keeps the numbers of tokens."""
        return self._observed.watched(self._zero or 0)

    def profile(self, nodes: int, tokens: Mapping[tuple[str, str, int], np.ndarray]) -> None:
        """Count the busy and stalled cycles of `nodes` nodes in the next run.

        tokens: for each instance of a FIFO, its side ("i" or "o") and the node whose port it joins: the
        number of tokens that pass there in each step of the run, [steps].
        """
        self._observed.profile(nodes, tokens)

    def profiled(self) -> Profiled:
        """The counts since `profile`. Raises DeviceError if other tokens passed than `profile` was given."""
        return self._observed.profiled()

    def record(self, path: Path, first: int, last: int) -> None:
        """Write the waves of the cycles `first` to `last` of the next run to an FST file, with 1 ns for each
        cycle. Raises OSError if the file cannot be written."""
        require_room(path)
        path.write_bytes(b"")
        self._window, self._recorded = (path, first, last), path
        self._zero = None

    def end_record(self) -> int:
        """Finish the file and return the cycles since the start of the run."""
        self._window = self._recorded = None
        self._core.do("waves_end")
        return self.cycles - (self._zero or self.cycles)

    def read_register(self, offset: int) -> int:
        """Read a register of s_axi_control."""
        value = ctypes.c_uint32()
        self._check(self._core.do("read", offset, value))
        return value.value

    def write_register(self, offset: int, value: int) -> None:
        """Write a register of s_axi_control."""
        if offset == CONTROL and value & START:
            self._core.do("work", True)
        self._check(self._core.do("write", offset, value))
        if offset == CONTROL and value & CONTINUE and not value & START:
            self._core.do("work", False)

    def run(self, cycles: int) -> None:
        """Simulate `cycles` clock cycles."""
        self._check(self._core.do("run", cycles))

    def attach(self, channel: int, region: Region) -> "SimulatedBuffer":
        """Let the master of a channel access a region of the card's memory."""
        self._core.attach(channel, region)
        return SimulatedBuffer(self.card, region)

    def detach(self, channel: int, region: Region) -> None:
        """Stop the access of the master of a channel to a region."""
        self._core.detach(channel, region)

    def advance(self, cycles: int) -> bool:
        """Simulate `cycles` cycles, or fewer if the run ends before, and return whether the run is done."""
        begun = time.monotonic()
        state = self._core.do("wait", CONTROL, DONE, cycles, POLL_CYCLES)
        self._simulated += time.monotonic() - begun
        if self.better is not None and self._simulated > QUICK_SECONDS:
            self.better.begin()
        self._check(state >= 0)
        return bool(state)

    def start(self, slot: int = 0) -> None:
        self._line.append(slot)
        if len(self._line) == 1:
            self._launch(slot)

    def done(self, slot: int = 0, wait: bool = False) -> bool:
        if slot in self._line:
            shared, recorded = len(self.card.kernels) > 1, self._recorded is not None
            most = SHARED_CYCLES if shared else RECORDED_CYCLES if recorded else CHUNK_CYCLES
            self._attend(most if wait else 1)
        return slot not in self._line

    def _launch(self, slot: int) -> None:
        """Write the registers of a slot and start its run."""
        if self.better is not None and (library := self.better.library()) is not None:
            self._continue_with(library)
        for (name, place), buffer in self._buffers.items():
            assert isinstance(buffer, SimulatedBuffer)
            if (name, place) == self._key(name, slot):
                self._point(name, buffer)
        for name, value in self._scalars[slot].items():
            self._set_register(self._offsets[name], value)
        scalars = self._scalars[slot]
        self._least = None
        self._begun, self._sort = self.cycles, (scalars.get("command", 0), scalars.get("tiles", 0))
        zero = self._zero = self.cycles if self._zero is None else self._zero
        if self._window is not None:
            path, first, last = self._window
            self._window = None
            file = str(path).encode()
            if not self._core.do("waves", file, zero, zero + first, zero + last):
                raise OSError(f"{path} cannot be written")
        self._moves = self._core.moved(), self.cycles
        self.starts.append(self.time)
        self.write_register(CONTROL, START)

    def _continue_with(self, library: Path) -> None:
        """Continue in another simulator of the design. This is possible between two runs, because runs leave
        nothing but memory for later runs."""
        self.better = None
        if not self._core.replaceable:
            return
        self._core.replace(library)
        line = self._line.copy()
        self._reset_hard()
        self._line = line

    def _attend(self, cycles: int) -> None:
        """Simulate at most `cycles` cycles. If the run under way ends in them, start the next run."""
        if self.advance(cycles):
            if self._line:
                self._took[self._sort] = self.cycles - self._begun
            self.write_register(CONTROL, CONTINUE)
            if self._line:
                self._line.popleft()
            if self._line:
                self._launch(self._line[0])
            self.progress("")
            return
        self.progress(self._how_far())
        if self._recorded is not None:
            require_room(self._recorded)
        if (moved := self._core.moved()) != self._moves[0]:
            self._moves = moved, self.cycles
        if (since := self.cycles - self._moves[1]) > STALL_CYCLES:
            raise DeviceTimeoutError(f"not done, and no memory access for {since} cycles")

    def late(self, timeout: float) -> str:
        return f"not done after {timeout:g} s ({self.cycles} cycles)"

    def _how_far(self) -> str:
        """Progress text: the cycles of the run under way."""
        done, goal, about = self.cycles - self._begun, self._took.get(self._sort, 0), ""
        if not goal and self._line:
            if self._least is None:
                self._least = round(self.least_cycles.get(self._line[0], int)())
            goal, about = self._least, "at least "
        return (
            f"simulated {done:,} of {about}{goal:,} cycles" if done < goal else f"simulated {done:,} cycles"
        )

    def reset(self) -> None:
        """Reset the design. The reset ends the run under way, which may also be done already."""
        self.progress("")
        self._line.clear()
        super().reset()
        try:
            self._moves = self._core.moved(), self.cycles
            while not self.read_register(CONTROL) & IDLE:
                self._attend(CHUNK_CYCLES)
        except DeviceError:
            self._reset_hard()

    def error_word(self) -> int | None:
        return self.read_register(self.manifest.error_offset)

    def close(self) -> None:
        if "_core" in vars(self):
            self.card.kernels.discard(self)
            self.card.banks.leave(self)
            self._buffers.clear()
            self._core.close()

    def __del__(self) -> None:
        self.close()

    def _check(self, fine: bool = False) -> None:
        """Raise DeviceError with the message of the simulator, if there is one."""
        if not fine and (text := self._core.do("error").decode()):
            raise DeviceError(text)

    def _allocate(self, info: BufferInfo, size: int) -> DeviceBuffer:
        try:
            region = self.card.banks.allocate(self._homes[info.channel], size)
        except DeviceError as error:
            raise DeviceError(f"buffer {info.name!r} of {size} bytes: {error}") from error
        return self._reaching(info, region)

    def _adopt(self, info: BufferInfo, buffer: DeviceBuffer) -> DeviceBuffer:
        if not isinstance(buffer, SimulatedBuffer) or buffer.card is not self.card:
            raise DeviceError(f"buffer {info.name!r} is not on the card of kernel {self.manifest.top!r}")
        return self._reaching(info, buffer.region)

    def _reaching(self, info: BufferInfo, region: Region) -> "SimulatedBuffer":
        buffer = self.attach(info.channel, region)
        if self.calls is not None:
            buffer.told = partial(self._heard, self.calls, info.name)
        if not self._line:
            self._point(info.name, buffer)
        return buffer

    def _heard(self, calls: list[HostCall], buffer: str, way: str, size: int) -> None:
        call = HostCall(kernel=self.manifest.top, buffer=buffer, way=way, bytes=size, time=self.time)
        calls.append(call)

    def _set_scalar(self, name: str, value: int, slot: int) -> None:
        self._scalars[slot][name] = value
        if not self._line or self._line[0] == slot:
            self._set_register(self._offsets[name], value)

    def _point(self, name: str, buffer: "SimulatedBuffer") -> None:
        self._set_register(self._offsets[name], buffer.address & 0xFFFFFFFF)
        self._set_register(self._offsets[name] + 4, buffer.address >> 32)

    def _set_register(self, offset: int, value: int) -> None:
        """Write a register of an argument, unless it already holds the value."""
        if self._registers.get(offset) != value:
            self.write_register(offset, value)
            self._registers[offset] = value

    def _reset_hard(self) -> None:
        """Reset by ap_rst_n. Registers lose their content, so the pointers are written again."""
        self._core.do("reset")
        self._check()
        self._registers.clear()
        self._line.clear()
        for (name, slot), buffer in self._buffers.items():
            assert isinstance(buffer, SimulatedBuffer)
            if slot == 0:
                self._point(name, buffer)


class SimulatedBuffer(DeviceBuffer):
    """A buffer in the memory of a simulated card. Writing and reading it takes no simulated time."""

    def __init__(self, card: SimulatedCard, region: Region) -> None:
        self.card, self.region = card, region
        self.address, self.size = region.address, region.size

    def _write(self, data: bytes, offset: int) -> None:
        self.region.content[offset : offset + len(data)] = np.frombuffer(data, np.uint8)

    def _read(self, size: int, offset: int) -> bytes:
        return self.region.content[offset : offset + size].tobytes()
