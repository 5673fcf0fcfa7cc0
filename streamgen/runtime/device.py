"""The interface of devices: an accelerator in the simulator or on a board.

A device has buffers in memory, arguments, and runs that follow one another:

    device = simulated(folder)                  # or board(xclbin, manifest)
    x = device.allocate("x"); x.write(image)
    device.set_scalar("tiles", 1)
    device.start(); device.wait()
    y = device.allocate("y").read()

A run may start before earlier runs have ended. Each run has a slot with its own arguments and its own buffers
for tables, status blocks, inputs and outputs. Weights and the state that runs leave for later runs are the
same memory in all slots. A kernel of a card can read the output of another kernel in place (`adopt`).
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar, Self

from streamgen.artifact.manifest import COMMAND_RESET, COMMAND_RUN, Manifest, RunError
from streamgen.artifact.manifest import Buffer as BufferInfo
from streamgen.base.errors import DeviceError, DeviceTimeoutError


@dataclass(frozen=True, kw_only=True)
class HostCall:
    """An access of the host to a buffer. way: "write" or "read". time: cycles of the card before it."""

    kernel: str
    buffer: str
    way: str
    bytes: int
    time: int


class DeviceBuffer(ABC):
    """A buffer of `size` bytes in the memory of a device. Raises ValueError for an access outside it."""

    size: int
    told: Callable[[str, int], None] | None = None
    """Called before each access with its direction, "write" or "read", and its number of bytes."""

    def write(self, data: bytes, offset: int = 0) -> None:
        """Copy bytes to the device."""
        self._check(len(data), offset)
        if self.told is not None:
            self.told("write", len(data))
        self._write(data, offset)

    def read(self, size: int | None = None, offset: int = 0) -> bytes:
        """Copy bytes from the device; by default all bytes from `offset` on."""
        size = self.size - offset if size is None else size
        self._check(size, offset)
        if self.told is not None:
            self.told("read", size)
        return self._read(size, offset)

    @abstractmethod
    def _write(self, data: bytes, offset: int) -> None: ...

    @abstractmethod
    def _read(self, size: int, offset: int) -> bytes: ...

    def _check(self, size: int, offset: int) -> None:
        if size < 0 or offset < 0 or offset + size > self.size:
            raise ValueError(f"bytes {offset} to {offset + size} lie outside a buffer of {self.size} bytes")


_OF_A_RUN = ("table", "status", "input", "output")


class Device(ABC):
    """An accelerator with the registers and buffers of `manifest`."""

    slots: ClassVar[int] = 1
    """Number of runs, under way or waiting, that keep the hardware busy. More runs are allowed."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._roles = {buffer.name: buffer.role for buffer in manifest.buffers}
        self._buffers: dict[tuple[str, int], DeviceBuffer] = {}
        self.hung = False
        """Whether the last run left a core that cannot be reset, as after a lost memory response."""
        self.least_cycles: dict[int, Callable[[], float]] = {}
        """For each slot: a function that returns the least number of cycles of its run, for progress; 0 if
        this number is not known."""

    def allocate(self, name: str, slot: int = 0, size: int = 0) -> DeviceBuffer:
        """The buffer of a pointer argument, in its channel of the manifest, with at least `size` bytes. It is
        allocated once; a buffer for each slot, once for each slot."""
        key = self._key(name, slot)
        if key not in self._buffers:
            info = self._info(name)
            self._buffers[key] = self._allocate(info, max(size, info.bytes))
        return self._buffers[key]

    def adopt(self, name: str, buffer: DeviceBuffer, slot: int = 0) -> None:
        """Use a buffer of another kernel of the card for a pointer argument. Raises DeviceError if this
        kernel does not reach the buffer, and ValueError if the buffer is too small."""
        info = self._info(name)
        if buffer.size < info.bytes:
            raise ValueError(f"buffer {name!r} needs {info.bytes} bytes; {buffer.size} are given")
        self._buffers[self._key(name, slot)] = self._adopt(info, buffer)

    def set_scalar(self, name: str, value: int, slot: int = 0) -> None:
        """Set a scalar argument to a value from 0 to 2^31 - 1, the range that the driver of a board passes.
        Raises ValueError for any other value or name."""
        if name not in {a.name for a in self.manifest.arguments if a.kind == "scalar"}:
            raise ValueError(f"the design has no scalar argument {name!r}")
        if not 0 <= value < 2**31:
            raise ValueError(f"argument {name!r} is {value}; 0 to 2147483647 are allowed")
        self._set_scalar(name, value, slot)

    @abstractmethod
    def start(self, slot: int = 0) -> None:
        """Start a run with the arguments of a slot, behind the runs that are under way."""

    @abstractmethod
    def done(self, slot: int = 0, wait: bool = False) -> bool:
        """Whether the run of a slot is done. wait: if it is not done, wait a little; other kernels of the
        card continue. Raises DeviceError if the run failed."""

    def wait(self, timeout: float = 600.0, slot: int = 0, since: float | None = None) -> None:
        """Wait until the run of a slot is done. Raises DeviceTimeoutError `timeout` seconds after `since`, a
        time of `time.monotonic`; by default after the call."""
        deadline = (time.monotonic() if since is None else since) + timeout
        while not self.done(slot, wait=True):
            if time.monotonic() > deadline:
                raise DeviceTimeoutError(self.late(timeout))

    def late(self, timeout: float) -> str:
        """Message about a run that is not done after `timeout` seconds."""
        return f"not done after {timeout:g} s"

    def reset(self) -> None:
        """Stop all runs, under way or waiting, and bring the core to its initial state. Memory is kept. A
        core that hangs is loaded again."""
        try:
            if not self.hung:
                self.set_scalar("command", COMMAND_RESET)
                self.start()
                self.wait(timeout=60.0)
                self.hung = (self.error_word() or 0) & 0xFF == RunError.HUNG
        except DeviceError:
            self.hung = True
        if self.hung:
            self._reset_hard()
        self.hung = False
        self.set_scalar("command", COMMAND_RUN)

    @property
    def lost(self) -> bool:
        """Whether the device has stopped answering and must be opened again."""
        return False

    def error_word(self) -> int | None:
        """The error register of the last run; None if the host cannot read registers."""
        return None

    def moved_bytes(self) -> int | None:
        """Bytes read from memory and written to it so far; None if the host cannot count them."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Release all resources. A closed device cannot be used again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _key(self, name: str, slot: int) -> tuple[str, int]:
        return name, slot if self._roles.get(name) in _OF_A_RUN else 0

    def _info(self, name: str) -> BufferInfo:
        for info in self.manifest.buffers:
            if info.name == name:
                return info
        raise ValueError(f"the design has no buffer {name!r}")

    @abstractmethod
    def _allocate(self, info: BufferInfo, size: int) -> DeviceBuffer: ...

    def _adopt(self, info: BufferInfo, buffer: DeviceBuffer) -> DeviceBuffer:
        raise DeviceError(f"buffer {info.name!r}: kernel {self.manifest.top!r} does not share its device")

    @abstractmethod
    def _set_scalar(self, name: str, value: int, slot: int) -> None: ...

    @abstractmethod
    def _reset_hard(self) -> None: ...
