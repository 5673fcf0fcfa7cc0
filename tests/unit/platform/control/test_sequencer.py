"""The words that the sequencer sends are those of `PhaseTable.expand`, whatever the delays."""

from random import Random

import pytest
from amaranth import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from sim.axi import AxiBench
from streamgen.artifact.phase_table import TABLE_MAGIC, Descriptor, PhaseTable, TableSection, Word
from streamgen.platform.axi import AxiSignature
from streamgen.platform.control.descriptor_bus import BusWord
from streamgen.platform.control.sequencer import SequencerParams
from streamgen.platform.master import ChannelMasterParams
from streamgen.platform.read_client import ReadClientParams
from tests.unit.platform.rig import channel

TARGETS, STORES = 5, 3


class Rig(wiring.Component):
    start: In(1)
    completed: In(STORES)
    table: In(64)
    tiles: In(32)
    position: In(32)
    finished: Out(1)
    bad: Out(1)
    sent: Out(32)
    o: Out(stream.Signature(BusWord))
    m_axi: Out(AxiSignature())

    def elaborate(self, platform):
        m = Module()
        m.submodules.sequencer = sequencer = SequencerParams(targets=TARGETS, completions=STORES).build()
        m.submodules.client = client = ReadClientParams(depth=64).build()
        m.submodules.master = master = ChannelMasterParams(readers=1, writers=0).build()
        wiring.connect(m, client.memory, master.read_0)
        wiring.connect(m, wiring.flipped(self.m_axi), master.m_axi)
        wiring.connect(m, wiring.flipped(self.o), sequencer.o)
        wiring.connect(m, sequencer.o_read, client.i_command)
        wiring.connect(m, client.o, sequencer.i_read)
        for name in ("start", "completed", "table", "tiles", "position"):
            m.d.comb += getattr(sequencer, name).eq(getattr(self, name))
        for name in ("finished", "bad", "sent"):
            m.d.comb += getattr(self, name).eq(getattr(sequencer, name))
        return m


class Starter:
    """Starts the table `runs` times, each as soon as the one before has finished."""

    def __init__(self, rig, table, tiles, position, runs):
        self.name, self.rig, self.signals = "starter", rig, [rig.finished, rig.bad, rig.sent]
        self.values = {"table": table, "tiles": tiles, "position": position}
        self.runs, self.starts, self.ends, self.bad, self.sent = runs, [], [], 0, 0

    def step(self, cycle, values, drive):
        finished, self.bad, self.sent = values
        start = 0
        if cycle == 2 or (self.ends and len(self.ends) == len(self.starts) < self.runs):
            start = 1
            self.starts.append(cycle + 1)  # the cycle in which `start` is high
        elif finished and len(self.ends) < len(self.starts) and cycle > self.starts[-1] + 2:
            self.ends.append(cycle)
        drive(self.rig.start, start)
        for name, value in self.values.items():
            drive(getattr(self.rig, name), value)
        return False

    def left(self):
        return "" if len(self.ends) == self.runs or self.bad else "not finished"


class Stores:
    """Completes each descriptor with the flag `awaited` some cycles after its last word was sent."""

    def __init__(self, rig, flags, random, delay):
        self.name, self.rig, self.random, self.delay = "stores", rig, random, delay
        self.signals = [rig.o.valid & rig.o.ready & rig.o.payload.last]
        self.flags, self.due, self.count = list(flags), [], 0
        self.completed = []

    def step(self, cycle, values, drive):
        if values[0]:
            if self.flags[self.count]:
                self.due.append((cycle + self.random.randrange(1, self.delay + 1), self.count))
            self.count += 1
        now = [entry for entry in self.due if entry[0] <= cycle][:STORES]
        for entry in now:
            self.due.remove(entry)
            self.completed.append((cycle, entry[1]))
        drive(self.rig.completed, (1 << len(now)) - 1)
        return bool(values[0] or now)

    def left(self):
        return ""


def random_table(random, sections, longest):
    def number():
        return random.choice((0, 1, -1, random.randrange(-(2**31), 2**31), random.randrange(100)))

    result = []
    for _ in range(sections):
        descriptors = []
        for _ in range(random.randrange(1, longest)):
            words = tuple(
                Word(base=number(), layer=number(), position=number(), tiles=number())
                for _ in range(random.choice((0, 1, 1, 2, 5)))
            )
            descriptors.append(
                Descriptor(
                    target=random.randrange(TARGETS),
                    words=words,
                    awaited=random.random() < 0.2,
                    barrier=random.random() < 0.1,
                )
            )
        result.append(TableSection(descriptors=tuple(descriptors), repeats=random.choice((1, 2, 4))))
    return PhaseTable(sections=tuple(result))


