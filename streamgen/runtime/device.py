"""One interface to an accelerator, whether it is simulated or on a board.

A device holds the memory that a manifest names, the arguments, and its runs, which follow one another:

    device = simulated(folder)                  # or board(xclbin, manifest)
    x = device.allocate("x"); x.write(image)
    device.set_scalar("tiles", 1)
    device.start(); device.wait()
    y = device.allocate("y").read()

A run may be started while others have not ended: each in a slot, with arguments and buffers of its own for
what the host writes before it and reads after it. Weights and what runs leave to one another are in all slots
the same memory. What one kernel of a card writes another one can read where it lies (`adopt`).
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import ClassVar, Self

from streamgen.artifact.manifest import COMMAND_RESET, COMMAND_RUN, Manifest, RunError
from streamgen.artifact.manifest import Buffer as BufferInfo
from streamgen.base.errors import DeviceError, DeviceTimeoutError


class DeviceBuffer(ABC):
    """Memory of the device, `size` bytes long; ValueError for an access outside it."""

    size: int

    def write(self, data: bytes, offset: int = 0) -> None:
        """Copy bytes to the device."""
        self._check(len(data), offset)
        self._write(data, offset)

    def read(self, size: int | None = None, offset: int = 0) -> bytes:
        """Copy bytes from the device; all of them by default."""
        size = self.size - offset if size is None else size
        self._check(size, offset)
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
    """Runs that should be under way and wait in line, so that the hardware has no rest; more may."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._roles = {buffer.name: buffer.role for buffer in manifest.buffers}
        self._buffers: dict[tuple[str, int], DeviceBuffer] = {}
        self.hung = False
        """Whether the last run has left a core that cannot be reset, as after a response that is lost."""
        self.least_cycles: dict[int, Callable[[], float]] = {}
        """By slot what knows the least cycles of its run, for whoever waits; 0 for what does not know."""

    def allocate(self, name: str, slot: int = 0, size: int = 0) -> DeviceBuffer:
        """The memory of a pointer argument, in the channel that the manifest says; allocated once, or once a
        slot, with `size` bytes at least."""
        key = self._key(name, slot)
        if key not in self._buffers:
            info = self._info(name)
            self._buffers[key] = self._allocate(info, max(size, info.bytes))
        return self._buffers[key]

    def adopt(self, name: str, buffer: DeviceBuffer, slot: int = 0) -> None:
        """Take memory of another kernel of the card for a pointer argument. DeviceError where the kernel does
        not reach it; ValueError for one that is too small."""
        info = self._info(name)
        if buffer.size < info.bytes:
            raise ValueError(f"buffer {name!r} needs {info.bytes} bytes; {buffer.size} are given")
        self._buffers[self._key(name, slot)] = self._adopt(info, buffer)

    def set_scalar(self, name: str, value: int, slot: int = 0) -> None:
        """Set a scalar argument: 0 to 2^31 - 1, since a board's driver passes no more."""
        if name not in {a.name for a in self.manifest.arguments if a.kind == "scalar"}:
            raise ValueError(f"the design has no scalar argument {name!r}")
        if not 0 <= value < 2**31:
            raise ValueError(f"argument {name!r} is {value}; 0 to 2147483647 are allowed")
        self._set_scalar(name, value, slot)

    @abstractmethod
    def start(self, slot: int = 0) -> None:
        """Start a run with the arguments of a slot as they are, behind those that are under way."""

    @abstractmethod
    def done(self, slot: int = 0, wait: bool = False) -> bool:
        """Whether the run of a slot is. wait: a little, when it is not; other kernels of the card go on.
        DeviceError when it has failed."""

    def wait(self, timeout: float = 600.0, slot: int = 0, since: float | None = None) -> None:
        """Wait until the run of a slot is done; DeviceTimeoutError after so many seconds. since: which count
        from here, in those of `time.monotonic`; by default from now on."""
        deadline = (time.monotonic() if since is None else since) + timeout
        while not self.done(slot, wait=True):
            if time.monotonic() > deadline:
                raise DeviceTimeoutError(self.late(timeout))

    def late(self, timeout: float) -> str:
        """What there is to say of a run that is not done after so many seconds."""
        return f"not done after {timeout:g} s"

    def reset(self) -> None:
        """Stop what is under way or waits, and bring the core to its initial state; memory stays. A core that
        is hung, or hangs in it, is loaded anew."""
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
        """Whether it does not answer any more, and must be opened again."""
        return False

    def error_word(self) -> int | None:
        """The read-only error register of the last run, where the host can read registers."""
        return None

    def moved_bytes(self) -> int | None:
        """Bytes read from memory and written to it so far, where the host can count them."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Give everything back; the device cannot be used any more."""

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
        raise DeviceError(f"buffer {info.name!r}: kernel {self.manifest.top!r} has its device for itself")

    @abstractmethod
    def _set_scalar(self, name: str, value: int, slot: int) -> None: ...

    @abstractmethod
    def _reset_hard(self) -> None: ...
