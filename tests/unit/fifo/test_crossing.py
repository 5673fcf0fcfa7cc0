"""streamgen.fifo.crossing: order, exact depth, latency, and when a place is free again at the other end."""

import pytest

from streamgen.fifo.crossing import CrossingParams
from streamgen.testing.bench import Stalls, random_tokens, run
from streamgen.testing.synthesis import check_all

SHAPES = [
    CrossingParams(bits=8, depth=2, boundaries=1),
    CrossingParams(bits=24, depth=7, boundaries=1),
    CrossingParams(bits=72, depth=24, boundaries=2),
    CrossingParams(bits=100, depth=80, boundaries=2),
]


def name(params):
    return f"{params.boundaries}-{params.queue.kind}-{params.depth}x{params.bits}"


@pytest.mark.parametrize("params", SHAPES, ids=name)
def test_order(params, stalls):
    count = 4 * params.depth + 50
    tokens = random_tokens(params.bits, count)
    result = run(params.build(), {"i": tokens}, {"o": count}, stalls=stalls, probes=["level"])
    assert result.tokens["o"] == tokens
    assert max(result.probes["level"]) <= params.depth


@pytest.mark.parametrize("params", SHAPES, ids=name)
def test_holds_exactly_depth_tokens(params):
    count = 3 * params.depth + 20
    tokens = random_tokens(params.bits, count)
    result = run(params.build(), {"i": tokens}, {"o": count}, hold={"o": 200}, probes=["level"])
    assert result.tokens["o"] == tokens
    assert sum(cycle < 200 for cycle in result.cycles["i"]) == params.depth
    assert result.probes["level"][199] == params.depth
    assert result.offered["o"][0] == params.latency


@pytest.mark.parametrize("params", SHAPES, ids=name)
def test_a_place_is_free_when_its_way_back_is_over(params):
    """The equations that FIFO sizing and predictions have, token by token."""
    count = 3 * params.depth + 60
    result = run(params.build(), {"i": random_tokens(params.bits, count)}, {"o": count})
    sent: list[int] = []
    taken: list[int] = []
    for k in range(count):
        room = taken[k - params.depth] + 1 + params.way if k >= params.depth else 0
        sent.append(max(sent[-1] + 1 if sent else 0, room))
        taken.append(max(sent[-1] + params.latency, taken[-1] + 1 if taken else 0))
    assert result.cycles["i"] == sent
    assert result.cycles["o"] == taken


def test_a_token_a_cycle_from_that_depth_on():
    for boundaries in (1, 2):
        way = 2 * boundaries
        params = CrossingParams(bits=8, depth=2 * way + 2, boundaries=boundaries)  # 2 * way + 1 + latency 1
        result = run(params.build(), {"i": random_tokens(8, 90)}, {"o": 90})
        assert result.cycles["o"] == [k + params.latency for k in range(90)]


@pytest.mark.parametrize("params", SHAPES, ids=name)
def test_reset_empties(params):
    tokens = random_tokens(params.bits, 40)
    for reset_at in (3, 12, 31):
        stalls = Stalls(seed=reset_at, sources=0.2, sinks=0.6)
        result = run(params.build(), {"i": tokens}, {"o": 40}, stalls=stalls, reset_at=reset_at)
        assert result.tokens["o"] == tokens


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.parametrize("params", SHAPES, ids=name)
def test_resources(params):
    check_all([(block, None) for block in (params.sender, *params.relays, params.receiver)])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"depth": 1}, "depth of a crossing must be at least 2, not 1"),
        ({"boundaries": 0}, "boundaries of a crossing must be at least 1, not 0"),
    ],
)
def test_bad_params(changed, said):
    with pytest.raises(ValueError, match=f"^{said}$"):
        CrossingParams(**{"bits": 8, "depth": 4, "boundaries": 1, **changed})
