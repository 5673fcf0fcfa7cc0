"""Steps without the loops that say nothing new."""

from collections.abc import Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamgen.compiler.explore.contexts import contexts, spread, without_loops


@pytest.mark.parametrize(
    ("steps", "before", "behind", "kept"),
    [
        ("abcde", 2, 1, "abcde"),
        ("exxxxxxh", 1, 0, "exxh"),
        ("exxxxxxh", 2, 1, "exxxxh"),
        ("e" + "pqrs" * 24 + "h", 6, 2, "e" + "pqrs" * 3 + "h"),
        ("e" + "lllllg" * 4 + "llh", 1, 0, "ellgllh"),
        ("e" + "lllllg" * 4 + "llh", 2, 0, "elllgllh"),
    ],
)
def test_loops_are_left_out(steps: str, before: int, behind: int, kept: str) -> None:
    assert "".join(steps[k] for k in without_loops(contexts(steps, before, behind))) == kept


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 4), st.integers(0, 3))
def test_every_context_is_kept_as_it_is(steps: list[Hashable], before: int, behind: int) -> None:
    """What is left is a run in which the kept steps have the contexts that they had."""
    found = contexts(steps, before, behind)
    kept = without_loops(found)
    assert kept == sorted(set(kept))
    assert {found[k] for k in kept} == set(found)
    assert contexts([steps[k] for k in kept], before, behind) == [found[k] for k in kept]


def test_others_are_told_what_is_known() -> None:
    found = ["a", "b", "a", "b", "c"]
    assert spread(found, {0: 1, 1: 2, 3: 4, 4: 5}) == [1, 4, 1, 4, 5]
    assert spread(found, {0: 1, 1: 2, 3: 4, 4: 5}, first=True) == [1, 2, 1, 2, 5]
