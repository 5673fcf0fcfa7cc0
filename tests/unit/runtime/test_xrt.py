"""The device on a board, against a stand-in for pyxrt that is as strict as pyxrt and checks its use."""

import sys
from enum import Enum
from types import ModuleType

import numpy as np
import pytest

from sim.add_one import manifest
from streamgen.base.errors import DeviceError, DeviceTimeoutError, MissingToolError
from streamgen.runtime import xrt, xrt_c
from streamgen.runtime.xrt import board
from tests.unit.package.packages import linked

DESCRIPTION = manifest(2)
NAMES = [argument.name for argument in DESCRIPTION.arguments]


class State(Enum):
    ERT_CMD_STATE_NEW = 1
    ERT_CMD_STATE_COMPLETED = 4
    ERT_CMD_STATE_ERROR = 5
    ERT_CMD_STATE_ABORT = 6
    ERT_CMD_STATE_TIMEOUT = 8
    ERT_CMD_STATE_NORESPONSE = 9


class Direction(Enum):
    XCL_BO_SYNC_BO_TO_DEVICE = 0
    XCL_BO_SYNC_BO_FROM_DEVICE = 1


class Bo:
    normal = "normal"
    place = 1 << 29
    gone = False

    def __init__(self, device, size, flags, group):
        assert flags == Bo.normal
        if size > 1 << 20:
            raise RuntimeError("failed to allocate bo")
        self.host, self.card, self.group = bytearray(size), bytearray(size), group

    def address(self):
        return Bo.place

    def write(self, data, seek):
        self.host[seek : seek + len(data)] = data

    def read(self, size, skip):
        return np.frombuffer(self.host, "i1")[skip : skip + size]

    def sync(self, direction, size, offset):
        if self.gone:
            raise RuntimeError("sync failed: Input/output error")
        part = slice(offset, offset + size)
        if direction is Direction.XCL_BO_SYNC_BO_TO_DEVICE:
            self.card[part] = self.host[part]
        else:
            self.host[part] = self.card[part]


class Kernel:
    def __init__(self, device, uuid, name):
        assert (uuid, name) == ("uuid", DESCRIPTION.top)

    def group_id(self, index):
        return 100 + index


class Run:
    ends = State.ERT_CMD_STATE_COMPLETED
    running = False

    def __init__(self, kernel):
        self.arguments = {}

    def set_arg(self, index, value):
        if isinstance(value, Bo):
            assert value.group == 100 + index, "a buffer of another argument's memory group"
        else:
            assert type(value) is int and 0 <= value < 2**31, "not a C int"
        self.arguments[index] = value

    def start(self):
        if self.running:
            raise RuntimeError("bad command state, can't launch")
        assert set(self.arguments) >= {NAMES.index("tiles"), NAMES.index("data0")}
        source = self.arguments[NAMES.index("data0")].card
        source[64:128] = bytes(b ^ 0xFF for b in source[:64])

    def state(self):
        return self.ends

    def wait(self, milliseconds):
        assert type(milliseconds) is int and milliseconds > 0, "0 waits for ever"
        if Bo.gone:
            raise RuntimeError("failed to wait: No such device")
        self.running = self.ends is State.ERT_CMD_STATE_TIMEOUT
        return self.ends


class Card:
    loads = 0

    def __init__(self, index):
        if index or Bo.gone:
            raise RuntimeError("no such device")

    def load_xclbin(self, path):
        Card.loads += 1
        return "uuid"


@pytest.fixture
def pyxrt(monkeypatch):
    module = ModuleType("pyxrt")
    for name, value in (
        ("device", Card),
        ("kernel", Kernel),
        ("run", Run),
        ("bo", Bo),
        ("ert_cmd_state", State),
        ("xclBOSyncDirection", Direction),
    ):
        setattr(module, name, value)
    monkeypatch.setitem(sys.modules, "pyxrt", module)
    monkeypatch.setattr(Card, "loads", 0)


@pytest.fixture
def binary(tmp_path):
    file = tmp_path / "a.xclbin"
    file.write_bytes(linked(DESCRIPTION))
    return file


def test_run(pyxrt, binary):
    with board(binary, DESCRIPTION) as device:
        data = device.allocate("data0")
        data.write(bytes(range(64)))
        device.set_scalar("tiles", 1)
        device.start()
        device.wait()
        assert data.read(128) == bytes(range(64)) + bytes(b ^ 0xFF for b in range(64))
        assert Card.loads == 1


def test_timeout_then_reset(pyxrt, monkeypatch, binary):
    with board(binary, DESCRIPTION) as device:
        device.set_scalar("tiles", 1)
        device.allocate("data0").write(b"kept", 60)
        monkeypatch.setattr(Run, "ends", State.ERT_CMD_STATE_TIMEOUT)
        device.start()
        with pytest.raises(DeviceTimeoutError, match=r"^not done after 1e-06 s$"):
            device.wait(1e-6)
        monkeypatch.setattr(xrt, "_PATIENCE", 0.01)
        device.reset()
        monkeypatch.setattr(Run, "ends", State.ERT_CMD_STATE_COMPLETED)
        assert Card.loads == 2
        assert device.allocate("data0").read(4, 60) == b"kept"
        device.start()
        device.wait()


