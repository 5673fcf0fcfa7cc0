"""The device process that XRT starts in the unpacked bitstream: `-m streamgen.package.emulation.process`.

The process answers XRT's requests with the kernels of a simulated card until XRT closes the device or the
connection. Simulated time passes while the host polls a run, for all runs under way. The host chooses the
addresses of buffers in the banks of the card. If STREAMGEN_RUNS names a file, each run appends a line to it:
the kernel, and the first and the last cycle of the run, in cycles of the card.
"""

import os
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from streamgen.artifact.manifest import Manifest, StatusBlock
from streamgen.artifact.written import MANIFEST
from streamgen.base.errors import DeviceError
from streamgen.package.emulation.binary import BASE, LIBRARY, REGISTERS
from streamgen.package.emulation.messages import Call, Value, decoded, encoded, receive, send
from streamgen.runtime.banks import Region
from streamgen.runtime.card import Card
from streamgen.runtime.instruments import Instruments
from streamgen.runtime.memory import MemoryModel
from streamgen.runtime.simulator import (
    CONTROL,
    DONE,
    START,
    SimulatedBuffer,
    SimulatedCard,
    SimulatedDevice,
)

RUNS = "STREAMGEN_RUNS"
PATIENCE = 60.0  # seconds to wait until XRT listens
POLL_CYCLES = 1 << 10  # cycles that pass each time the host reads the control register


class EmulatedKernel:
    """A kernel of the card. banks: the bank of each of its buffers. log: file for a line about each run."""

    def __init__(self, device: SimulatedDevice, banks: Mapping[str, int], log: Path | None = None) -> None:
        self.device, self._log, self._running, self._start = device, log, False, 0
        channels = {info.name: info.channel for info in device.manifest.buffers}
        self._reach = {(channels[name], bank) for name, bank in banks.items()}

    def attach(self, region: Region) -> None:
        """Give a region of memory to the masters that are connected to its bank."""
        bank = region.address // self.device.card.banks.size
        for channel, own in self._reach:
            if own == bank:
                self.device.attach(channel, region)

    def detach(self, region: Region) -> None:
        """Take a region away from the masters that are connected to its bank."""
        bank = region.address // self.device.card.banks.size
        for channel, own in self._reach:
            if own == bank:
                self.device.detach(channel, region)

    def write(self, offset: int, data: bytes) -> None:
        """Write registers, word by word."""
        for place in range(0, len(data), 4):
            value = int.from_bytes(data[place : place + 4], "little")
            if offset + place == CONTROL and value & START:
                self._running, self._start = True, self.device.time
            self.device.write_register(offset + place, value)

    def read(self, offset: int, size: int, regions: Mapping[int, SimulatedBuffer]) -> bytes:
        """Read registers, word by word. A run proceeds when its control register is read."""
        polled = self._running and offset == CONTROL
        if polled:
            self.device.advance(POLL_CYCLES)
        words = [self.device.read_register(offset + place) for place in range(0, size, 4)]
        if polled and words[0] & DONE:
            self._running = False
            self._note(regions)
        return b"".join(word.to_bytes(4, "little") for word in words)

    def _note(self, regions: Mapping[int, SimulatedBuffer]) -> None:
        """Append the cycles of the run that has just ended to the log."""
        if self._log is None:
            return
        manifest = self.device.manifest
        (status,) = (info for info in manifest.buffers if info.role == "status")
        (offset,) = (argument.offset for argument in manifest.arguments if argument.name == status.name)
        low, high = (self.device.read_register(offset + place) for place in (0, 4))
        address = high << 32 | low
        if (buffer := regions.get(address)) is None:
            return
        try:
            block = StatusBlock.unpack(buffer.read(manifest.status_bytes), len(manifest.counters))
        except ValueError:  # a reset writes no status block
            return
        with self._log.open("a") as file:
            file.write(f"{manifest.top} {self._start} {self._start + block.cycles}\n")


