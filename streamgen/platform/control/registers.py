"""Registers of a Vitis RTL kernel behind AXI4-Lite, protocol ap_ctrl_chain.

0x00  bit 0 start (write 1; falls when the run ends), 1 done (falls when continue is written), 2 idle,
      3 ready (the run has ended; falls when read), 4 continue (write 1; reads 0), 7 auto_restart (reads 0)
0x04  bit 0 global interrupt enable
0x08  bit 0 done, bit 1 ready: interrupt enables
0x0C  the same bits: interrupt status, write 1 toggles; set by an enabled event
0x10… the arguments of `streamgen.artifact.manifest.argument_map`
last  read-only error register

A start is taken when the run before is acknowledged by continue. Byte strobes count. Whatever address
is written or read, the answer is OKAY; addresses without register read 0.
"""

from dataclasses import dataclass
from typing import Any

from amaranth import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, Signature

from streamgen.artifact.manifest import SCALARS, argument_map
from streamgen.contract.cost import Resources

ADDRESS_BITS = 12
_CONTROL, _ENABLE, _INTERRUPT_ENABLE, _INTERRUPT_STATUS = 0x00, 0x04, 0x08, 0x0C


class AxiLiteSignature(Signature):
    """The pins of a 32-bit AXI4-Lite slave as Vitis kernels have them, seen from the master."""

    def __init__(self) -> None:
        super().__init__(
            {
                "awaddr": Out(ADDRESS_BITS),
                "awvalid": Out(1),
                "awready": In(1),
                "wdata": Out(32),
                "wstrb": Out(4),
                "wvalid": Out(1),
                "wready": In(1),
                "bresp": In(2),
                "bvalid": In(1),
                "bready": Out(1),
                "araddr": Out(ADDRESS_BITS),
                "arvalid": Out(1),
                "arready": In(1),
                "rdata": In(32),
                "rresp": In(2),
                "rvalid": In(1),
                "rready": Out(1),
            }
        )


@dataclass(frozen=True, kw_only=True)
class ControlRegistersParams:
    """pointers: names of the 64-bit arguments that follow the scalars, in order."""

    pointers: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(set(self.pointers)) != len(self.pointers):
            raise ValueError(f"pointers must have different names: {self.pointers}")
        end = self.error_offset + 4
        if end > 1 << ADDRESS_BITS:
            raise ValueError(f"{len(self.pointers)} pointers take {end} bytes of registers, 4096 are there")

    @property
    def error_offset(self) -> int:
        """Byte offset of the error register."""
        last = argument_map(self.pointers)[-1]
        return last.offset + last.bytes

    @property
    def resources(self) -> Resources:
        words = len(SCALARS) + 2 * len(self.pointers)
        return Resources(lut=50 * words + 45, ff=32 * words + 102)

    def build(self) -> "ControlRegisters":
        return ControlRegisters(self)


