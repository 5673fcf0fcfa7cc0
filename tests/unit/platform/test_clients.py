"""Clients and master against the memory model, which checks every law of AXI that they must keep."""

from random import Random

import pytest

from sim.axi import AxiBench
from streamgen.platform.master import ChannelMasterParams
from streamgen.platform.read_client import ReadClientParams
from streamgen.platform.write_client import WriteClientParams
from streamgen.runtime.memory import Fault
from tests.unit.platform.rig import BASE, Pulses, Rig, beats_of, channel, command, content

LIMIT = 512  # beats of the test buffer: 8 pages


def transfers(random, count, longest):
    """Commands that like the ends of pages."""
    result = []
    for _ in range(count):
        beats = random.choice((1, 2, random.randrange(1, longest + 1)))
        page = random.randrange(0, LIMIT // 64)
        first = max(
            0, min(LIMIT - beats, page * 64 + random.choice((0, -1, 1, -beats, random.randrange(64))))
        )
        result.append((first, beats))
    return result


@pytest.mark.parametrize(
    ("seed", "depth", "burst", "delays", "chance"),
    [(1, 64, 64, 0, 0.0), (2, 64, 16, 40, 0.3), (3, 100, 64, 15, 0.6), (4, 1, 1, 7, 0.2), (5, 9, 8, 3, 0.5)],
)
def test_reads(seed, depth, burst, delays, chance):
    random = Random(seed)
    memory = content(random, LIMIT)
    clients = [ReadClientParams(depth=depth, burst=burst).build() for _ in range(1 + seed % 3)]
    rig = Rig(clients, [])
    bench = AxiBench(rig, seed=seed, chance=chance)
    model = bench.memory(rig.m_axi, channel({BASE: memory}, latency=20, delays=delays, seed=seed))
    sinks = []
    for k, client in enumerate(clients):
        wanted = transfers(random, 12 if burst > 1 else 4, 70 if burst > 1 else 9)
        bench.source(client.i_command, [command(BASE + 64 * a, n) for a, n in wanted], f"command {k}")
        expected = [beat for a, n in wanted for beat in beats_of(memory, a, n)]
        sinks.append((bench.sink(client.o, len(expected), f"beats {k}"), expected))
    bench.run()
    for sink, expected in sinks:
        assert sink.tokens == expected
    assert max(beats for _, _, _, beats, _ in model.bursts) <= burst
    assert {number for *_, number in model.bursts} == set(range(len(clients)))


@pytest.mark.parametrize(
    ("seed", "depth", "burst", "delays", "chance"),
    [(1, 128, 64, 0, 0.0), (2, 64, 64, 40, 0.3), (3, 20, 16, 15, 0.6), (4, 1, 1, 7, 0.2), (5, 9, 8, 3, 0.5)],
)
def test_writes(seed, depth, burst, delays, chance):
    random = Random(seed)
    memories = [content(random, LIMIT) for _ in range(1 + seed % 3)]
    clients = [WriteClientParams(depth=depth, burst=burst).build() for _ in memories]
    rig = Rig([], clients)
    bench = AxiBench(rig, seed=seed, chance=chance)
    buffers = {BASE + (k << 20): memory for k, memory in enumerate(memories)}
    bench.memory(rig.m_axi, channel(buffers, latency=20, delays=delays, seed=seed))
    expected = []
    for k, (client, memory) in enumerate(zip(clients, memories, strict=True)):
        wanted = transfers(random, 12 if burst > 1 else 4, 70 if burst > 1 else 9)
        after, beats = bytearray(memory), []
        for a, n in wanted:
            data = content(random, n)
            after[64 * a : 64 * (a + n)] = data
            beats += beats_of(data, 0, n)
        bench.source(client.i_command, [command(BASE + (k << 20) + 64 * a, n) for a, n in wanted])
        bench.source(client.i, beats, f"beats {k}")
        bench.add(Pulses(f"done {k}", client.done, len(wanted)))
        expected.append(after)
    bench.run()
    assert memories == expected


def test_done_means_in_memory():
    client = WriteClientParams().build()
    rig = Rig([], [client])
    memory = bytearray(64 * 200)
    bench = AxiBench(rig)
    bench.memory(rig.m_axi, channel({BASE: memory}, latency=60))
    bench.source(client.i_command, [command(BASE + 64 * 3, 150)])
    bench.source(client.i, [7] * 150)
    seen = []

    class Watch(Pulses):
        def step(self, cycle, values, drive):
            if values[0]:
                seen.append(bytes(memory))
            return super().step(cycle, values, drive)

    bench.add(Watch("done", client.done, 1))
    bench.run()
    assert beats_of(seen[0], 3, 150) == [7] * 150


def test_reads_and_writes_share_a_channel_fairly():
    random = Random(7)
    memory, target = content(random, LIMIT), bytearray(64 * LIMIT)
    readers = [ReadClientParams(depth=128).build() for _ in range(3)]
    writer = WriteClientParams().build()
    rig = Rig(readers, [writer])
    bench = AxiBench(rig)
    model = bench.memory(rig.m_axi, channel({BASE: memory, BASE + (1 << 20): target}, rate=1, latency=30))
    for reader in readers:
        bench.source(reader.i_command, [command(BASE, LIMIT)])
    sinks = [bench.sink(reader.o, LIMIT, f"read {k}") for k, reader in enumerate(readers)]
    bench.source(writer.i_command, [command(BASE + (1 << 20), LIMIT)])
    bench.source(writer.i, beats_of(memory, 0, LIMIT))
    bench.add(Pulses("done", writer.done, 1))
    bench.run()
    for sink in sinks:
        assert sink.tokens == beats_of(memory, 0, LIMIT)
    assert target == memory
    ids = [number for _, a, _, _, number in model.bursts if a == "ar"]
    assert sorted(ids[:6]) == [0, 0, 1, 1, 2, 2]
    ends = [sink.cycles[-1] for sink in sinks]
    assert max(ends) - min(ends) <= 3 * 64 + 10  # nobody is served more than one round ahead


@pytest.mark.parametrize("kind", ["ar", "aw"])
def test_round_robin(kind):
    """While all clients ask, each gets every third burst of a memory that accepts them slowly."""
    if kind == "ar":
        clients = [ReadClientParams(depth=256, burst=4).build() for _ in range(3)]
        rig = Rig(clients, [])
    else:
        clients = [WriteClientParams(depth=16, burst=4).build() for _ in range(3)]
        rig = Rig([], clients)
    bench = AxiBench(rig)
    model = bench.memory(rig.m_axi, channel({BASE: bytearray(64 * 64)}, rate=1, latency=30, outstanding=2))
    for k, client in enumerate(clients):
        bench.source(client.i_command, [command(BASE, 64)])
        if kind == "ar":
            bench.sink(client.o, 64, f"read {k}")
        else:
            bench.source(client.i, [k] * 64, f"write {k}")
            bench.add(Pulses(f"done {k}", client.done, 1))
    bench.run()
    ids = [number for _, a, _, _, number in model.bursts if a == kind]
    assert len(ids) == 48
    assert all(set(ids[k : k + 3]) == {0, 1, 2} for k in range(6, 40))


def test_a_stopped_client_blocks_nobody():
    random = Random(8)
    memory = content(random, LIMIT)
    readers = [ReadClientParams(depth=64).build() for _ in range(2)]
    rig = Rig(readers, [])
    bench = AxiBench(rig)
    model = bench.memory(rig.m_axi, channel({BASE: memory}, latency=10))
    bench.source(readers[0].i_command, [command(BASE, LIMIT)])  # nobody takes its beats
    bench.source(readers[1].i_command, [command(BASE, LIMIT)])
    sink = bench.sink(readers[1].o, LIMIT)
    bench.run()
    assert sink.tokens == beats_of(memory, 0, LIMIT)
    assert sum(beats for *_, beats, number in model.bursts if number == 0) == 64  # its credits


def test_full_rate():
    """With room for rate * latency + 2 bursts a client takes all that the channel gives."""
    memory = bytearray(64 * 1024)
    reader = ReadClientParams(depth=256).build()
    rig = Rig([reader], [])
    bench = AxiBench(rig)
    bench.memory(rig.m_axi, channel({BASE: memory}, rate=1, latency=100))
    bench.source(reader.i_command, [command(BASE + 64 * 5, 256), command(BASE + 64 * 300, 512)])
    sink = bench.sink(reader.o, 768)
    bench.run()
    assert sink.cycles[-1] - sink.cycles[0] + 1 <= 768 * 1.01


class Halt:
    """Halts at a cycle; when idle, resets the core for some cycles and lets it go."""

    def __init__(self, rig, at):
        self.name, self.signals = "halt", [rig.idle]
        self.rig, self.at = rig, at
        self.state, self.since, self.order = "run", 0, []

    def step(self, cycle, values, drive):
        if self.state == "run" and cycle == self.at:
            drive(self.rig.halt, 1)
            self.state, self.since = "drain", cycle
        elif self.state == "drain" and cycle > self.since + 4 and values[0]:
            drive(self.rig.core_reset, 1)
            self.state, self.since = "reset", cycle
            self.order.append(cycle)
        elif self.state == "reset" and cycle > self.since + 8:
            drive(self.rig.core_reset, 0)
            drive(self.rig.halt, 0)
            self.state = "done"
        return False

    def left(self):
        return "" if self.state == "done" else self.state


@pytest.mark.parametrize("at", [3, 10, 30, 31, 32, 77, 150])
def test_halt_drains_then_reset_then_work(at):
    """Nothing moves on the bus after `idle`, the memory has nothing left, and a new command works."""
    random = Random(at)
    memory, target = content(random, 256), bytearray(64 * 256)
    reader, writer = ReadClientParams(depth=128).build(), WriteClientParams().build()
    rig = Rig([reader], [writer])
    bench = AxiBench(rig, seed=at, chance=0.2)
    model = bench.memory(
        rig.m_axi, channel({BASE: memory, BASE + (1 << 20): target}, latency=25, delays=5, seed=at)
    )
    halt = bench.add(Halt(rig, at))

    class Restart:
        """Streams on both sides of the reset: old ones die with it."""

        name, signals, finished = (
            "restart",
            [reader.o.valid, reader.o.payload, writer.i.ready, writer.done],
            False,
        )
        tokens, sent = [], 0

        def step(self, cycle, values, drive):
            valid, payload, ready, done = values
            if cycle == 0:
                drive(reader.o.ready, 1)
                drive(writer.i.valid, 1)
                drive(reader.i_command.payload, command(BASE, 200))
                drive(writer.i_command.payload, command(BASE + (1 << 20), 200))
            if cycle == at and halt.state != "done":
                drive(reader.i_command.valid, 0)
                drive(writer.i_command.valid, 0)
            if halt.state == "done":
                self.tokens += [payload] * valid
                self.sent += ready
                self.finished |= len(self.tokens) >= 100 and bool(done)
                if self.sent == 0:
                    drive(reader.i_command.payload, command(BASE + 64 * 100, 100))
                    drive(writer.i_command.payload, command(BASE + (1 << 20), 100))
                    drive(writer.i.payload, 5)
            drive(reader.i_command.valid, int(cycle < at or (halt.state == "done" and not self.sent)))
            drive(writer.i_command.valid, int(cycle < at or (halt.state == "done" and not self.sent)))
            return bool(valid)

        def left(self):
            return "" if self.finished else "second run"

    restart = Restart()
    bench.add(restart)
    quiet = []

    class Quiet:
        name = "quiet"
        pins = rig.m_axi
        signals = [pins.arvalid, pins.awvalid, pins.wvalid, pins.rvalid, pins.bvalid]

        def step(self, cycle, values, drive):
            if halt.state == "reset":
                quiet.append(any(values))
                channel_ = model.channel
                quiet.append(bool(channel_.reads or channel_.writes or channel_.data or channel_.responses))
            return False

        def left(self):
            return ""

    bench.add(Quiet())
    bench.run()
    assert quiet and not any(quiet)
    for a in ("ar", "aw"):  # what stood on the pins may still go; nothing new
        late = [entry for entry in model.bursts if entry[1] == a and at + 1 < entry[0] < halt.order[0]]
        assert len(late) <= 1
    assert restart.tokens[:100] == beats_of(memory, 100, 100)
    assert beats_of(target, 0, 100) == [5] * 100


@pytest.mark.parametrize("kind", ["read", "write", "none"])
def test_error_responses_raise_error(kind):
    memory = bytearray(64 * 64)
    reader, writer = ReadClientParams(depth=64).build(), WriteClientParams().build()
    rig = Rig([reader], [writer])
    bench = AxiBench(rig)
    bad = {"read": {BASE + 64 * 9}, "write": {BASE + 64 * 40}, "none": set()}[kind]
    model = channel({BASE: memory}, latency=10)
    model.faults = {address: Fault("SLVERR") for address in bad}
    bench.memory(rig.m_axi, model)
    bench.source(reader.i_command, [command(BASE, 20)])
    sink = bench.sink(reader.o, 20)  # an error loses no beat: all can drain
    bench.source(writer.i_command, [command(BASE + 64 * 32, 20)])
    bench.source(writer.i, [1] * 20)
    bench.add(Pulses("done", writer.done, 1))
    seen = bench.add(Pulses("error", rig.error, 0))
    bench.run(tail=60)
    assert len(sink.tokens) == 20
    assert bool(seen.cycles) == (kind != "none")
    if seen.cycles:
        assert seen.cycles == list(range(seen.cycles[0], bench.cycle))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ReadClientParams(depth=64, burst=48),
            "burst of a read client must be a power of two from 1 to 64, not 48",
        ),
        (
            lambda: WriteClientParams(depth=256, burst=128),
            "burst of a write client must be a power of two from 1 to 64, not 128",
        ),
        (
            lambda: ReadClientParams(depth=32),
            "depth of a read client must be at least its burst of 64 beats, not 32",
        ),
        (
            lambda: ReadClientParams(depth=128, under_way=63),
            "under_way of a read client is 63 beats; it must be its burst, 64, at least and less than its "
            "depth, 128",
        ),
        (
            lambda: ChannelMasterParams(readers=17, writers=0),
            "readers of a channel master must be 0 to 16 (4 ID bits), not 17",
        ),
        *(
            (
                lambda bits=bits: ChannelMasterParams(readers=1, writers=1, id_bits=bits),
                f"id_bits of a channel master must be 4 to 16, not {bits}",
            )
            for bits in (3, 17)
        ),
        (lambda: ChannelMasterParams(readers=0, writers=0), "a channel master needs at least one client"),
    ],
)
def test_bad_params(make, message):
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value) == message
