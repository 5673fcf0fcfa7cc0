"""Loads and stores against the packing function: what one writes the other, and the host, reads."""

from fractions import Fraction
from random import Random

import numpy as np
import pytest

from sim.axi import AxiBench
from sim.memory import MEMORY
from streamgen.artifact.packing import MemoryLayout
from streamgen.contract import traffic
from streamgen.itensor import ITensor
from streamgen.numbers import formats
from streamgen.platform.dma import LoadParams, StoreParams
from streamgen.testing.kernel import descriptor_word
from tests.unit.platform.rig import BASE, Pulses, Rig, channel

OFFSETS = (0, 61, 200)
TYPES = [
    ("f24", (1, 16)),  # one token a beat
    ("f24", (1, 1)),
    ("f24", (2, 3)),  # 6 elements in 8 slots, 2 tokens a beat
    ("f24", (4, 16)),  # 4 beats a token
    ("i4", (4, 32)),
    ("i4", (12, 32)),  # 3 beats a token
    ("i12", (1, 5)),
    ("u12", (1, 5)),
    ("i8", (2, 1, 2)),
    ("u1", (1, 1)),  # 512 tokens a beat
]


def stream_of(dtype, shape, tokens):
    rank = len(shape)
    steps = (shape[0],) * 1
    return ITensor(shape, dtype, (tokens,), steps, ((0,),) + ((),) * (rank - 1))


def values(itensor, seed):
    generator = np.random.default_rng(seed)
    dtype = itensor.dtype
    if dtype == "f24":
        return formats.round_f24(generator.normal(size=itensor.shape) * 10.0 ** generator.integers(-9, 9))
    bits = formats.bits(dtype)
    low = -(1 << bits - 1) if dtype[0] == "i" else 0
    return generator.integers(low, low + (1 << bits), itensor.shape).astype(formats.numpy_dtype(dtype))


