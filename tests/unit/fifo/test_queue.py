"""streamgen.fifo.queue: order, exact depth, throughput, latency, level, and the memory it maps to."""

from itertools import accumulate

import pytest

from streamgen.fifo.queue import QueueParams
from streamgen.testing.bench import Stalls, random_tokens, run
from streamgen.testing.synthesis import synthesise

SHAPES = [
    QueueParams(bits=1, depth=1),
    QueueParams(bits=8, depth=2),
    QueueParams(bits=8, depth=2, memory="lutram"),
    QueueParams(bits=24, depth=3),
    QueueParams(bits=8, depth=8, memory="bram"),
    QueueParams(bits=72, depth=13, memory="uram"),
    QueueParams(bits=512, depth=64),
]


def name(params):
    return f"{params.kind}-{params.depth}x{params.bits}"


def fill(params, count):
    return random_tokens(params.bits, count)


@pytest.mark.parametrize("params", SHAPES, ids=name)
def test_order_and_level(params, stalls):
    count = 4 * params.depth + 50
    tokens = fill(params, count)
    result = run(params.build(), {"i": tokens}, {"o": count}, stalls=stalls, probes=["level"])
    assert result.tokens["o"] == tokens
    change = [0] * (len(result.probes["level"]) + 1)
    for cycle in result.cycles["i"]:
        change[cycle + 1] += 1
    for cycle in result.cycles["o"]:
        change[cycle + 1] -= 1
    assert result.probes["level"] == list(accumulate(change))[:-1]
    assert max(result.probes["level"]) <= params.depth


@pytest.mark.parametrize("params", SHAPES, ids=name)
def test_token_a_cycle_at_promised_latency(params):
    result = run(params.build(), {"i": fill(params, 90)}, {"o": 90})
    assert result.cycles["i"] == list(range(90))
    assert result.cycles["o"] == [k + params.latency for k in range(90)]


@pytest.mark.parametrize("params", SHAPES, ids=name)
def test_holds_exactly_depth_tokens_and_drains_at_full_rate(params):
    count = 3 * params.depth + 20
    result = run(params.build(), {"i": fill(params, count)}, {"o": count}, hold={"o": 200}, probes=["level"])
    assert sum(cycle < 200 for cycle in result.cycles["i"]) == params.depth
    assert result.probes["level"][199] == params.depth
    assert result.offered["o"][0] == params.latency
    assert result.cycles["o"] == list(range(200, 200 + count))
    room = 0 if params.depth == 1 else 1  # ready is a register but at depth 1
    assert result.cycles["i"][params.depth :] == list(range(200 + room, 200 + room + count - params.depth))


@pytest.mark.parametrize("params", SHAPES, ids=name)
def test_reset_empties(params):
    tokens = fill(params, 40)
    for reset_at in (3, 12, 31):
        stalls = Stalls(seed=reset_at, sources=0.2, sinks=0.6)
        result = run(
            params.build(), {"i": tokens}, {"o": 40}, stalls=stalls, reset_at=reset_at, probes=["level"]
        )
        assert result.tokens["o"] == tokens
        assert result.probes["level"][0] == 0


@pytest.mark.parametrize(
    ("bits", "depth", "kind"),
    [
        (512, 1, "register"),
        (512, 2, "register"),
        (512, 3, "lutram"),
        (512, 64, "lutram"),
        (1, 2048, "lutram"),
        (4, 512, "lutram"),
        (512, 65, "bram"),
        (72, 512, "bram"),
        (18, 2048, "bram"),
        (512, 4096, "uram"),
        (72, 4096, "uram"),
    ],
)
def test_kind_by_size(bits, depth, kind):
    assert QueueParams(bits=bits, depth=depth).kind == kind


@pytest.mark.parametrize(
    ("bits", "depth", "blocks"), [(1, 4096, 1), (24, 20000, 5), (73, 4097, 4), (8, 12288, 3)]
)
def test_ultra_ram_has_one_shape(bits, depth, blocks):
    """4,096 rows of 72 bits: narrow tokens do not lie beside one another."""
    assert QueueParams(bits=bits, depth=depth, memory="uram").resources.uram == blocks


def test_deep_and_narrow_is_block_ram():
    assert QueueParams(bits=8, depth=16384).kind == "bram"


# params, BRAM, URAM, levels allowed
MAPPED = [
    (QueueParams(bits=32, depth=1), 0, 0, 2),
    (QueueParams(bits=32, depth=2), 0, 0, 2),
    (QueueParams(bits=32, depth=16), 0, 0, 4),
    (QueueParams(bits=28, depth=64), 0, 0, 5),
    (QueueParams(bits=8, depth=200), 0, 0, 5),
    (QueueParams(bits=36, depth=512), 0.5, 0, 6),
    (QueueParams(bits=144, depth=300), 2, 0, 6),
    (QueueParams(bits=36, depth=1024, memory="bram"), 1, 0, 6),
    (QueueParams(bits=72, depth=4096), 0, 1, 6),
    (QueueParams(bits=144, depth=5000), 0, 4, 6),
]
LUTRAM_CELLS = {"RAM32M", "RAM32M16", "RAM64M", "RAM64M8"}


@pytest.mark.slow
def test_maps_to_its_memory():
    found = synthesise(*(params.build() for params, *_ in MAPPED))
    for (params, bram, uram, levels), result in zip(MAPPED, found, strict=True):
        promised = params.resources
        assert (promised.bram, promised.uram) == (bram, uram), params
        assert (result.resources.bram, result.resources.uram) == (bram, uram), params
        assert bool(LUTRAM_CELLS & result.cells.keys()) == (params.kind == "lutram"), params
        assert result.levels <= levels, (params, result.path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bits": 0}, "bits of a queue must be at least 1, not 0"),
        ({"depth": 0}, "depth of a queue must be at least 1, not 0"),
        ({"depth": -3}, "depth of a queue must be at least 1, not -3"),
        ({"memory": "sram"}, "memory of a queue must be register, lutram, bram, uram or None, not 'sram'"),
        ({"memory": "register", "depth": 3}, "depth of a register queue must be at most 2, not 3"),
        ({"memory": "lutram", "depth": 1}, "depth of a lutram queue must be at least 2, not 1"),
        ({"memory": "bram", "depth": 7}, "depth of a bram queue must be at least 8, not 7"),
        ({"memory": "uram", "depth": 7}, "depth of a uram queue must be at least 8, not 7"),
    ],
)
def test_bad_params(fields, message):
    with pytest.raises(ValueError) as error:
        QueueParams(**{"bits": 8, "depth": 16, **fields})
    assert str(error.value) == message


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [QueueParams(bits=5, depth=depth) for depth in range(1, 20)]
    + [QueueParams(bits=5, depth=depth, memory=kind) for depth in range(8, 20) for kind in ("bram", "uram")],
    ids=name,
)
@pytest.mark.parametrize("seed", range(4))
def test_every_small_depth(params, seed):
    stalls = Stalls(seed=seed, sources=(0.1, 0.6)[seed % 2], sinks=(0.1, 0.6)[seed // 2])
    tokens = fill(params, 600)
    result = run(params.build(), {"i": tokens}, {"o": 600}, stalls=stalls, probes=["level"])
    assert result.tokens["o"] == tokens
    if seed == 2:  # fast in, slow out
        assert max(result.probes["level"]) == params.depth
