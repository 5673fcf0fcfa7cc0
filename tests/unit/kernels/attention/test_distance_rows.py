"""Windows of a table of distances, in the order of scores."""

import numpy as np
import pytest

from streamgen.kernels.attention.distance_rows import DistanceRowsParams
from streamgen.numbers.formats import round_f24
from streamgen.testing.bench import Stalls
from streamgen.testing.kernel import check_golden, check_promises

SIZES = {
    "one lane": {"lanes": 1, "heads": 2, "group": 1, "span": 9},
    "shared keys": {"lanes": 4, "heads": 6, "group": 2, "span": 21},
    "whole tiles": {"lanes": 8, "heads": 4, "group": 4, "span": 32},
    "one head": {"lanes": 2, "heads": 1, "group": 1, "span": 3},
    "odd words": {"lanes": 4, "heads": 3, "group": 1, "span": 12},
}


def params_of(name: str) -> DistanceRowsParams:
    return DistanceRowsParams(max_tokens=5, max_length=SIZES[name]["span"], **SIZES[name])


def case(params: DistanceRowsParams, t: int, position: int, seed: int):
    shape = params.inputs({})["i"].shape
    table = round_f24(np.random.default_rng(seed).normal(size=shape))
    table[:, params.span :] = 0
    return {"t": t, "position": position, "length": position + t}, {"i": table}


def cases(params: DistanceRowsParams) -> list:
    span = params.span
    places = [(1, 0), (min(3, span), 0), (1, span - 1), (2, span - 2), (1, span // 2), (min(5, span), 0)]
    return [case(params, t, position, k) for k, (t, position) in enumerate(places)]


@pytest.mark.parametrize("name", SIZES)
def test_matches_golden(name, stalls):
    params = params_of(name)
    check_golden(params, cases(params), stalls)


@pytest.mark.parametrize("name", SIZES)
def test_rows_hold_the_numbers_of_their_distances(name):
    """Up to the token itself, by the definition."""
    params = params_of(name)
    for bounds, given in cases(params):
        found = params.golden(bounds, given)["o"]
        found = found.reshape(-1, bounds["t"], params.group, found.shape[1])
        for head in range(params.heads):
            for token in range(bounds["t"]):
                q = bounds["position"] + token
                wanted = [given["i"][head, params.span - 1 - distance] for distance in range(q, -1, -1)]
                row = found[head // params.group, token, head % params.group]
                np.testing.assert_array_equal(row[: q + 1], wanted)


@pytest.mark.parametrize("name", SIZES)
def test_promises(name):
    params = params_of(name)
    for one in cases(params)[:4]:
        check_promises(params, *one)


def test_reset_in_mid_run():
    params = params_of("shared keys")
    for cycle in (5, 40, 70):
        check_golden(params, cases(params)[:3], Stalls(seed=cycle, sources=0.2, sinks=0.2), reset_at=cycle)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lanes": 3}, "DistanceRows.lanes is 3; a power of two is needed"),
        ({"group": 4}, "DistanceRows.group is 4; it must divide 6 heads"),
        ({"span": 0}, "DistanceRows.span is 0; at least 1 is needed"),
    ],
)
def test_bad_params(change, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        DistanceRowsParams(**{**SIZES["shared keys"], "max_tokens": 5, "max_length": 21, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"t": 6}, "DistanceRows: t is 6; it must be 1 to 5"),
        ({"length": 22}, "DistanceRows: length is 22; it must be 1 to 21"),
        ({"position": 20, "t": 2}, "DistanceRows: position is 20; it must be 0 to 19"),
    ],
)
def test_bad_bounds(change, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        params_of("shared keys").describe({"t": 1, "position": 0, "length": 1, **change})
