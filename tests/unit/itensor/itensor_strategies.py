"""Random itensors and pairs of them, small enough for brute force."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamgen.itensor import ITensor, permute_loops, repeat, split_loop, tile, vectorize

DTYPES = ("i8", "u3", "f32", "f24")


def check(*strategies, examples=50):
    """The same examples in each run, however busy the machine is."""
    fixed = settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    return lambda test: fixed(given(*strategies)(test))


@st.composite
def itensors(draw, max_rank=4, max_loops=4, max_trip=4, max_tokens=128, rank=None, dtype=None):
    """Gaps, windows, re-use and dimensions tiled twice all occur."""
    rank = draw(st.integers(1, max_rank)) if rank is None else rank
    trips, tokens = [], 1
    for trip in draw(st.lists(st.integers(1, max_trip), max_size=max_loops)):
        if tokens * trip <= max_tokens:
            trips.append(trip)
            tokens *= trip
    iter_map = [[] for _ in range(rank)]
    for loop in range(len(trips)):
        served = draw(st.integers(-1, rank - 1))
        if served >= 0:
            iter_map[served].append(loop)
    most = 4 if rank < 3 else 2
    return ITensor(
        draw(st.lists(st.integers(1, most), min_size=rank, max_size=rank)),
        draw(st.sampled_from(DTYPES)) if dtype is None else dtype,
        trips,
        draw(st.lists(st.integers(1, most + 2), min_size=len(trips), max_size=len(trips))),
        iter_map,
        draw(st.lists(st.integers(0, 2), min_size=rank, max_size=rank)),
    )


@st.composite
def gapless(draw, max_rank=3):
    """A tensor cut in tiles, each loop split or not, the loops in some order."""
    rank = draw(st.integers(1, max_rank))
    extents = draw(st.lists(st.sampled_from((1, 2, 4, 6)), min_size=rank, max_size=rank))
    return draw(tilings(extents, draw(st.sampled_from(DTYPES))))


@st.composite
def tilings(draw, extents, dtype):
    """A way to send a tensor of these extents once."""
    whole = ITensor(extents, dtype, [], [], [()] * len(extents))
    stream = tile(whole, [draw(st.sampled_from(divisors(extent))) for extent in extents])
    stream = draw(splits(stream))
    return permute_loops(stream, draw(st.permutations(range(len(stream.tripcounts)))))


@st.composite
def splits(draw, stream):
    """The same stream with some loops split."""
    for loop in reversed(range(len(stream.tripcounts))):
        stream = split_loop(stream, loop, draw(st.sampled_from(divisors(stream.tripcounts[loop]))))
    return stream


@st.composite
def rewritings(draw, stream):
    """The same stream: loops of trip 1 added, loops split."""
    stream = draw(splits(stream))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(stream.tripcounts)))
        stream = repeat(stream, 1, at)
    return stream


@st.composite
def pairs(draw):
    """A source, and a target that often reads it: related orders, tiles, re-use, or nothing in common."""
    kind = draw(st.sampled_from(("unrelated", "orders", "changed", "inside")))
    if kind == "unrelated":
        rank = draw(st.integers(1, 2))
        size = {"max_loops": 3, "max_trip": 6, "max_tokens": 64, "rank": rank, "dtype": "i8"}
        return draw(itensors(**size)), draw(itensors(**size))
    if kind == "orders":
        source = draw(gapless())
        target = draw(tilings(source.shape, source.dtype))
    else:
        source = draw(itensors())
        target = draw(rewritings(source))
        count = len(target.tripcounts)
        keep = draw(st.integers(0, count))
        if kind == "changed":
            target = permute_loops(target, [*range(keep), *draw(st.permutations(range(keep, count)))])
        if draw(st.booleans()):
            target = tile(target, [draw(st.sampled_from(divisors(e))) for e in target.element_shape])
    return draw(repeated(source)), draw(repeated(target))


@st.composite
def repeated(draw, stream):
    """Perhaps with a re-use loop."""
    if draw(st.booleans()):
        return stream
    return repeat(stream, draw(st.integers(1, 3)), draw(st.integers(0, len(stream.tripcounts))))


@st.composite
def vectorized(draw):
    """A stream and a larger token that its neighbouring tokens form."""
    stream = draw(gapless())
    small = tile(stream, [draw(st.sampled_from(divisors(e))) for e in stream.element_shape])
    return small, vectorize(small, stream.element_shape)


def divisors(number):
    return [d for d in range(1, number + 1) if number % d == 0]
