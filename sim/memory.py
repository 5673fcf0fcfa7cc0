"""One HBM pseudo-channel in Python, cycle for cycle the C++ model (laws: `streamgen.runtime.memory`).

A bench calls `step` once a cycle with what the master drives, and drives what the attributes of `pins`
then say into the next cycle. It is plain Python: cocotb and amaranth's simulator both use it.
"""

from collections import deque
from dataclasses import dataclass, field

from streamgen.artifact.packing import BEAT_BYTES
from streamgen.platform.boards import DEFAULT_BOARD
from streamgen.runtime.memory import Fault, MemoryModel

__all__ = ["MEMORY", "Channel", "MasterPins", "MemoryPins", "ProtocolError"]

MEMORY = DEFAULT_BOARD.channel()._asdict()
"""Rate and latency of a channel, as params of kernels at memory take them."""

MASK = (1 << 64) - 1
MAX_BURST = 64
WRITE_QUEUE = 64
DECERR = 3
READ_TIME, WRITE_TIME, AR_GAP, AW_GAP, W_GAP, R_GAP = range(6)  # kinds of random delay


class ProtocolError(AssertionError):
    """A master broke a law of AXI."""


@dataclass
class MasterPins:
    """What the master drives, sampled in one cycle; `size` and `burst` default to the legal values."""

    arvalid: int = 0
    araddr: int = 0
    arlen: int = 0
    arid: int = 0
    arsize: int = 6
    arburst: int = 1
    rready: int = 0
    awvalid: int = 0
    awaddr: int = 0
    awlen: int = 0
    awid: int = 0
    awsize: int = 6
    awburst: int = 1
    wvalid: int = 0
    wdata: int = 0
    wstrb: int = 0
    wlast: int = 0
    bready: int = 0


@dataclass
class MemoryPins:
    """What the memory drives in the next cycle."""

    arready: int = 0
    rvalid: int = 0
    rid: int = 0
    rdata: int = 0
    rresp: int = 0
    rlast: int = 0
    awready: int = 0
    wready: int = 0
    bvalid: int = 0
    bid: int = 0
    bresp: int = 0


@dataclass
class _Burst:
    address: int
    beats: int
    id: int
    time: int
    response: int = 0
    delay: int = 0
    """Cycles; of one that is read, what its next beat has waited for already."""


