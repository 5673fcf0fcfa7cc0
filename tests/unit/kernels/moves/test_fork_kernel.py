"""The fork as a node: every way gets every token, whatever the others do."""

import re

import numpy as np
import pytest

from streamgen.itensor import ITensor
from streamgen.kernels.moves.fork import ForkParams
from streamgen.testing.bench import run
from streamgen.testing.kernel import check_golden, check_promises


def rows(trips: tuple[int, int]) -> ITensor:
    return ITensor((1, 4), "i8", trips, (1, 4), ((0,), (1,)))


def case(trips: tuple[int, int], seed: int):
    itensor = rows(trips)
    data = np.random.default_rng(seed).integers(-128, 128, itensor.shape).astype(np.int8)
    return {"itensor": itensor}, {"i": data}


@pytest.mark.parametrize("ways", [1, 2, 3, 9])
def test_matches_golden(ways, stalls):
    params = ForkParams(token_bits=32, ways=ways, max_tokens=64)
    check_golden(params, [case(trips, k) for k, trips in enumerate([(3, 4), (1, 1), (8, 8), (1, 7)])], stalls)


@pytest.mark.parametrize("ways", [1, 8, 9])
def test_promises(ways):
    params = ForkParams(token_bits=32, ways=ways, max_tokens=64)
    for trips in ((1, 1), (8, 8), (2, 3)):
        check_promises(params, *case(trips, 0))


def test_no_token_without_a_descriptor():
    params = ForkParams(token_bits=8, ways=2, max_tokens=7)
    result = run(params.build(), {"i_descriptor": [3, 2], "i": [1, 2, 3, 4, 5]}, {"o_0": 5, "o_1": 5})
    assert result.tokens["o_0"] == result.tokens["o_1"] == [1, 2, 3, 4, 5]
    assert result.cycles["i"][0] > result.cycles["i_descriptor"][0]


@pytest.mark.parametrize("name", ["token_bits", "ways", "max_tokens"])
def test_bad_params(name):
    fields = {"token_bits": 8, "ways": 2, "max_tokens": 3}
    with pytest.raises(ValueError, match=f"^{name} of a fork must be at least 1, not 0$"):
        ForkParams(**{**fields, name: 0})


@pytest.mark.parametrize(
    ("itensor", "message"),
    [
        (rows((9, 8)), f"a fork of at most 64 tokens cannot run 72: {rows((9, 8))}"),
        (
            ITensor((1, 2), "i8", (1,), (2,), ((), (0,))),
            "tokens of the fork have 32 bits, those of itensor<1x2xi8, iter_space: [1]*[2], "
            "iter_map: (d0)->(0,d0)> 16",
        ),
    ],
)
def test_bad_bounds(itensor, message):
    params = ForkParams(token_bits=32, ways=2, max_tokens=64)
    for method in (params.describe, params.inputs, params.outputs, params.cost, params.curves):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            method({"itensor": itensor})
