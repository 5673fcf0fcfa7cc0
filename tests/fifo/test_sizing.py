"""The sizing LP against brute force and against a self-timed execution with the depths it gives."""

from itertools import product

import numpy as np
import pytest

from streamgen.fifo.sizing import Strategy, Stream, depth_at, schedule


def _cycles(rng: np.random.Generator, tokens: int, gap: int) -> np.ndarray:
    return np.cumsum(rng.integers(0, gap + 1, tokens)).astype(np.int64)


def _self_timed(nodes: list[str], streams: list[Stream], depths: tuple[int, ...] | None) -> int | None:
    """Last cycle of a run in which every node's clock stands while a token or a place is missing.

    The independent model: cycle by cycle, all nodes at once. None when nothing moves any more.
    """
    clock = dict.fromkeys(nodes, 0)
    taken = [0] * len(streams)
    given: list[list[int]] = [[] for _ in streams]
    last = {
        n: max(
            [
                int(c[-1])
                for s in streams
                for e, c in ((s.target, s.consumed), (s.source, s.produced))
                if e == n
            ]
        )
        for n in nodes
    }
    idle, now, finish = 0, 0, 0
    while any(clock[n] <= last[n] for n in nodes):
        moves: list[tuple[str, list[int], list[int]]] = []
        for name in nodes:
            if clock[name] > last[name]:
                continue
            reads = [
                (i, int(np.sum(s.consumed == clock[name]))) for i, s in enumerate(streams) if s.target == name
            ]
            writes = [
                (i, int(np.sum(s.produced == clock[name]))) for i, s in enumerate(streams) if s.source == name
            ]
            ready = all(
                sum(t + streams[i].latency <= now for t in given[i]) - taken[i] >= count for i, count in reads
            )
            space = depths is None or all(len(given[i]) - taken[i] + c <= depths[i] for i, c in writes)
            if ready and space:
                moves.append(
                    (name, [i for i, c in reads for _ in range(c)], [i for i, c in writes for _ in range(c)])
                )
        for name, reads, writes in moves:
            clock[name] += 1
            for i in reads:
                taken[i] += 1
            for i in writes:
                given[i].append(now)
            if reads or writes:
                finish = now
        idle = 0 if moves else idle + 1
        if idle > 20:
            return None
        now += 1
    return finish + 1


def _diamond(rng: np.random.Generator) -> tuple[list[str], list[Stream]]:
    """a feeds b and c, both feed d; strictly one token a cycle at most, random gaps and bursts."""
    tokens = int(rng.integers(3, 12))

    def curve(gap: int, first: int = 0) -> np.ndarray:
        return first + np.arange(tokens) + _cycles(rng, tokens, gap)

    nodes = ["a", "b", "c", "d"]
    streams = []
    for source, target in (("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")):
        latency = int(rng.integers(0, 9))
        streams.append(Stream(source, target, int(rng.integers(1, 64)), curve(2, latency), curve(2)))
    return nodes, streams


@pytest.mark.parametrize("strategy", ["normal", "conservative"])
@pytest.mark.parametrize("seed", range(40))
def test_schedule_is_kept_by_a_self_timed_run(seed: int, strategy: str) -> None:
    nodes, streams = _diamond(np.random.default_rng(seed))
    found = schedule(nodes, streams, strategy)  # type: ignore[arg-type]
    finish = _self_timed(nodes, streams, found.depths)
    assert finish is not None, "deadlock"
    assert finish <= found.finish


def test_starts_satisfy_every_stream() -> None:
    nodes, streams = _diamond(np.random.default_rng(7))
    found = schedule(nodes, streams, "normal")
    for stream, depth in zip(streams, found.depths, strict=True):
        delta = found.starts[stream.target] - found.starts[stream.source]
        assert np.all(stream.produced + stream.latency <= stream.consumed + delta)
        occupancy = [
            int(np.sum(stream.produced <= t + delta) - np.sum(stream.consumed < t)) for t in stream.consumed
        ]
        assert max(occupancy) == depth == depth_at(stream, delta)


@pytest.mark.parametrize("seed", range(15))
def test_no_other_starts_need_less_storage(seed: int) -> None:
    """Brute force over all starts of the inner nodes; the local descent may end 10 % above."""
    nodes, streams = _diamond(np.random.default_rng(seed))
    found = schedule(nodes, streams, "normal")
    mine = sum(s.bits * d for s, d in zip(streams, found.depths, strict=True))
    horizon = found.starts["d"]
    best = None
    for a, b, c in product(range(horizon + 1), repeat=3):
        starts = {"a": a, "b": b, "c": c, "d": horizon}
        if all(
            np.all(s.produced + s.latency + starts[s.source] <= s.consumed + starts[s.target])
            for s in streams
        ):
            total = sum(s.bits * depth_at(s, starts[s.target] - starts[s.source]) for s in streams)
            best = total if best is None else min(best, total)
    assert best is not None
    assert mine <= 1.1 * best


def test_a_fast_reader_of_a_slow_writer_needs_no_buffer_when_paced() -> None:
    slow = 8 * np.arange(100, dtype=np.int64)
    fast = np.arange(100, dtype=np.int64)
    streams = [Stream("a", "b", 8, slow, fast), Stream("b", "c", 8, fast + 3, fast)]
    paced = schedule(["a", "b", "c"], streams, "conservative")
    assert max(paced.depths) <= 2
    own = schedule(["a", "b", "c"], streams, "normal")
    assert own.depths[0] > 80
    assert paced.finish == own.finish


@pytest.mark.parametrize("strategy", ["normal", "conservative"])
def test_a_reader_that_wants_its_tokens_late_starts_at_once(strategy: Strategy) -> None:
    """Nobody starts before cycle 0, though the reader could start before its writer."""
    cycles = np.arange(4, dtype=np.int64)
    streams = [Stream("a", "b", 8, cycles, cycles + 100), Stream("b", "c", 8, cycles + 100, cycles + 300)]
    plan = schedule(["a", "b", "c"], streams, strategy)
    assert min(plan.starts.values()) >= 0
    assert plan.finish == 304
    assert max(plan.depths) <= 2


def test_errors() -> None:
    one = np.zeros(1, np.int64)
    with pytest.raises(ValueError, match=r"^stream a -> b: 1 tokens are produced, 2 consumed$"):
        Stream("a", "b", 8, one, np.zeros(2, np.int64))
    with pytest.raises(ValueError, match=r"^stream a -> b: the curve 'consumed' is not monotone$"):
        Stream("a", "b", 8, np.zeros(2, np.int64), np.array([1, 0]))
    with pytest.raises(ValueError, match=r"^stream b -> a runs against the order of the nodes$"):
        schedule(["a", "b"], [Stream("b", "a", 8, one, one)])
    with pytest.raises(ValueError, match=r"^strategy is 'fast'; 'normal' and 'conservative' are allowed$"):
        schedule(["a", "b"], [Stream("a", "b", 8, one, one)], "fast")  # type: ignore[arg-type]
