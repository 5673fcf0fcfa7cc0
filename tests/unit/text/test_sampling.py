"""Sampling: greedy, temperature, the most likely k, the share p, seeds, and what is refused."""

from typing import Any

import numpy as np
import pytest

from streamgen.text.sampling import Sampler

LOGITS = np.array([1.0, 3.0, 2.0, 3.0, -np.inf], np.float32)


def drawn(count: int, logits: np.ndarray = LOGITS, **options: Any) -> list[int]:
    sampler = Sampler(**options)
    return [sampler(logits) for _ in range(count)]


def test_greedy_takes_the_lowest_of_the_greatest() -> None:
    assert drawn(3) == [1, 1, 1]
    assert Sampler()(np.array([-5.0])) == 0


def test_temperature_draws_by_softmax() -> None:
    """Counts of 20,000 draws lie within 5 standard deviations of the binomial distribution."""
    count, temperature = 20_000, 1.7
    found = np.bincount(drawn(count, temperature=temperature, seed=3), minlength=5)
    p = np.exp(LOGITS.astype(np.float64) / temperature)
    p /= p.sum()
    assert (np.abs(found - count * p) <= 5 * np.sqrt(count * p * (1 - p))).all()
    assert found[4] == 0


def test_a_seed_fixes_the_draws() -> None:
    first = drawn(50, temperature=1.0, seed=7)
    assert first == drawn(50, temperature=1.0, seed=7)
    assert first != drawn(50, temperature=1.0, seed=8)
    assert drawn(50, temperature=1.0) != drawn(50, temperature=1.0)


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {1, 3}),
        ({"top_k": 3}, {1, 2, 3}),
        ({"top_k": 100}, {0, 1, 2, 3}),
        ({"top_p": 0.01}, {1}),  # p is 0.40, 0.40, 0.15, 0.05
        ({"top_p": 0.5}, {1, 3}),
        ({"top_p": 0.9}, {1, 2, 3}),
        ({"top_p": 1.0}, {0, 1, 2, 3}),
        ({"top_k": 2, "top_p": 0.45}, {1}),  # of two equal ones each is half
    ],
)
def test_only_the_most_likely(options: dict[str, Any], allowed: set[int]) -> None:
    assert set(drawn(400, temperature=1.0, seed=1, **options)) == allowed


def test_a_tiny_temperature_is_greedy() -> None:
    assert set(drawn(20, temperature=1e-300, seed=0, top_k=1)) == {1}
    assert set(drawn(20, np.array([1.0, 2.0, 1.5]), temperature=1e-300, seed=0)) == {1}


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"temperature": -1}, ValueError, "temperature is -1; it must be 0 or a finite number above"),
        (
            {"temperature": float("nan")},
            ValueError,
            "temperature is nan; it must be 0 or a finite number above",
        ),
        (
            {"temperature": float("inf")},
            ValueError,
            "temperature is inf; it must be 0 or a finite number above",
        ),
        ({"temperature": "hot"}, TypeError, "temperature is 'hot'; a number is needed"),
        ({"top_k": 0}, ValueError, "top_k is 0; it must be None or at least 1"),
        ({"top_k": 1.5}, TypeError, "top_k is 1.5; an integer or None is needed"),
        ({"top_p": 0}, ValueError, "top_p is 0; it must be above 0 and at most 1"),
        ({"top_p": 1.1}, ValueError, "top_p is 1.1; it must be above 0 and at most 1"),
        ({"top_p": True}, TypeError, "top_p is True; a number is needed"),
        ({"seed": -1}, ValueError, "seed is -1; it must be None or at least 0"),
        ({"seed": "x"}, TypeError, "seed is 'x'; an integer or None is needed"),
    ],
)
def test_bad_options(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as error:
        Sampler(**options)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (np.array([1.0, np.nan]), "the greatest logit is nan; it must be finite"),
        (np.array([1.0, np.inf]), "the greatest logit is inf; it must be finite"),
        (np.full(3, -np.inf), "the greatest logit is -inf; it must be finite"),
        (np.zeros((1, 3)), "logits have the shape [1, 3]; [vocabulary] is needed"),
        (np.zeros(0), "logits have the shape [0]; [vocabulary] is needed"),
    ],
)
def test_bad_logits(logits: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError) as error:
        Sampler()(logits)
    assert str(error.value) == message
