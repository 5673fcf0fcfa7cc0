"""Select and route as nodes: the stream of each phase comes from, or goes to, the port it names."""

import re

import numpy as np
import pytest

from streamgen.itensor import ITensor
from streamgen.kernels.moves.route import RouteParams
from streamgen.kernels.moves.select import SelectParams
from streamgen.testing.bench import Stalls, run
from streamgen.testing.kernel import check_golden, check_promises

PARAMS = {"select": SelectParams, "route": RouteParams}


def rows(trips: tuple[int, int]) -> ITensor:
    return ITensor((1, 4), "i8", trips, (1, 4), ((0,), (1,)))


def case(kind: str, way: int, trips: tuple[int, int], rng: np.random.Generator, **counts: int):
    itensor = rows(trips)
    data = rng.integers(-128, 128, itensor.shape).astype(np.int8)
    return {"itensor": itensor, "way": way, **counts}, {f"i_{way}" if kind == "select" else "i": data}


@pytest.mark.parametrize("ways", [2, 3, 9])
@pytest.mark.parametrize("kind", PARAMS)
def test_matches_golden(kind, ways, stalls):
    """Random ways and lengths back to back, the longest and the shortest among them."""
    rng = np.random.default_rng(ways)
    params = PARAMS[kind](token_bits=32, ways=ways, max_tokens=64)
    lengths = [(8, 8), (1, 1), (1, 1), *((int(n), 3) for n in rng.integers(1, 9, 9))]
    cases = [case(kind, int(rng.integers(ways)), trips, rng) for trips in lengths]
    assert len({bounds["way"] for bounds, _ in cases}) > 1
    check_golden(params, cases, stalls)


@pytest.mark.parametrize("kind", PARAMS)
def test_rows(kind, stalls):
    """Numbers of rows and of tokens of a row, as scores of attention have them: both least, both greatest."""
    rng = np.random.default_rng(5)
    params = PARAMS[kind](token_bits=32, ways=3, max_tokens=8, max_rows=8)
    counts = [(8, 8), (1, 1), (8, 1), (1, 8), *rng.integers(1, 9, (8, 2)).tolist()]
    cases = [case(kind, int(rng.integers(3)), (count, length), rng, rows=count) for count, length in counts]
    check_golden(params, cases, stalls)
    for bounds, given in cases[:5]:
        check_promises(params, bounds, given)