def test_a_core_that_cannot_be_reset_is_loaded_anew(pyxrt, binary):
    """The error explains a run without a status block."""
    with board(binary, DESCRIPTION) as device:
        device.set_scalar("tiles", 1)
        device.allocate("data0").write(b"kept", 60)
        device.reset()
        assert Card.loads == 1
        device.hung = True
        device.reset()
        assert Card.loads == 2 and not device.hung
        assert device.allocate("data0").read(4, 60) == b"kept"


def test_a_run_that_ends_late_is_waited_for(pyxrt, monkeypatch, binary):
    """The design stays on the board."""
    with board(binary, DESCRIPTION) as device:
        device.set_scalar("tiles", 1)
        device.allocate("data0")
        monkeypatch.setattr(Run, "ends", State.ERT_CMD_STATE_TIMEOUT)
        device.start()
        with pytest.raises(DeviceTimeoutError):
            device.wait(1e-6)
        monkeypatch.setattr(Run, "ends", State.ERT_CMD_STATE_COMPLETED)
        device.reset()
        assert Card.loads == 1


def test_two_runs_in_flight(pyxrt, binary):
    """Each run has its own buffers and scalars."""
    with board(binary, DESCRIPTION) as device:
        for slot in range(2):
            device.allocate("data0", slot).write(bytes([slot] * 64))
            device.set_scalar("tiles", 1 + slot, slot)
            device.start(slot)
        for slot in range(2):
            device.wait(slot=slot)
            assert device.allocate("data0", slot).read(128) == bytes([slot] * 64 + [slot ^ 0xFF] * 64)
        runs = [run.arguments[NAMES.index("tiles")] for run in device._runs.values()]
        assert runs == [1, 2] and device.allocate("data0", 0) is not device.allocate("data0", 1)


def test_error_state(pyxrt, monkeypatch, binary):
    monkeypatch.setattr(Run, "ends", State.ERT_CMD_STATE_ERROR)
    with board(binary, DESCRIPTION) as device:
        device.set_scalar("tiles", 1)
        device.allocate("data0")
        device.start()
        with pytest.raises(DeviceError, match=r"^XRT ended the run in state State.ERT_CMD_STATE_ERROR$"):
            device.wait()


def test_a_board_that_is_lost_in_a_run(pyxrt, monkeypatch, binary):
    """The error has XRT's message, all objects of the board are released, and opening it again loads it
    again."""
    with board(binary, DESCRIPTION) as device, board(binary, DESCRIPTION) as other:
        device.set_scalar("tiles", 1)
        data = device.allocate("data0")
        device.start()
        monkeypatch.setattr(Bo, "gone", True)
        with pytest.raises(
            DeviceError, match="the board stopped answering during a run: failed to wait: No such device"
        ):
            device.wait()
        with pytest.raises(DeviceError, match=r"^buffer 'data0' cannot be written: sync failed: Input"):
            data.write(b"lost")
        assert not device.lost
        with pytest.raises(DeviceError, match=r"^buffer 'data0' cannot be read: sync failed"):
            device.reset()
        assert device.lost and other.lost and data.object is None
        with pytest.raises(DeviceError, match=r"^board 0 cannot load .*: no such device$"):
            board(binary, DESCRIPTION)
        monkeypatch.setattr(Bo, "gone", False)
        with board(binary, DESCRIPTION) as again:
            again.set_scalar("tiles", 1)
            again.allocate("data0").write(bytes(64))
            again.start()
            again.wait()
            assert not again.lost and device.lost and Card.loads == 2


def test_memory_that_kernels_do_not_reach(pyxrt, monkeypatch, binary):
    """Pointers of descriptors have 40 bits."""
    with board(binary, DESCRIPTION) as device:
        monkeypatch.setattr(Bo, "place", (1 << 40) - device.manifest.buffers[0].bytes)
        device.allocate("data0")
        monkeypatch.setattr(Bo, "place", 1 << 40)
        with pytest.raises(
            DeviceError,
            match=r"^buffer 'data1' of \d+ bytes lies at 0x10000000000 on the board, but kernels only reach "
            r"addresses below 0x10000000000$",
        ):
            device.allocate("data1")


def test_what_the_board_refuses(pyxrt, binary):
    with pytest.raises(DeviceError, match=r"^board 1 cannot load .*a.xclbin: no such device$"):
        board(binary, DESCRIPTION, index=1)
    large = manifest(2, beats=1 << 20)
    binary.write_bytes(linked(large))
    with board(binary, large) as device:
        with pytest.raises(
            DeviceError,
            match=r"^buffer 'data1' of 134217728 bytes cannot be allocated: failed to allocate bo$",
        ):
            device.allocate("data1")
        with pytest.raises(ValueError, match="is -1; 0 to 2147483647 are allowed"):
            device.set_scalar("tiles", -1)


def test_without_pyxrt(monkeypatch, binary):
    monkeypatch.setitem(sys.modules, "pyxrt", None)
    monkeypatch.setattr(xrt_c, "LIBRARY", "libnone.so")
    xrt_c._library.cache_clear()
    with pytest.raises(MissingToolError) as error:
        board(binary, DESCRIPTION)
    assert (
        str(error.value)
        == "a board needs pyxrt or libnone.so: install XRT, then source /opt/xilinx/xrt/setup.sh"
    )
