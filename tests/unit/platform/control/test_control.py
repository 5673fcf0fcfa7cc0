"""A whole accelerator that copies: registers, table, loads, FIFOs, stores, status, errors, reset.

Two copies run side by side on two channels; the host does what a driver does.
"""

from random import Random

import numpy as np
import pytest
from amaranth import Cat, Module, ResetInserter
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from sim.axi import AxiBench
from sim.memory import MEMORY
from streamgen.artifact.manifest import RunError, StatusBlock, argument_map
from streamgen.artifact.packing import ADDRESS_BITS, MemoryLayout
from streamgen.artifact.phase_table import Descriptor, PhaseTable, TableSection, Word
from streamgen.fifo.queue import QueueParams
from streamgen.platform.axi import AxiSignature
from streamgen.platform.control.control import ControlParams
from streamgen.platform.control.counters import CountersParams
from streamgen.platform.control.descriptor_bus import DescriptorBusParams, Target
from streamgen.platform.control.registers import AxiLiteSignature
from streamgen.platform.dma import LoadParams, StoreParams
from streamgen.platform.master import ChannelMasterParams
from streamgen.platform.read_client import ReadClientParams
from streamgen.platform.write_client import WriteClientParams
from streamgen.runtime.memory import Fault
from tests.unit.platform.rig import channel

COPIES = 2
POINTERS = ("table", "status", "x0", "y0", "x1", "y1")
LAYOUT = MemoryLayout("f24", (1, 4))  # 4 tokens a beat
LOAD = LoadParams(layout=LAYOUT, max_tokens=4096, prefetch=64, **MEMORY)
STORE = StoreParams(layout=LAYOUT, max_tokens=4096, depth=64, **MEMORY)
DEPTH = 16
WORDS = 2 * 2 * COPIES + COPIES
BASES = {name: (k + 1) << 32 for k, name in enumerate(POINTERS)}
BASES["x1"] |= 1 << ADDRESS_BITS - 1
BASES["y1"] |= 1 << ADDRESS_BITS - 1
HASH = 0x1122_3344_5566_7788


class Accelerator(wiring.Component):
    """What the emitter builds: control, and in the core everything that `core_reset` resets."""

    s_axi: In(AxiLiteSignature())
    m_axi_0: Out(AxiSignature())
    m_axi_1: Out(AxiSignature())
    jam: In(1)  # a test's way to stop the kernels for good

    def elaborate(self, platform):
        m = Module()
        params = ControlParams(
            pointers=POINTERS,
            targets=2 * COPIES,
            completions=COPIES,
            counters=WORDS,
            channels=COPIES,
            design_hash=HASH,
        )
        m.submodules.control = control = params.build()
        wiring.connect(m, wiring.flipped(self.s_axi), control.s_axi)
        core = Module()
        m.submodules.core = ResetInserter(control.core_reset)(core)

        targets = []
        for dma in (LOAD, STORE):
            fields = dma.descriptor_fields()
            targets += [Target(fields=fields), Target(fields=fields, constants=(("offset", 2),))]
        core.submodules.bus = bus = DescriptorBusParams(targets=tuple(targets)).build()
        core.submodules.counters = counters = CountersParams(
            nodes=2 * COPIES, depths=(DEPTH,) * COPIES
        ).build()
        core.submodules.table_client = reader = ReadClientParams(depth=64).build()
        core.submodules.status_client = writer = WriteClientParams(depth=16, burst=16).build()
        wiring.connect(core, control.o_words, bus.i)
        wiring.connect(core, control.counters, counters.control)
        wiring.connect(core, control.o_read, reader.i_command)
        wiring.connect(core, reader.o, control.i_read)
        wiring.connect(core, control.o_write, writer.i_command)
        wiring.connect(core, control.o_data, writer.i)
        m.d.comb += control.write_done.eq(writer.done)

        masters, moves, done, busy, stalled = [], [], [], [], []
        for k in range(COPIES):
            core.submodules[f"load_{k}"] = load = LOAD.build()
            core.submodules[f"store_{k}"] = store = STORE.build()
            core.submodules[f"queue_{k}"] = queue = QueueParams(bits=LOAD.token_bits, depth=DEPTH).build()
            core.submodules[f"master_{k}"] = master = ChannelMasterParams(
                readers=2 - k, writers=2 - k
            ).build()
            wiring.connect(core, load.memory, master.read_0)
            wiring.connect(core, store.memory, master.write_0)
            if k == 0:
                wiring.connect(core, reader.memory, master.read_1)
                wiring.connect(core, writer.memory, master.write_1)
            wiring.connect(core, getattr(bus, f"o_{k}"), load.i_descriptor)
            wiring.connect(core, getattr(bus, f"o_{COPIES + k}"), store.i_descriptor)
            wiring.connect(core, load.o, queue.i)
            core.d.comb += [
                store.i.payload.eq(queue.o.payload),
                store.i.valid.eq(queue.o.valid & ~self.jam),
                queue.o.ready.eq(store.i.ready & ~self.jam),
                load.base.eq(getattr(control, f"pointer_x{k}")),
                store.base.eq(getattr(control, f"pointer_y{k}")),
                getattr(counters, f"level_{k}").eq(queue.level),
            ]
            wiring.connect(m, wiring.flipped(getattr(self, f"m_axi_{k}")), master.m_axi)
            m.d.comb += master.halt.eq(control.halt)
            masters.append(master)
            done.append(store.done)
            for port in (load.o, store.i):
                move = port.valid & port.ready
                moves.append(move)
                busy.append(move)
                stalled.append(port.valid & ~port.ready)
        m.d.comb += [
            control.completed.eq(Cat(done)),
            control.idle.eq(Cat(master.idle for master in masters)),
            control.axi_error.eq(Cat(master.error for master in masters)),
            control.activity.eq(Cat(moves, (master.activity for master in masters)).any()),
            counters.busy.eq(Cat(busy)),
            counters.stalled.eq(Cat(stalled)),
        ]
        return m


