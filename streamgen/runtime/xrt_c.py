"""The used part of `pyxrt`, on top of the C interface of XRT's library, for machines without the module.

Names, arguments and errors (RuntimeError) are those of pyxrt. A handle is closed when its object is deleted.
The C functions are those of XRT's headers xrt_device.h, xrt_bo.h and xrt_kernel.h.
"""

import ctypes
import os
from enum import Enum, IntEnum
from functools import cache
from typing import Any

import numpy as np

LIBRARY = "libxrt_coreutil.so.2"
_NO_HANDLE = (None, -1, ctypes.c_void_p(-1).value)
_NO_ADDRESS = ctypes.c_uint64(-1).value


class ert_cmd_state(IntEnum):  # noqa: N801  (pyxrt's name)
    """States of a run."""

    ERT_CMD_STATE_NEW = 1
    ERT_CMD_STATE_QUEUED = 2
    ERT_CMD_STATE_RUNNING = 3
    ERT_CMD_STATE_COMPLETED = 4
    ERT_CMD_STATE_ERROR = 5
    ERT_CMD_STATE_ABORT = 6
    ERT_CMD_STATE_SUBMITTED = 7
    ERT_CMD_STATE_TIMEOUT = 8
    ERT_CMD_STATE_NORESPONSE = 9
    ERT_CMD_STATE_SKERROR = 10
    ERT_CMD_STATE_SKCRASHED = 11


class xclBOSyncDirection(Enum):  # noqa: N801
    """The direction in which a buffer is copied."""

    XCL_BO_SYNC_BO_TO_DEVICE = 0
    XCL_BO_SYNC_BO_FROM_DEVICE = 1


class device:  # noqa: N801
    """The card with an index."""

    def __init__(self, index: int) -> None:
        self.handle = _handle("xrtDeviceOpen", index)

    def load_xclbin(self, path: str) -> bytes:
        """Load a file and return its uuid."""
        _done("xrtDeviceLoadXclbinFile", self.handle, os.fsencode(path))
        uuid = ctypes.create_string_buffer(16)
        _done("xrtDeviceGetXclbinUUID", self.handle, uuid)
        return uuid.raw

    def __del__(self) -> None:
        _close("xrtDeviceClose", self)


class kernel:  # noqa: N801
    """The kernel with a name on a card."""

    def __init__(self, card: device, uuid: bytes, name: str) -> None:
        self.card = card
        self.handle = _handle("xrtPLKernelOpen", card.handle, uuid, name.encode())

    def group_id(self, index: int) -> int:
        """The memory group of an argument. Raises RuntimeError if it has none."""
        group = int(_call("xrtKernelArgGroupId", self.handle, index))
        if group < 0:
            raise RuntimeError(f"argument {index} has no memory")
        return group

    def __del__(self) -> None:
        _close("xrtKernelClose", self)


class run:  # noqa: N801
    """A run of a kernel, which can be started again."""

    def __init__(self, of: kernel) -> None:
        self.kernel = of
        self.handle = _handle("xrtRunOpen", of.handle)

    def set_arg(self, index: int, value: Any) -> None:
        """Set an argument to a buffer or to an integer of 32 bits."""
        given = ctypes.c_void_p(value.handle) if isinstance(value, bo) else ctypes.c_uint(value)
        _done("xrtRunSetArg", self.handle, index, given)

    def start(self) -> None:
        """Start the run."""
        _done("xrtRunStart", self.handle)

    def wait(self, milliseconds: int) -> ert_cmd_state:
        """Wait until the run ends, at most this long, and return its state."""
        return ert_cmd_state(_call("xrtRunWaitFor", self.handle, milliseconds))

    def state(self) -> ert_cmd_state:
        """The current state of the run."""
        return ert_cmd_state(_call("xrtRunState", self.handle))

    def __del__(self) -> None:
        _close("xrtRunClose", self)


class bo:  # noqa: N801
    """A buffer in a memory group, and its copy on the host."""

    normal = 0

    def __init__(self, card: device, size: int, flags: int, group: int) -> None:
        self.card = card
        self.handle = _handle("xrtBOAlloc", card.handle, size, flags, group)

    def write(self, data: bytes, seek: int) -> None:
        """Write bytes into the copy on the host, at offset `seek`."""
        _done("xrtBOWrite", self.handle, data, len(data), seek)

    def read(self, size: int, skip: int) -> np.ndarray:
        """Read int8 [size] from the copy on the host, at offset `skip`."""
        content = np.empty(size, np.int8)
        _done("xrtBORead", self.handle, content.ctypes.data_as(ctypes.c_void_p), size, skip)
        return content

    def address(self) -> int:
        """Address of the first byte in the memory of the card."""
        address = int(_call("xrtBOAddress", self.handle))
        if address == _NO_ADDRESS:
            raise RuntimeError(_complaint("xrtBOAddress"))
        return address

    def sync(self, direction: xclBOSyncDirection, size: int, offset: int) -> None:
        """Copy a part of the buffer between host and card."""
        _done("xrtBOSync", self.handle, direction.value, size, offset)

    def __del__(self) -> None:
        _close("xrtBOFree", self)


def require() -> None:
    """Raise OSError unless XRT's library can be loaded."""
    _library()


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(LIBRARY, use_errno=True)
    handle, size, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
    for name, result, arguments in (
        ("xrtDeviceOpen", handle, [ctypes.c_uint]),
        ("xrtDeviceLoadXclbinFile", ctypes.c_int, [handle, text]),
        ("xrtDeviceGetXclbinUUID", ctypes.c_int, [handle, text]),
        ("xrtDeviceClose", ctypes.c_int, [handle]),
        ("xrtPLKernelOpen", handle, [handle, text, text]),
        ("xrtKernelArgGroupId", ctypes.c_int, [handle, ctypes.c_int]),
        ("xrtKernelClose", ctypes.c_int, [handle]),
        ("xrtRunOpen", handle, [handle]),
        (
            "xrtRunSetArg",
            ctypes.c_int,
            [handle, ctypes.c_int],
        ),  # the type of the third argument depends on its value
        ("xrtRunStart", ctypes.c_int, [handle]),
        ("xrtRunWaitFor", ctypes.c_int, [handle, ctypes.c_uint]),
        ("xrtRunState", ctypes.c_int, [handle]),
        ("xrtRunClose", ctypes.c_int, [handle]),
        ("xrtBOAlloc", handle, [handle, size, ctypes.c_uint64, ctypes.c_uint32]),
        ("xrtBOWrite", ctypes.c_int, [handle, text, size, size]),
        ("xrtBORead", ctypes.c_int, [handle, handle, size, size]),
        ("xrtBOSync", ctypes.c_int, [handle, ctypes.c_int, size, size]),
        ("xrtBOAddress", ctypes.c_uint64, [handle]),
        ("xrtBOFree", ctypes.c_int, [handle]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _call(name: str, *arguments: Any) -> Any:
    ctypes.set_errno(0)
    return getattr(_library(), name)(*arguments)


def _handle(name: str, *arguments: Any) -> int:
    result = _call(name, *arguments)
    if result in _NO_HANDLE:
        raise RuntimeError(_complaint(name))
    return int(result)


def _done(name: str, *arguments: Any) -> None:
    if _call(name, *arguments):
        raise RuntimeError(_complaint(name))


def _close(name: str, owner: Any) -> None:
    if (handle := owner.__dict__.pop("handle", None)) is not None:
        _call(name, handle)


def _complaint(name: str) -> str:
    code = ctypes.get_errno()
    return f"{name}: {os.strerror(code)}" if code else f"{name} failed"
