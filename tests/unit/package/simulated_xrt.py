"""A `pyxrt` whose card is the simulated device of a package, linked as the package says.

Kernel arguments have the names and ports of kernel.xml, buffers lie in the banks of link.cfg, and a kernel
reaches no others. What the real one does silently or not at all is an assertion here.
"""

import weakref
from collections import deque
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from streamgen.package.emulation.process import EmulatedKernel
from streamgen.runtime import card as cards
from streamgen.runtime.simulator import SimulatedBuffer, SimulatedCard, simulated
from tests.unit.package.packages import banks_of, build_of, kernel_of, manifest_of

NAMES = ("NEW", "RUNNING", "COMPLETED", "ERROR", "ABORT", "NORESPONSE")
State = Enum("State", [f"ERT_CMD_STATE_{name}" for name in NAMES])
Direction = Enum("Direction", ["XCL_BO_SYNC_BO_TO_DEVICE", "XCL_BO_SYNC_BO_FROM_DEVICE"])
CONTROL, START, CONTINUE, DONE = 0, b"\1\0\0\0", b"\x10\0\0\0", 2


class Card:
    """A card. It holds one binary until all handles of it are gone."""

    loaded: "Callable[[], Card | None]" = staticmethod(lambda: None)

    def __init__(self, index: int) -> None:
        if index:
            raise RuntimeError("no such device")

    def load_xclbin(self, path: str) -> str:
        assert Card.loaded() is None, "another design is in use"
        Card.loaded, self.folder = weakref.ref(self), Path(path).parents[1]
        assert Path(path).read_bytes() == build_of(self.folder)
        self.kernels = {kernel.name: kernel for kernel in cards.Card.read(self.folder).kernels}
        manifests = {name: manifest_of(self.folder / kernel.folder) for name, kernel in self.kernels.items()}
        self.simulated = SimulatedCard(next(iter(manifests.values())).board)
        self.hardware: dict[str, EmulatedKernel] = {}
        for name, manifest in manifests.items():
            device = simulated(self.folder / self.kernels[name].folder, manifest, card=self.simulated)
            banks = Kernel(self, "uuid", name).banks
            places = {key: int(bank.removeprefix("HBM[").removesuffix("]")) for key, bank in banks.items()}
            self.hardware[name] = EmulatedKernel(device, places)
        self.lines: dict[str, deque[Run]] = {name: deque() for name in manifests}
        return "uuid"

    def __del__(self) -> None:
        for kernel in getattr(self, "hardware", {}).values():
            kernel.device.close()


class Kernel:
    def __init__(self, card: Card, uuid: str, name: str) -> None:
        assert uuid == "uuid" and name in card.kernels
        described = kernel_of(card.folder / card.kernels[name].folder)
        self.card, self.name = card, name
        self.names = [argument.get("name", "") for argument in described.iter("arg")]
        self.offsets = [int(argument.get("offset", ""), 0) for argument in described.iter("arg")]
        linked_banks = banks_of(card.folder, name)
        ports = {argument.get("name", ""): argument.get("port", "") for argument in described.iter("arg")}
        known = {
            argument: linked_banks.get(argument, linked_banks.get(port)) for argument, port in ports.items()
        }
        self.banks = {argument: bank for argument, bank in known.items() if bank is not None}

    def group_id(self, index: int) -> int:
        bank = self.banks[self.names[index]]  # a scalar has no memory
        return int(bank.removeprefix("HBM[").removesuffix("]"))


class Bo:
    normal = "normal"
    syncs: "list[Bo]" = []

    def __init__(self, card: Card, size: int, flags: str, group: int) -> None:
        assert flags == Bo.normal
        region = card.simulated.banks.allocate(group, size)
        for kernel in card.hardware.values():
            kernel.attach(region)
        self.host, self.memory, self.group = bytearray(size), SimulatedBuffer(card.simulated, region), group

    def address(self) -> int:
        return self.memory.address

    def write(self, data: bytes, seek: int) -> None:
        self.host[seek : seek + len(data)] = data

    def read(self, size: int, skip: int) -> np.ndarray:
        return np.frombuffer(bytes(self.host[skip : skip + size]), "i1")

    def sync(self, direction: Direction, size: int, offset: int) -> None:
        Bo.syncs.append(self)
        part = slice(offset, offset + size)
        if direction is Direction.XCL_BO_SYNC_BO_TO_DEVICE:
            self.memory.write(bytes(self.host[part]), offset)
        else:
            self.host[part] = self.memory.read(size, offset)


class Run:
    """A run. Started runs of a kernel queue, as in XRT; kernels run in parallel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.values = kernel, dict[int, bytes]()

    @property
    def line(self) -> "deque[Run]":
        return self.kernel.card.lines[self.kernel.name]

    @property
    def hardware(self) -> EmulatedKernel:
        return self.kernel.card.hardware[self.kernel.name]

    def set_arg(self, index: int, value: Any) -> None:
        offset = self.kernel.offsets[index]
        if isinstance(value, Bo):
            assert value.group == self.kernel.group_id(index), "a buffer in another bank than its port's"
            self.values[offset] = value.memory.address.to_bytes(8, "little")
        else:
            assert type(value) is int and 0 <= value < 2**31, "not a C int"
            self.values[offset] = value.to_bytes(4, "little")

    def start(self) -> None:
        assert self not in self.line, "it is under way"
        self.line.append(self)
        if self.line[0] is self:
            self._launch()

    def state(self) -> State:
        return State["ERT_CMD_STATE_RUNNING" if self in self.line else "ERT_CMD_STATE_COMPLETED"]

    def wait(self, milliseconds: int) -> State:
        assert type(milliseconds) is int and milliseconds > 0, "0 waits for ever"
        for line in self.kernel.card.lines.values():
            if line and line[0].hardware.read(CONTROL, 4, {})[0] & DONE:
                line.popleft().hardware.write(CONTROL, CONTINUE)
                if line:
                    line[0]._launch()
        return self.state()

    def _launch(self) -> None:
        for offset, value in self.values.items():
            self.hardware.write(offset, value)
        self.hardware.write(CONTROL, START)


def module() -> ModuleType:
    """The module that `import pyxrt` returns."""
    simulated_module = ModuleType("pyxrt")
    for name, value in (("device", Card), ("kernel", Kernel), ("run", Run), ("bo", Bo)):
        setattr(simulated_module, name, value)
    simulated_module.ert_cmd_state, simulated_module.xclBOSyncDirection = State, Direction  # type: ignore[attr-defined]
    return simulated_module
