"""same_stream against the sequences, and the operations against the offsets that define them."""

from dataclasses import replace
from itertools import chain

import itensor_brute as brute
import itensor_strategies as some
import numpy as np
import pytest
from hypothesis import strategies as st

from streamgen.itensor import (
    ITensor,
    permute_loops,
    reassociate,
    repeat,
    same_stream,
    split_loop,
    tile,
    transpose,
    vectorize,
)


@some.check(some.pairs())
def test_same_stream(pair):
    assert same_stream(*pair) == brute.same(*pair)


@some.check(
    some.itensors().flatmap(lambda stream: st.tuples(some.rewritings(stream), some.rewritings(stream)))
)
def test_rewritings_are_the_same_stream(pair):
    assert same_stream(*pair)
    assert brute.same(*pair)


@some.check(some.itensors())
def test_dtype_matters(stream):
    other = replace(stream, dtype="u8")
    assert not same_stream(stream, other)
    assert stream != other


def test_merging_needs_the_exact_step():
    merged = ITensor((1,), "i8", (6,), (2,), ((0,),))
    assert same_stream(merged, ITensor((1,), "i8", (2, 3), (6, 2), ((0, 1),)))
    assert same_stream(merged, ITensor((1,), "i8", (3, 1, 2), (4, 9, 2), ((0, 1, 2),)))
    assert not same_stream(merged, ITensor((1,), "i8", (3, 2), (2, 6), ((0, 1),)))
    assert not same_stream(merged, ITensor((1,), "i8", (6,), (2,), ((0,),), (1,)))
    assert not same_stream(merged, ITensor((2,), "i8", (6,), (2,), ((0,),)))
    reuse = ITensor((1,), "i8", (2, 3), (5, 7), ((),))
    assert same_stream(reuse, ITensor((1,), "i8", (6,), (1,), ((),)))


