"""A `pyxrt` whose card is the simulated device of a package, linked as the package says.

Kernel arguments have the names and ports of its kernel.xml, buffers lie in the banks of its link.cfg. What
the real one does silently or not at all is an assertion here.
"""

import weakref
from collections import deque
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from streamgen.runtime.device import Device
from streamgen.runtime.simulator import simulated
from tests.package.packages import banks_of, kernel_of, linked, manifest_of

State = Enum("State", [f"ERT_CMD_STATE_{name}" for name in ("COMPLETED", "ERROR", "ABORT", "NORESPONSE")])
Direction = Enum("Direction", ["XCL_BO_SYNC_BO_TO_DEVICE", "XCL_BO_SYNC_BO_FROM_DEVICE"])


class Card:
    """It holds one design, until nobody has a handle of it any more."""

    loaded: "Callable[[], Card | None]" = staticmethod(lambda: None)

    def __init__(self, index: int) -> None:
        if index:
            raise RuntimeError("no such device")

    def load_xclbin(self, path: str) -> str:
        assert Card.loaded() is None, "another design is in use"
        self.line: deque[Run] = deque()
        Card.loaded, self.folder = weakref.ref(self), Path(path).parents[1]
        assert Path(path).read_bytes() == linked(manifest_of(self.folder))
        self.device: Device = simulated(self.folder, manifest_of(self.folder))
        return "uuid"

    def __del__(self) -> None:
        if hasattr(self, "device"):
            self.device.close()


class Kernel:
    def __init__(self, card: Card, uuid: str, name: str) -> None:
        kernel = kernel_of(card.folder)
        assert (uuid, name) == ("uuid", kernel.get("name"))
        self.card = card
        self.names = [argument.get("name", "") for argument in kernel.iter("arg")]
        banks = banks_of(card.folder)
        self.banks = [banks.get(argument.get("port", "")) for argument in kernel.iter("arg")]

    def group_id(self, index: int) -> int:
        bank = self.banks[index]
        assert bank is not None, "a scalar has no memory"
        return int(bank.removeprefix("HBM[").removesuffix("]"))


class Bo:
    normal = "normal"

    def __init__(self, card: Card, size: int, flags: str, group: int) -> None:
        assert flags == Bo.normal
        self.host, self.memory, self.group = bytearray(size), bytearray(size), group

    def write(self, data: bytes, seek: int) -> None:
        self.host[seek : seek + len(data)] = data

    def read(self, size: int, skip: int) -> np.ndarray:
        return np.frombuffer(bytes(self.host[skip : skip + size]), "i1")

    def sync(self, direction: Direction, size: int, offset: int) -> None:
        part = slice(offset, offset + size)
        if direction is Direction.XCL_BO_SYNC_BO_TO_DEVICE:
            self.memory[part] = self.host[part]
        else:
            self.host[part] = self.memory[part]


class Run:
    """Runs that are started wait in line, as in XRT."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.buffers, self.scalars = kernel, dict[str, Bo](), dict[str, int]()

    def set_arg(self, index: int, value: Any) -> None:
        name = self.kernel.names[index]
        if isinstance(value, Bo):
            assert value.group == self.kernel.group_id(index), "a buffer in another bank than its port's"
            self.buffers[name] = value
        else:
            assert type(value) is int and 0 <= value < 2**31, "not a C int"
            self.scalars[name] = value

    def start(self) -> None:
        assert self not in self.kernel.card.line, "it is under way"
        self.kernel.card.line.append(self)

    def wait(self, milliseconds: int) -> State:
        assert type(milliseconds) is int and milliseconds > 0, "0 waits for ever"
        line = self.kernel.card.line
        while self in line:
            line[0]._run(milliseconds / 1000)
            line.popleft()
        return State["ERT_CMD_STATE_COMPLETED"]

    def _run(self, timeout: float) -> None:
        device = self.kernel.card.device
        channels = {info.name: info.channel for info in manifest_of(self.kernel.card.folder).buffers}
        for name, value in self.scalars.items():
            device.set_scalar(name, value)
        for name, buffer in self.buffers.items():
            assert buffer.group == channels[name]
            device.allocate(name).write(bytes(buffer.memory))
        device.start()
        device.wait(timeout)
        for name, buffer in self.buffers.items():
            buffer.memory[:] = device.allocate(name).read()


def module() -> ModuleType:
    """As `import pyxrt` gives it."""
    made = ModuleType("pyxrt")
    for name, value in (("device", Card), ("kernel", Kernel), ("run", Run), ("bo", Bo)):
        setattr(made, name, value)
    made.ert_cmd_state, made.xclBOSyncDirection = State, Direction  # type: ignore[attr-defined]
    return made
