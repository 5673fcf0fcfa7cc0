"""Memory clients and one channel master, wired as a top would."""

from random import Random
from typing import Any

from amaranth import Module, ResetInserter, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from sim.memory import Channel
from streamgen.artifact.packing import ADDRESS_BITS
from streamgen.platform.axi import AxiSignature
from streamgen.platform.boards import DEFAULT_BOARD
from streamgen.platform.master import ChannelMasterParams
from streamgen.runtime.memory import MemoryModel

BASE = 0x4_0000_0000


class Rig(wiring.Component):
    """readers, writers: components with a port `memory`. Streams are reached through the components."""

    halt: In(1)
    core_reset: In(1)
    idle: Out(1)
    error: Out(1)
    activity: Out(1)
    m_axi: Out(AxiSignature())

    def __init__(self, readers: list[Any], writers: list[Any]) -> None:
        self.readers, self.writers = readers, writers
        super().__init__()

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        params = ChannelMasterParams(readers=len(self.readers), writers=len(self.writers))
        core = Module()
        core.submodules.master = master = params.build()
        for kind, clients in (("read", self.readers), ("write", self.writers)):
            for k, client in enumerate(clients):
                core.submodules[f"{kind}_{k}"] = client
                wiring.connect(core, client.memory, getattr(master, f"{kind}_{k}"))
        m.submodules.core = ResetInserter(self.core_reset)(core)
        wiring.connect(m, wiring.flipped(self.m_axi), master.m_axi)
        m.d.comb += [
            master.halt.eq(self.halt),
            self.idle.eq(master.idle),
            self.error.eq(master.error),
            self.activity.eq(master.activity),
        ]
        return m


class Pulses:
    """Counts the cycles in which a signal is high, and expects `count` of them."""

    def __init__(self, name: str, signal: Signal, count: int) -> None:
        self.name, self.signals, self.count = name, [signal], count
        self.cycles: list[int] = []

    def step(self, cycle: int, values: Any, drive: Any) -> bool:
        if values[0]:
            self.cycles.append(cycle)
        return bool(values[0])

    def left(self) -> str:
        missing = self.count - len(self.cycles)
        return f"{missing} pulses" if missing > 0 else ""


def content(random: Random, beats: int) -> bytearray:
    return bytearray(random.randbytes(64 * beats))


def channel(buffers: dict[int, bytearray], **model: Any) -> Channel:
    hbm = DEFAULT_BOARD.hbm
    timing = {"rate": hbm.beats_per_cycle(DEFAULT_BOARD.clock_mhz), "latency": hbm.latency}
    return Channel(MemoryModel(**timing | model), 0, buffers)


def beats_of(buffer: bytes, first: int, count: int) -> list[int]:
    return [int.from_bytes(buffer[64 * k : 64 * k + 64], "little") for k in range(first, first + count)]


def command(address: int, beats: int) -> int:
    return address | beats << ADDRESS_BITS
