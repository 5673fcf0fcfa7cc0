"""kernels.matmul.quick_quantise: the whole contract, the values of `quantise`, and bad params."""

from typing import Any

import numpy as np
import pytest

from streamgen.kernels.matmul.quick_quantise import QuickQuantiseParams
from streamgen.numbers.formats import round_f24
from streamgen.testing.conformance import ASPECTS, check
from tests.unit.kernels.matmul.test_quantise import _extreme_rows, _rows

SIZES = {
    "a token a group": QuickQuantiseParams(lanes=32, k=96, valid_k=96, max_rows=12, sums=True),
    "one group": QuickQuantiseParams(lanes=16, k=32, valid_k=16, max_rows=12, sums=False),
    "padding": QuickQuantiseParams(lanes=8, k=96, valid_k=75, max_rows=12, sums=True),
    "an element a token": QuickQuantiseParams(lanes=1, k=32, valid_k=31, max_rows=12, sums=False),
}


def _cases(params: QuickQuantiseParams) -> list[Any]:
    rng = np.random.default_rng(params.lanes)
    rows = [_extreme_rows()[:, : params.k], _rows(rng, 1, params.k), _rows(rng, 12, params.k)]
    for x in rows[1:]:
        x[:, params.valid_k :] = round_f24(np.array(np.nan))  # padding counts as zeros
    return [({"t": len(x)}, {"i": x}) for x in rows]


@pytest.mark.slow
@pytest.mark.parametrize("aspect", ASPECTS)
@pytest.mark.parametrize("name", SIZES)
def test_conforms(name: str, aspect: str) -> None:
    params = SIZES[name]
    check(params, _cases(params), refused=[{"t": 0}, {"t": 13}], aspects=[aspect])


def test_a_short_row_leaves_sooner_than_from_the_other_quantiser() -> None:
    """Six cycles from the last token of a row to its codes, and two more with sums."""
    for sums, cycles in ((False, 6), (True, 8)):
        params = QuickQuantiseParams(lanes=32, k=32, valid_k=32, max_rows=1, sums=sums)
        curves = params.curves({"t": 1})
        assert curves["o_x"].cycles()[0] - curves["i"].cycles()[-1] == cycles


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lanes": 3}, "QuickQuantise.lanes is 3; 1, 2, 4, 8, 16 and 32 are allowed"),
        ({"k": 40}, "QuickQuantise.k is 40; it must be a multiple of 32"),
        ({"valid_k": 33}, "QuickQuantise.valid_k is 33; it must be 1 to k = 32"),
        ({"max_rows": 0}, "QuickQuantise.max_rows is 0; it must be at least 1"),
    ],
)
def test_bad_params(changes: dict[str, int], message: str) -> None:
    good: dict[str, Any] = {"lanes": 8, "k": 32, "valid_k": 32, "max_rows": 4, "sums": False}
    with pytest.raises(ValueError) as caught:
        QuickQuantiseParams(**{**good, **changes})
    assert str(caught.value) == message
