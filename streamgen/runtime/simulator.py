"""A device that simulates the written Verilog cycle by cycle, with one HBM channel behind each master."""

import ctypes
import errno
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from streamgen.errors import DeviceError, DeviceTimeoutError
from streamgen.manifest import DEFAULT_TIMEOUT, Manifest
from streamgen.manifest import Buffer as BufferInfo
from streamgen.progress import Progress, terminal_progress, told
from streamgen.runtime.device import Device, DeviceBuffer
from streamgen.runtime.instruments import COUNTING, Instruments
from streamgen.runtime.memory import BEAT_BYTES, MemoryModel
from streamgen.runtime.verilator import build, load

__all__ = ["Profiled", "SimulatedDevice", "Watched", "simulated"]

CONTROL, START, DONE, IDLE, CONTINUE = 0x00, 1 << 0, 1 << 1, 1 << 2, 1 << 4
POLL_CYCLES = 64
CHUNK_CYCLES = 1 << 16  # between two looks at the clock on the wall
STALL_CYCLES = 4 * DEFAULT_TIMEOUT  # the hardware's own watchdog should have ended the run long before
RECORDED_CYCLES = 1 << 12  # between two looks at the room on the disk
WAVES_ROOM = 256 << 20  # what the writer of waves holds back, twice: it ends the process where a disk is full
PAGE = 4096


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What the watched FIFOs did in a run, in cycles from its start.

    passed: tokens that went into and out of each of them. difference: of a token that was not the expected
    one the place of its FIFO among the instruments' streams, "i" or "o" (into or out of it), cycle, bytes.
    """

    passed: tuple[tuple[int, int], ...]
    difference: tuple[int, str, int, bytes] | None


@dataclass(frozen=True, kw_only=True)
class Profiled:
    """Cycles of a run: uint64 `cycles` of each step, and of each step and node (steps, nodes) those in which
    it was `busy` and `stalled`."""

    cycles: np.ndarray
    busy: np.ndarray
    stalled: np.ndarray


def simulated(
    folder: Path,
    manifest: Manifest,
    memory: MemoryModel | None = None,
    progress: Progress | None = None,
    instruments: Instruments | None = None,
) -> "SimulatedDevice":
    """Build (or find in the cache) the simulator of the Verilog in `folder`, and reset the design.

    `memory` is by default that of the manifest, and there are no `instruments`. Raises what
    `streamgen.runtime.verilator.build` raises, and DeviceError when the top does not have the pins that the
    manifest names.
    """
    sources = [Path(folder, name) for name in manifest.verilog_files]
    instruments = instruments or Instruments()
    library = build(sources, manifest.top, [port.name for port in manifest.ports], progress, instruments)
    return SimulatedDevice(library, manifest, memory or MemoryModel.of(manifest.memory), instruments)


def require_room(path: Path) -> None:
    """OSError unless the disks that waves are written to, and buffered on, have room for what comes next."""
    for place in (path.parent, Path(tempfile.gettempdir())):
        if (free := shutil.disk_usage(place).free) < WAVES_ROOM:
            raise OSError(
                errno.ENOSPC, f"{free >> 20} MB are free, waves need {WAVES_ROOM >> 20}", str(place)
            )


class SimulatedDevice(Device):
    """One instance of a simulator; any number may live at a time."""

    slots = 2

    def __init__(
        self, library: Path, manifest: Manifest, memory: MemoryModel, instruments: Instruments
    ) -> None:
        super().__init__(manifest)
        self._handle = None
        self.memory, self.instruments = memory, instruments
        self.progress = terminal_progress()
        """Told the cycles of a long run, and of how many where one of as many tokens has ended before."""
        self._library = _declare(load(library), instruments)
        self._handle = self._library.device_create()
        self._expected: list[np.ndarray] = []
        self._profile: tuple[int, list[np.ndarray]] = 0, []
        self._zero: int | None = None
        self._begun, self._sort = 0, (0, 0)  # of the run under way: its first cycle; command and tiles
        self._took: dict[tuple[int, int], int] = {}  # cycles of the last run of a sort
        self._registers: dict[int, int] = {}
        self._line: deque[int] = deque()  # slots whose runs are under way (the first) and wait
        self._scalars: list[dict[str, int]] = [{} for _ in range(self.slots)]
        self._window: tuple[Path, int, int] | None = None
        self._recorded: Path | None = None
        for stream in instruments.streams:
            for side, instance in zip("io", stream, strict=True):
                scope = f"{manifest.top}.{instance}".encode()
                if not self._library.device_probe(self._handle, scope, side.encode()):
                    raise DeviceError(f"the simulator does not show the pins of FIFO {instance!r}")
        self._channels = {port.channel: i for i, port in enumerate(manifest.ports)}
        self._free = {port.channel: port.channel * manifest.board.channel_bytes for port in manifest.ports}
        self._offsets = {argument.name: argument.offset for argument in manifest.arguments}
        self._check()
        for port in manifest.ports:
            self.configure(port.channel, memory)
        self._reset_hard()

    @property
    def cycles(self) -> int:
        """Clock cycles simulated so far."""
        return int(self._library.device_cycles(self._handle))

    def traffic(self, channel: int) -> tuple[int, int]:
        """Beats read and written so far by the master of a channel."""
        counts = ctypes.c_uint64(), ctypes.c_uint64()
        self._library.device_traffic(self._handle, self._channels[channel], *counts)
        return counts[0].value, counts[1].value

    def configure(self, channel: int, memory: MemoryModel) -> None:
        """Give one channel another model; what is under way there is forgotten."""
        rate = memory.rate
        model = _Model(
            rate.numerator, rate.denominator, memory.latency, memory.outstanding, memory.delays, memory.seed
        )
        self._library.device_configure(self._handle, self._channels[channel], model)

    def moved_bytes(self) -> int:
        return BEAT_BYTES * self._moved()

    def idle(self) -> bool:
        """Whether no memory transaction is under way."""
        return bool(self._library.device_idle(self._handle))

    def inject_error(self, name: str, offset: int, on: bool = True) -> None:
        """Let the beat at this offset of a buffer answer SLVERR, or no more."""
        buffer = self.allocate(name)
        assert isinstance(buffer, SimulatedBuffer)
        address = buffer.address + offset // BEAT_BYTES * BEAT_BYTES
        self._library.device_inject(self._handle, buffer.index, address, on)

    def watch(self, tokens: Sequence[np.ndarray]) -> None:
        """Hold the next tokens of each of the instruments' streams against these: uint8 (count, bytes).

        The next `start` begins cycle 0. A run stops with DeviceError when a token is not the expected one.
        """
        self._zero = None
        self._expected = [np.ascontiguousarray(array, np.uint8) for array in tokens]
        for k, array in enumerate(self._expected):
            place = array.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
            for side in range(2):
                self._library.device_expect(self._handle, 2 * k + side, place, *array.shape)
        self._library.device_watch(self._handle, True)

    def watched(self) -> Watched:
        """What has been seen since `watch`; a reset ends the watch but keeps the numbers of tokens."""
        counts = [self._library.device_passed(self._handle, k) for k in range(2 * len(self._expected))]
        probe, cycle = ctypes.c_uint64(), ctypes.c_uint64()
        seen = self._library.device_difference(self._handle, probe, cycle)
        difference = None
        if seen:
            stream, side = divmod(probe.value, 2)
            content = ctypes.string_at(seen, self._expected[stream].shape[1])
            difference = stream, "io"[side], cycle.value - (self._zero or 0), content
        return Watched(passed=tuple(zip(counts[::2], counts[1::2], strict=True)), difference=difference)

    def profile(self, nodes: int, tokens: Mapping[tuple[str, str, int], np.ndarray]) -> None:
        """Count what each of so many nodes does in the next run.

        tokens: by instance of a FIFO, its side "i" or "o" and the node whose port it joins: how many tokens
        pass there in each step of the run.
        """
        self._profile = nodes, [np.ascontiguousarray(array, np.uint64) for array in tokens.values()]
        steps = len(self._profile[1][0])
        top = self.manifest.top
        fine = self._library.device_profile(self._handle, top.encode(), COUNTING.encode(), nodes, steps)
        for (instance, side, node), array in zip(tokens, self._profile[1], strict=True):
            scope = f"{top}.{instance}".encode()
            fine &= self._library.device_profile_port(
                self._handle, scope, side.encode(), node, _numbers(array)
            )
        if not fine:
            raise DeviceError("the simulator does not show what a profile needs")
        self._library.device_profile_start(self._handle)

    def profiled(self) -> Profiled:
        """What has been counted since `profile`; DeviceError when other tokens have passed."""
        nodes, tokens = self._profile
        steps = len(tokens[0])
        cycles, busy, stalled = (np.zeros(shape, np.uint64) for shape in (steps, *[(steps, nodes)] * 2))
        if not self._library.device_profile_end(self._handle, *map(_numbers, (cycles, busy, stalled))):
            raise DeviceError("other tokens have passed than those of the graph")
        return Profiled(cycles=cycles, busy=busy, stalled=stalled)

    def record(self, path: Path, first: int, last: int) -> None:
        """Write the waves of these cycles of the next run to an FST file, a nanosecond a cycle; OSError
        when it cannot be written."""
        require_room(path)
        path.write_bytes(b"")
        self._window, self._recorded = (path, first, last), path
        self._zero = None

    def end_record(self) -> int:
        """Finish the file; returns the cycles since the start of the run."""
        self._window = self._recorded = None
        self._library.device_waves_end(self._handle)
        return self.cycles - (self._zero or self.cycles)

    def read_register(self, offset: int) -> int:
        """Read a register of s_axi_control."""
        value = ctypes.c_uint32()
        self._check(self._library.device_read(self._handle, offset, value))
        return value.value

    def write_register(self, offset: int, value: int) -> None:
        """Write a register of s_axi_control."""
        self._check(self._library.device_write(self._handle, offset, value))

    def run(self, cycles: int) -> None:
        """Let so many clock cycles pass."""
        self._check(self._library.device_run(self._handle, cycles))

    def reserve(self, address: int, size: int) -> "SimulatedBuffer":
        """Memory at an address, for who allocates by himself. DeviceError where no master reaches it, and for
        a beat that begins before it."""
        if address % BEAT_BYTES:
            raise DeviceError(f"a buffer at {address:#x} is unaligned; beats have {BEAT_BYTES} bytes")
        channel, offset = divmod(address, self.manifest.board.channel_bytes)
        if channel not in self._channels or offset + size > self.manifest.board.channel_bytes:
            raise DeviceError(f"no channel with a port holds {size} bytes at {address:#x}")
        index = self._channels[channel]
        if not self._library.device_allocate(self._handle, index, address, size):
            raise DeviceError(f"{size} bytes: the host's memory is full")
        return SimulatedBuffer(self, index, address, size)

    def release(self, buffer: "SimulatedBuffer") -> None:
        """Give back what `reserve` gave."""
        self._library.device_free(self._handle, buffer.index, buffer.address)

    def advance(self, cycles: int) -> bool:
        """Let so many cycles pass, fewer when the run is done before; whether it is."""
        state = self._library.device_wait(self._handle, CONTROL, DONE, cycles, POLL_CYCLES)
        self._check(state >= 0)
        return bool(state)

    def start(self, slot: int = 0) -> None:
        self._line.append(slot)
        if len(self._line) == 1:
            self._launch(slot)

    def wait(self, timeout: float = 600.0, slot: int = 0) -> None:
        deadline = time.monotonic() + timeout
        while True:
            done = not self._line or self._line[0] == slot
            self._wait(deadline, timeout)
            if self._line:
                self._line.popleft()
            if self._line:
                self._launch(self._line[0])
            if done:
                return

    def _launch(self, slot: int) -> None:
        """The registers of a slot, and a start."""
        for (name, place), buffer in self._buffers.items():
            assert isinstance(buffer, SimulatedBuffer)
            if (name, place) == self._key(name, slot):
                self._point(name, buffer)
        for name, value in self._scalars[slot].items():
            self._set_register(self._offsets[name], value)
        said = self._scalars[slot]
        self._begun, self._sort = self.cycles, (said.get("command", 0), said.get("tiles", 0))
        zero = self._zero = self.cycles if self._zero is None else self._zero
        if self._window is not None:
            path, first, last = self._window
            self._window = None
            file = str(path).encode()
            if not self._library.device_waves(self._handle, file, zero, zero + first, zero + last):
                raise OSError(f"{path} cannot be written")
        self.write_register(CONTROL, START)

    def _wait(self, deadline: float, timeout: float) -> None:
        """For the run that is under way."""
        moved, moved_at = self._moved(), self.cycles
        chunk = CHUNK_CYCLES if self._recorded is None else RECORDED_CYCLES
        with told(self.progress) as tell:
            while not self.advance(chunk):
                if self._recorded is not None:
                    require_room(self._recorded)
                if (now := self._moved()) != moved:
                    moved, moved_at = now, self.cycles
                if self.cycles - moved_at > STALL_CYCLES:
                    raise DeviceTimeoutError(
                        f"not done, and no memory access for {self.cycles - moved_at} cycles"
                    )
                tell(self._how_far())
                if time.monotonic() > deadline:
                    raise DeviceTimeoutError(f"not done after {timeout:g} s ({self.cycles} cycles)")
        if self._line:
            self._took[self._sort] = self.cycles - self._begun
        self.write_register(CONTROL, CONTINUE)

    def _how_far(self) -> str:
        """The cycles of the run under way."""
        done, goal = self.cycles - self._begun, self._took.get(self._sort, 0)
        return f"simulated {done:,} of {goal:,} cycles" if done < goal else f"simulated {done:,} cycles"

    def reset(self) -> None:
        """A run that is under way ends in the reset, or has ended before and was not waited for."""
        self._line.clear()
        super().reset()
        try:
            while not self.read_register(CONTROL) & IDLE:
                self.wait(timeout=60.0)
        except DeviceError:
            self._reset_hard()

    def error_word(self) -> int | None:
        return self.read_register(self.manifest.error_offset)

    def close(self) -> None:
        if self._handle:
            self._library.device_destroy(self._handle)
            self._handle = None

    def __del__(self) -> None:
        self.close()

    def _moved(self) -> int:
        return sum(sum(self.traffic(channel)) for channel in self._channels)

    def _check(self, fine: bool = False) -> None:
        """Raise DeviceError with what the simulator has to say."""
        if not fine and (text := self._library.device_error(self._handle).decode()):
            raise DeviceError(text)

    def _allocate(self, info: BufferInfo) -> DeviceBuffer:
        address = self._free[info.channel]
        end = address + -(-info.bytes // PAGE) * PAGE
        if end > (info.channel + 1) * self.manifest.board.channel_bytes:
            raise DeviceError(f"buffer {info.name!r} of {info.bytes} bytes: channel {info.channel} is full")
        try:
            buffer = self.reserve(address, info.bytes)
        except DeviceError as error:
            raise DeviceError(f"buffer {info.name!r}: {error}") from error
        self._free[info.channel] = end
        if not self._line:
            self._point(info.name, buffer)
        return buffer

    def _set_scalar(self, name: str, value: int, slot: int) -> None:
        self._scalars[slot][name] = value
        if not self._line or self._line[0] == slot:
            self._set_register(self._offsets[name], value)

    def _point(self, name: str, buffer: "SimulatedBuffer") -> None:
        self._set_register(self._offsets[name], buffer.address & 0xFFFFFFFF)
        self._set_register(self._offsets[name] + 4, buffer.address >> 32)

    def _set_register(self, offset: int, value: int) -> None:
        """Write an argument, unless that is what it holds."""
        if self._registers.get(offset) != value:
            self.write_register(offset, value)
            self._registers[offset] = value

    def _reset_hard(self) -> None:
        """Pull ap_rst_n; registers lose their content, so the pointers are written again."""
        self._library.device_reset(self._handle)
        self._check()
        self._registers.clear()
        self._line.clear()
        for (name, slot), buffer in self._buffers.items():
            assert isinstance(buffer, SimulatedBuffer)
            if slot == 0:
                self._point(name, buffer)

    def _pointer(self, index: int, address: int) -> int:
        return int(self._library.device_bytes(self._handle, index, address))


class SimulatedBuffer(DeviceBuffer):
    """Memory of a simulated channel, written and read without simulated time."""

    def __init__(self, device: SimulatedDevice, index: int, address: int, size: int) -> None:
        self._device, self.index, self.address, self.size = device, index, address, size

    def _write(self, data: bytes, offset: int) -> None:
        ctypes.memmove(self._device._pointer(self.index, self.address) + offset, data, len(data))

    def _read(self, size: int, offset: int) -> bytes:
        return ctypes.string_at(self._device._pointer(self.index, self.address) + offset, size)


def _numbers(array: np.ndarray) -> Any:
    """A pointer to the numbers of an array of uint64."""
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_uint64))


class _Model(ctypes.Structure):
    """`Model` of memory.h."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("numerator", "denominator", "latency", "outstanding", "delays", "seed")
    ]


