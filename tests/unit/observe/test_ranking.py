"""The table of several estimates: ranked by the goal, within the terminal, misfits last."""

from dataclasses import replace
from functools import cache

import pytest

import streamgen
from streamgen.observe.estimate import Estimate, NoEstimate
from streamgen.observe.ranking import ranking
from tests.shared.decoders import TINY, tiny_decoder

REASON = "the weights need 9,000,000 bytes of memory, and 2 channels have 8,000,000\nWhat helps: channels=4"


@cache
def _tiny() -> Estimate:
    return streamgen.estimate(tiny_decoder(), None, TINY)


def _with(goal: str, cycles: float | None, **changes: object) -> Estimate:
    plan = replace(_tiny().plan, goal=goal, cycles=cycles)
    return replace(_tiny(), plan=plan, **changes)  # type: ignore[arg-type]


def _names(text: str, names: str) -> str:
    """The first words of lines that are one of these letters, in order."""
    words = [line.split()[0] for line in text.splitlines() if line.strip()]
    return "".join(word for word in words if len(word) == 1 and word in names)


def test_the_best_is_first_and_misfits_are_last() -> None:
    misfit = NoEstimate(name="m", board="u55c", clock_mhz=300.0, reason=REASON)
    rows = [
        ("x", misfit), ("b", _with("conversation", 2e6)), ("d", _with("decode", 1.0)),
        ("a", _with("conversation", 1e6)), ("c", _with("decode", 0.5)),
    ]  # fmt: skip
    text = ranking(rows, width=120)
    assert _names(text, "abcdx") == "abcdx"
    lines = text.splitlines()
    assert lines[-1].split() == ["x", "no", "estimate:", *REASON.splitlines()[0].split()]
    assert "The goal 'decode' is a step at position 512." in lines
    alone = ranking([rows[1], rows[3]], width=120).splitlines()
    goal = "a prompt of 256 tokens and an answer of 256"
    assert alone[0] == f"Estimates on u55c at 300 MHz, ranked by the planned time of {goal}."
    assert not any("conversation" in line for line in alone)
    (row,) = (line.split() for line in alone if line.startswith(" a "))
    first, last = _tiny().steps[0], _tiny().steps[-1]
    speeds = [f"{_tiny().tokens_per_second(step):,.0f}" for step in (first, last)]
    assert row[1:5] == ["3.33", *speeds, f"{_tiny().context}"]


def test_a_design_without_a_search_counts_its_first_step() -> None:
    cycles = _tiny().steps[0].cycles
    assert _with("small", None).goal_milliseconds == cycles / 300e3
    assert _with("decode", 6e5).goal_milliseconds == 2.0


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("name", ["short", "a/path/that/is/much/longer/than/a/line/has/room/for/config.json"])
def test_a_table_fits_the_terminal(width: int, name: str) -> None:
    """Numbers and titles are never split."""
    rows = [
        (name, _with(goal, cycles, board=board, clock_mhz=clock))
        for goal, cycles in (("conversation", 1e9), ("small", None))
        for board in ("u55c", "u280")
        for clock in (250.0, 300.0)
    ]
    misfit = NoEstimate(name=name, board="vu47p", clock_mhz=300.0, reason=REASON)
    for some in (rows, rows[:4], rows[:1], [*rows[:1], *rows[4:5]]):
        shown = ranking([*some, (name, misfit)], width=width)
        words = shown.split()
        assert max(map(len, shown.splitlines())) <= width
        goals = {estimate.plan.goal for _, estimate in some}
        if len(goals) == 1 or width > 80:  # goals, boards and clocks together take more than 80
            assert {"planned", "tokens/s", "LUTs", "DSPs", "first"} <= set(words)
            assert words.count("vu47p") == 1
            for _, estimate in some:
                assert f"{estimate.tokens_per_second(estimate.steps[0]):,.0f}" in words


def test_only_misfits() -> None:
    misfits = [NoEstimate(name=n, board="u55c", clock_mhz=300.0, reason=REASON) for n in "ab"]
    lines = ranking([(misfit.name, misfit) for misfit in misfits], width=120).splitlines()
    assert lines[0] == "No model can be estimated on u55c at 300 MHz."
    assert lines[1].split() == ["model", "no", "estimate,", "because"]
    assert [line.split()[:3] for line in lines[3:]] == [[n, "the", "weights"] for n in "ab"]
