"""An instance of a built simulator. Between two runs, another simulator of the same design can replace it."""

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streamgen.artifact.manifest import MemoryPort
from streamgen.runtime.banks import Region
from streamgen.runtime.driver import ChannelModel, declared
from streamgen.runtime.instruments import Instruments
from streamgen.runtime.memory import Fault, MemoryModel
from streamgen.runtime.verilator import load


class Core:
    """An instance of the simulator `library`. Memory channels are the channels of the design's `ports`."""

    def __init__(self, library: Path, ports: Sequence[MemoryPort], instruments: Instruments) -> None:
        self._instruments = instruments
        self._masters = {port.channel: i for i, port in enumerate(ports)}
        self._models: dict[int, MemoryModel] = {}
        self._reached: dict[tuple[int, int], Region] = {}
        self._faults: dict[tuple[int, int], Fault] = {}
        self._before = (
            0,
            dict.fromkeys(self._masters, (0, 0)),
        )  # cycles and traffic of the replaced simulators
        self._handle = None
        self._create(library)

    def do(self, name: str, *arguments: Any) -> Any:
        """Call the function `device_<name>` of device.cpp."""
        return getattr(self._library, f"device_{name}")(self._handle, *arguments)

    @property
    def cycles(self) -> int:
        """Cycles simulated so far."""
        return self._before[0] + int(self.do("cycles"))

    def traffic(self, channel: int) -> tuple[int, int]:
        """Beats read and beats written so far."""
        counts = ctypes.c_uint64(), ctypes.c_uint64()
        self.do("traffic", self._masters[channel], *counts)
        read, written = self._before[1][channel]
        return read + counts[0].value, written + counts[1].value

    def moved(self) -> int:
        """Beats read and written so far, on all channels."""
        return sum(sum(self.traffic(channel)) for channel in self._masters)

    def configure(self, channel: int, memory: MemoryModel) -> None:
        """Give a channel another model, which must have a rate and a latency. Transactions under way on the
        channel are dropped."""
        rate, latency, waiting = memory.rate, memory.latency, memory.outstanding
        assert rate is not None and latency is not None
        self._models[channel] = memory
        model = ChannelModel(rate.numerator, rate.denominator, latency, waiting, memory.delays, memory.seed)
        self.do("configure", self._masters[channel], model)

    def attach(self, channel: int, region: Region) -> None:
        """Let the master of a channel access a region of memory."""
        self._reached[channel, region.address] = region
        self.do("attach", self._masters[channel], region.address, region.pointer, region.size)

    def detach(self, channel: int, region: Region) -> None:
        """Stop the access of the master of a channel to a region."""
        self._reached.pop((channel, region.address), None)
        self.do("detach", self._masters[channel], region.address)

    def inject(self, channel: int, address: int, fault: Fault | None) -> None:
        """Inject a fault into the beat at an address; None removes the fault."""
        self._faults.pop((channel, address), None)
        if fault is not None:
            self._faults[channel, address] = fault
            effect = fault.response, fault.delay, fault.reads, fault.writes
        else:
            effect = 0, 0, False, False
        self.do("inject", self._masters[channel], address, *effect)

    def join(self, other: "Core") -> None:
        """Share the clock of another simulator from now on."""
        self.do("join", other.do("clock"))

    @property
    def replaceable(self) -> bool:
        """Whether another simulator would give the same cycles. Random delays would start again."""
        return not any(memory.delays for memory in self._models.values())

    def replace(self, library: Path) -> None:
        """Continue in another simulator of the design, which is not reset yet. Memory and counts are kept."""
        self._before = self.cycles, {channel: self.traffic(channel) for channel in self._masters}
        old, gone, maker = self._library, self._handle, self._maker
        self._create(library)
        self.do("join", old.device_clock(gone))
        if maker == os.getpid():
            old.device_destroy(gone)
        for channel, memory in self._models.items():
            self.configure(channel, memory)
        for (channel, _), region in self._reached.items():
            self.attach(channel, region)
        for (channel, address), fault in tuple(self._faults.items()):
            self.inject(channel, address, fault)

    def close(self) -> None:
        """Destroy the simulator. A forked process keeps its copy: the threads that would have to end for it
        exist only in the parent."""
        if self._handle and self._maker == os.getpid():
            self.do("destroy")
        self._handle = None

    def _create(self, library: Path) -> None:
        self._library = declared(load(library), self._instruments)
        self._handle = self._library.device_create()
        self._maker = os.getpid()
