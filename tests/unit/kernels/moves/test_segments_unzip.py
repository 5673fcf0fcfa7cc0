"""Segments and unzip: one stream becomes several, part after part or lane beside lane."""

import re

import numpy as np
import pytest

from streamgen.itensor import ITensor
from streamgen.kernels.moves.segments import SegmentsParams
from streamgen.kernels.moves.unzip import UnzipParams
from streamgen.numbers import formats
from streamgen.testing.kernel import check_golden, check_promises

SEGMENTS = SegmentsParams(token_bits=48, ways=3, max_tokens=120)
UNZIP = UnzipParams(ways=2, dtype="f24", lanes=3, max_tokens=60)


def results(n_tiles: int, tokens: int, lanes: int) -> ITensor:
    """The order of a matmul of `lanes` columns of 2 rows: n-tile, token, row."""
    trips, steps = (n_tiles, tokens, 2), (2 * lanes, 1, lanes)
    return ITensor((1, lanes), "f24", trips, steps, ((1,), (0, 2)))


def values(itensor: ITensor, seed: int) -> np.ndarray:
    return formats.round_f24(np.random.default_rng(seed).normal(size=itensor.shape))


def segments(sizes: tuple[int, ...], tokens: int, seed: int, rounds: int = 1):
    itensor = results(sum(sizes) * rounds, tokens, 2)
    return {"itensor": itensor, "sizes": sizes, "rounds": rounds}, {"i": values(itensor, seed)}


def segments_of_each(sizes: tuple[int, ...], rows: int, seed: int):
    """Rows that are split, in tokens of two elements."""
    itensor = ITensor((1, 2), "f24", (rows, sum(sizes)), (1, 2), ((0,), (1,)))
    return {"itensor": itensor, "sizes": sizes, "each": True}, {"i": values(itensor, seed)}


def unzip(n_tiles: int, tokens: int, seed: int):
    itensor = results(n_tiles, tokens, 6)
    return {"itensor": itensor}, {"i": values(itensor, seed)}


def test_segments_match_golden(stalls):
    sizes = [((3, 1, 1), 4), ((1, 1, 1), 1), ((2, 5, 1), 2), ((1, 1, 8), 6)]
    cases = [segments(*size, k) for k, size in enumerate(sizes)]
    cases[1:1] = [segments((1, 1, 1), 1, 4, 3), segments((1, 2, 3), 2, 5, 4)]
    cases[2:2] = [segments_of_each((7, 1, 2), 4, 6), segments_of_each((1, 1, 1), 1, 7)]
    check_golden(SEGMENTS, cases, stalls)


def test_unzip_matches_golden(stalls):
    check_golden(UNZIP, [unzip(*size, k) for k, size in enumerate([(3, 4), (1, 1), (5, 2), (10, 3)])], stalls)


def test_promises():
    for size in (((3, 1, 1), 4), ((1, 1, 1), 1)):
        check_promises(SEGMENTS, *segments(*size, 1))
    check_promises(SEGMENTS, *segments((1, 2, 1), 2, 1, 4))
    check_promises(SEGMENTS, *segments_of_each((3, 1, 2), 5, 1))
    for size in ((3, 4), (1, 1)):
        check_promises(UNZIP, *unzip(*size, 1))


def test_parts_are_rows_of_the_weight():
    bounds, inputs = segments((3, 1, 2), 4, 0)
    parts = SEGMENTS.golden(bounds, inputs)
    assert [part.shape for part in parts.values()] == [(4, 12), (4, 4), (4, 8)]
    assert np.array_equal(np.concatenate(list(parts.values()), axis=1), inputs["i"])
    outputs = SEGMENTS.outputs(bounds)
    assert [outputs[name].shape for name in parts] == [part.shape for part in parts.values()]


def test_parts_come_in_rounds():
    """Two tiles of columns, of which the others follow those of the other outputs."""
    bounds, inputs = segments((1, 2), 2, 0, 2)
    parts = SegmentsParams(token_bits=48, ways=2, max_tokens=120).golden(bounds, inputs)
    x = inputs["i"]
    assert np.array_equal(parts["o_0"], np.concatenate([x[:, :4], x[:, 12:16]], axis=1))
    assert np.array_equal(parts["o_1"], np.concatenate([x[:, 4:12], x[:, 16:]], axis=1))


