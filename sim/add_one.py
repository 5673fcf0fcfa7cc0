"""A small kernel with the pins of a Vitis RTL kernel, to test the runtime without the compiler.

Every channel c copies `count` beats from pointer c to pointer c + `count` beats rounded up to 64, and
adds `step` to each 32-bit lane on the way. The registers are those of its manifest; `tiles` is the count
of beats, `command` 0 and 1 do the same. Behind them: cycles from start to done, error responses seen.
"""

from enum import IntEnum

from amaranth import Cat, ClockDomain, ClockSignal, Module, Mux, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from streamgen.artifact.manifest import BoardFacts, Buffer, Manifest, MemoryPort, MemoryTiming
from streamgen.artifact.phase_table import Descriptor, PhaseTable, TableSection

__all__ = ["CYCLES", "ERRORS", "AddOne", "Breach", "manifest"]

CYCLES, ERRORS = 0x400, 0x404
BURST, DEPTH = 64, 256

LITE = {
    "awaddr": Out(12), "awvalid": Out(1), "awready": In(1), "wdata": Out(32), "wstrb": Out(4),
    "wvalid": Out(1), "wready": In(1), "bresp": In(2), "bvalid": In(1), "bready": Out(1),
    "araddr": Out(12), "arvalid": Out(1), "arready": In(1), "rdata": In(32), "rresp": In(2),
    "rvalid": In(1), "rready": Out(1),
}  # fmt: skip
ADDRESS = {"addr": 64, "len": 8, "size": 3, "burst": 2, "valid": 1}
MASTER = {f"{kind}{name}": Out(bits) for kind in ("ar", "aw") for name, bits in ADDRESS.items()} | {
    "arready": In(1), "awready": In(1), "rdata": In(512), "rresp": In(2), "rlast": In(1), "rvalid": In(1),
    "rready": Out(1), "wdata": Out(512), "wstrb": Out(64), "wlast": Out(1), "wvalid": Out(1),
    "wready": In(1), "bresp": In(2), "bvalid": In(1), "bready": Out(1),
}  # fmt: skip


def manifest(channels: int = 1, beats: int = 1024) -> Manifest:
    """What describes the kernel to the runtime; its table and status block are never used."""
    data = [Buffer(name=f"data{c}", role="input", channel=c, bytes=2 * 64 * beats) for c in range(channels)]
    unused = [Buffer(name=role, role=role, channel=0, bytes=1024) for role in ("table", "status")]
    return Manifest(
        board=BoardFacts(name="u55c", channels=32, channel_bytes=512 << 20),
        top="top", verilog="design.v", design_hash="0" * 16, clock_mhz=300.0, tokens_per_tile=1, max_tokens=1,
        ports=tuple(MemoryPort(name=f"m_axi_gmem{c}", channel=c, id_bits=0) for c in range(channels)),
        buffers=(*data, *unused), counters=(), memory=MemoryTiming(beats=133, cycles=192, latency=100),
        program=PhaseTable(sections=(TableSection(descriptors=(Descriptor(target=0),)),)),
    )  # fmt: skip


class Breach(IntEnum):
    """Values of `command` that make the kernel break a law of AXI."""

    LONG = 4  # bursts of 128 beats
    CROSSING = 5  # bursts of 48, some across 4 KiB
    LAST = 6  # WLAST one beat early