class ControlRegisters(wiring.Component):
    """`start` is high from a start to the one cycle of `finish`; arguments are `tiles`, `pointer_x` …"""

    def __init__(self, params: ControlRegistersParams) -> None:
        self._params = params
        super().__init__(
            {
                "s_axi": In(AxiLiteSignature()),
                "interrupt": Out(1),
                "start": Out(1),
                "finish": In(1),
                "error": In(32),
                **{name: Out(32) for name in SCALARS},
                **{f"pointer_{name}": Out(64) for name in params.pointers},
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        write, write_address, data, mask = self._write_port(m)
        read, read_address = self._read_port(m)
        bits = Signal(32)  # bits written as 1
        m.d.comb += bits.eq(data & mask)

        requested, done, ready, enable = Signal(), Signal(), Signal(), Signal()
        enables, status = Signal(2), Signal(2)
        toggles = Signal(2)
        with m.If(read & (read_address == _CONTROL >> 2)):
            m.d.sync += ready.eq(0)
        with m.If(self.finish):
            m.d.sync += [requested.eq(0), done.eq(1), ready.eq(1)]
        with m.If(write), m.Switch(write_address):
            with m.Case(_CONTROL >> 2):
                with m.If(bits[0] & ~self.start):
                    m.d.sync += requested.eq(1)
                with m.If(bits[4]):
                    m.d.sync += done.eq(0)
            with m.Case(_ENABLE >> 2):
                m.d.sync += enable.eq((enable & ~mask[0]) | bits[0])
            with m.Case(_INTERRUPT_ENABLE >> 2):
                m.d.sync += enables.eq((enables & ~mask[:2]) | bits[:2])
            with m.Case(_INTERRUPT_STATUS >> 2):
                m.d.comb += toggles.eq(bits[:2])
        m.d.comb += self.start.eq(requested & ~done)
        m.d.sync += [
            status.eq((status ^ toggles) | (self.finish.replicate(2) & enables)),
            self.interrupt.eq(enable & status.any()),
        ]

        words = self._words()
        for offset, word in words.items():
            with m.If(write & (write_address == offset >> 2)):
                m.d.sync += word.eq((word & ~mask) | bits)
        words |= {
            _CONTROL: Cat(requested, done, ~requested, ready),
            _ENABLE: enable,
            _INTERRUPT_ENABLE: enables,
            _INTERRUPT_STATUS: status,
            self._params.error_offset: self.error,
        }
        with m.If(read):
            m.d.sync += self.s_axi.rdata.eq(0)
            with m.Switch(read_address):
                for offset, word in words.items():
                    with m.Case(offset >> 2):
                        m.d.sync += self.s_axi.rdata.eq(word)
        return m

    def _words(self) -> dict[int, Any]:
        """The 32-bit argument words by byte offset."""
        words: dict[int, Any] = {}
        for argument in argument_map(self._params.pointers):
            if argument.kind == "scalar":
                words[argument.offset] = getattr(self, argument.name)
            else:
                pointer = getattr(self, f"pointer_{argument.name}")
                words[argument.offset], words[argument.offset + 4] = pointer[:32], pointer[32:]
        return words

    def _write_port(self, m: Module) -> tuple[Signal, Signal, Signal, Signal]:
        """Take address and data in either order; returns (one cycle, word address, data, mask)."""
        pins = self.s_axi
        has_address, has_data, write = Signal(), Signal(), Signal(name="write")
        address = Signal(ADDRESS_BITS - 2, name="write_address")
        data, mask = Signal(32, name="write_data"), Signal(32, name="write_mask")
        m.d.comb += [
            pins.awready.eq(~has_address),
            pins.wready.eq(~has_data),
            write.eq(has_address & has_data & (~pins.bvalid | pins.bready)),
        ]
        with m.If(pins.bready):
            m.d.sync += pins.bvalid.eq(0)
        with m.If(write):
            m.d.sync += [has_address.eq(0), has_data.eq(0), pins.bvalid.eq(1)]
        with m.If(pins.awvalid & pins.awready):
            m.d.sync += [has_address.eq(1), address.eq(pins.awaddr[2:])]
        with m.If(pins.wvalid & pins.wready):
            strobes = Cat(pins.wstrb[k].replicate(8) for k in range(4))
            m.d.sync += [has_data.eq(1), data.eq(pins.wdata), mask.eq(strobes)]
        return write, address, data, mask

    def _read_port(self, m: Module) -> tuple[Signal, Signal]:
        """Take an address, answer two cycles later; returns (the cycle to load rdata, word address)."""
        pins = self.s_axi
        pending = Signal(name="read_pending")
        address = Signal(ADDRESS_BITS - 2, name="read_address")
        m.d.comb += pins.arready.eq(~pending & ~pins.rvalid)
        with m.If(pins.arvalid & pins.arready):
            m.d.sync += [address.eq(pins.araddr[2:]), pending.eq(1)]
        with m.If(pins.rready):
            m.d.sync += pins.rvalid.eq(0)
        with m.If(pending):
            m.d.sync += [pending.eq(0), pins.rvalid.eq(1)]
        return pending, address
