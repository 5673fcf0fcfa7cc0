"""The depths against brute force, and against an execution cycle by cycle that shares no code with them."""

from dataclasses import replace
from itertools import product
from typing import get_args

import numpy as np
import pytest

from streamgen.base.errors import GraphError
from streamgen.fifo import sizing
from streamgen.fifo.curves import NodeStream
from streamgen.fifo.events import SelfTimedRun
from streamgen.fifo.sizing import Sizing, Strategy, size
from tests.unit.fifo.random_streams import bursts, ends, random_streams, smallest, storage, unlimited_finish

STRATEGIES: list[Strategy] = ["conservative", "normal"]


def _cycle_by_cycle(nodes: list[str], streams: list[NodeStream], depths: tuple[int, ...], limit: int):
    """Times of all tokens of a run, clock by clock; None when it does not end before `limit`."""
    clock = dict.fromkeys(nodes, 0)
    last = {n: max([0, *(int(c[-1]) for c in _curves(n, streams))]) for n in nodes}
    sent: list[list[int]] = [[] for _ in streams]
    taken: list[list[int]] = [[] for _ in streams]
    for now in range(limit):
        if all(clock[n] > last[n] for n in nodes):
            return sent, taken
        for name in reversed(nodes):  # readers first: a queue of depth 1 is refilled as it is emptied
            if clock[name] > last[name]:
                continue
            wants = [k for k, s in enumerate(streams) if s.target == name and clock[name] in s.consumed]
            gives = [k for k, s in enumerate(streams) if s.source == name and clock[name] in s.produced]
            come = [sum(time + streams[k].way < now for time in sent[k]) for k in wants]
            if any(count <= len(taken[k]) for k, count in zip(wants, come, strict=True)):
                continue
            due = [k for k in gives if len(sent[k]) == np.searchsorted(streams[k].produced, clock[name])]
            for k in due:
                held = len(sent[k]) - len(taken[k])
                if depths[k] > 1:  # room that is made in this cycle comes in the next, or on a way of its own
                    held += sum(time + streams[k].way >= now for time in taken[k])
                if held < depths[k]:
                    sent[k].append(now)
                    gives.remove(k)
                elif k in gives:
                    continue
            gives = [k for k in gives if len(sent[k]) == np.searchsorted(streams[k].produced, clock[name])]
            if not gives:
                for k in wants:
                    taken[k].append(now)
                clock[name] += 1
    return None


def _curves(name: str, streams: list[NodeStream]) -> list[np.ndarray]:
    return [s.produced for s in streams if s.source == name] + [
        s.consumed for s in streams if s.target == name
    ]


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", range(12))
def test_a_run_cycle_by_cycle_keeps_the_schedule(seed: int, strategy: Strategy, far: bool) -> None:
    """far: tokens of some streams, and places that are free, are some cycles on their way."""
    rng = np.random.default_rng(seed)
    nodes, streams = random_streams(rng, 7)
    if far:
        streams = [replace(s, way=int(rng.choice([0, 2, 4]))) for s in streams]
    found = size(nodes, [streams], strategy)
    (schedule,) = found.schedules
    run = _cycle_by_cycle(nodes, streams, found.depths, schedule.finish + 1)
    assert run is not None, f"seed {seed}: late, or a deadlock"
    for k, (sent, taken) in enumerate(zip(*run, strict=True)):
        if strategy == "conservative":
            assert sent == schedule.produced[k].tolist(), f"seed {seed}, stream {k}"
            assert taken == schedule.consumed[k].tolist(), f"seed {seed}, stream {k}"
        else:
            assert (sent <= schedule.produced[k]).all(), f"seed {seed}, stream {k}"
            assert (taken <= schedule.consumed[k]).all(), f"seed {seed}, stream {k}"


