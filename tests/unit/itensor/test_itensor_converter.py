"""Converter inference against its definition: sufficient, smallest, and the same at other trip counts."""

from dataclasses import FrozenInstanceError, replace
from math import prod
from time import perf_counter

import itensor_brute as brute
import itensor_strategies as some
import pytest
from hypothesis import assume
from hypothesis import strategies as st

from streamgen.itensor import Converter, ITensor, infer_converter, same_stream
from streamgen.numbers import formats

A = ITensor.parse("itensor<2x2xf32, iter_space: [4,4]*[2,2], iter_map: (d0,d1)->(d0,d1)>")
B = ITensor.parse("itensor<4x2xf32, iter_space: [4,2]*[2,4], iter_map: (d0,d1)->(d1,d0)>")
C = ITensor.parse("itensor<4x2xf32, iter_space: [4,2,2]*[2,1,4], iter_map: (d0,d1,d2)->(d2,d0)>")


def hold(source, target):
    """One pair against everything that the definition says."""
    if not brute.readable(source, target):
        with pytest.raises(ValueError, match="which the source never sends"):
            infer_converter(source, target)
        return
    converter = infer_converter(source, target)
    assert (converter is None) == brute.same(source, target)
    if converter is None:
        return
    assert brute.same(converter.fill, source)
    assert brute.same(converter.read, target)
    assert prod(converter.buffer_shape) == brute.smallest_buffer(source, target)
    assert brute.replay(converter) == brute.tokens(target)
    width = formats.bits(source.dtype)
    assert converter.bits == 2 * prod(converter.buffer_shape) * width
    assert converter.live_bits == brute.live(source, target) * width
    assert converter.windows * converter.fills == source.token_count
    assert converter.windows * converter.reads == target.token_count
    lead = slice(0, converter.shared)
    assert converter.fill.loops[lead] == converter.read.loops[lead]
    for nest, origin, stream in (
        (converter.fill, converter.fill_origin, source),
        (converter.read, converter.read_origin, target),
    ):
        assert 1 not in nest.tripcounts
        trips = {
            unit: prod(t for u, t in zip(origin, nest.tripcounts, strict=True) if u == unit)
            for unit in origin
        }
        assert trips == {unit: prod(stream.tripcounts[loop] for loop in unit) for unit in origin}
    assert converter.at(source, target) == converter


@some.check(some.pairs(), examples=150)
def test_definition(pair):
    hold(*pair)


@pytest.mark.slow
@some.check(some.pairs(), examples=400)
def test_definition_at_length(pair):
    hold(*pair)


@pytest.mark.campaign
@some.check(some.pairs(), examples=5_000)
def test_definition_at_great_length(pair):
    hold(*pair)


@pytest.mark.parametrize(
    ("source", "target", "shape", "shared", "fills", "reads", "live"),
    [(B, C, (8, 2), 1, 2, 4, 16), (A, B, (8, 8), 0, 16, 8, 44), (C, B, (8, 2), 1, 4, 2, 8)],
)
def test_examples(source, target, shape, shared, fills, reads, live):
    converter = infer_converter(source, target)
    assert converter.buffer_shape == shape
    assert (converter.shared, converter.fills, converter.reads) == (shared, fills, reads)
    assert converter.bits == 2 * prod(shape) * 32
    assert converter.live_bits == live * 32


def test_loops_that_look_alike_are_not_shared():
    """The windows {0, 2} and {0, 1, 2} start together, but the source sends 1 in the next."""
    source = ITensor((1,), "i8", (2, 2), (1, 2), ((0, 1),))
    target = ITensor((1,), "i8", (2, 3), (1, 1), ((0, 1),))
    converter = infer_converter(source, target)
    assert converter.shared == 0
    assert converter.buffer_shape == (4,)


def test_loops_are_split_on_both_sides():
    source = ITensor((1, 1), "i8", (12, 4), (1, 1), ((0,), (1,)))
    target = ITensor((1, 1), "i8", (6, 4, 2), (2, 1, 1), ((0, 2), (1,)))
    converter = infer_converter(source, target)
    assert converter.fill == ITensor((1, 1), "i8", (6, 2, 4), (2, 1, 1), ((0, 1), (2,)))
    assert converter.read == target
    assert converter.fill_origin == ((0,), (0,), (1,))
    assert converter.read_origin == ((0,), (1,), (2,))
    assert (converter.shared, converter.buffer_shape) == (1, (2, 4))
    odd = infer_converter(source, ITensor((4, 1), "i8", (3, 4), (4, 1), ((0,), (1,))))
    assert (odd.fill.tripcounts, odd.shared, odd.buffer_shape) == ((3, 4, 4), 1, (4, 4))