def test_each_row_is_parted():
    bounds, inputs = segments_of_each((3, 1, 2), 4, 0)
    parts = SEGMENTS.golden(bounds, inputs)
    for part, columns in zip(parts.values(), (slice(0, 6), slice(6, 8), slice(8, 12)), strict=True):
        assert np.array_equal(part, inputs["i"][:, columns])
    outputs = SEGMENTS.outputs(bounds)
    assert outputs["o_2"] == ITensor((1, 2), "f24", (4, 2), (1, 2), ((0,), (1,)))


def test_lanes_are_columns():
    bounds, inputs = unzip(2, 3, 0)
    parts = UNZIP.golden(bounds, inputs)
    for n in range(12):
        group, lane = divmod(n, 3)
        for way in range(2):
            assert np.array_equal(parts[f"o_{way}"][:, n], inputs["i"][:, group * 6 + way * 3 + lane])
    assert UNZIP.outputs(bounds)["o_0"] == results(2, 3, 3)


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        (
            {"itensor": results(4, 2, 2), "sizes": (1, 1, 1)},
            "sizes are (1, 1, 1); 3 of at least 1 are needed that sum up to the outermost trip, 4",
        ),
        (
            {"itensor": results(2, 2, 2), "sizes": (2, 0, 0)},
            "sizes are (2, 0, 0); 3 of at least 1 are needed that sum up to the outermost trip, 2",
        ),
        (
            {"itensor": results(4, 2, 2), "sizes": (1, 1, 2), "rounds": 2},
            "sizes are (1, 1, 2); 3 of at least 1 are needed that sum up to the outermost trip of a round, 2",
        ),
        (
            {"itensor": results(4, 2, 2), "sizes": (1, 1, 2), "rounds": 3},
            "rounds is 3; it must divide the outermost trip, 4",
        ),
        (
            {"itensor": results(4, 2, 2), "sizes": (1, 1, 1), "each": True},
            "sizes are (1, 1, 1); 3 of at least 1 are needed that sum up to the second trip, 2",
        ),
        (
            {"itensor": results(4, 3, 2), "sizes": (1, 1, 1), "each": True, "rounds": 2},
            f"each trip of {results(4, 3, 2)} is parted; two loops are needed, and no rounds",
        ),
        (
            {"itensor": results(4, 2, 4), "sizes": (1, 1, 2)},
            f"tokens of the segments have 48 bits, those of {results(4, 2, 4)} 96",
        ),
        (
            {"itensor": results(4, 16, 2), "sizes": (1, 1, 2)},
            f"segments of at most 120 tokens cannot run 128: {results(4, 16, 2)}",
        ),
    ],
)
def test_bad_bounds_of_segments(bounds, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        SEGMENTS.describe(bounds)


@pytest.mark.parametrize(
    ("itensor", "message"),
    [
        (results(4, 2, 4), f"an unzip takes f24 tiles (1, 6), it cannot take {results(4, 2, 4)}"),
        (results(4, 8, 6), f"an unzip of at most 60 tokens cannot run 64: {results(4, 8, 6)}"),
        (
            ITensor((1, 6), "f24", (2, 2), (1, 3), ((0,), (1,))),
            "the columns of itensor<1x6xf24, iter_space: [2,2]*[1,3], iter_map: (d0,d1)->(d0,d1)> do not lie "
            "in groups of 2",
        ),
    ],
)
def test_bad_bounds_of_unzip(itensor, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        UNZIP.describe({"itensor": itensor})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: SegmentsParams(token_bits=0, ways=2, max_tokens=9),
            "token_bits of segments must be at least 1, not 0",
        ),
        (
            lambda: SegmentsParams(token_bits=4, ways=1, max_tokens=9),
            "ways of segments must be at least 2, not 1",
        ),
        (
            lambda: SegmentsParams(token_bits=4, ways=3, max_tokens=2),
            "max_tokens of segments must be at least 3, not 2",
        ),
        (
            lambda: UnzipParams(ways=1, dtype="i8", lanes=1, max_tokens=1),
            "ways of an unzip must be at least 2, not 1",
        ),
        (
            lambda: UnzipParams(ways=2, dtype="i8", lanes=0, max_tokens=1),
            "lanes of an unzip must be at least 1, not 0",
        ),
    ],
)
def test_bad_params(call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()
