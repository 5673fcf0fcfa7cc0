"""The concat: column c of every group of C comes from input c."""

import re

import numpy as np
import pytest

from streamgen.itensor import ITensor
from streamgen.kernels.moves.concat import ConcatParams
from streamgen.numbers import formats
from streamgen.testing.kernel import check_golden, check_promises


def tiles(n_tiles: int, t_tiles: int, dtype: str = "f24", tokens: int = 1) -> ITensor:
    """The order of a matmul column of 2 tokens by 2 rows."""
    trips, steps = (n_tiles, t_tiles, 2, 2), (2, 2 * tokens, tokens, 1)
    return ITensor((tokens, 1), dtype, trips, steps, ((1, 2), (0, 3)))


def case(params: ConcatParams, itensor: ITensor, seed: int):
    rng = np.random.default_rng(seed)
    inputs = {}
    for way in range(params.ways):
        data = 100 * rng.normal(size=itensor.shape)
        kind = formats.numpy_dtype(params.dtype)
        inputs[f"i_{way}"] = formats.round_f24(data) if params.dtype == "f24" else data.astype(kind)
    return {"itensor": itensor}, inputs


@pytest.mark.parametrize("ways", [1, 2, 3, 16])
def test_matches_golden(ways, stalls):
    params = ConcatParams(ways=ways, dtype="f24", element_shape=(1, 1), max_tokens=48)
    sizes = [(2, 1), (1, 1), (3, 4), (1, 2)]
    check_golden(params, [case(params, tiles(*size), k) for k, size in enumerate(sizes)], stalls)


def test_taller_tokens(stalls):
    params = ConcatParams(ways=3, dtype="i12", element_shape=(2, 1), max_tokens=48)
    check_golden(params, [case(params, tiles(2, 2, "i12", 2), k) for k in range(2)], stalls)


def test_order():
    params = ConcatParams(ways=4, dtype="i8", element_shape=(1, 1), max_tokens=64)
    bounds, inputs = case(params, tiles(3, 2, "i8"), 0)
    out = params.golden(bounds, inputs)["o"]
    assert out.shape == (4, 24)
    for n in range(24):
        assert np.array_equal(out[:, n], inputs[f"i_{n % 4}"][:, n // 4])
    assert str(params.outputs(bounds)["o"]) == (
        "itensor<1x4xi8, iter_space: [3,2,2,2]*[8,2,1,4], iter_map: (d0,d1,d2,d3)->(d1+d2,d0+d3)>"
    )


def test_a_base_moves_with_the_columns():
    params = ConcatParams(ways=2, dtype="i8", element_shape=(1, 1), max_tokens=8)
    itensor = ITensor((1, 1), "i8", (3,), (1,), ((), (0,)), base=(1, 2))
    assert params.outputs({"itensor": itensor})["o"].base == (1, 4)


def test_promises():
    params = ConcatParams(ways=5, dtype="f24", element_shape=(1, 1), max_tokens=48)
    for size in ((1, 1), (3, 4)):
        check_promises(params, *case(params, tiles(*size), 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ways": 0}, "ways of a concat must be at least 1, not 0"),
        ({"max_tokens": 0}, "max_tokens of a concat must be at least 1, not 0"),
        ({"element_shape": (1, 2)}, "element_shape of a concat must be positive and end in 1, not (1, 2)"),
        ({"element_shape": ()}, "element_shape of a concat must be positive and end in 1, not ()"),
        ({"dtype": "f25"}, None),
        ({"dtype": "mxi8"}, "an element of mxi8 has no width of its own; use token_bits"),
    ],
)
def test_bad_params(change, message):
    fields = {"ways": 2, "dtype": "f24", "element_shape": (1, 1), "max_tokens": 4}
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$" if message else "dtype 'f25' is unknown"):
        ConcatParams(**{**fields, **change})


@pytest.mark.parametrize(
    ("itensor", "message"),
    [
        (tiles(4, 4), f"a concat of at most 48 tokens cannot run 64: {tiles(4, 4)}"),
        (tiles(1, 1, "f32"), f"a concat of f24 tiles (1, 1) cannot take {tiles(1, 1, 'f32')}"),
    ],
)
def test_bad_bounds(itensor, message):
    params = ConcatParams(ways=2, dtype="f24", element_shape=(1, 1), max_tokens=48)
    for method in (params.describe, params.inputs, params.outputs, params.cost, params.curves):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            method({"itensor": itensor})
