"""Channel master: the AXI4 pins of one memory channel, shared by read and write clients.

Bursts of the clients are granted round-robin, one a cycle at most; the ID on the bus is the number of
the client and routes data and responses back. Write data follow in the order of the granted addresses.
Every pin is a register, or a constant, but for `ready` towards the clients.

`halt` ends the granting of new bursts; those granted go on to their last beat and response. `idle` is
high when nothing is under way: with `halt` high it stays so, and the core behind may be reset. `error`
rises with the first response that is not OKAY and stays until reset. `activity` is high for a cycle
when anything moved.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from streamgen.artifact.packing import MAX_ID_BITS
from streamgen.contract.cost import Resources
from streamgen.fifo.queue import Queue, QueueParams
from streamgen.platform.axi import (
    BEAT_BITS,
    BEAT_BYTES,
    ID_BITS,
    AxiSignature,
    Burst,
    ReadPort,
    WriteBeat,
    WritePort,
)

_COUNT_BITS = 16
_GRANT_LUTS = (0, 53, 156, 119, 266, 184, 236, 291, 296, 468, 512, 424, 530, 616, 575, 875)
_CACHE = 0b0011  # modifiable, bufferable: what Vitis kernels use


@dataclass(frozen=True, kw_only=True)
class ChannelMasterParams:
    """readers, writers: number of clients of each kind, 0 to 2^id_bits. id_bits: 4 to 16."""

    readers: int
    writers: int
    id_bits: int = ID_BITS

    def __post_init__(self) -> None:
        if not ID_BITS <= self.id_bits <= MAX_ID_BITS:
            raise ValueError(
                f"id_bits of a channel master must be {ID_BITS} to {MAX_ID_BITS}, not {self.id_bits}"
            )
        for name in ("readers", "writers"):
            if not 0 <= getattr(self, name) <= 1 << self.id_bits:
                raise ValueError(
                    f"{name} of a channel master must be 0 to {1 << self.id_bits} "
                    f"({self.id_bits} ID bits), not {getattr(self, name)}"
                )
        if self.readers + self.writers == 0:
            raise ValueError("a channel master needs at least one client")

    @property
    def latency(self) -> int:
        """Cycles that it adds to a read: one for the address, one for the data."""
        return 2

    @property
    def resources(self) -> Resources:
        total = Resources(lut=0, ff=3)
        if n := self.readers:
            total += Resources(lut=42 + _grant_luts(n), ff=574 + 2 * n + ceil_log2(n))
        if n := self.writers:
            beats = WriteBeat.size * -(-n // 4) if n > 1 else 0  # a LUT chooses among 4
            total += Resources(lut=57 + _grant_luts(n) + beats, ff=591 + 2 * n + ceil_log2(n))
        return total

    def build(self) -> "ChannelMaster":
        return ChannelMaster(self)


class ChannelMaster(wiring.Component):
    """Clients at `read_0` …, `write_0` …; pins at `m_axi`."""

    def __init__(self, params: ChannelMasterParams) -> None:
        self._params = params
        super().__init__(
            {
                **{f"read_{k}": In(ReadPort) for k in range(params.readers)},
                **{f"write_{k}": In(WritePort) for k in range(params.writers)},
                "m_axi": Out(AxiSignature(params.id_bits)),
                "halt": In(1),
                "idle": Out(1),
                "error": Out(1),
                "activity": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        pins = self.m_axi
        for a in ("ar", "aw"):
            m.d.comb += [
                getattr(pins, f"{a}size").eq(BEAT_BYTES.bit_length() - 1),
                getattr(pins, f"{a}burst").eq(1),
                getattr(pins, f"{a}cache").eq(_CACHE),
            ]
        m.d.comb += [pins.wstrb.eq(-1), pins.rready.eq(1), pins.bready.eq(1)]
        busy = [self._reads(m), self._writes(m)]
        bad = Signal()
        m.d.comb += bad.eq((pins.rvalid & pins.rresp[1]) | (pins.bvalid & pins.bresp[1]))
        with m.If(bad):
            m.d.sync += self.error.eq(1)
        m.d.sync += [
            self.idle.eq(~Cat(busy).any()),
            self.activity.eq(
                Cat(
                    pins.arvalid & pins.arready,
                    pins.awvalid & pins.awready,
                    pins.wvalid & pins.wready,
                    pins.rvalid,
                    pins.bvalid,
                ).any()
            ),
        ]
        return m

    def _reads(self, m: Module) -> Any:
        """AR and R; returns the bit that says that a burst is under way."""
        pins = self.m_axi
        ports = [getattr(self, f"read_{k}") for k in range(self._params.readers)]
        if not ports:
            return 0
        granted = self._grant(m, "ar", [port.ar for port in ports], ~self.halt)
        valid = Signal(len(ports))
        payload = Signal(BEAT_BITS, reset_less=True)
        m.d.sync += [
            valid.eq(pins.rvalid.replicate(len(ports)) & _one_hot(pins.rid, len(ports))),
            payload.eq(pins.rdata),
        ]
        for k, port in enumerate(ports):
            m.d.comb += [port.r.valid.eq(valid[k]), port.r.payload.eq(payload)]
        return self._count(m, "reads", granted, pins.rvalid & pins.rlast) | valid.any()

    def _writes(self, m: Module) -> Any:
        """AW, W and B; returns the bit that says that a burst is under way."""
        pins = self.m_axi
        ports = [getattr(self, f"write_{k}") for k in range(self._params.writers)]
        if not ports:
            return 0
        m.submodules.order = order = Queue(QueueParams(bits=max(1, ceil_log2(len(ports))), depth=16))
        granted = self._grant(m, "aw", [port.aw for port in ports], ~self.halt & order.i.ready)
        m.d.comb += [
            order.i.valid.eq(granted),
            order.i.payload.eq(_number(Cat(port.aw.ready for port in ports))),
        ]
        accept = Signal()
        beat = Signal(WriteBeat)
        offered = Signal()
        m.d.comb += [
            accept.eq(~pins.wvalid | pins.wready),
            order.o.ready.eq(offered & accept & beat.last),
        ]
        turn = Signal(len(ports))
        m.d.comb += [
            turn.eq(_one_hot(order.o.payload, len(ports)) & order.o.valid.replicate(len(ports))),
            offered.eq((turn & Cat(port.w.valid for port in ports)).any()),
            beat.eq(_chosen(order.o.payload, [Value.cast(port.w.payload) for port in ports])),
        ]
        for k, port in enumerate(ports):
            m.d.comb += port.w.ready.eq(turn[k] & accept)
        with m.If(accept):
            m.d.sync += [pins.wvalid.eq(offered), pins.wdata.eq(beat.data), pins.wlast.eq(beat.last)]
        response = Signal(len(ports))
        m.d.sync += response.eq(pins.bvalid.replicate(len(ports)) & _one_hot(pins.bid, len(ports)))
        for k, port in enumerate(ports):
            m.d.comb += port.b.eq(response[k])
        return self._count(m, "writes", granted, pins.bvalid) | response.any()

    def _grant(self, m: Module, prefix: str, requests: Sequence[Any], may: Any) -> Signal:
        """Round-robin from the requests to the address pins; returns the bit that one is granted."""
        pins = self.m_axi
        count = len(requests)
        valid = Cat(request.valid for request in requests)
        below = Signal(count, name=f"{prefix}_below")  # clients up to the last one granted
        later = Signal(count, name=f"{prefix}_later")
        chosen = Signal(count, name=f"{prefix}_chosen")
        accept = Signal(name=f"{prefix}_accept")
        granted = Signal(name=f"{prefix}_granted")
        burst = Signal(Burst, name=f"{prefix}_granted_burst")
        m.d.comb += [
            later.eq(valid & ~below),
            chosen.eq(Mux(later.any(), later & (~later + 1), valid & (~valid + 1))),
            accept.eq((~getattr(pins, f"{prefix}valid") | getattr(pins, f"{prefix}ready")) & may),
            granted.eq(accept & valid.any()),
            burst.eq(_select(chosen, [request.payload for request in requests])),
        ]
        for k, request in enumerate(requests):
            m.d.comb += request.ready.eq(accept & chosen[k])
        with m.If(getattr(pins, f"{prefix}ready")):
            m.d.sync += getattr(pins, f"{prefix}valid").eq(0)
        with m.If(granted):
            m.d.sync += [
                getattr(pins, f"{prefix}valid").eq(1),
                getattr(pins, f"{prefix}addr").eq(burst.address),
                getattr(pins, f"{prefix}len").eq(burst.length),
                getattr(pins, f"{prefix}id").eq(_number(chosen)),
                below.eq(chosen | (chosen - 1)),
            ]
        return granted

    def _count(self, m: Module, name: str, start: Any, end: Any) -> Any:
        """Count bursts under way; returns whether there are any."""
        count = Signal(_COUNT_BITS, name=f"{name}_under_way")
        m.d.sync += count.eq(count + start - end)
        return count.any()


def _grant_luts(requests: int) -> int:
    """LUTs of the choice of one of several bursts: as found, since the mapper trades LUTs for levels."""
    return _GRANT_LUTS[requests - 1] if requests <= len(_GRANT_LUTS) else 55 * requests


def _one_hot(number: Any, count: int) -> Any:
    return Cat(number == k for k in range(count))


def _select(one_hot: Any, values: Sequence[Any]) -> Any:
    """The value whose bit is set; any value when none is. A tree, not a chain of priorities."""
    if len(values) == 1:
        return values[0]
    masked = [Value.cast(v) & one_hot[k].replicate(len(Value.cast(v))) for k, v in enumerate(values)]
    return reduce(or_, masked)


def _chosen(number: Any, values: Sequence[Any]) -> Any:
    """The value of this number: four of them are a LUT a bit."""
    if len(values) == 1:
        return values[0]
    half = 1 << ceil_log2(len(values)) - 1
    few, many = _chosen(number, values[:half]), _chosen(number, values[half:])
    return Mux(number[ceil_log2(half)], many, few)


def _number(one_hot: Any) -> Any:
    count = len(one_hot)
    bits = max(1, (count - 1).bit_length())
    return Cat(Cat(one_hot[k] for k in range(count) if k >> b & 1).any() for b in range(bits))
