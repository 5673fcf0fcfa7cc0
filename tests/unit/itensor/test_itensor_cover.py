"""Coverage of one dimension against sets."""

from itertools import product

import itensor_strategies as some
from hypothesis import strategies as st

from streamgen.itensor.cover import Cover, first_missing

PROGRESSIONS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 12)), max_size=3)
SETS = st.tuples(st.integers(0, 3), st.integers(1, 4), PROGRESSIONS)


def brute(base, extent, progressions):
    index = product(*(range(trip) for trip, _ in progressions))
    starts = {base + sum(i * step for i, (_, step) in zip(many, progressions, strict=True)) for many in index}
    return {start + e for start in starts for e in range(extent)}


@some.check(SETS, examples=200)
def test_intervals(one):
    cover, expected = Cover.of(*one), brute(*one)
    starts, ends = cover.intervals()
    assert {x for a, b in zip(starts, ends, strict=True) for x in range(a, b)} == expected
    assert (starts[1:] > ends[:-1]).all()
    assert cover.end == max(expected) + 1


def hold(source, target):
    sent, wanted = brute(*source), brute(*target)
    missing = first_missing(Cover.of(*source), Cover.of(*target))
    if wanted <= sent:
        assert missing is None
    else:
        assert missing in wanted - sent


@some.check(SETS, SETS, examples=300)
def test_first_missing(source, target):
    hold(source, target)


@some.check(SETS, SETS, PROGRESSIONS, examples=300)
def test_first_missing_with_progressions_in_common(source, target, common):
    hold((*source[:2], source[2] + common), (*target[:2], target[2] + common))


def test_many_gaps_take_no_time():
    n = 10**6
    blocks = [(n, 20 * n), (n, 20)]
    source, target = Cover.of(0, 3, [*blocks, (2, 4)]), Cover.of(1, 2, blocks)
    assert len(source.gapped) == 2
    assert first_missing(source, target) is None
    assert first_missing(source, Cover.of(2, 2, blocks)) == 3