def program(layers=2, per_tile=5):
    """Layer l copies tokens from beat 2 + l*64 on; the number of tokens is per_tile * tiles."""
    count = Word(tiles=per_tile)
    offset = Word(base=2, layer=64)
    first = Descriptor(target=0, words=(offset, count))
    second = Descriptor(target=1, words=(count,))
    return PhaseTable(
        sections=(
            TableSection(
                descriptors=(
                    first,
                    Descriptor(target=2, words=(offset, count), awaited=True),
                    second,
                    Descriptor(target=3, words=(count,), awaited=True),
                ),
                repeats=layers,
            ),
        )
    )


OFFSETS = {argument.name: argument.offset for argument in argument_map(POINTERS)}
ERROR = argument_map(POINTERS)[-1].offset + 12


def write_arguments(**scalars):
    for name, base in BASES.items():
        yield "write", OFFSETS[name], base & 0xFFFFFFFF
        yield "write", OFFSETS[name] + 4, base >> 32
    for name, value in scalars.items():
        yield "write", OFFSETS[name], value


def start_and_wait(events=None):
    """Start, poll done, acknowledge; returns the error register."""
    yield "write", 0, 1
    polls = 0
    while not (yield "read", 0) & 2:
        polls += 1
        if events and polls in events:
            events[polls]()
    yield "write", 0, 16
    return (yield "read", ERROR)


