"""Long phases without their middle take the cycles that they take with it."""

from collections.abc import Mapping
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamgen
from streamgen.artifact.manifest import MemoryTiming
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.explore.periods import LEAST, WINDOWS, Cut
from streamgen.compiler.explore.tokens import Fifo, TokenRun
from streamgen.fifo.clocks import Clocks, pipe
from streamgen.fifo.curves import KernelSide
from tests.shared.decoders import random_decoder

PERIODS = 2000
predict = import_module("streamgen.compiler.explore.predict")
outline = import_module("streamgen.compiler.emit.outline")
tokens, acting_module = (import_module(f"streamgen.compiler.explore.{name}") for name in ("tokens", "acting"))


def source(cycles: np.ndarray) -> Clocks:
    part = KernelSide("give", cycles, None)
    return Clocks((part,), {"o": (part, np.arange(len(cycles)))})


def sink(cycles: np.ndarray) -> Clocks:
    part = KernelSide("take", cycles, None)
    return Clocks((part,), {"i": (part, np.arange(len(cycles)))})


def gather(count: int, ways: int) -> Clocks:
    """A token for so many, when all of them have come."""
    own = np.arange(count)
    take, send = (
        KernelSide("take", 1 + ways * own[0] + np.arange(count * ways)),
        KernelSide("send", (1 + own) * ways + 3, None),
    )
    last = (1 + own) * ways - 1
    streams = take.to(send, last, own, latency=3), send.to(take, own[:-2], last[2:])
    return Clocks((take, send), {"i": (take, np.arange(count * ways)), "o": (send, own)}, streams)


def repeated(pattern: list[int], periods: int = PERIODS) -> np.ndarray:
    """Cycles of tokens so far apart, over and over."""
    return np.cumsum(np.tile(np.array(pattern), periods))


def run(nodes: Mapping[str, Clocks], depths: list[int], long: int | None, steps: int = 1) -> TokenRun:
    """A chain of nodes, with FIFOs of these depths between them, so many times one after the other."""
    ends = zip(pairwise(nodes), depths, strict=True)
    fifos = [Fifo((a, "o"), (b, "i"), 1, depth) for (a, b), depth in ends]
    timing = MemoryTiming(beats=1, cycles=1, latency=0)
    return TokenRun([0] * steps, {n: {0: c} for n, c in nodes.items()}, fifos, timing, {}, long=long)


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """What is said of the cycles left out."""
    said: list[int | None] = []
    taken = Cut.taken

    def told(self: Cut, times: np.ndarray) -> int | None:
        said.append(taken(self, times))
        return said[-1]

    monkeypatch.setattr(Cut, "taken", told)
    return said


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 3),
)
def test_the_same_cycles(pattern: list[int], pitch: int, latency: int, steps: int) -> None:
    """A source of any pattern, a pipe, what gathers a period, and a sink: one step or several."""
    count = PERIODS * len(pattern)
    nodes = {
        "a": source(repeated(pattern)),
        "b": pipe(["i"], ["o"], count, latency, latency + 1),
        "c": gather(PERIODS, len(pattern)),
        "d": sink(repeated([pitch])),
    }
    short, whole = (run(nodes, [2, 3, 2], long, steps) for long in (1, None))
    assert abs(short.cycles - whole.cycles) <= 0.002 * whole.cycles
    assert np.abs(short.ends - whole.ends).max() <= 0.002 * whole.cycles


