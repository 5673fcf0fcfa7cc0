"""One interface to an accelerator, whether it is simulated or on a board.

A device holds the memory that a manifest names, the arguments, and one run at a time:

    device = simulated(folder)                  # or board(xclbin, manifest)
    x = device.allocate("x"); x.write(image)
    device.set_scalar("tiles", 1)
    device.start(); device.wait()
    y = device.allocate("y").read()
"""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from streamgen.errors import DeviceError
from streamgen.manifest import COMMAND_RESET, COMMAND_RUN, Manifest
from streamgen.manifest import Buffer as BufferInfo

__all__ = ["Device", "DeviceBuffer"]


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


class Device(ABC):
    """An accelerator with the registers and buffers of `manifest`."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._buffers: dict[str, DeviceBuffer] = {}

    def allocate(self, name: str) -> DeviceBuffer:
        """The memory of a pointer argument, in the channel that the manifest says; allocated once."""
        if name not in self._buffers:
            info = {buffer.name: buffer for buffer in self.manifest.buffers}.get(name)
            if info is None:
                raise ValueError(f"the design has no buffer {name!r}")
            self._buffers[name] = self._allocate(info)
        return self._buffers[name]

    def set_scalar(self, name: str, value: int) -> None:
        """Set a scalar argument: 0 to 2^31 - 1, since a board's driver passes no more."""
        if name not in {a.name for a in self.manifest.arguments if a.kind == "scalar"}:
            raise ValueError(f"the design has no scalar argument {name!r}")
        if not 0 <= value < 2**31:
            raise ValueError(f"argument {name!r} is {value}; 0 to 2147483647 are allowed")
        self._set_scalar(name, value)

    @abstractmethod
    def start(self) -> None:
        """Start a run with the arguments as they are."""

    @abstractmethod
    def wait(self, timeout: float = 600.0) -> None:
        """Wait until the run is done; DeviceTimeoutError after so many seconds."""

    def reset(self) -> None:
        """Stop what is under way and bring the core to its initial state; memory stays."""
        try:
            self.set_scalar("command", COMMAND_RESET)
            self.start()
            self.wait(timeout=60.0)
        except DeviceError:
            self._reset_hard()
        self.set_scalar("command", COMMAND_RUN)

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

    @abstractmethod
    def _allocate(self, info: BufferInfo) -> DeviceBuffer: ...

    @abstractmethod
    def _set_scalar(self, name: str, value: int) -> None: ...

    @abstractmethod
    def _reset_hard(self) -> None: ...
