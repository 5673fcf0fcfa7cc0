"""streamgen.kernels.moves.fit_rows: rows cut off and filled up, one after the other without waiting."""

from itertools import product

import numpy as np
import pytest

from streamgen.kernels.moves.fit_rows import FitRowsParams
from streamgen.numbers import formats
from streamgen.testing.bench import Stalls, run
from streamgen.testing.kernel import Case, check_golden, check_promises, descriptor_word, encode_port

SHAPES = (
    *((9, 2, 7), (9, 7, 2), (9, 4, 4), (1, 1, 63), (1, 63, 1)),
    *((63, 1, 1), (1, 1, 1), (31, 1, 2), (31, 2, 1)),
    *((9, 7, 2, 1), (9, 7, 2, 5), (1, 63, 1, 62), (1, 2, 1, 1), (31, 2, 1, 1), (3, 6, 2, 2)),
)


def _case(
    rng: np.random.Generator, params: FitRowsParams, rows: int, taken: int, made: int, first: int = 0
) -> Case:
    """A case of rows of so many tokens, without zeros among the elements."""
    shape = (rows, taken * params.lanes)
    data = rng.integers(1, 128, shape).astype(np.int8)
    if params.dtype == "f24":
        data = formats.round_f24(data * rng.normal(size=shape))
    bounds = {"rows": rows, "features": shape[1], "fitted": made * params.lanes}
    return bounds | ({"first": first * params.lanes} if first else {}), {"i": data}


def _params(lanes: int, dtype: str = "i8") -> FitRowsParams:
    return FitRowsParams(dtype=dtype, lanes=lanes, max_tokens=63)


def _random(rng: np.random.Generator, params: FitRowsParams, count: int) -> list[Case]:
    shapes = [(int(rng.integers(1, 5)), *map(int, rng.integers(1, 6, 2))) for _ in range(count)]
    return [
        _case(rng, params, *shape, int(rng.integers(max(shape[1] - shape[2], 0) + 1))) for shape in shapes
    ]


@pytest.mark.parametrize(("dtype", "lanes"), [*product(("i8", "f24"), (1, 2, 4, 32))])
def test_matches_golden(dtype: str, lanes: int, stalls: Stalls | None) -> None:
    """Descriptors back to back: cut, filled, left alone; the longest of each."""
    rng = np.random.default_rng(lanes)
    params = _params(lanes, dtype)
    cases = [_case(rng, params, *shape) for shape in SHAPES] + _random(rng, params, 8)
    check_golden(params, cases, stalls)


def test_every_length_behind_every_other(seed: int) -> None:
    """Each of the few shortest rows follows each, under stalls of many kinds."""
    rng = np.random.default_rng(seed)
    params = _params(1)
    shapes = [
        (rows, taken, made, first)
        for rows, taken, made in product((1, 2), (1, 2, 3), (1, 2, 3))
        for first in range(max(taken - made, 0) + 1)
    ]
    for round_ in range(3):
        pairs = [shape for pair in product(shapes, shapes) for shape in pair]
        order = rng.permutation(len(pairs) // 2)
        cases = [_case(rng, params, *pairs[2 * k + side]) for k in order for side in range(2)]
        stalls = Stalls(seed=seed + round_, sources=0.3 * round_, sinks=0.3 * (2 - round_))
        check_golden(params, cases, stalls)


def test_reset_in_mid_run() -> None:
    rng = np.random.default_rng(4)
    params = _params(1)
    cases = [_case(rng, params, *shape) for shape in ((3, 2, 5), (1, 1, 9), (2, 4, 1))]
    for cycle in (3, 4, 9, 14, 20, 24, 30):
        check_golden(params, cases, Stalls(seed=cycle, sources=0.2, sinks=0.2), reset_at=cycle)


@pytest.mark.parametrize("shape", SHAPES)
def test_promises(shape: tuple[int, ...]) -> None:
    check_promises(_params(2), *_case(np.random.default_rng(5), _params(2), *shape))


def test_what_is_dropped_does_not_wait() -> None:
    """Tokens behind those that pass are taken while these are not."""
    params = _params(1)
    bounds, inputs = _case(np.random.default_rng(6), params, 2, 30, 1)
    result = run(
        params.build(),
        {
            "i_descriptor": [descriptor_word(params, bounds)],
            "i": encode_port(params.inputs(bounds)["i"], inputs["i"]),
        },
        {"o": 2},
        hold={"o": 100},
    )
    golden = params.golden(bounds, inputs)["o"]
    assert result.tokens["o"] == encode_port(params.outputs(bounds)["o"], golden)
    assert result.cycles["i"][-1] < 70 < 100 <= result.cycles["o"][0]


def test_descriptors_leave_no_gap() -> None:
    """A token in each cycle of `o`, also where the zeros of one descriptor meet the next."""
    rng = np.random.default_rng(7)
    params = _params(1)
    cases = [_case(rng, params, *shape) for shape in ((2, 2, 4), (1, 1, 1), (1, 1, 6), (3, 2, 3), (2, 2, 2))]
    result = check_golden(params, cases)
    assert np.diff(result.cycles["o"]).tolist() == [1] * (len(result.cycles["o"]) - 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lanes": 0}, "FitRows.lanes is 0; at least 1 is needed"),
        ({"max_tokens": 0}, "FitRows.max_tokens is 0; 1 to 2^32 - 1 are allowed"),
        ({"max_tokens": 1 << 32}, "FitRows.max_tokens is 4294967296; 1 to 2^32 - 1 are allowed"),
        (
            {"dtype": "mxi8s"},
            "the last extent of a mxi8s tile must be a multiple of 32; shape (1, 4)",
        ),
    ],
)
def test_bad_params(change: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        FitRowsParams(**{"dtype": "f24", "lanes": 4, "max_tokens": 64} | change)
    assert str(caught.value) == message


ROWS = "FitRows: rows is {}; it must be 1 to 63 tokens of 4, of which a row takes {}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": 6}, "FitRows: features is 6; it must be a multiple of lanes, 4"),
        ({"features": 0}, "FitRows: features is 0; it must be a multiple of lanes, 4"),
        ({"fitted": 2}, "FitRows: fitted is 2; it must be a multiple of lanes, 4"),
        ({"fitted": 0}, "FitRows: fitted is 0; it must be a multiple of lanes, 4"),
        ({"fitted": -4}, "FitRows: fitted is -4; it must be a multiple of lanes, 4"),
        ({"rows": 0}, ROWS.format(0, 3)),
        ({"rows": 22}, ROWS.format(22, 3)),
        ({"rows": 32, "fitted": 4}, ROWS.format(32, 2)),
        (
            {"fitted": 4, "first": 2},
            "FitRows: first is 2; it must be a multiple of lanes, 4, and at most 4",
        ),
        (
            {"fitted": 4, "first": 8},
            "FitRows: first is 8; it must be a multiple of lanes, 4, and at most 4",
        ),
    ],
)
def test_bad_bounds(change: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        _params(4).describe({"rows": 4, "features": 8, "fitted": 12} | change)
    assert str(caught.value) == message
