"""streamgen.kernels.moves.join_rows: rows of several streams behind one another, without waiting."""

from itertools import product

import numpy as np
import pytest

from streamgen.kernels.moves.join_rows import JoinRowsParams
from streamgen.numbers import formats
from streamgen.testing.bench import Stalls
from streamgen.testing.kernel import Case, check_golden, check_promises

SHAPES = ((9, (1, 2, 3)), (1, (1, 1, 1)), (1, (7, 1, 12)), (20, (1, 1, 1)), (2, (5, 4, 1)))


def _params(ways: int, lanes: int = 1, dtype: str = "i8", lines: int = 1) -> JoinRowsParams:
    return JoinRowsParams(ways=ways, dtype=dtype, lanes=lanes, max_tokens=63, lines=lines)


def _case(rng: np.random.Generator, params: JoinRowsParams, rows: int, parts: tuple[int, ...]) -> Case:
    """A case of rows of so many tokens from each input."""
    features = tuple(part * params.lanes for part in parts)
    inputs = {}
    for way, part in enumerate(features):
        shape = (rows, part) if params.lines == 1 else (rows, params.lines, part)
        data = rng.integers(-128, 128, shape).astype(np.int8)
        if params.dtype == "f24":
            data = formats.round_f24(data * rng.normal(size=data.shape))
        inputs[f"i_{way}"] = data
    return {"rows": rows, "parts": features}, inputs


@pytest.mark.parametrize(("dtype", "lanes"), [*product(("i8", "f24"), (1, 4, 32))])
def test_matches_golden(dtype: str, lanes: int, stalls: Stalls | None) -> None:
    rng = np.random.default_rng(lanes)
    params = _params(3, lanes, dtype)
    check_golden(params, [_case(rng, params, *shape) for shape in SHAPES], stalls)


def test_rows_of_several_lines(stalls: Stalls | None) -> None:
    """Cosines and sines: a token has the same columns of both lines."""
    rng = np.random.default_rng(3)
    params = _params(3, 4, "f24", lines=2)
    check_golden(params, [_case(rng, params, *shape) for shape in SHAPES], stalls)
    check_promises(params, *_case(rng, params, *SHAPES[0]))


@pytest.mark.parametrize("ways", [2, 3, 5])
def test_every_length_behind_every_other(ways: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    params = _params(ways)
    for round_ in range(3):
        shapes = [(int(rng.integers(1, 4)), tuple(map(int, rng.integers(1, 4, ways)))) for _ in range(60)]
        stalls = Stalls(seed=seed + round_, sources=0.3 * round_, sinks=0.3 * (2 - round_))
        check_golden(params, [_case(rng, params, *shape) for shape in shapes], stalls)


def test_reset_in_mid_run() -> None:
    rng = np.random.default_rng(4)
    params = _params(3)
    cases = [_case(rng, params, *shape) for shape in SHAPES[:3]]
    for cycle in (3, 4, 9, 14, 20, 24, 30):
        check_golden(params, cases, Stalls(seed=cycle, sources=0.2, sinks=0.2), reset_at=cycle)


@pytest.mark.parametrize("shape", SHAPES)
def test_promises(shape: tuple[int, tuple[int, ...]]) -> None:
    check_promises(_params(3, 2), *_case(np.random.default_rng(5), _params(3, 2), *shape))


def test_descriptors_leave_no_gap() -> None:
    rng = np.random.default_rng(7)
    params = _params(3)
    result = check_golden(params, [_case(rng, params, *shape) for shape in SHAPES])
    assert np.diff(result.cycles["o"]).tolist() == [1] * (len(result.cycles["o"]) - 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ways": 1}, "JoinRows.ways is 1; at least 2 is needed"),
        ({"lanes": 0}, "JoinRows.lanes is 0; at least 1 is needed"),
        ({"lines": 0}, "JoinRows.lines is 0; at least 1 is needed"),
        ({"max_tokens": 2}, "JoinRows.max_tokens is 2; at least 3 is needed"),
        ({"max_tokens": 1 << 32}, "JoinRows.max_tokens is 4294967296; at most 2^32 - 1 are allowed"),
    ],
)
def test_bad_params(change: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        JoinRowsParams(**{"ways": 3, "dtype": "f24", "lanes": 4, "max_tokens": 64} | change)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        (
            {"rows": 1, "parts": (4, 8)},
            "JoinRows: parts are (4, 8); 3 multiples of lanes, 4, are needed",
        ),
        (
            {"rows": 1, "parts": (4, 6, 4)},
            "JoinRows: parts are (4, 6, 4); 3 multiples of lanes, 4, are needed",
        ),
        (
            {"rows": 22, "parts": (4, 4, 4)},
            "JoinRows: rows is 22; it must be 1 to 63 tokens of 4, of which a row takes 3",
        ),
    ],
)
def test_bad_bounds(bounds: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        _params(3, 4).describe(bounds)
    assert str(caught.value) == message