@pytest.mark.parametrize("seed", range(30))
def test_the_run_ends_as_with_fifos_without_limit_and_no_fifo_can_lose_a_token(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes, streams = random_streams(rng, int(rng.integers(2, 16)))
    found = size(nodes, [streams])
    finish = unlimited_finish(nodes, streams)
    assert found.schedules[0].finish == finish
    assert ends(nodes, streams, found.depths, finish)
    for k, depth in enumerate(found.depths):
        if depth > 1:
            less = [*found.depths]
            less[k] -= 1
            assert not ends(nodes, streams, less, finish), f"seed {seed}: FIFO {k} is deeper than it needs"


def _ratio(seed: int) -> float:
    rng = np.random.default_rng(seed)
    while True:
        nodes, streams = random_streams(rng, int(rng.integers(2, 5)))
        if len(streams) <= 5:
            break
    finish = unlimited_finish(nodes, streams)
    mine = storage(streams, size(nodes, [streams]).depths)
    least = []
    for k in range(len(streams)):
        alone = [len(s.produced) for s in streams]
        while alone[k] > 1 and ends(nodes, streams, [*alone[:k], alone[k] - 1, *alone[k + 1 :]], finish):
            alone[k] -= 1
        least.append(alone[k])
    return mine / smallest(nodes, streams, finish, least, mine)


def test_near_the_smallest_of_all_depths() -> None:
    ratios = [_ratio(seed) for seed in range(40)]
    assert np.median(ratios) == 1
    assert max(ratios) <= 1.1


@pytest.mark.parametrize("seed", range(10))
def test_no_rigid_schedule_needs_less_than_normal(seed: int) -> None:
    """Brute force over all starts of two inner nodes, depths read off their curves."""
    rng = np.random.default_rng(seed)
    nodes = ["a", "b", "c", "d"]
    tokens = int(rng.integers(3, 12))
    streams = [
        NodeStream(
            u, v, int(rng.integers(1, 64)), bursts(rng, tokens) + int(rng.integers(0, 9)), bursts(rng, tokens)
        )
        for u, v in ("ab", "ac", "bd", "cd")
    ]
    found = size(nodes, [streams], "normal")
    finish = found.schedules[0].finish
    least = {s.source + s.target: int((s.produced - s.consumed).max()) + 1 for s in streams}
    last = max(0, *(max(0, least["a" + x]) + least[x + "d"] for x in "bc"))
    best = None
    for b, c in product(range(last + 1 - min(0, least["bd"], least["cd"])), repeat=2):
        starts = {"a": 0, "b": b, "c": c, "d": last}
        if all(starts[s.target] - starts[s.source] >= least[s.source + s.target] for s in streams):
            total = 0
            for s in streams:
                consumed = s.consumed + starts[s.target]
                inside = np.searchsorted(s.produced + starts[s.source], consumed, side="right")
                total += s.bits * max(1, int((inside - np.arange(tokens)).max()))
            best = total if best is None else min(best, total)
    assert best is not None and finish >= unlimited_finish(nodes, streams)
    assert storage(streams, found.depths) <= best


def test_a_fast_reader_of_a_slow_writer_needs_no_buffer() -> None:
    slow, fast = 8 * np.arange(100), np.arange(100)
    streams = [NodeStream("a", "b", 8, slow, fast), NodeStream("b", "c", 8, fast + 3, fast)]
    for strategy in STRATEGIES:
        assert size(["a", "b", "c"], [streams], strategy).depths == (1, 1)


def test_a_burst_waits_where_it_is_narrow() -> None:
    """The writer sends 20 tokens at once, the reader takes one in three cycles: depth decides the finish."""
    burst, slow = np.arange(20), 3 * np.arange(20)
    wide = NodeStream("a", "b", 64, burst, burst + 2)
    narrow = NodeStream("b", "c", 8, burst + 4, slow)
    found = size(["a", "b", "c"], [[wide, narrow]])
    assert found.depths == (1, 1)  # handshakes hold the writer back, the end is the same
    assert found.schedules[0].finish == unlimited_finish(["a", "b", "c"], [wide, narrow])
    kept = size(["a", "b", "c"], [[wide, narrow]], "normal")
    assert kept.depths[1] == 14  # b keeps its own rate


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nodes_that_rest_in_a_run(strategy: Strategy) -> None:
    """The last node has no stream in the first run."""
    one, other = (NodeStream(u, v, 8, np.arange(4), np.arange(4)) for u, v in ("ab", "bc"))
    assert size(["a", "b", "c"], [[one, None], [None, other]], strategy).depths == (1, 1)


def test_depths_serve_every_run() -> None:
    rng = np.random.default_rng(5)
    nodes, one = random_streams(rng, 6)
    two = [
        replace(s, produced=bursts(rng, n := int(rng.integers(4, 40))), consumed=bursts(rng, n)) for s in one
    ]
    runs: list[list[NodeStream | None]] = [[*one], [*two], [one[0], *([None] * (len(one) - 1))]]
    both = size(nodes, runs)
    assert [s.finish for s in both.schedules[:2]] == [unlimited_finish(nodes, run) for run in (one, two)]
    for run, schedule in zip((one, two), both.schedules, strict=False):
        assert ends(nodes, run, both.depths, schedule.finish)
    apart: list[Sizing] = [size(nodes, [run]) for run in (one, two)]
    assert storage(one, both.depths) >= max(storage(one, sizing.depths) for sizing in apart)


def test_runs_that_are_alike_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers with other weights in the same cycles: a run costs the time of one, each has its schedule."""
    tokens = np.arange(16)
    wide, narrow = ([NodeStream("a", "b", 8, tokens[:n], 2 * tokens[:n])] for n in (16, 4))
    copied = [replace(wide[0], produced=tokens.astype(np.int32))]
    made = []
    monkeypatch.setattr(sizing, "SelfTimedRun", lambda *given: made.append(given) or SelfTimedRun(*given))
    found = size("ab", [wide, narrow, copied, narrow, wide])
    assert len(made) == 2
    assert found.depths == size("ab", [wide, narrow]).depths
    finishes = [schedule.finish for schedule in found.schedules]
    assert finishes[0] == finishes[2] == finishes[4] != finishes[1] == finishes[3]
    assert [len(schedule.produced[0]) for schedule in found.schedules] == [16, 4, 16, 4, 16]


def test_runs_side_by_side_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large runs are computed in threads; what one of them does not fit in is taken back in all others."""
    rng = np.random.default_rng(0)
    runs = []
    for count in (400, 150, 90, 30, 7):
        steps = [np.cumsum(rng.integers(1, 4, count)) for _ in range(6)]
        ends = [("a", "b"), ("b", "c"), ("a", "c")]
        runs.append([NodeStream(*end, 8, *steps[2 * k : 2 * k + 2]) for k, end in enumerate(ends)])
    for strategy in get_args(Strategy):
        alone = size("abc", runs, strategy)
        monkeypatch.setattr(sizing, "_LARGE", 0)
        beside = size("abc", runs, strategy)
        assert beside.depths == alone.depths and min(alone.depths) > 0
        for one, other in zip(beside.schedules, alone.schedules, strict=True):
            assert one.finish == other.finish
            for moves, same in zip(one.produced + one.consumed, other.produced + other.consumed, strict=True):
                assert np.array_equal(moves, same)
        monkeypatch.undo()


def test_a_deep_queue_counts_with_its_own_latency() -> None:
    """A block RAM takes two cycles more than registers or LUT memory."""
    tokens = np.arange(200)
    streams = [
        NodeStream("a", "b", 512, tokens, tokens + 150 * (tokens > 0)),
        NodeStream("a", "c", 8, tokens, tokens),
        NodeStream("c", None, 8, tokens + 1000, tokens),
    ]
    found = size(["a", "b", "c"], [streams])
    assert found.depths[0] > 64
    (schedule,) = found.schedules
    through = [int((schedule.consumed[k] - schedule.produced[k]).min()) for k in (0, 1)]
    assert through == [3, 1]


def test_streams_at_the_boundary_are_no_fifos() -> None:
    cycles = np.arange(5)
    streams = [
        NodeStream(None, "a", 8, cycles, cycles),
        NodeStream("a", "b", 8, cycles + 2, cycles),
        NodeStream("b", None, 8, cycles + 9, cycles + 9),
    ]
    found = size(["a", "b"], [streams])
    assert found.depths == (0, 1, 0)
    assert found.schedules[0].finish == 2 + 1 + 9 + 4 + 1


# Back edges


def _loop(depth: int, wait: int = 3) -> list[NodeStream]:
    """a sends 6 tokens and takes back from b what it has sent, `wait` tokens later; c reads the result."""
    forth, back = 2 * np.arange(6), 2 * np.arange(6) + 1 + 2 * wait
    return [
        NodeStream("a", "b", 8, forth, forth),
        NodeStream("b", "a", 8, forth + 1, back, depth),
        NodeStream("a", "c", 8, back + 1, np.arange(6)),
    ]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_back_edge_keeps_its_depth(strategy: Strategy) -> None:
    found = size(["a", "b", "c"], [_loop(3)], strategy)
    assert found.depths[1] == 3
    run = _cycle_by_cycle(["a", "b", "c"], _loop(3), found.depths, found.schedules[0].finish + 1)
    assert run is not None
    assert size(["c", "b", "a"], [_loop(3)], strategy).depths == found.depths


def test_a_back_edge_that_is_too_shallow() -> None:
    with pytest.raises(GraphError) as error:
        size(["a", "b", "c"], [[replace(_loop(1, wait=4)[0], depth=1), *_loop(1, wait=4)[1:]]])
    assert str(error.value) == (
        "the depths given let nodes wait for one another for ever: "
        "a waits for b: a -> b is full, depth 1; b waits for a: b -> a is full, depth 1"
    )


def test_a_token_that_comes_back_too_late() -> None:
    first = [replace(s, consumed=s.consumed - 7) if s.target == "a" else s for s in _loop(6)]
    with pytest.raises(GraphError) as error:
        size(["a", "b", "c"], [[first[0], replace(first[1], consumed=np.arange(6)), first[2]]])
    assert str(error.value) == (
        "the depths given let nodes wait for one another for ever: "
        "a waits for b: b -> a is empty; b waits for a: a -> b is empty"
    )


def test_an_undeclared_cycle() -> None:
    streams = [replace(s, depth=None) for s in _loop(3)]
    with pytest.raises(GraphError) as error:
        size(["a", "b", "c"], [streams])
    assert (
        str(error.value) == "the nodes a -> b -> a are a cycle; one of its streams needs a depth of its own"
    )


# Errors


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"consumed": np.arange(2)}, "stream a -> b: 3 tokens are produced, 2 consumed"),
        (
            {"produced": np.array([0, 4, 3])},
            "stream a -> b: the curve 'produced' is not monotone: token 1 moves in cycle 4, "
            "token 2 in cycle 3; one token moves a cycle at most",
        ),
        (
            {"consumed": np.array([0, 4, 4])},
            "stream a -> b: the curve 'consumed' is not monotone: token 1 moves in cycle 4, "
            "token 2 in cycle 4; one token moves a cycle at most",
        ),
        (
            {"produced": np.array([-2, 0, 1])},
            "stream a -> b: the curve 'produced' begins in cycle -2, before 0",
        ),
        ({"bits": 0}, "stream a -> b: bits must be at least 1, not 0"),
        ({"depth": 0}, "stream a -> b: depth must be at least 1 or None, not 0"),
    ],
)
def test_streams_that_are_none(fields: dict, message: str) -> None:
    with pytest.raises(ValueError) as error:
        NodeStream(
            **{
                "source": "a",
                "target": "b",
                "bits": 8,
                "produced": np.arange(3),
                "consumed": np.arange(3),
                **fields,
            }
        )
    assert str(error.value) == message