class EmulatedCard:
    """Answers XRT's requests with a simulated card. kernels: in the order of their registers."""

    def __init__(self, card: SimulatedCard, kernels: Sequence[EmulatedKernel]) -> None:
        self._card, self._kernels = card, kernels
        self._regions: dict[int, SimulatedBuffer] = {}

    def answer(self, call: int, request: dict[int, Value]) -> dict[int, Value]:
        """Reply to a request. Request and reply hold fields by number. Raises DeviceError for an unknown call
        or an address without a register or buffer."""
        number = {key: value for key, value in request.items() if isinstance(value, int)}
        match call:
            case Call.ALLOCATE:
                return {1: self._allocate(number.get(1, 0), number.get(2, 0))}
            case Call.FREE:
                if (buffer := self._regions.pop(number.get(1, 0), None)) is not None:
                    for kernel in self._kernels:
                        kernel.detach(buffer.region)
                return {1: 1}
            case Call.WRITE_MEMORY:
                data = request.get(4, b"")
                assert isinstance(data, bytes)
                address = number.get(3, 0) + number.get(6, 0)
                region = self._region(address, len(data))
                region.write(data, address - region.address)
                return {1: len(data)}
            case Call.READ_MEMORY:
                address, size = number.get(4, 0) + number.get(6, 0), number.get(5, 0)
                region = self._region(address, size)
                return {1: size, 2: region.read(size, address - region.address)}
            case Call.WRITE_REGISTER:
                kernel, offset = self._register(number.get(2, 0))
                data = request.get(4, b"")
                assert isinstance(data, bytes)
                kernel.write(offset, data)
                return {1: 1}
            case Call.READ_REGISTER:
                kernel, offset = self._register(number.get(2, 0))
                return {1: 1, 2: kernel.read(offset, number.get(3, 4), self._regions)}
            case Call.TIME:
                return {1: time.monotonic_ns()}
            case Call.MESSAGES:
                return {}
            case Call.ENVIRONMENT | Call.SET_UP | Call.CLOSE:
                return {1: 1}
        raise DeviceError(f"XRT made the unknown call {call}")

    def _register(self, address: int) -> tuple[EmulatedKernel, int]:
        number, offset = divmod(address - BASE, REGISTERS)
        if not 0 <= number < len(self._kernels):
            raise DeviceError(f"no kernel has a register at {address:#x}")
        return self._kernels[number], offset

    def _allocate(self, address: int, size: int) -> int:
        try:
            region = self._card.banks.place(address, size)
        except DeviceError as error:
            print(error, file=sys.stderr)
            return 0
        for kernel in self._kernels:
            kernel.attach(region)
        self._regions[address] = SimulatedBuffer(self._card, region)
        return 1

    def _region(self, address: int, size: int) -> SimulatedBuffer:
        for region in self._regions.values():
            if region.address <= address and address + size <= region.address + region.size:
                return region
        raise DeviceError(f"no buffer has {size} bytes at {address:#x}")


def serve(connection: socket.socket, card: EmulatedCard) -> None:
    """Answer requests until XRT closes the device. Raises DeviceError and ValueError for a request that
    cannot be answered."""
    while (request := receive(connection)) is not None:
        call, record = request
        send(connection, encoded(card.answer(call, decoded(record))))
        if call == Call.CLOSE:
            return


def main() -> None:
    """Answer requests on the socket that the environment variable EMULATION_SOCKETID names."""
    linked = Card.read(Path())
    manifests = [Manifest.from_json(Path(kernel.name, MANIFEST).read_text()) for kernel in linked.kernels]
    card, log = SimulatedCard(manifests[0].board), os.environ.get(RUNS)
    with ExitStack() as stack:
        kernels = []
        for kernel, manifest in zip(linked.kernels, manifests, strict=True):
            library, memory = Path(kernel.name, LIBRARY).resolve(), MemoryModel()
            device = SimulatedDevice(library, manifest, memory, Instruments(), card)
            stack.enter_context(device)
            kernels.append(EmulatedKernel(device, kernel.banks, None if log is None else Path(log)))
        serve(stack.enter_context(_connected()), EmulatedCard(card, kernels))


def _connected() -> socket.socket:
    """Connect to XRT, and wait until it listens."""
    path = Path(tempfile.gettempdir(), os.environ.get("USER", ""), os.environ["EMULATION_SOCKETID"])
    until = time.monotonic() + PATIENCE
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(path))
            return connection
        except OSError as error:
            connection.close()
            if time.monotonic() > until:
                raise DeviceError(f"XRT does not listen at {path}: {error}") from error
            time.sleep(0.05)


if __name__ == "__main__":
    main()
