"""Words in random order for random targets arrive as descriptors, in order, constants filled in."""

from random import Random

import pytest

from sim.axi import AxiBench
from streamgen.contract import Field
from streamgen.platform.control.descriptor_bus import DescriptorBusParams, Target


def word(target, last, value):
    return target | last << 16 | value << 17


def random_target(random, depths):
    fields = tuple(Field(f"f{k}", random.choice((1, 5, 16, 32))) for k in range(random.randrange(1, 5)))
    constants = tuple((f.name, random.getrandbits(f.bits)) for f in fields if random.random() < 0.4)
    return Target(fields=fields, constants=constants, depth=random.choice(depths))


@pytest.mark.parametrize(
    ("seed", "count", "chance"),
    [(1, 1, 0.0), (1, 1, 0.4), (2, 2, 0.0), (2, 2, 0.4), (3, 8, 0.4), (4, 9, 0.0), (4, 9, 0.4), (5, 70, 0.0)],
)
def test_descriptors_arrive(seed, count, chance):
    random = Random(seed)
    depths = (1, 2, 4) if chance else (2, 4)
    targets = tuple(random_target(random, depths) for _ in range(count))
    params = DescriptorBusParams(targets=targets)
    bus = params.build()
    words, expected = [], [[] for _ in targets]
    for _ in range(200):
        k = random.randrange(count)
        target = targets[k]
        values = {f.name: random.getrandbits(32) for f in target.varying}
        sent = list(values.values()) or [random.getrandbits(32)]
        words += [word(k, j == len(sent) - 1, value) for j, value in enumerate(sent)]
        values |= dict(target.constants)
        packed = shift = 0
        for f in target.fields:
            packed |= (values[f.name] & ((1 << f.bits) - 1)) << shift
            shift += f.bits
        expected[k].append(packed)
    bench = AxiBench(bus, seed=seed, chance=chance)
    source = bench.source(bus.i, words)
    sinks = [bench.sink(getattr(bus, f"o_{k}"), len(e), f"o_{k}") for k, e in enumerate(expected)]
    bench.run()
    assert [sink.tokens for sink in sinks] == expected
    if not chance:
        assert source.cycles[-1] - source.cycles[0] == len(words) - 1  # a word a cycle
        assert max(max(sink.cycles, default=0) for sink in sinks) <= source.cycles[-1] + params.levels + 1


@pytest.mark.parametrize("depth", [1, 2])
def test_a_full_node_stops_the_bus_and_no_word_is_lost(depth):
    target = Target(fields=(Field("n", 8),), depth=depth)
    bus = DescriptorBusParams(targets=(target, target)).build()
    bench = AxiBench(bus)
    bench.source(bus.i, [word(0, 1, k) for k in range(6)] + [word(1, 1, 9)])
    late = bench.sink(bus.o_0, 6, "late")
    other = bench.sink(bus.o_1, 1, "other")
    step = late.step

    def wait(cycle, values, drive):
        if cycle < 50:
            drive(bus.o_0.ready, 0)
            return False
        return step(cycle, values, drive)

    late.step = wait
    bench.run()
    assert late.tokens == [0, 1, 2, 3, 4, 5]
    assert other.tokens == [9]
    assert other.cycles[0] > 50


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Target(fields=(Field("n", 4),), constants=(("m", 1),)),
            "constant 'm' is no field; the fields are ['n']",
        ),
        (
            lambda: Target(fields=(Field("n", 4),), constants=(("n", 16),)),
            "constant 'n' has 4 bits; 16 does not fit",
        ),
        (
            lambda: Target(fields=(Field("n", 4),), depth=0),
            "depth of a target must be at least 1, not 0",
        ),
        (lambda: DescriptorBusParams(targets=()), "a descriptor bus has 1 to 65536 targets, not 0"),
    ],
)
def test_bad_params(make, message):
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value) == message