def test_errors() -> None:
    stream = NodeStream("a", "b", 8, np.arange(3), np.arange(3))
    with pytest.raises(ValueError, match=r"^strategy is 'fast'; 'normal' and 'conservative' are allowed$"):
        size(["a", "b"], [[stream]], "fast")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^stream a -> b names no node: 'b'$"):
        size(["a"], [[stream]])
    with pytest.raises(ValueError, match=r"^stream a -> b: bits is 8 in one run, 9 in another$"):
        size(["a", "b"], [[stream], [replace(stream, bits=9)]])
    with pytest.raises(
        ValueError, match=r"^curves reach beyond cycle 536870912, the last one that sizing counts$"
    ):
        size(["a", "b"], [[replace(stream, produced=np.array([0, 1, 1 << 30]))]])


def test_what_goes_to_another_part_waits_for_what_goes_to_others() -> None:
    """The first x is taken with a y, which comes behind the fourth move of `k.a`: so long all x wait."""
    moves, first = np.arange(1, 7), np.array([0])
    streams = [
        NodeStream("k.a", "r", 8, moves, moves + 9),
        NodeStream("k.a", "k.b", 1, moves[3:4], first + 5, 8, 1, inside=True),
        NodeStream("k.b", "r", 8, first + 6, first + 10),
    ]
    nodes = ["k.a", "k.b", "r"]
    assert size(nodes, [streams], "conservative").depths[0] >= 4
    for depth, fits in ((4, True), (3, False)):
        given = [replace(streams[0], depth=depth), *streams[1:]]
        assert SelfTimedRun(nodes, given, [1, 1, 1]).ends == fits
    with pytest.raises(GraphError, match=r"wait for one another for ever: .*full, depth 3"):
        size(nodes, [given], "conservative")
