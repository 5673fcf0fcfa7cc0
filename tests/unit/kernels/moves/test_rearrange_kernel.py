"""Rearranged rows: rtl == golden, promises against measurement, resources against synthesis."""

import re
from typing import Any

import numpy as np
import pytest

from streamgen.kernels.moves.rearrange import RearrangeParams
from streamgen.numbers.formats import round_f24
from streamgen.testing.bench import Stalls
from streamgen.testing.conformance import ASPECTS, check
from streamgen.testing.kernel import Case, check_golden, check_promises

EXTREME = [0.0, -0.0, np.inf, -np.inf, np.nan, 2.0**-126, -(2.0**-126), 3.3e38]


def params_of(features: int, places: tuple[int, ...], *numbers: float) -> RearrangeParams:
    return RearrangeParams(features=features, places=places, numbers=numbers, max_rows=9)


SMALL = {
    "mixed": params_of(5, (4, -1, 0, 0, -2, 3, 1), 0.5, -3.0),
    "one element": params_of(1, (0,)),
    "repeated": params_of(1, (0, 0, 0)),
    "chosen": params_of(6, (2,)),
    "turned": params_of(6, (5, 4, 3, 2, 1, 0)),
    "numbers alone": params_of(3, (-1, -1), 2.0),
    "longer than LUT memory": params_of(40, tuple(range(39, -1, -1))),
}


def case(params: RearrangeParams, rows: int, seed: int = 0) -> Case:
    x = np.random.default_rng(seed).normal(size=(rows, params.features))
    x.reshape(-1)[: len(EXTREME)] = EXTREME[: x.size]
    return {"rows": rows}, {"i": round_f24(x)}


@pytest.mark.parametrize("name", SMALL)
def test_matches_golden(name: str) -> None:
    """Descriptors back to back, all stalls, and a reset in the middle of some."""
    params = SMALL[name]
    cases = [case(params, rows, rows) for rows in (1, 2, 9, 3, 1)]
    for seed, (sources, sinks) in enumerate([(0, 0), (0.5, 0), (0, 0.5), (0.3, 0.3), (0.8, 0.9)]):
        check_golden(params, cases, Stalls(seed=seed, sources=sources, sinks=sinks))
    for cycle in (1, 7, 21):
        check_golden(params, cases, Stalls(seed=1, sinks=0.3), reset_at=cycle)


@pytest.mark.parametrize("name", SMALL)
def test_promises(name: str) -> None:
    for rows in (1, 2, 9):
        check_promises(SMALL[name], *case(SMALL[name], rows))


@pytest.mark.slow
@pytest.mark.parametrize("aspect", ASPECTS)
@pytest.mark.parametrize("name", ["mixed", "one element", "turned"])
def test_conforms(name: str, aspect: str) -> None:
    params = SMALL[name]
    cases = [case(params, rows) for rows in (1, 2, 9, 3)]
    check(params, cases, refused=[{"rows": 0}, {"rows": 10}], aspects=[aspect])


@pytest.mark.slow
def test_resources_of_long_rows() -> None:
    wide = params_of(2000, (*range(1999, -1, -1), *range(2000)))
    filled = params_of(300, (*range(299, -1, -1), *[-1] * 5), 7.0)
    for params in (wide, filled):
        check(params, [case(params, rows) for rows in (1, 3)], aspects=["resources"])


def test_golden() -> None:
    params = SMALL["mixed"]
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    found = params.golden({"rows": 2}, {"i": x})["o"]
    assert found.tolist() == [[4, 0.5, 0, 0, -3, 3, 1], [9, 0.5, 5, 5, -3, 8, 6]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": 0}, "features of a rearrangement must be 1 to 65536 elements, not 0"),
        ({"places": ()}, "places of a rearrangement must be 1 to 65536 elements, not 0"),
        ({"places": (0, 4)}, "places of a rearrangement must be -1 to 3, not 0 to 4"),
        ({"places": (-2,)}, "places of a rearrangement must be -1 to 3, not -2 to -2"),
        ({"max_rows": 0}, "max_rows of a rearrangement is 0; its rows must be 1 to 2^32 - 1 tokens"),
    ],
)
def test_bad_params(change: dict[str, Any], message: str) -> None:
    good = {"features": 4, "places": (1, 2), "numbers": (1.0,), "max_rows": 3}
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        RearrangeParams(**{**good, **change})


def test_bad_bounds() -> None:
    for rows in (0, 10):
        with pytest.raises(ValueError, match=f"^Rearrange: rows is {rows}; it must be 1 to 9$"):
            SMALL["turned"].describe({"rows": rows})