def test_large_streams_take_no_time():
    n = 10**6
    rows = ITensor((1, 1), "i8", (n, n), (1, 1), ((0,), (1,)))
    halves = ITensor((1, 1), "i8", (2, n // 2, n), (n // 2, 1, 1), ((0, 1), (2,)))
    columns = ITensor((1, 1), "i8", (n, n), (1, 1), ((1,), (0,)))
    assert rows.token_count == 10**12
    assert same_stream(rows, halves)
    assert not same_stream(rows, columns)


@some.check(some.itensors(), st.data())
def test_permute_loops(stream, data):
    order = data.draw(st.permutations(range(len(stream.tripcounts))))
    grid = stream.offsets().reshape(*stream.tripcounts, stream.rank)
    expected = grid.transpose(*order, len(order)).reshape(-1, stream.rank)
    assert (permute_loops(stream, order).offsets() == expected).all()


@some.check(some.itensors().flatmap(lambda stream: st.tuples(st.just(stream), some.splits(stream))))
def test_split_loop(pair):
    assert (pair[0].offsets() == pair[1].offsets()).all()


@some.check(some.itensors(), st.integers(1, 3), st.data())
def test_repeat(stream, count, data):
    loop = data.draw(st.integers(0, len(stream.tripcounts)))
    grid = stream.offsets().reshape(*stream.tripcounts, stream.rank)
    expected = np.repeat(np.expand_dims(grid, loop), count, axis=loop).reshape(-1, stream.rank)
    assert (repeat(stream, count, loop).offsets() == expected).all()


@some.check(some.itensors(), st.data())
def test_transpose(stream, data):
    order = data.draw(st.permutations(range(stream.rank)))
    result = transpose(stream, order)
    a = np.random.default_rng(0).integers(0, 99, stream.shape)
    assert (result.offsets() == stream.offsets()[:, order]).all()
    tokens = stream.to_tokens(a).transpose(0, *(r + 1 for r in order))
    assert (result.to_tokens(a.transpose(order)) == tokens).all()


@some.check(some.itensors(), st.data())
def test_tile(stream, data):
    small = [data.draw(st.sampled_from(some.divisors(extent))) for extent in stream.element_shape]
    parts = ITensor(
        small,
        "i8",
        [extent // s for extent, s in zip(stream.element_shape, small, strict=True)],
        small,
        [(r,) for r in range(stream.rank)],
    ).offsets()
    result = tile(stream, small)
    assert result.element_shape == tuple(small)
    assert (result.offsets() == (stream.offsets()[:, None] + parts[None]).reshape(-1, stream.rank)).all()


def runs_of(count, tokens):
    """The elements of each run of so many tokens."""
    return [list(chain(*tokens[k : k + count])) for k in range(0, len(tokens), count)]


@some.check(some.vectorized())
def test_vectorize(pair):
    small, large = pair
    count = small.token_count // large.token_count
    assert (large.offsets() == small.offsets()[::count]).all()
    runs = runs_of(count, brute.tokens(small))
    assert [sorted(run) for run in runs] == brute.tokens(large)


@some.check(some.itensors(max_rank=2), st.data())
def test_vectorize_absorbs_only_whole_runs(stream, data):
    shape = [extent * data.draw(st.sampled_from((1, 2, 3))) for extent in stream.element_shape]
    count = int(np.prod(shape)) // int(np.prod(stream.element_shape))
    tokens = brute.tokens(stream)
    runs = [sorted(run) for run in runs_of(count, tokens)]
    wanted = [
        brute.elements(replace(stream, element_shape=shape), min(run)) == run if run else False
        for run in runs
    ]
    try:
        result = vectorize(stream, shape)
    except ValueError:
        assert not all(wanted) or len(tokens) % count
        return
    assert all(wanted)
    assert brute.tokens(result) == runs


def factorisations(number, rank):
    if rank == 1:
        return [(number,)]
    return [(d, *rest) for d in some.divisors(number) for rest in factorisations(number // d, rank - 1)]


@some.check(st.one_of(some.gapless(), some.itensors()), st.integers(1, 4), st.data())
def test_reassociate(stream, rank, data):
    shape = data.draw(st.sampled_from(factorisations(int(np.prod(stream.shape)), rank)))
    try:
        result = reassociate(stream, shape)
    except ValueError:
        return
    assert result.shape == shape
    a = np.arange(np.prod(stream.shape)).reshape(stream.shape)
    tokens = result.to_tokens(a.reshape(shape))
    assert (
        tokens.reshape(stream.token_count, -1) == stream.to_tokens(a).reshape(stream.token_count, -1)
    ).all()


@pytest.mark.parametrize(
    ("stream", "shape", "expected"),
    [
        (  # heads of 4, a head a row
            ITensor((1, 2), "i8", (3, 6), (1, 2), ((0,), (1,))),
            (3, 3, 4),
            ITensor((1, 1, 2), "i8", (3, 3, 2), (1, 1, 2), ((0,), (1,), (2,))),
        ),
        (  # whole heads in a token
            ITensor((1, 8), "i8", (3, 2), (1, 8), ((0,), (1,))),
            (3, 4, 4),
            ITensor((1, 2, 4), "i8", (3, 2), (1, 2), ((0,), (1,), ())),
        ),
        (  # heads merged
            ITensor((1, 1, 2), "i8", (3, 3, 2), (1, 1, 2), ((1,), (0,), (2,))),
            (3, 12),
            ITensor((1, 2), "i8", (3, 3, 2), (4, 1, 2), ((1,), (0, 2))),
        ),
    ],
)
def test_reassociate_heads(stream, shape, expected):
    assert reassociate(stream, shape) == expected


ROWS = ITensor((2, 4), "i8", (2, 3), (2, 4), ((0,), (1,)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: permute_loops(ROWS, (0, 0)), "order must be a permutation of the 2 loops; it is (0, 0)"),
        (lambda: transpose(ROWS, (0,)), "order must be a permutation of the 2 dimensions; it is (0,)"),
        (lambda: split_loop(ROWS, 1, 2), "inner must divide the trip 3 of loop 1; it is 2"),
        (lambda: split_loop(ROWS, 2, 1), f"there is no loop 2 in {ROWS}"),
        (lambda: repeat(ROWS, 2, 3), "loop must lie in 0..2; it is 3"),
        (lambda: repeat(ROWS, 0), "tripcounts must be at least 1; it holds 0"),
        (lambda: tile(ROWS, (2, 3)), "element_shape (2, 3) must divide (2, 4) in each dimension"),
        (lambda: vectorize(ROWS, (2, 6)), "the token (2, 4) must divide (2, 6) in each dimension"),
        (lambda: vectorize(ROWS, (4, 4)), f"neighbouring tokens of {ROWS} do not form tokens of (4, 4)"),
        (lambda: vectorize(ROWS, (2, 24)), f"neighbouring tokens of {ROWS} do not form tokens of (2, 24)"),
        (lambda: reassociate(ROWS, (4, 13)), "shape must have the 48 elements of (4, 12); it is (4, 13)"),
        (
            lambda: reassociate(ROWS, (48,)),
            f"tokens of {ROWS} are no boxes when dimensions 0 and 1 of (4, 12) are merged",
        ),
        (
            lambda: reassociate(ROWS, (4, 2, 6)),
            f"tokens of {ROWS} are no boxes when dimension 1 is split by 6",
        ),
    ],
)
def test_bad_operations(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value) == message