def test_loops_that_only_share_when_merged():
    source = ITensor((1, 1), "i8", (2, 3, 2, 2), (3, 1, 2, 1), ((0, 1), (2, 3)))
    target = ITensor((1, 2), "i8", (3, 2, 2), (2, 1, 2), ((0, 1), (2,)))
    assert infer_converter(source, target).buffer_shape == (1, 2)
    target = ITensor((1, 1), "i8", (3, 2, 2, 2), (2, 1, 1, 2), ((0, 1), (2, 3)))
    converter = infer_converter(source, target)
    assert converter.fill_origin == ((0, 1), (2, 3))
    assert converter.buffer_shape == (1, 4)


def test_reuse():
    rows = ITensor((1, 4), "i8", (3, 2, 4), (1, 1, 4), ((0,), (2,)))
    tiles = ITensor((1, 8), "i8", (3, 2, 2), (1, 1, 8), ((0,), (2,)))
    converter = infer_converter(rows, tiles)  # the equal re-use loop is shared
    assert (converter.shared, converter.buffer_shape, converter.windows) == (3, (1, 8), 12)
    once = ITensor((1, 4), "i8", (3, 4), (1, 4), ((0,), (1,)))
    converter = infer_converter(once, tiles)  # sent once, read twice
    assert (converter.shared, converter.buffer_shape, converter.fills, converter.reads) == (1, (1, 16), 4, 4)
    converter = infer_converter(replace(rows, tripcounts=(3, 4, 4)), tiles)  # no use in sharing a part
    assert (converter.shared, converter.fills, converter.reads) == (1, 16, 4)


def test_target_reads_a_slice():
    source = ITensor((1, 8), "i8", (4, 4), (1, 8), ((0,), (1,)))
    target = ITensor((1, 4), "i8", (4, 2, 2), (1, 1, 4), ((0,), (2,)), (0, 12))
    converter = infer_converter(source, target)
    assert (converter.shared, converter.buffer_shape) == (1, (1, 8))
    assert brute.replay(converter) == brute.tokens(target)


@pytest.mark.parametrize("dtype", ["mxi8", "mxi8s"])
def test_groups_that_share_a_shift(dtype):
    rows = ITensor((1, 32), dtype, (16, 18), (1, 32), ((0,), (1,)))
    tiles = ITensor((4, 32), dtype, (6, 4, 18), (1, 4, 32), ((1,), (2,)))
    converter = infer_converter(rows, tiles)
    assert converter.buffer_shape == (16, 576)
    group = {"mxi8": 264, "mxi8s": 280}[dtype]
    assert converter.bits == 2 * 16 * 18 * group
    assert converter.live_bits == 16 * 18 * group
    with pytest.raises(ValueError) as error:
        infer_converter(rows, ITensor((1, 32), dtype, (4,), (16,), ((), (0,))))
    assert str(error.value) == (
        f"base and steps of the last dimension of {dtype} must be multiples of 32 to be converted; "
        "the target has [0, 16]"
    )


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (A, replace(A, dtype="f24"), "dtype must agree; the source has f32, the target f24"),
        (A, replace(C, dtype="i32"), "dtype must agree; the source has f32, the target i32"),
        (
            A,
            ITensor((8,), "f32", (), (), ((),)),
            "rank must agree; the source has 2, the target 1",
        ),
        (
            A,
            replace(B, tripcounts=(5, 2)),
            "the target reads element 9 of dimension 1, which the source never sends",
        ),
        (
            ITensor((1,), "i8", (4,), (2,), ((0,),)),
            ITensor((1,), "i8", (4,), (1,), ((0,),)),
            "the target reads element 1 of dimension 0, which the source never sends",
        ),
        (
            ITensor((2,), "i8", (4,), (2,), ((0,),), (3,)),
            ITensor((2,), "i8", (4,), (2,), ((0,),)),
            "the target reads element 0 of dimension 0, which the source never sends",
        ),
    ],
)
def test_no_converter(source, target, message):
    with pytest.raises(ValueError) as error:
        infer_converter(source, target)
    assert str(error.value) == message


def test_frozen():
    converter = infer_converter(B, C)
    assert isinstance(converter, Converter)
    assert hash(converter) == hash(infer_converter(B, C))
    with pytest.raises(FrozenInstanceError):
        converter.shared = 0