def _declare(library: ctypes.CDLL, instruments: Instruments) -> ctypes.CDLL:
    """Tell ctypes the types of the functions of device.cpp."""
    handle, u32, u64, number = (
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_uint64,
        ctypes.POINTER(ctypes.c_uint64),
    )
    traced = (("waves", ctypes.c_bool, (ctypes.c_char_p, u64, u64, u64)), ("waves_end", None, ()))
    for name, result, arguments in (
        ("create", handle, ()),
        ("destroy", None, ()),
        ("error", ctypes.c_char_p, ()),
        ("cycles", u64, ()),
        ("reset", None, ()),
        ("run", ctypes.c_bool, (u64,)),
        ("write", ctypes.c_bool, (u32, u32)),
        ("read", ctypes.c_bool, (u32, ctypes.POINTER(u32))),
        ("configure", None, (u32, ctypes.POINTER(_Model))),
        ("wait", ctypes.c_int, (u32, u32, u64, u64)),
        ("allocate", ctypes.c_bool, (u32, u64, u64)),
        ("free", None, (u32, u64)),
        ("bytes", handle, (u32, u64)),
        ("inject", None, (u32, u64, ctypes.c_bool)),
        ("idle", ctypes.c_bool, ()),
        ("traffic", None, (u32, number, number)),
        ("probe", ctypes.c_bool, (ctypes.c_char_p, ctypes.c_char_p)),
        ("expect", None, (u64, ctypes.POINTER(ctypes.c_uint8), u64, u64)),
        ("watch", None, (ctypes.c_bool,)),
        ("passed", u64, (u64,)),
        ("difference", handle, (number, number)),
        ("profile", ctypes.c_bool, (ctypes.c_char_p, ctypes.c_char_p, u64, u64)),
        ("profile_port", ctypes.c_bool, (ctypes.c_char_p, ctypes.c_char_p, u64, number)),
        ("profile_start", None, ()),
        ("profile_end", ctypes.c_bool, (number, number, number)),
        *(traced if instruments.waves else ()),
    ):
        function = getattr(library, f"device_{name}")
        function.restype = result
        function.argtypes = arguments if name == "create" else (handle, *arguments)
    return library
