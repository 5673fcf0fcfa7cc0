"""What is alike is one: classes of random systems, and the times of runs with one member of each."""

from dataclasses import replace

import numpy as np
import pytest

from streamgen.fifo.curves import NodeStream
from streamgen.fifo.events import SelfTimedRun
from streamgen.fifo.sizing import Strategy, size
from streamgen.fifo.symmetry import Contents, classes, firsts
from tests.unit.fifo.random_streams import ends, random_streams, storage


def _columns(seed: int, columns: int) -> tuple[list[str], list[NodeStream]]:
    """A random graph, so many times side by side between one node that feeds all and one that joins them."""
    names, streams = random_streams(np.random.default_rng(seed), 8)
    tokens = np.arange(32)
    found, nodes = [], ["fork"]
    for k in range(columns):
        nodes += [f"{k}.{name}" for name in names]
        found.append(NodeStream("fork", f"{k}.{names[0]}", 8, tokens, 2 * tokens))
        found += [replace(s, source=f"{k}.{s.source}", target=f"{k}.{s.target}") for s in streams]
        found.append(NodeStream(f"{k}.{names[-1]}", "join", 8, 3 * tokens + 40, tokens))
    return [*nodes, "join"], found


@pytest.mark.parametrize("strategy", ["conservative", "normal"])
@pytest.mark.parametrize("case", range(4))
def test_columns_are_sized_once(case: int, strategy: Strategy, seed: int) -> None:
    """The depths of columns side by side are those of one alone, and keep the promise in the run of all."""
    nodes, streams = _columns(seed + case, 5)
    found = size(nodes, [streams], strategy)
    alone = size(*_wrapped(_columns(seed + case, 1)), strategy)
    count = len(streams) // 5
    assert found.depths == 5 * alone.depths
    assert found.schedules[0].finish == alone.schedules[0].finish
    assert len(found.schedules[0].produced) == 5 * count
    assert ends(nodes, streams, found.depths, found.schedules[0].finish)


def _wrapped(graph: tuple[list[str], list[NodeStream]]) -> tuple[list[str], list[list[NodeStream]]]:
    return graph[0], [graph[1]]


@pytest.mark.parametrize("case", range(20))
def test_members_of_a_class_move_together(case: int, seed: int) -> None:
    """In a run of everything, by the exact equations, with depths that are equal where streams are alike."""
    rng = np.random.default_rng([seed, case])
    nodes, streams = _columns(int(rng.integers(1 << 30)), 3)
    if case % 2:  # one column is another one
        k = int(rng.integers(len(streams) // 3))
        streams[k] = replace(
            streams[k], consumed=streams[k].consumed + 1 + np.arange(len(streams[k].consumed))
        )
    number, contents = {name: i for i, name in enumerate(nodes)}, Contents()
    labels = [(contents.of(s.produced), contents.of(s.consumed)) for s in streams]
    links = [(number[s.source], number[s.target], label) for s, label in zip(streams, labels, strict=True)]
    of = classes([0] * len(nodes), links)
    same = firsts((of[a], of[b], label) for a, b, label in links)
    apart = len(set(same)) > len(streams) // 3
    assert apart == bool(case % 2)
    depths = [2 + same[k] % 3 for k in range(len(streams))]
    run = SelfTimedRun(nodes, streams, [1] * len(streams))
    for k, depth in enumerate(depths):
        run.limit(k, depth)
    if not run.settle(1 << 20):
        return  # these depths let nodes wait for one another for ever
    for moved in run.split(run.times[: 2 * run.tokens]):
        for k, first in enumerate(same):
            assert np.array_equal(moved[k], moved[first])


def test_who_hears_from_others_is_apart() -> None:
    assert classes("aaab", [(0, 2, "x"), (1, 3, "x")]) == [0, 1, 2, 3]
    assert classes("aaaa", [(0, 2, "x"), (1, 2, "x"), (0, 3, "x"), (1, 3, "x")]) == [0, 0, 1, 1]
    assert classes("aaa", [(0, 1, "x"), (1, 2, "x")]) == [0, 1, 2]
    assert classes("aa", []) == [0, 0]
    assert classes("aa", [(0, 1, "x"), (1, 0, "x")]) == [0, 0]  # a ring


def test_a_stream_counts_as_many_times_as_there_are() -> None:
    """A token saved in a FIFO of five columns is worth more than four of the one before them."""
    nodes, streams = _columns(3, 5)
    found = size(nodes, [streams])
    single = size(*_wrapped(_columns(3, 1)))
    assert storage(streams, found.depths) == 5 * storage(streams[: len(streams) // 5], single.depths)
