"""kernels.softmax.quick_softmax: the whole contract, the values of `softmax`, and bad params."""

from typing import Any

import numpy as np
import pytest

from streamgen.kernels.softmax.quick_softmax import QuickSoftmaxParams
from streamgen.kernels.softmax.softmax import SoftmaxParams
from streamgen.numbers.formats import round_f24
from streamgen.testing.conformance import ASPECTS, check
from streamgen.testing.kernel import check_golden
from tests.unit.kernels.softmax.test_softmax import extreme_rows

SIZES = {
    "the row of a jet": QuickSoftmaxParams(lanes=8, length=5, max_rows=16),
    "one element": QuickSoftmaxParams(lanes=1, length=1, max_rows=12),
    "no padding": QuickSoftmaxParams(lanes=2, length=2, max_rows=12),
    "nine": QuickSoftmaxParams(lanes=16, length=9, max_rows=12),
}


def _cases(params: QuickSoftmaxParams) -> list[Any]:
    rng = np.random.default_rng(params.lanes)
    several = [extreme_rows()]
    for rows in (1, 12):
        scale = rng.choice([0.1, 1, 8, 1e4], size=(rows, 1))
        several.append(round_f24(rng.normal(size=(rows, 9)) * scale))
    cases = []
    for some in several:
        x = np.full((len(some), params.lanes), np.nan, np.float32)  # padding is ignored
        x[:, : params.length] = some[:, : params.length]
        cases.append(({"rows": len(x)}, {"i": x}))
    return cases


@pytest.mark.parametrize("aspect", ASPECTS)
def test_conforms(aspect: str) -> None:
    params = SIZES["the row of a jet"]
    check(params, _cases(params), refused=[{"rows": 0}, {"rows": 17}], aspects=[aspect])


@pytest.mark.slow
@pytest.mark.parametrize("aspect", ASPECTS)
@pytest.mark.parametrize("name", [name for name in SIZES if name != "the row of a jet"])
def test_other_sizes_conform(name: str, aspect: str) -> None:
    params = SIZES[name]
    check(params, _cases(params), refused=[{"rows": 0}, {"rows": 13}], aspects=[aspect])


def test_values_are_those_of_softmax() -> None:
    """In fewer cycles, and fewer resources."""
    params, slow = SIZES["the row of a jet"], SoftmaxParams(lanes=8, max_length=5)
    for bounds, inputs in _cases(params):
        other = {**bounds, "length": 5}
        assert np.array_equal(
            params.golden(bounds, inputs)["o"], slow.golden(other, inputs)["o"], equal_nan=True
        )
        check_golden(params, [(bounds, inputs)])
    assert params.cost({"rows": 1}).latency < slow.cost({"rows": 1, "length": 5}).latency - 12
    assert params.resources.lut < slow.resources().lut and params.resources.ff < slow.resources().ff


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lanes": 33}, "QuickSoftmax.lanes is 33; 1 to 32 are allowed"),
        ({"length": 9}, "QuickSoftmax.length is 9; it must be 1 to lanes = 8"),
        ({"max_rows": 0}, "QuickSoftmax.max_rows is 0; it must be at least 1"),
    ],
)
def test_bad_params(changes: dict[str, int], message: str) -> None:
    good: dict[str, Any] = {"lanes": 8, "length": 5, "max_rows": 4}
    with pytest.raises(ValueError) as caught:
        QuickSoftmaxParams(**{**good, **changes})
    assert str(caught.value) == message