def test_most_is_left_out(cuts: list[int | None]) -> None:
    nodes = {"a": source(repeated([1, 2, 2])), "b": gather(PERIODS, 3), "c": sink(repeated([7]))}
    assert run(nodes, [2, 2], 1, 2).cycles == run(nodes, [2, 2], None, 2).cycles
    assert len(cuts) == 2
    window = max(LEAST, PERIODS // WINDOWS)
    for cut in cuts:
        assert cut is not None
        assert cut >= 7 * (PERIODS - 6 * window)


def test_a_beginning_and_an_end_of_their_own(cuts: list[int | None]) -> None:
    """Moves before and behind what repeats are played as they are."""
    given = repeated([2, 3])
    given[3:] += 50
    given[-3:] += 400
    nodes = {"a": source(given), "b": gather(PERIODS, 2), "c": sink(repeated([1]))}
    assert run(nodes, [2, 2], 1).cycles == run(nodes, [2, 2], None).cycles
    assert len(cuts) == 1
    assert cuts[0] is not None


def test_what_has_not_settled_is_played(cuts: list[int | None]) -> None:
    """While a FIFO of many places fills, its source is faster than what comes behind."""
    nodes = {"a": source(repeated([1])), "b": sink(repeated([9]))}
    assert run(nodes, [PERIODS], 1).cycles == run(nodes, [PERIODS], None).cycles
    assert cuts == [None]


def test_what_waits_for_all_is_not_left_out(cuts: list[int | None]) -> None:
    """A kernel that begins to send when it has taken all: both sides repeat, one after the other."""
    own = np.arange(PERIODS)
    take, send = KernelSide("take", 1 + own), KernelSide("send", 1 + PERIODS + own)
    streams = (take.to(send, np.full(1, PERIODS - 1), np.zeros(1, int)),)
    held = Clocks((take, send), {"i": (take, own), "o": (send, own)}, streams)
    nodes = {"a": source(repeated([2])), "b": held, "c": sink(repeated([3]))}
    assert run(nodes, [2, 2], 1).cycles == run(nodes, [2, 2], None).cycles
    assert cuts == [None]


def test_of_a_language_model(monkeypatch: pytest.MonkeyPatch, cuts: list[int | None]) -> None:
    """The head of a small decoder with a large vocabulary; and phases of a prompt."""
    model = random_decoder(
        hidden=64, head_dim=16, rotated=16, wide=96, vocabulary=8192, context=128, layers=2
    )
    config = CompileConfig(channels=4, multipliers=128, max_tokens=4)
    found = []
    for long in (1 << 60, 10_000):
        monkeypatch.setattr(predict, "LONG", long)
        one = streamgen.estimate(model, None, config, positions=[0, 100], prompts=[9])
        found.append(
            [sum(p.cycles for p in timed.phases) for timed in one.passes] + [*one.first_tokens.values()]
        )
        assert bool(cuts) == (long == 10_000)
    assert None not in cuts
    assert np.allclose(*found, rtol=0.002)


def test_reading_the_table_takes_from_its_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read of it is not among the commands of a client, and yet not little: weights share its channel
    where all else that is read is little, and another channel would act for those that are alike."""
    beside: list[set[str]] = []
    known = tokens.Acting

    def acting(layout: Any, *given: Any) -> Any:
        made = known(layout, *given)
        names = [node for node, _ in layout.clients]
        found = zip(made.clients, made._channel_of, strict=True)
        beside.append({names[client] for client, channel in found if channel == made._channel_of[-1]})
        return made

    monkeypatch.setattr(tokens, "Acting", acting)
    monkeypatch.setattr(acting_module, "LITTLE", 2)
    monkeypatch.setattr(acting_module, "_lightest_first", lambda clients, often, channels: range(channels))
    model = random_decoder(hidden=256, head_dim=32, rotated=32, wide=512, vocabulary=512, layers=2)
    streamgen.estimate(model, None, CompileConfig(channels=8, multipliers=512))
    assert beside
    for names in beside:
        assert any(name.startswith("load_column") for name in names), names


@pytest.mark.slow
def test_columns_that_differ_little_act_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms and tables on some of the channels, what all channels have as much of, and bursts that begin
    elsewhere, tell none apart; in a model so small, norms and tables are less than 1/16 of what is read."""
    sizes = {"hidden": 256, "head_dim": 32, "rotated": 32, "wide": 1024, "vocabulary": 2048, "context": 128}
    model, config = random_decoder(**sizes, layers=3), CompileConfig(channels=8, multipliers=512)
    found, parts = [], []
    known = tokens.Acting
    monkeypatch.setattr(acting_module, "LITTLE", 16)
    # the channel of the table is told apart: here one in the midst of the others
    monkeypatch.setattr(outline, "_control_channel", lambda *given: 2)

    def acting(layout: Any, *given: Any) -> Any:
        made = known(layout, *given)
        parts.append(len(made.parts))
        clients = [*layout.clients.items()]
        for acts in (client for client in made.clients if "column" in clients[client][0][0]):
            on = made._channel_of[made.clients.index(acts)]
            beside = {k for k, at in zip(made.clients, made._channel_of, strict=True) if at == on}
            several = {
                name for (name, _), one in clients if one.channel == made.channels[on] and not one.writes
            }
            missing = {name for name in several if "column" not in name} - {clients[k][0][0] for k in beside}
            assert not missing, "a channel that stands for others has all that is read from it"
        return made

    monkeypatch.setattr(tokens, "Acting", acting)
    little = acting_module._little
    for chosen, many in ((lambda *given: set[int](), 1 << 60), (little, acting_module.MANY)):
        monkeypatch.setattr(acting_module, "_little", chosen)
        monkeypatch.setattr(acting_module, "MANY", many)
        one = streamgen.estimate(model, None, config, positions=[0, 100], prompts=[40])
        passes = [sum(phase.cycles for phase in timed.phases) for timed in one.passes]
        found.append([*passes, *one.first_tokens.values()])
    half = len(parts) // 2
    assert sum(parts[half:]) < sum(parts[:half])
    assert np.allclose(*found, rtol=0.03)


def test_a_run_with_times_is_played_whole() -> None:
    nodes = {"a": {0: source(repeated([1]))}, "b": {0: sink(repeated([1]))}}
    timing = MemoryTiming(beats=1, cycles=1, latency=0)
    whole = TokenRun([0], nodes, [Fifo(("a", "o"), ("b", "i"), 1, 2)], timing, {}, times=True, long=1)
    assert len(whole.sent(0)) == PERIODS
    assert (whole.sent(0) >= 0).all()
