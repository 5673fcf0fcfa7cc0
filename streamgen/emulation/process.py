"""The device process that XRT starts: `python -m streamgen.emulation.process`, in the unpacked bitstream.

It answers XRT's requests with the simulated device until XRT closes it or goes away. Time passes while the
host polls a run; memory is where the host allocates it, in the banks of the card.
"""

import os
import socket
import sys
import tempfile
import time
from pathlib import Path

from streamgen.emulation.binary import BASE, LIBRARY, MANIFEST
from streamgen.emulation.messages import Call, Value, decoded, encoded, receive, send
from streamgen.errors import DeviceError
from streamgen.manifest import Manifest
from streamgen.runtime.instruments import Instruments
from streamgen.runtime.memory import MemoryModel
from streamgen.runtime.simulator import CONTROL, START, SimulatedBuffer, SimulatedDevice

__all__ = ["EmulatedCard", "main", "serve"]

PATIENCE = 60.0  # seconds for XRT to listen
POLL_CYCLES = 1 << 14  # that pass while the host reads the control register once


class EmulatedCard:
    """What XRT asks of a device, done by a simulated one."""

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self._regions: dict[int, SimulatedBuffer] = {}
        self._running = False

    def answer(self, call: int, request: dict[int, Value]) -> dict[int, Value]:
        """The reply to a request, both by the numbers of their fields."""
        number = {key: value for key, value in request.items() if isinstance(value, int)}
        match call:
            case Call.ALLOCATE:
                return {1: self._allocate(number.get(1, 0), number.get(2, 0))}
            case Call.FREE:
                if (region := self._regions.pop(number.get(1, 0), None)) is not None:
                    self._device.release(region)
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
                self._write(number.get(2, 0) - BASE, request.get(4, b""))
                return {1: 1}
            case Call.READ_REGISTER:
                return {1: 1, 2: self._read(number.get(2, 0) - BASE, number.get(3, 4))}
            case Call.TIME:
                return {1: time.monotonic_ns()}
            case Call.MESSAGES:
                return {}
            case Call.ENVIRONMENT | Call.SET_UP | Call.CLOSE:
                return {1: 1}
        raise DeviceError(f"XRT asks for call {call}, which is not known here")

    def _allocate(self, address: int, size: int) -> int:
        try:
            self._regions[address] = self._device.reserve(address, size)
        except DeviceError as error:
            print(error, file=sys.stderr)
            return 0
        return 1

    def _region(self, address: int, size: int) -> SimulatedBuffer:
        for region in self._regions.values():
            if region.address <= address and address + size <= region.address + region.size:
                return region
        raise DeviceError(f"no buffer holds {size} bytes at {address:#x}")

    def _write(self, offset: int, data: Value) -> None:
        assert isinstance(data, bytes)
        for place in range(0, len(data), 4):
            value = int.from_bytes(data[place : place + 4], "little")
            self._device.write_register(offset + place, value)
            if offset + place == CONTROL and value & START:
                self._running = True

    def _read(self, offset: int, size: int) -> bytes:
        if self._running and offset == CONTROL:
            self._running = not self._device.advance(POLL_CYCLES)
        return b"".join(
            self._device.read_register(offset + place).to_bytes(4, "little") for place in range(0, size, 4)
        )


def serve(connection: socket.socket, card: EmulatedCard) -> None:
    """Answer until XRT closes the device. DeviceError and ValueError for what cannot be answered."""
    while (request := receive(connection)) is not None:
        call, record = request
        send(connection, encoded(card.answer(call, decoded(record))))
        if call == Call.CLOSE:
            return


def main() -> None:
    """Answer the XRT whose socket the environment names."""
    manifest = Manifest.from_json(Path(MANIFEST).read_text())
    memory = MemoryModel.of(manifest.memory)
    with (
        SimulatedDevice(Path(LIBRARY).resolve(), manifest, memory, Instruments()) as device,
        _connected() as connection,
    ):
        serve(connection, EmulatedCard(device))


def _connected() -> socket.socket:
    """A connection to XRT, which may not listen yet."""
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
