"""Counters count what they see; the status writer puts them behind its header."""

from random import Random

import pytest
from amaranth import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from sim.axi import AxiBench
from streamgen.artifact.manifest import RunError, StatusBlock
from streamgen.artifact.packing import ADDRESS_BITS
from streamgen.platform.control.counters import CounterPort, CountersParams
from streamgen.platform.control.sequencer import Request
from streamgen.platform.control.status import StatusWriterParams

NODES, DEPTHS = 3, (1, 7, 300)
WORDS = 2 * NODES + len(DEPTHS)


class Rig(wiring.Component):
    """Counters and the writer that reads them."""

    start: In(1)
    enable: In(1)
    clear: In(1)
    busy: In(NODES)
    stalled: In(NODES)
    levels: In(wiring.Signature({f"level_{k}": Out(depth.bit_length()) for k, depth in enumerate(DEPTHS)}))
    o_write: Out(stream.Signature(Request))
    o_data: Out(stream.Signature(512))

    def elaborate(self, platform):
        m = Module()
        m.submodules.counters = counters = CountersParams(nodes=NODES, depths=DEPTHS).build()
        m.submodules.status = status = StatusWriterParams(
            counters=WORDS, design_hash=0xFEDC_BA98_7654_3210
        ).build()
        wiring.connect(m, wiring.flipped(self.o_write), status.o_write)
        wiring.connect(m, wiring.flipped(self.o_data), status.o_data)
        port = CounterPort.create()
        m.d.comb += [
            port.enable.eq(self.enable),
            port.clear.eq(self.clear),
            port.shift.eq(status.counters.shift),
            status.counters.word.eq(port.word),
            counters.busy.eq(self.busy),
            counters.stalled.eq(self.stalled),
            status.start.eq(self.start),
            status.address.eq(0x1_2345_6780),
            status.error.eq(RunError.TIMEOUT),
            status.detail.eq(5),
            status.cycles.eq(0x1_0000_0002),
            status.descriptors.eq(77),
            status.awaited.eq(2),
        ]
        wiring.connect(m, port, counters.control)
        for k in range(len(DEPTHS)):
            m.d.comb += getattr(counters, f"level_{k}").eq(getattr(self.levels, f"level_{k}"))
        return m


class Load:
    """Random activity; two rounds of clear, count, write. Keeps its own counts."""

    def __init__(self, rig, random, length):
        self.name, self.signals, self.rig, self.random, self.length = "load", (), rig, random, length
        self.rounds = []

    def step(self, cycle, values, drive):
        phase = cycle % (self.length + 200)
        if phase == 0:
            self.counts = [0] * (2 * NODES)
            self.levels = [[0] for _ in DEPTHS]
        drive(self.rig.clear, int(phase == 2))
        counting = 3 <= phase < self.length
        if counting:
            self._expect()
        drive(self.rig.enable, int(counting))
        self.busy, self.stalled = self.random.getrandbits(NODES), self.random.getrandbits(NODES)
        self.now = [self.random.randrange(depth + 1) for depth in DEPTHS]
        drive(self.rig.busy, self.busy)
        drive(self.rig.stalled, self.stalled)
        for k, level in enumerate(self.now):
            drive(getattr(self.rig.levels, f"level_{k}"), level)
        drive(self.rig.start, int(phase == self.length))
        if phase == self.length:
            self.rounds.append(self.counts + [max(seen) | seen[-1] << 16 for seen in self.levels])
        return False

    def _expect(self):
        """A counter sees its input one cycle late: what was driven in the step before."""
        for n in range(NODES):
            self.counts[2 * n] += self.busy >> n & 1
            self.counts[2 * n + 1] += self.stalled >> n & 1
        for seen, level in zip(self.levels, self.now, strict=True):
            seen.append(level)

    def left(self):
        return "" if len(self.rounds) >= 2 else "rounds"


@pytest.mark.parametrize("chance", [0.0, 0.5])
def test_counters_arrive_in_the_status_block(chance):
    rig = Rig()
    bench = AxiBench(rig, seed=3, chance=chance)
    load = bench.add(Load(rig, Random(3), 90))
    requests = bench.sink(rig.o_write, 2, "request")
    data = bench.sink(rig.o_data, 4, "data")
    bench.run()
    assert requests.tokens == [0x1_2345_6780 | 2 << ADDRESS_BITS] * 2
    for k, counts in enumerate(load.rounds):
        raw = b"".join(token.to_bytes(64, "little") for token in data.tokens[2 * k : 2 * k + 2])
        assert StatusBlock.unpack(raw, WORDS) == StatusBlock(
            error=RunError.TIMEOUT,
            detail=5,
            design_hash="fedcba9876543210",
            cycles=0x1_0000_0002,
            descriptors=77,
            awaited=2,
            counters=tuple(counts),
        )
        assert not any(raw[4 * (16 + WORDS) :])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CountersParams(nodes=0, depths=()), "counters need at least one node or FIFO"),
        (lambda: CountersParams(nodes=-1, depths=()), "nodes of the counters must be at least 0, not -1"),
        (
            lambda: CountersParams(nodes=1, depths=(1 << 16,)),
            "the depth of a counted FIFO must be 1 to 65535, not 65536",
        ),
        (
            lambda: StatusWriterParams(counters=-1, design_hash=0),
            "counters of a status block must be 0 to 2^20 - 1, not -1",
        ),
        (
            lambda: StatusWriterParams(counters=0, design_hash=1 << 64),
            "design_hash must have 64 bits, not 0x10000000000000000",
        ),
    ],
)
def test_bad_params(make, message):
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value) == message