class Setup:
    """An accelerator, its memories, and a place for the host's findings."""

    def __init__(self, *, seed=1, tokens=4096, table=None, **model):
        random = Random(seed)
        size = 64 * 2048
        self.top = Accelerator()
        self.memory = {name: bytearray(size) for name in POINTERS}
        table = table or program()
        self.memory["table"][:] = table.pack()
        for name in ("x0", "x1"):
            self.memory[name][:] = np.random.default_rng(seed).integers(0, 256, size, np.uint8).tobytes()
        self.bench = AxiBench(self.top, seed=seed)
        self.channels = []
        for k, pins in enumerate((self.top.m_axi_0, self.top.m_axi_1)):
            names = ["table", "status", "x0", "y0"] if k == 0 else ["x1", "y1"]
            self.channels.append(
                channel(
                    {BASES[n]: self.memory[n] for n in names},
                    latency=20,
                    seed=random.getrandbits(20),
                    **model,
                )
            )
            self.bench.memory(pins, self.channels[-1], f"channel {k}")
        self.drive = None
        self.jammed = 0
        self.bench.add(self)

    name, signals = "setup", ()

    def step(self, cycle, values, drive):
        drive(self.top.jam, self.jammed)
        return False

    def left(self):
        return ""

    def run(self, host):
        self.bench.host(self.top.s_axi, host)
        self.bench.run(watchdog=20_000)

    def jam(self, on):
        self.jammed = int(on)

    def status(self):
        return StatusBlock.unpack(bytes(self.memory["status"]), WORDS)

    def check_copies(self, tokens, layers=2):
        """The tokens are there, the rest of their last beat is zero, and nothing else was touched."""
        for k in range(COPIES):
            expected = bytearray(len(self.memory["y0"]))
            for layer in range(layers):
                place = 64 * (2 + 64 * layer if k == 0 else 2)
                data = np.frombuffer(bytes(self.memory[f"x{k}"]), "<u4")[place // 4 :][: 4 * tokens]
                expected[place : place + 16 * tokens] = (data & 0xFFFFFF00).astype("<u4").tobytes()
            assert self.memory[f"y{k}"] == expected


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "delays"), [(1, 0), (2, 20)])
def test_runs_of_any_length(seed, delays):
    """Runs back to back with other arguments each; status, counters and error register tell the story."""
    setup = Setup(seed=seed, delays=delays)
    lengths = [1, 7, 40]

    def host():
        yield from write_arguments(command=0, position=0, timeout=3000)
        for tiles in lengths:
            for name in ("y0", "y1", "status"):
                setup.memory[name][:] = bytes(len(setup.memory[name]))
            yield "write", OFFSETS["tiles"], tiles
            assert (yield from start_and_wait()) == RunError.NONE
            setup.check_copies(5 * tiles)
            status = setup.status()
            assert (status.error, status.detail, status.descriptors, status.awaited) == (
                RunError.NONE,
                0,
                8,
                0,
            )
            assert status.design_hash == f"{HASH:016x}"
            tokens = 2 * 5 * tiles
            assert status.counters[0:8:2] == (tokens,) * 4
            assert max(level & 0xFFFF for level in status.counters[8:]) <= DEPTH
            assert all(level >> 16 == 0 for level in status.counters[8:])  # all drained
            assert tokens < status.cycles < 5000

    setup.run(host())


def test_watchdog_reset_and_recovery():
    """A jammed kernel ends in TIMEOUT, the status block says where; the core is reset by itself."""
    setup = Setup(delays=5)

    def host():
        yield from write_arguments(command=0, position=0, timeout=400, tiles=40)
        setup.jam(True)
        assert (yield from start_and_wait()) == RunError.TIMEOUT
        status = setup.status()
        assert status.error == RunError.TIMEOUT
        assert status.awaited == 4
        assert [level >> 16 for level in status.counters[8:]] == [
            DEPTH,
            DEPTH,
        ]  # full: the stores do not take
        setup.jam(False)
        for name in ("y0", "y1"):
            setup.memory[name][:] = bytes(len(setup.memory[name]))
        assert (yield from start_and_wait()) == RunError.NONE
        setup.check_copies(200)
        assert setup.status().error == RunError.NONE

    setup.run(host())


@pytest.mark.slow
@pytest.mark.parametrize("place", ["x1", "y0", "table", "status"])
def test_axi_errors_end_the_run(place):
    """An error response anywhere ends the run with AXI and the channel; afterwards all is well."""
    setup = Setup()
    index = int(place == "x1")
    beat = {"x1": 70, "y0": 40, "table": 1, "status": 0}[place]
    setup.channels[index].faults = {BASES[place] + 64 * beat: Fault("SLVERR")}

    def host():
        yield from write_arguments(command=0, position=0, timeout=2000, tiles=100)
        assert (yield from start_and_wait()) == RunError.AXI | 1 << index << 8
        if place != "status":
            assert setup.status().error == RunError.AXI
            assert setup.status().detail == 1 << index
        setup.channels[index].faults = {}
        for name in ("y0", "y1"):
            setup.memory[name][:] = bytes(len(setup.memory[name]))
        yield "write", OFFSETS["tiles"], 9
        assert (yield from start_and_wait()) == RunError.NONE
        setup.check_copies(45)

    setup.run(host())