@pytest.mark.parametrize("kind", PARAMS)
@pytest.mark.parametrize("width", [2, 4])
def test_rows_whose_tokens_have_several_elements(kind, width, stalls):
    """As `test_rows`, with lengths of rows that fill their last token and that do not."""
    rng = np.random.default_rng(6)
    params = PARAMS[kind](token_bits=32, ways=3, max_tokens=8, max_rows=8, width=width)
    counts = [
        (8, 8 * width),
        (1, 1),
        (8, 1),
        (1, width + 1),
        *rng.integers(1, 8 * width + 1, (8, 2)).tolist(),
    ]
    cases = []
    for count, length in counts:
        trips = (min(count, 8), -(-length // width))
        cases.append(case(kind, int(rng.integers(3)), trips, rng, rows=trips[0], length=length))
    check_golden(params, cases, stalls)
    for bounds, given in cases[:5]:
        check_promises(params, bounds, given)


@pytest.mark.parametrize("kind", PARAMS)
def test_bad_lengths(kind):
    params = PARAMS[kind](token_bits=32, ways=2, max_tokens=8, max_rows=8, width=4)
    with pytest.raises(ValueError, match=r"^length is 13; 3 tokens of 4 are no row of it$"):
        params.describe({"itensor": rows((3, 3)), "way": 0, "rows": 3, "length": 13})
    for width, most in ((3, 8), (0, 8), (4, 1)):
        with pytest.raises(ValueError, match=rf"^width of a {kind} is {width}; 1 is needed or, with several"):
            PARAMS[kind](token_bits=32, ways=2, max_tokens=8, max_rows=most, width=width)


@pytest.mark.parametrize("kind", PARAMS)
@pytest.mark.parametrize("count", [2, 9])
def test_bad_rows(kind, count):
    params = PARAMS[kind](token_bits=32, ways=2, max_tokens=8, max_rows=8)
    message = f"rows is {count}; 1 to 8 are allowed, which divide 9 tokens"
    with pytest.raises(ValueError, match=message):
        params.describe({"itensor": rows((3, 3)), "way": 0, "rows": count})


@pytest.mark.parametrize("kind", PARAMS)
@pytest.mark.parametrize("max_rows", [1, 4])
def test_reset_in_mid_run(kind, max_rows):
    rng = np.random.default_rng(1)
    params = PARAMS[kind](token_bits=32, ways=3, max_tokens=64, max_rows=max_rows)
    cases = [case(kind, way, (5, 2), rng, rows=min(max_rows, 2)) for way in (2, 0, 1)]
    for cycle in (4, 13, 25):
        check_golden(params, cases, Stalls(seed=cycle, sources=0.2, sinks=0.2), reset_at=cycle)


@pytest.mark.parametrize("kind", PARAMS)
@pytest.mark.parametrize("way", [0, 2])
def test_promises(kind, way):
    params = PARAMS[kind](token_bits=32, ways=3, max_tokens=64)
    for trips in ((1, 1), (8, 8), (2, 3)):
        check_promises(params, *case(kind, way, trips, np.random.default_rng(2)))


def test_a_select_takes_nothing_from_the_others():
    params = SelectParams(token_bits=8, ways=2, max_tokens=7)
    streams = {"i_descriptor": [1 | 2 << 1, 0 | 3 << 1], "i_0": [1, 2, 3], "i_1": [8, 9]}
    result = run(params.build(), streams, {"o": 5})
    assert result.tokens["o"] == [8, 9, 1, 2, 3]
    assert result.cycles["i_0"][0] > result.cycles["i_1"][-1]


def test_a_route_sends_nothing_to_the_others():
    """Tokens behind one that is not taken wait, whatever their destination."""
    params = RouteParams(token_bits=8, ways=2, max_tokens=7)
    streams = {"i_descriptor": [1 | 2 << 1, 0 | 3 << 1], "i": [8, 9, 1, 2, 3]}
    result = run(params.build(), streams, {"o_0": 3, "o_1": 2}, hold={"o_1": 40})
    assert result.tokens == {"o_0": [1, 2, 3], "o_1": [8, 9]}
    assert result.cycles["o_0"][0] > 40


@pytest.mark.parametrize("kind", PARAMS)
@pytest.mark.parametrize(
    ("name", "least"), [("token_bits", 1), ("ways", 2), ("max_tokens", 1), ("max_rows", 1)]
)
def test_bad_params(kind, name, least):
    fields = {"token_bits": 8, "ways": 2, "max_tokens": 3, name: least - 1}
    with pytest.raises(ValueError, match=f"^{name} of a {kind} must be at least {least}, not {least - 1}$"):
        PARAMS[kind](**fields)


NARROW = ITensor((1, 2), "i8", (1,), (2,), ((), (0,)))


@pytest.mark.parametrize("kind", PARAMS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"itensor": rows((9, 8))},
            f"a {{kind}} of at most 64 tokens cannot run 72: {rows((9, 8))}",
        ),
        ({"itensor": NARROW}, f"tokens of the {{kind}} have 32 bits, those of {NARROW} 16"),
        ({"way": 2}, "way is 2; a {kind} of 2 {ports} takes 0 to 1"),
        ({"way": -1}, "way is -1; a {kind} of 2 {ports} takes 0 to 1"),
    ],
)
def test_bad_bounds(kind, change, message):
    params = PARAMS[kind](token_bits=32, ways=2, max_tokens=64)
    ports = "inputs" if kind == "select" else "outputs"
    expected = re.escape(message.format(kind=kind, ports=ports))
    with pytest.raises(ValueError, match=f"^{expected}$"):
        params.describe({"itensor": rows((1, 1)), "way": 0} | change)