def test_large_tensors_take_no_time():
    n = 10**6
    panels = [
        (  # weights, held while four groups of tokens pass
            ITensor((16, 32), "i4", (36, 48), (16, 32), ((0,), (1,))),
            ITensor((8, 32), "i4", (72, 4, 48), (8, 1, 32), ((0,), (2,))),
            (16, 1536),
        ),
        (  # 10^12 tokens
            ITensor((1, 1), "i8", (n, n), (1, 1), ((0,), (1,))),
            ITensor((4, 1), "i8", (n // 4, 3, n), (4, 1, 1), ((0,), (2,))),
            (4, n),
        ),
        (  # with gaps in both
            ITensor((1, 1), "i8", (n, n), (2, 3), ((0,), (1,))),
            ITensor((1, 1), "i8", (n, n), (3, 2), ((1,), (0,))),
            (2 * n - 1, 3 * n - 2),
        ),
    ]
    start = perf_counter()
    for source, target, shape in panels:
        assert infer_converter(source, target).buffer_shape == shape
    assert perf_counter() - start < 0.5


@st.composite
def smaller(draw):
    """A pair with a converter, and the pair with other trips, often the same ones on both sides."""
    source, target = draw(some.pairs())
    assume(brute.readable(source, target) and not brute.same(source, target))
    ratio = {t: draw(st.integers(1, t)) for t in sorted({*source.tripcounts, *target.tripcounts})}
    free = draw(st.booleans())
    streams = []
    for stream in (source, target):
        trips = [draw(st.integers(1, t)) if free else ratio[t] for t in stream.tripcounts]
        streams.append(replace(stream, tripcounts=trips))
    return source, target, *streams


def hold_at(source, target, new_source, new_target):
    """`at` keeps the structure and the promise, or refuses."""
    built = infer_converter(source, target)
    try:
        converter = built.at(new_source, new_target)
    except ValueError:
        return
    assert replace(converter.fill, tripcounts=built.fill.tripcounts) == built.fill
    assert replace(converter.read, tripcounts=built.read.tripcounts) == built.read
    assert converter.shared == built.shared
    assert converter.fill.tripcounts[: built.shared] == converter.read.tripcounts[: built.shared]
    assert brute.same(converter.fill, new_source)
    assert brute.same(converter.read, new_target)
    assert brute.replay(converter) == brute.tokens(new_target)
    assert all(new <= old for new, old in zip(converter.buffer_shape, built.buffer_shape, strict=True))


@some.check(smaller(), examples=100)
def test_other_trips(case):
    hold_at(*case)


@pytest.mark.slow
@some.check(smaller(), examples=250)
def test_other_trips_at_length(case):
    hold_at(*case)


@pytest.mark.campaign
@some.check(smaller(), examples=3_000)
def test_other_trips_at_great_length(case):
    hold_at(*case)


@pytest.mark.parametrize("trips", [(t, n) for t in (1, 2, 3, 5) for n in (1, 2, 6)])
def test_every_smaller_number_of_rows_and_tiles(trips):
    """Rows of f24 in fours become tiles of 16 x 4, re-used: all bounds run on one buffer."""

    def pair(t, n):
        source = ITensor((1, 16), "f24", (t, 4, n), (4, 1, 16), ((0, 1), (2,)))
        target = ITensor((4, 8), "f24", (t, 3, 2 * n), (4, 1, 8), ((0,), (2,)))
        return source, target

    built = infer_converter(*pair(5, 6))
    assert (built.shared, built.buffer_shape) == (1, (4, 96))
    converter = built.at(*pair(*trips))
    assert converter.shared == 1
    assert converter.fill.tripcounts == (trips[0], 4, trips[1])
    assert converter.read.tripcounts == (trips[0], 3, 2 * trips[1])
    assert brute.replay(converter) == brute.tokens(pair(*trips)[1])


def test_split_loops_at_other_trips():
    def pair(rows):
        source = ITensor((1, 1), "i8", (rows, 4), (1, 1), ((0,), (1,)))
        target = ITensor((2, 1), "i8", (-(-rows // 2), 4), (2, 1), ((0,), (1,)))
        return source, target

    built = infer_converter(*pair(12))
    assert built.fill.tripcounts == (6, 2, 4)
    assert built.at(*pair(2)).fill.tripcounts == (1, 2, 4)
    assert built.at(*pair(8)).read.tripcounts == (4, 4)
    with pytest.raises(ValueError) as error:
        built.at(*pair(3))
    assert str(error.value) == ("the trips (3, 4) and (2, 4) cannot share loop 0 as (12, 4) and (6, 4) do")


def test_at_refuses():
    built = infer_converter(B, C)
    taller = [replace(B, tripcounts=(4, 3)), replace(C, tripcounts=(4, 2, 3))]
    other = replace(C, tripcounts=(3, 2, 2))
    for source, target, message in [
        (replace(B, steps=(2, 8)), C, f"the source may differ in trip counts only; it is "
         f"{replace(B, steps=(2, 8))}, not like {B}"),
        (B, replace(C, base=(0, 2)), f"the target may differ in trip counts only; it is "
         f"{replace(C, base=(0, 2))}, not like {C}"),
        (B, other, "the trips (4, 2) and (3, 2, 2) cannot share loop 0 as (4, 2) and (4, 2, 2) do"),
        (replace(B, tripcounts=(4, 1)), C, "in a window of 1 shared loops the target reads element 7 of "
         "dimension 0, which the source does not send in it"),
        (*taller, "a window of (12, 2) outgrows the buffer of (8, 2)"),
    ]:  # fmt: skip
        with pytest.raises(ValueError) as error:
            built.at(source, target)
        assert str(error.value) == message


def test_the_pair_may_become_one_stream():
    converter = infer_converter(B, C).at(replace(B, tripcounts=(4, 1)), replace(C, tripcounts=(4, 1, 1)))
    assert same_stream(converter.source, converter.target)
    assert converter.buffer_shape == (4, 2)