@pytest.mark.parametrize(("dtype", "shape"), TYPES)
def test_load_and_store_are_the_packing_function(dtype, shape):
    """Transfers of all lengths back to back, in and out, stalls, delays, one channel for both."""
    layout = MemoryLayout(dtype, shape)
    seed = TYPES.index((dtype, shape))
    random = Random(seed)
    slots, parts = layout.tokens_per_beat, layout.beats_per_token
    counts = [1, max(1, 64 // parts), min(3 * slots + 1, 600), random.randrange(1, 80 // parts + 2)]
    load = LoadParams(layout=layout, max_tokens=1000, prefetch=64, **MEMORY)
    store = StoreParams(layout=layout, max_tokens=1000, depth=64, **MEMORY)
    reader, writer = load.build(), store.build()
    rig = Rig([reader], [writer])
    bench = AxiBench(rig, seed=seed, chance=0.2)
    source, target = bytearray(64 * 4096), bytearray(b"\xff" * 64 * 4096)
    bench.memory(
        rig.m_axi,
        channel({BASE: source, BASE + (1 << 24): target}, rate=1, latency=15, delays=seed % 3 * 8, seed=seed),
    )
    words, tokens, expected = [], [], bytearray(target)
    first = random.randrange(64)
    for k, count in enumerate(counts):
        itensor = stream_of(dtype, shape, count)
        array = values(itensor, seed * 10 + k)
        image = layout.pack(itensor, array)
        source[64 * first : 64 * first + len(image)] = image
        expected[64 * first : 64 * first + len(image)] = image
        bounds = {"itensor": itensor, "offset": first}
        words.append((descriptor_word(load, bounds), descriptor_word(store, bounds)))
        tokens += formats.encode_ints(dtype, itensor.to_tokens(array))
        assert (load.golden(bounds, {"memory": array})["o"] == array).all()
        assert (store.golden(bounds, {"i": array})["memory"] == array).all()
        first += layout.beats(count) + random.choice((0, 5, 63))
    bench.source(reader.i_descriptor, [load_word for load_word, _ in words], "load descriptors")
    bench.source(writer.i_descriptor, [store_word for _, store_word in words], "store descriptors")
    sink = bench.sink(reader.o, len(tokens), "load")
    bench.source(writer.i, tokens, "store")
    bench.add(Pulses("done", writer.done, len(counts)))

    class Bases:
        name, signals = "bases", ()

        def step(self, cycle, values, drive):
            drive(reader.base, BASE)
            drive(writer.base, BASE + (1 << 24))
            return False

        def left(self):
            return ""

    bench.add(Bases())
    bench.run()
    assert sink.tokens == tokens
    assert target == expected


def measure(params, itensor, rate, latency):
    """Descriptor cycle, token cycles, done cycle, all ports ready."""
    dma = params.build()
    is_load = isinstance(params, LoadParams)
    rig = Rig([dma] if is_load else [], [] if is_load else [dma])
    bench = AxiBench(rig)
    memory = bytearray(64 * (params.layout.beats(itensor.token_count) + 64))
    pace = Fraction(rate).limit_denominator(1000)
    model = bench.memory(rig.m_axi, channel({BASE: memory}, rate=pace, latency=latency))

    class Base:
        name, signals = "base", ()

        def step(self, cycle, values, drive):
            drive(dma.base, BASE)
            return False

        def left(self):
            return ""

    bench.add(Base())
    descriptor = bench.source(
        dma.i_descriptor, [descriptor_word(params, {"itensor": itensor, "offset": 0})], "descriptor"
    )
    if is_load:
        port = bench.sink(dma.o, itensor.token_count, "o")
        done = None
    else:
        tokens = [0] * itensor.token_count
        port = bench.source(dma.i, tokens, "i")
        done = bench.add(Pulses("done", dma.done, 1))
    bench.run()
    moved = sum(beats for _, _, _, beats, _ in model.bursts)
    assert {"memory": moved} == traffic(params, {"itensor": itensor, "offset": 0})
    start = descriptor.cycles[0]
    cycles = np.array(port.cycles) - start
    return cycles, (done.cycles[0] - start if done else int(cycles[-1]))


@pytest.mark.parametrize(
    ("dtype", "shape", "tokens"),
    [
        ("f24", (1, 16), 700),
        ("f24", (1, 1), 900),
        ("i4", (4, 32), 600),
        ("f24", (4, 16), 150),
        ("f24", (1, 16), 1),
    ],
)
@pytest.mark.parametrize(("rate", "latency"), [(0.6927, 100), (1.0, 20)])
def test_load_keeps_its_promise(dtype, shape, tokens, rate, latency):
    """First token exact, each token within one latency + 1 % of its curve, and so the end."""
    itensor = stream_of(dtype, shape, tokens)
    params = LoadParams(
        layout=MemoryLayout(dtype, shape), max_tokens=1000, rate=rate, latency=latency, prefetch=256
    )
    bounds = {"itensor": itensor, "offset": 0}
    cycles, _ = measure(params, itensor, rate, latency)
    promised = params.curves(bounds)["o"].cycles()
    assert len(promised) == tokens
    assert promised[0] == cycles[0]
    assert (np.abs(promised - cycles) <= 3 * params.layout.beats_per_token + 0.01 * cycles).all()
    cost = params.cost(bounds)
    assert cost.cycles == promised[-1] + 1
    assert cost.latency == promised[0]
    if tokens > 1:
        assert abs(cost.ii - (cycles[-1] - cycles[0]) / (tokens - 1)) <= 0.01 * cost.ii


@pytest.mark.parametrize(
    ("dtype", "shape", "tokens"),
    [
        ("f24", (1, 16), 700),
        ("f24", (1, 1), 900),
        ("i4", (4, 32), 600),
        ("f24", (4, 16), 150),
        ("f24", (1, 16), 1),
    ],
)
@pytest.mark.parametrize(("rate", "latency"), [(0.6927, 100), (1.0, 20)])
def test_store_keeps_its_promise(dtype, shape, tokens, rate, latency):
    itensor = stream_of(dtype, shape, tokens)
    params = StoreParams(layout=MemoryLayout(dtype, shape), max_tokens=1000, rate=rate, latency=latency)
    bounds = {"itensor": itensor, "offset": 0}
    cycles, done = measure(params, itensor, rate, latency)
    promised = params.curves(bounds)["i"].cycles()
    assert len(promised) == tokens
    assert (cycles <= promised).all()
    assert (promised - cycles <= latency + 0.01 * cycles).all()  # the memory's queue takes some beats more
    cost = params.cost(bounds)
    assert abs(cost.cycles - (done + 1)) <= 3 + 0.01 * done
    assert cost.latency == cost.cycles - 1


def test_next_descriptor_does_not_wait():
    """Descriptors are taken while a transfer runs, so that the next follows without a gap."""
    layout = MemoryLayout("f24", (1, 1))
    params = LoadParams(layout=layout, max_tokens=100, latency=20, prefetch=64, rate=MEMORY["rate"])
    dma = params.build()
    rig = Rig([dma], [])
    bench = AxiBench(rig)
    bench.memory(rig.m_axi, channel({0: bytearray(64 * 64)}, rate=1, latency=20))
    word = descriptor_word(params, {"itensor": stream_of("f24", (1, 1), 30), "offset": 1})
    source = bench.source(dma.i_descriptor, [word] * 3)
    sink = bench.sink(dma.o, 90)
    bench.run()
    assert np.diff(sink.cycles).max() == 1
    assert source.cycles[2] < sink.cycles[0]


ROW = ITensor((1, 16), "f24", (4,), (1,), ((0,), ()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: p(max_tokens=0), "max_tokens of a {} must be at least 1, not 0"),
        (
            lambda p: p(max_tokens=1, rate=0.0),
            "rate of a {} must be above 0 and at most 1 beat a cycle, not 0.0",
        ),
        (lambda p: p(max_tokens=1, latency=-1), "latency of a {} must be at least 0, not -1"),
        (lambda p: p(max_tokens=1, burst=3), "burst of a {} must be a power of two from 1 to 64, not 3"),
        (
            lambda p: p(max_tokens=3).describe({"itensor": ROW, "offset": 0}),
            "4 tokens are more than max_tokens 3",
        ),
        (
            lambda p: p(max_tokens=9).describe({"itensor": ROW, "offset": 1 << 32}),
            "offset must be 0 to 2^32 - 1 beats, not 4294967296",
        ),
        (
            lambda p: p(max_tokens=9).describe({"itensor": stream_of("f24", (1, 8), 2), "offset": 0}),
            f"{stream_of('f24', (1, 8), 2)} has other tokens than {MemoryLayout('f24', (1, 16))}",
        ),
    ],
)
@pytest.mark.parametrize("kind", [LoadParams, StoreParams])
def test_bad_params(kind, make, message):
    with pytest.raises(ValueError) as error:
        make(lambda **choices: kind(**{"layout": MemoryLayout("f24", (1, 16)), **MEMORY, **choices}))
    assert str(error.value) == message.format(kind.__name__.removesuffix("Params").lower())