def bus_words(sent):
    result = []
    for descriptor, values in sent:
        values = values or (None,)
        result += [(descriptor.target, int(j == len(values) - 1), v) for j, v in enumerate(values)]
    return result


def unpack(token):
    return token & 0xFFFF, token >> 16 & 1, token >> 17


@pytest.mark.parametrize("seed", range(8))
def test_words_are_those_of_the_table(seed):
    random = Random(seed)
    table = random_table(random, 1 + seed % 7, (4, 40, 12)[seed % 3])
    tiles, position = random.randrange(1 << 16), random.randrange(1 << 31)
    sent = table.expand(position=position, tiles=tiles)
    address = 64 * random.randrange(1 << 20)
    rig = Rig()
    bench = AxiBench(rig, seed=seed, chance=(0.0, 0.4)[seed % 2])
    memory = bytearray(table.pack())
    bench.memory(
        rig.m_axi, channel({address: memory}, rate=1, latency=12, delays=(0, 0, 9)[seed % 3], seed=seed)
    )
    runs = 2
    starter = bench.add(Starter(rig, address, tiles, position, runs))
    stores = bench.add(Stores(rig, [d.awaited for d, _ in sent] * runs, random, 40))
    expected = bus_words(sent)
    sink = bench.sink(rig.o, len(expected) * runs, "words")
    bench.run()
    got = [unpack(token) for token in sink.tokens]
    for (target, last, value), (want_target, want_last, want_value) in zip(got, expected * runs, strict=True):
        assert (target, last) == (want_target, want_last)
        assert want_value is None or value == want_value
    assert not starter.bad
    assert starter.sent == len(sent)
    # every store of a run is complete before the run is, every one before a barrier before it
    assert len(stores.completed) == runs * sum(d.awaited for d, _ in sent)
    first_words = [0] + [k + 1 for k, (_, last, _) in enumerate(got) if last]
    done_at = {number: cycle for cycle, number in stores.completed}
    for run in range(runs):
        for k, (descriptor, _) in enumerate(sent):
            number = run * len(sent) + k
            if descriptor.awaited:
                assert done_at[number] < starter.ends[run]
            if descriptor.barrier:
                begins = sink.cycles[first_words[number]]
                assert all(
                    done_at[other] < begins
                    for other in range(run * len(sent), number)
                    if sent[other - run * len(sent)][0].awaited
                )


def simple(count, repeats=1):
    descriptors = tuple(Descriptor(target=k % TARGETS, words=(Word(base=k),)) for k in range(count))
    return PhaseTable(sections=(TableSection(descriptors=descriptors, repeats=repeats),))


def run_simple(table, memory=None, latency=100, **model):
    rig = Rig()
    bench = AxiBench(rig)
    bench.memory(rig.m_axi, channel({0: memory or bytearray(table.pack())}, latency=latency, **model))
    starter = bench.add(Starter(rig, 0, 1, 0, 1))
    expected = bus_words(table.expand(position=0, tiles=1)) if memory is None else []
    sink = bench.sink(rig.o, len(expected), "words")
    bench.run()
    return starter, sink


def test_start_latency():
    """The first word is on the bus one memory latency + 19 cycles after start; then two slots a word."""
    starter, sink = run_simple(simple(20), rate=1)
    assert sink.cycles[0] - starter.starts[0] <= 100 + 19
    assert sink.cycles[-1] - sink.cycles[0] == 2 * 19


def test_layers_follow_one_another_without_a_pause():
    _, sink = run_simple(simple(40, repeats=6), latency=30, rate=1)
    assert sink.cycles[-1] - sink.cycles[0] <= 2 * 240 + 6


def bad_tables():
    good = simple(4).pack()

    def patched(offset, value):
        return good[:offset] + value.to_bytes(4, "little") + good[offset + 4 :]

    return {
        "magic": patched(0, TABLE_MAGIC + 1),
        "no sections": patched(4, 0),
        "too many sections": patched(4, 8),
        "section without beats": patched(8, 0),
        "header without valid": patched(64, 0x00010000),
        "unknown target": patched(64, 0x80010000 | TARGETS),
        "zeros": bytes(1024),
    }


@pytest.mark.parametrize("kind", bad_tables())
def test_bad_tables(kind):
    starter, sink = run_simple(simple(4), memory=bytearray(bad_tables()[kind]), latency=10)
    assert starter.bad
    assert not starter.ends
    assert not sink.tokens


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"targets": 0, "completions": 1}, "targets of a sequencer must be 1 to 65536, not 0"),
        ({"targets": 1, "completions": 0}, "completions of a sequencer must be at least 1, not 0"),
    ],
)
def test_bad_params(choices, message):
    with pytest.raises(ValueError) as error:
        SequencerParams(**choices)
    assert str(error.value) == message