def test_bad_pointer_is_a_table_or_axi_error():
    setup = Setup()

    def host():
        yield from write_arguments(command=0, position=0, timeout=2000, tiles=3)
        yield "write", OFFSETS["table"], BASES["x0"] & 0xFFFFFFFF
        yield "write", OFFSETS["table"] + 4, BASES["x0"] >> 32
        assert (yield from start_and_wait()) == RunError.TABLE
        assert setup.status().error == RunError.TABLE
        yield "write", OFFSETS["table"] + 4, 0x77  # nothing is there
        assert (yield from start_and_wait()) == RunError.AXI | 1 << 8
        yield from write_arguments()
        assert (yield from start_and_wait()) == RunError.NONE
        setup.check_copies(15)

    setup.run(host())


def test_reset_command():
    """A reset run writes nothing and ends with NONE; it clears nothing that the host wrote."""
    setup = Setup()

    def host():
        yield from write_arguments(command=1, position=0, timeout=0, tiles=3)
        assert (yield from start_and_wait()) == RunError.NONE
        assert not any(setup.memory["status"])
        assert not any(setup.memory["y0"])
        yield "write", OFFSETS["command"], 0
        assert (yield "read", OFFSETS["x1"] + 4) == BASES["x1"] >> 32
        assert (yield from start_and_wait()) == RunError.NONE
        setup.check_copies(15)

    setup.run(host())


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 12, 40, 75])
def test_a_reset_ends_a_run(at):
    """`command` becomes 1 in the run: it drains, nothing is written any more, the next run is right."""
    setup = Setup()

    def host():
        yield from write_arguments(command=0, position=0, timeout=0, tiles=100)
        yield "write", 0, 1
        for _ in range(at):
            yield ("wait",)
        yield "write", OFFSETS["command"], 1
        while not (yield "read", 0) & 2:
            pass
        assert (yield "read", ERROR) == RunError.STOPPED
        assert not any(setup.memory["status"])
        yield "write", 0, 16
        yield "write", OFFSETS["command"], 0
        yield "write", OFFSETS["tiles"], 9
        for name in ("y0", "y1"):
            setup.memory[name][:] = bytes(len(setup.memory[name]))
        assert (yield from start_and_wait()) == RunError.NONE
        setup.check_copies(45)

    setup.run(host())


@pytest.mark.slow
def test_dead_memory_ends_the_run_and_recovers():
    """A memory that stops answering gives HUNG; when it answers again the next run resets first."""
    setup = Setup()
    frozen = {"on": False}

    class Frozen:
        """Between master and memory: while frozen, the memory's pins are low and its time stands still."""

        def __init__(self, memory):
            self.memory, self.thaw = memory, memory.step
            self.was = False
            memory.step = self.step

        def step(self, cycle, values, drive):
            pins = vars(self.memory.channel.pins)
            was, self.was = self.was, frozen["on"]
            if was and self.was:
                return False
            if was:  # show again what was hidden
                shown, moved = pins, False
            else:
                moved = self.thaw(cycle, values, drive)
                shown = dict.fromkeys(pins, 0) if self.was else pins
            for pin, value in shown.items():
                drive(getattr(self.memory._pins, pin), value)
            return moved

    for agent in setup.bench._agents:
        if agent.name.startswith("channel"):
            Frozen(agent)

    def freeze(on):
        frozen["on"] = on

    def host():
        yield from write_arguments(command=0, position=0, timeout=300, tiles=100)
        assert (yield from start_and_wait({30: lambda: freeze(True)})) == RunError.HUNG | 3 << 8
        assert (yield from start_and_wait()) == RunError.HUNG | 3 << 8
        freeze(False)
        for name in ("y0", "y1"):
            setup.memory[name][:] = bytes(len(setup.memory[name]))
        yield "write", OFFSETS["tiles"], 9
        assert (yield from start_and_wait()) == RunError.NONE
        setup.check_copies(45)

    setup.run(host())


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"pointers": ("table",)}, "pointers of a control need 'status': ('table',)"),
        ({"channels": 0}, "channels of a control must be at least 1, not 0"),
    ],
)
def test_bad_params(choices, message):
    base = {
        "pointers": POINTERS,
        "targets": 1,
        "completions": 1,
        "counters": 1,
        "channels": 1,
        "design_hash": 0,
    }
    with pytest.raises(ValueError) as error:
        ControlParams(**base | choices)
    assert str(error.value) == message