@dataclass
class Channel:
    """Channel `index`; `buffers` maps first address to content (bytearrays, multiples of 64 bytes).

    model: with rate and latency.
    """

    model: MemoryModel
    index: int = 0
    buffers: dict[int, bytearray] = field(default_factory=dict)
    faults: dict[int, Fault] = field(default_factory=dict)
    """By address, what goes wrong with beats."""

    def __post_init__(self) -> None:
        assert self.model.rate is not None and self.model.latency is not None
        self.rate, self.latency = self.model.rate, self.model.latency
        self.now = 0
        self.reset()

    def reset(self) -> None:
        """What ap_rst_n does: forget all that is under way; memory and time stay."""
        self.pins = MemoryPins()
        self.credit = self.rate.numerator + self.rate.denominator
        self.turn = 0
        self.reads: deque[_Burst] = deque()
        self.writes: deque[_Burst] = deque()
        self.data: deque[tuple[int, int, int]] = deque()
        self.responses: deque[_Burst] = deque()
        self.gaps = [0] * 6
        self.counts = [0] * 6
        self.waiting: dict[str, tuple] = {}

    def delay(self, kind: int) -> int:
        """The random cycles of the next event of this kind."""
        number = self.counts[kind]
        self.counts[kind] += 1
        if not self.model.delays:
            return 0
        mixed = _mix((self.model.seed + _mix(self.index << 56 | kind << 48 | number)) & MASK)
        return 0 if mixed & 3 else (mixed >> 8) % (self.model.delays + 1)

    def step(self, master: MasterPins) -> MemoryPins:
        """One clock edge; returns the pins of the next cycle (the same object every time)."""
        pins, model = self.pins, self.model
        self._check(master)
        self.gaps = [max(0, gap - 1) for gap in self.gaps]
        if pins.rvalid and master.rready:
            pins.rvalid = 0
        if pins.bvalid and master.bready:
            pins.bvalid = 0
        if master.arvalid and pins.arready:
            time = self.now + self.latency + self.delay(READ_TIME)
            self.reads.append(_Burst(master.araddr, master.arlen + 1, master.arid, time))
            self.gaps[AR_GAP] = self.delay(AR_GAP)
        if master.awvalid and pins.awready:
            self.writes.append(_Burst(master.awaddr, master.awlen + 1, master.awid, 0))
            self.gaps[AW_GAP] = self.delay(AW_GAP)
        if master.wvalid and pins.wready:
            self.data.append((master.wdata, master.wstrb, master.wlast))
            self.gaps[W_GAP] = self.delay(W_GAP)

        n, d = self.rate.numerator, self.rate.denominator
        self.credit = min(self.credit + n, n + d)
        for kind in (self.turn, 1 - self.turn):
            if self.credit >= d and (self._serve_write() if kind else self._serve_read()):
                self.credit -= d
                self.turn = 1 - kind

        if not pins.bvalid and self.responses and self.responses[0].time <= self.now + 1:
            burst = self.responses.popleft()
            pins.bvalid, pins.bid, pins.bresp = 1, burst.id, burst.response
        pins.arready = int(len(self.reads) < model.outstanding and not self.gaps[AR_GAP])
        pins.awready = int(len(self.writes) < model.outstanding and not self.gaps[AW_GAP])
        pins.wready = int(len(self.data) < WRITE_QUEUE and not self.gaps[W_GAP])
        self.now += 1
        return pins

    def _serve_read(self) -> bool:
        pins = self.pins
        if pins.rvalid or not self.reads or self.reads[0].time > self.now + 1 or self.gaps[R_GAP]:
            return False
        burst, fault = self.reads[0], self.faults.get(self.reads[0].address)
        bad = fault if fault is not None and fault.reads else None
        if bad is not None and bad.delay and not burst.delay:
            burst.delay = bad.delay
            burst.time = self.now + 1 + bad.delay
            return False
        burst.delay = 0
        content, offset = self._find(burst.address)
        pins.rresp = DECERR if content is None else 0 if bad is None else bad.response
        pins.rdata = 0 if content is None else int.from_bytes(content[offset : offset + BEAT_BYTES], "little")
        pins.rvalid, pins.rid, pins.rlast = 1, burst.id, int(burst.beats == 1)
        burst.address += BEAT_BYTES
        burst.beats -= 1
        if not burst.beats:
            self.reads.popleft()
        self.gaps[R_GAP] = self.delay(R_GAP)
        return True

    def _serve_write(self) -> bool:
        if not self.data or not self.writes:
            return False
        data, strobe, last = self.data.popleft()
        burst, fault = self.writes[0], self.faults.get(self.writes[0].address)
        content, offset = self._find(burst.address)
        if content is None:
            burst.response = DECERR
        else:
            if fault is not None and fault.writes:
                burst.response = max(burst.response, fault.response)
                burst.delay = max(burst.delay, fault.delay)
            for i, byte in enumerate(data.to_bytes(BEAT_BYTES, "little")):
                if strobe >> i & 1:
                    content[offset + i] = byte
        if last != (burst.beats == 1):
            raise ProtocolError(f"WLAST is {last} with {burst.beats} beats of the burst to come")
        burst.address += BEAT_BYTES
        burst.beats -= 1
        if not burst.beats:
            burst.time = self.now + self.latency + self.delay(WRITE_TIME) + burst.delay
            self.responses.append(self.writes.popleft())
        return True

    def _find(self, address: int) -> tuple[bytearray | None, int]:
        """The buffer of a beat, and the offset in it."""
        for base, content in self.buffers.items():
            if base <= address < base + len(content):
                return content, address - base
        return None, 0

    def _check(self, master: MasterPins) -> None:
        for a in ("ar", "aw"):
            valid, address, length, id_, size, burst = (
                getattr(master, a + name) for name in ("valid", "addr", "len", "id", "size", "burst")
            )
            self._check_stays(a, valid, getattr(self.pins, a + "ready"), (address, length, id_))
            if valid and (burst != 1 or size != 6 or address % BEAT_BYTES or length >= MAX_BURST):
                raise ProtocolError(
                    f"{a}: burst {burst}, size {size}, address {address:#x}, length {length + 1}"
                )
            if valid and address % 4096 + (length + 1) * BEAT_BYTES > 4096:
                raise ProtocolError(f"{a}: {length + 1} beats at {address:#x} cross a 4 KiB boundary")
        self._check_stays("w", master.wvalid, self.pins.wready, (master.wdata, master.wstrb, master.wlast))

    def _check_stays(self, name: str, valid: int, ready: int, payload: tuple) -> None:
        if name in self.waiting and (not valid or self.waiting[name] != payload):
            raise ProtocolError(f"{name}: what was valid changed before it was taken")
        self.waiting.pop(name, None)
        if valid and not ready:
            self.waiting[name] = payload


def _mix(x: int) -> int:
    """The finalizer of splitmix64."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
    return x ^ x >> 31