class AddOne(wiring.Component):
    """The kernel; `burst` over 64 or `wrong_last` break the laws of AXI on purpose."""

    def __init__(
        self, channels: int = 1, step: int = 1, burst: int = BURST, wrong_last: bool = False
    ) -> None:
        self._channels, self._step, self._burst, self._wrong_last = channels, step, burst, wrong_last
        self._offsets = {a.name: a.offset for a in manifest(channels).arguments}
        pins = {"ap_clk": In(1), "ap_rst_n": In(1)}
        pins |= {f"s_axi_control_{name}": member.flip() for name, member in LITE.items()}
        for c in range(channels):
            pins |= {f"m_axi_gmem{c}_{name}": member for name, member in MASTER.items()}
        super().__init__(pins)

    def elaborate(self, platform):
        m = Module()
        m.domains.sync = ClockDomain()
        m.d.comb += [ClockSignal().eq(self.ap_clk), ResetSignal().eq(~self.ap_rst_n)]
        self._command, self._burst = Signal(32), Signal(8)
        with m.Switch(self._command):
            with m.Case(Breach.LONG):
                m.d.comb += self._burst.eq(128)
            with m.Case(Breach.CROSSING):
                m.d.comb += self._burst.eq(48)
            with m.Default():
                m.d.comb += self._burst.eq(BURST)
        start, done, idle = Signal(), Signal(), Signal(init=1)
        count, cycles, errors = Signal(32), Signal(32), Signal(32)
        pointers = [Signal(64, name=f"pointer{c}") for c in range(self._channels)]
        finished = [self._channel(m, c, pointers[c], count, start, errors) for c in range(self._channels)]

        with m.If(start):
            m.d.sync += [start.eq(0), idle.eq(0), cycles.eq(1), errors.eq(0)]
        with m.Elif(~idle & ~done):
            m.d.sync += cycles.eq(cycles + 1)
            with m.If(Cat(finished).all()):
                m.d.sync += [done.eq(1), idle.eq(1)]

        lite = {name: getattr(self, f"s_axi_control_{name}") for name in LITE}
        write = lite["awvalid"] & lite["wvalid"] & ~lite["bvalid"]
        m.d.comb += [lite["awready"].eq(write), lite["wready"].eq(write)]
        with m.If(lite["bready"]):
            m.d.sync += lite["bvalid"].eq(0)
        with m.If(write):
            m.d.sync += lite["bvalid"].eq(1)
            with m.Switch(lite["awaddr"]):
                with m.Case(0):
                    with m.If(lite["wdata"][0] & ~start):
                        m.d.sync += start.eq(1)
                    with m.If(lite["wdata"][4]):
                        m.d.sync += done.eq(0)
                with m.Case(self._offsets["command"]):
                    m.d.sync += self._command.eq(lite["wdata"])
                with m.Case(self._offsets["tiles"]):
                    m.d.sync += count.eq(lite["wdata"])
                for c in range(self._channels):
                    for half in range(2):
                        with m.Case(self._offsets[f"data{c}"] + 4 * half):
                            m.d.sync += pointers[c].word_select(half, 32).eq(lite["wdata"])
        m.d.comb += lite["arready"].eq(~lite["rvalid"])
        with m.If(lite["rready"]):
            m.d.sync += lite["rvalid"].eq(0)
        with m.If(lite["arvalid"] & lite["arready"]):
            m.d.sync += lite["rvalid"].eq(1)
            registers = {0: Cat(start, done, idle, done), CYCLES: cycles, ERRORS: errors}
            with m.Switch(lite["araddr"]):
                for address, value in registers.items():
                    with m.Case(address):
                        m.d.sync += lite["rdata"].eq(value)
                with m.Default():
                    m.d.sync += lite["rdata"].eq(0)
        return m

    def _channel(self, m, c, base, count, start, errors):
        pin = {name: getattr(self, f"m_axi_gmem{c}_{name}") for name in MASTER}
        fifo = SyncFIFOBuffered(width=512, depth=DEPTH)
        m.submodules[f"fifo{c}"] = fifo

        # reader: an address only when the FIFO has room for all beats under way and of this burst
        to_ask, source, held = (
            Signal(32, name=f"to_ask{c}"),
            Signal(64, name=f"source{c}"),
            Signal(range(DEPTH + 1)),
        )
        asked, taken = pin["arvalid"] & pin["arready"], fifo.r_rdy & fifo.r_en
        beats = Mux(to_ask < self._burst, to_ask, self._burst)
        m.d.comb += [
            pin["araddr"].eq(source), pin["arlen"].eq(beats - 1), pin["arsize"].eq(6), pin["arburst"].eq(1),
            pin["arvalid"].eq((to_ask != 0) & (held + self._burst <= DEPTH)),
            pin["rready"].eq(fifo.w_rdy), fifo.w_en.eq(pin["rvalid"]),
        ]  # fmt: skip
        m.d.comb += [
            fifo.w_data.word_select(i, 32).eq(pin["rdata"].word_select(i, 32) + self._step) for i in range(16)
        ]
        m.d.sync += held.eq(held + Mux(asked, beats, 0) - taken)
        with m.If(asked):
            m.d.sync += [to_ask.eq(to_ask - beats), source.eq(source + (self._burst << 6))]

        # writer: an address, then its beats
        to_send, target = Signal(32, name=f"to_send{c}"), Signal(64, name=f"target{c}")
        left, pending = Signal(9, name=f"left{c}"), Signal(16, name=f"pending{c}")
        size = Mux(to_send < self._burst, to_send, self._burst)
        sent, answered = pin["awvalid"] & pin["awready"], pin["bvalid"] & pin["bready"]
        m.d.comb += [
            pin["awaddr"].eq(target), pin["awlen"].eq(size - 1), pin["awsize"].eq(6), pin["awburst"].eq(1),
            pin["awvalid"].eq((to_send != 0) & (left == 0)),
            pin["wvalid"].eq(fifo.r_rdy & (left != 0)), fifo.r_en.eq(pin["wready"] & (left != 0)),
            pin["wdata"].eq(fifo.r_data), pin["wstrb"].eq(-1),
            pin["wlast"].eq(left == Mux(self._command == Breach.LAST, 2, 1)),
            pin["bready"].eq(1),
        ]  # fmt: skip
        m.d.sync += [left.eq(left + Mux(sent, size, 0) - taken), pending.eq(pending + sent - answered)]
        with m.If(sent):
            m.d.sync += [to_send.eq(to_send - size), target.eq(target + (self._burst << 6))]
        failed = (pin["rvalid"] & pin["rready"] & (pin["rresp"] != 0)) | (answered & (pin["bresp"] != 0))
        with m.If(failed):
            m.d.sync += errors.eq(errors + 1)
        with m.If(start):
            m.d.sync += [to_ask.eq(count), source.eq(base), to_send.eq(count)]
            m.d.sync += target.eq(base + (((count + 63) >> 6) << 12))
        return (to_send == 0) & (left == 0) & (pending == 0)
