"""In-place converters: RTL equals golden for any pair, scheme, places, bounds; promises equal measurement."""

from dataclasses import replace
from math import prod
from random import Random

import numpy as np
import pytest

from benchmarks.converters import random_pair as random_pair_of_corpus
from streamgen.converters import InPlaceParams, PingPongParams, choose_converter, timing
from streamgen.converters.choice import LEAST, WORTH
from streamgen.converters.folding import folds
from streamgen.converters.trace import rows_touched, steady_level, trace
from streamgen.gateware.rtl import to_verilog
from streamgen.itensor import ITensor
from streamgen.model.graph.storage import decode_value, encode_value
from streamgen.testing.bench import Stalls, run
from streamgen.testing.kernel import check_golden, check_promises, descriptor_word, encode_port
from streamgen.testing.lint import joined, lint
from streamgen.testing.synthesis import check_all
from tests.shared.campaigns import sampled
from tests.unit.converters.converter_pairs import itensor, random_bounds, random_pair, random_tensor


def bounds_of(source: ITensor, target: ITensor) -> dict[str, ITensor]:
    return {"source": source, "target": target}


def transposed(rows: int, columns: int) -> tuple[ITensor, ITensor]:
    """Rows first -> columns first."""
    return (
        itensor((1, 4), "i16", [(rows, 1, 0), (columns, 4, 1)]),
        itensor((1, 4), "i16", [(columns, 4, 1), (rows, 1, 0)]),
    )


def across(rows: int, columns: int) -> tuple[ITensor, ITensor]:
    """Pieces of rows -> pieces of columns, columns first: a word is written and read four times."""
    return (
        itensor((1, 4), "i8", [(rows, 1, 0), (columns // 4, 4, 1)]),
        itensor((4, 1), "i8", [(columns, 1, 1), (rows // 4, 4, 0)]),
    )


def used_again(rows: int, again: int) -> tuple[ITensor, ITensor]:
    """A panel of rows, sent once, read again and again in the same order."""
    return (
        itensor((1, 32), "i8", [(rows, 1, 0), (3, 32, 1)]),
        itensor((1, 32), "i8", [(again, 1, None), (rows, 1, 0), (3, 32, 1)]),
    )


def sliding(rows: int, columns: int) -> tuple[ITensor, ITensor]:
    """Pixels -> windows of 3 x 1."""
    return (
        itensor((1, 1, 4), "i8", [(rows, 1, 0), (columns, 1, 1), (1, 4, 2)]),
        itensor((3, 1, 4), "i8", [(rows - 2, 1, 0), (columns, 1, 1), (1, 4, 2)]),
    )


def heads(tokens: int, count: int) -> tuple[ITensor, ITensor]:
    """Rows -> head by head."""
    return (
        itensor((1, 16), "f24", [(tokens, 1, 0), (4 * count, 16, 1)]),
        itensor((1, 16), "f24", [(count, 64, 1), (tokens, 1, 0), (4, 16, 1)]),
    )


def tiles(tokens: int, count: int) -> tuple[ITensor, ITensor]:
    """Tiles of a matmul, 16 features of all tokens each -> rows."""
    return (
        itensor((1, 4), "f24", [(count, 16, 1), (tokens, 1, 0), (4, 4, 1)]),
        itensor((1, 2), "f24", [(tokens, 1, 0), (8 * count, 2, 1)]),
    )


# pair, then what is chosen: scheme and places; and words of a window
CHOSEN = {
    "transposed": (transposed(12, 12), ("pool", 124), 144),
    "transposed, across words": (across(32, 32), ("pool", 72), 64),
    "used again": (used_again(16, 5), ("ring", 48), 48),
    "sliding": (sliding(12, 10), ("ring", 40), 120),
    "heads": (heads(8, 3), ("pool", 59), 96),
    "tiles of a matmul": (tiles(8, 3), ("pool", 58), 96),
}


def random_params(random: Random, scheme: str, dtype: str = "u8", fold: bool = False) -> InPlaceParams:
    """A random pair with random places, such that it can be built. fold: with a dimension folded."""
    while True:
        source, target = random_pair(random, dtype)
        seen = random.choice(list(folds(source)) or [None]) if fold else None
        if fold and seen is None:
            continue
        words = PingPongParams(source=source, target=target).banking.words
        if words < 2:
            continue
        after = random.choice((0, 0, 1, 2)) if scheme == "ring" else 0
        try:
            return InPlaceParams(
                source=source,
                target=target,
                scheme=scheme,
                places=random.randint(2, 2 * words - 1),
                after=after,
                fold=seen,
            )
        except ValueError:
            continue


def check(seed: int, scheme: str, dtype: str = "u8", fold: bool = False) -> None:
    """Promises at the greatest and at other bounds; a sequence of bounds with stalls."""
    random = Random(f"{scheme} {seed}")
    params = random_params(random, scheme, dtype, fold)
    several = [bounds_of(params.source, params.target), *(random_bounds(random, params) for _ in range(4))]
    cases = [(bounds, {"i": random_tensor(random, bounds["source"])}) for bounds in several]
    for case in cases[:2]:
        check_promises(params, *case)
    chance = random.choice((0.1, 0.3, 0.6))
    stalls = Stalls(seed=seed, sources=chance, sinks=random.choice((0.1, 0.3, 0.6)))
    check_golden(params, [*cases, cases[0]], stalls)


@pytest.mark.parametrize("scheme", ["ring", "pool"])
@pytest.mark.parametrize("seed", range(7))
def test_matches_golden(seed, scheme):
    check(seed, scheme)


@pytest.mark.parametrize("scheme", ["ring", "pool"])
@pytest.mark.parametrize("seed", range(4))
def test_folded_matches_golden(seed, scheme):
    check(seed, scheme, "mxi8s" if seed == 3 else "u8", fold=True)


def test_a_row_is_sent_while_the_last_tile_comes_in():
    """Folded, the first row leaves when the last tile has begun; else when it has ended."""
    source, target = tiles(16, 4)
    params = choose_converter(source, target)
    assert isinstance(params, InPlaceParams) and params.fold == (1, 16)
    case = bounds_of(source, target), {"i": random_tensor(Random(1), source)}
    last = 3 * 16 * 4  # tokens before those of the last tile
    cycles = check_golden(params, [case]).cycles
    assert cycles["o"][32 - 1] < cycles["i"][last + 32]
    whole = replace(params, fold=None, places=2 * params.banking.words - 1)
    cycles = check_golden(whole, [case]).cycles
    assert cycles["o"][32 - 1] > cycles["i"][-1]


@pytest.mark.parametrize(
    ("source", "target", "fold"),
    [
        (tiles(8, 3)[0], itensor((1, 12), "f24", [(8, 1, 0), (4, 12, 1)]), (1, 16)),
        (tiles(8, 3)[0], itensor((1, 32), "f24", [(8, 1, 0), (1, 32, 1)]), (1, 16)),
    ],
    ids=["steps", "tokens"],
)
def test_what_lies_across_a_tile_is_not_folded(source, target, fold):
    assert list(folds(source)) == [fold]
    with pytest.raises(ValueError, match=r"folded by 16"):
        PingPongParams(source=source, target=target, fold=fold)
    assert choose_converter(source, target).fold is None


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["ring", "pool"])
@pytest.mark.parametrize("block", sampled(range(7), {4}))
def test_matches_golden_campaign(block, scheme):
    for seed in range(100 + 20 * block, 120 + 20 * block):
        check(seed, scheme, "mxi8s" if seed % 8 == 0 else "u8")


@pytest.mark.slow
@pytest.mark.parametrize("block", sampled(range(4), {1}))
def test_choices_of_the_corpus(block):
    """Pairs of the benchmark, as large as in designs: promises, stalls, no slower than two halves."""
    for seed in range(block, 60, 4):
        source, target = random_pair_of_corpus(seed)
        params = choose_converter(source, target)
        if isinstance(params, PingPongParams) or source.token_count + target.token_count > 4000:
            continue
        bounds = bounds_of(source, target)
        case = (bounds, {"i": random_tensor(Random(seed), source)})
        check_promises(params, *case)
        check_golden(params, [case] * 2, Stalls(seed=seed, sources=0.2, sinks=0.2))
        assert timing.period(params.rules(params.trips(bounds))) <= max(
            params.converter.fills * prod(params.banking.source.pieces),
            params.converter.reads * prod(params.banking.target.pieces),
        )


@pytest.mark.slow
def test_at_most_six_tenths_of_two_halves():
    """Over the pairs whose floor is so low: of the benchmark's 500 the first 200."""
    halves = chosen = 0
    for seed in range(200):
        source, target = random_pair_of_corpus(seed)
        half = PingPongParams(source=source, target=target)
        if half.converter.live_bits <= 0.6 * half.held_bits:
            halves += half.held_bits
            chosen += choose_converter(source, target).held_bits
    assert chosen <= 0.6 * halves


@pytest.mark.parametrize("name", CHOSEN)
def test_chosen(name, stalls):
    pair, chosen, words = CHOSEN[name]
    params = choose_converter(*pair)
    assert isinstance(params, InPlaceParams)
    assert ((params.scheme, params.places), params.banking.words) == (chosen, words)
    bounds = bounds_of(*pair)
    cases = [(bounds, {"i": random_tensor(Random(k), pair[0])}) for k in range(3)]
    check_golden(params, cases, stalls)
    if stalls is None:
        check_promises(params, *cases[0])


@pytest.mark.parametrize("seed", sampled(range(40), range(20)))
def test_windows_read_again_and_again(seed):
    """Three readings of a window tell what all of them would: writes, the last read, whether it is stuck."""
    random = Random(seed)
    rows, again, step = random.randint(2, 6), random.randint(4, 9), random.choice((1, 2, 3))
    source = itensor((1, 4), "i8", [(rows, 1, 0), (6, 4, 1)])
    inner = random.sample([(rows, 1, 0), (6 // step, 4 * step, 1)], 2)
    target = itensor((1, 4 * step), "i8", [(again, 1, None), *inner])
    words = PingPongParams(source=source, target=target).banking.words
    for scheme, after in (("ring", 0), ("ring", 1), ("ring", 2), ("pool", 0)):
        try:
            params = InPlaceParams(
                source=source, target=target, scheme=scheme, places=2 * words - 1, after=after
            )
        except ValueError:
            continue
        trips = params.trips(bounds_of(source, target))
        full, few = (params.rules(trips, every=every) for every in (True, False))
        assert few.at is not None and few.reads == full.reads and len(few.completes) < full.reads
        for places in range(1, 2 * words):
            one, other = (replace(rules, slots=places) for rules in (full, few))
            assert timing.stuck(one) == timing.stuck(other)
            assert timing.period(one) == timing.period(other)
            if not timing.stuck(one):
                (found, shift), (fewer, same) = timing.windows(one, 9), timing.windows(other, 9)
                assert (len(found), shift) == (len(fewer), same)
                for a, b in zip(found, fewer, strict=True):
                    assert np.array_equal(a.writes, b.writes)
                    assert np.array_equal(a.reads[few.at], b.reads)


@pytest.mark.parametrize("name", CHOSEN)
def test_window_costs_the_greater_side(name):
    """Twelve descriptors of a window each: no more cycles between windows than in a ping-pong converter."""
    pair = CHOSEN[name][0]
    distances = []
    for params in (choose_converter(*pair), PingPongParams(source=pair[0], target=pair[1])):
        bounds = bounds_of(*pair)
        cycles = check_golden(params, [(bounds, {"i": random_tensor(Random(0), pair[0])})] * 12).cycles
        distances.append(np.diff(cycles["o"][:: params.converter.reads])[4:])
    accesses = max(
        params.converter.fills * prod(params.banking.source.pieces),
        params.converter.reads * prod(params.banking.target.pieces),
    )
    assert distances[0].max() <= distances[1].max() <= accesses + 1


def test_windows_without_gaps():
    """Windows of one descriptor follow each other without a gap, at the slower side's pace."""
    source = itensor((1, 2), "i32", [(8, 16, 0), (16, 1, 0), (6, 2, 1)])
    target = itensor((2, 1), "i32", [(8, 16, 0), (12, 1, 1), (8, 2, 0)])
    params = choose_converter(source, target)
    assert isinstance(params, InPlaceParams)
    cycles = check_golden(
        params, [(bounds_of(source, target), {"i": random_tensor(Random(0), source)})]
    ).cycles
    assert params.converter.windows == 8
    assert set(np.diff(cycles["o"][:: params.converter.reads])[2:]) == {96}


@pytest.mark.parametrize(
    "pair",
    [
        (itensor((1, 4), "i8", [(4, 4, 1)]), itensor((1, 2), "i8", [(8, 2, 1)])),
        (itensor((1, 2), "u8", [(6, 1, 0), (3, 2, 1)]), itensor((1, 2), "u8", [(3, 2, 1), (6, 1, 0)])),
    ],
    ids=["a word is all", "little is saved"],
)
def test_ping_pong_where_it_is_no_larger(pair):
    assert choose_converter(*pair) == PingPongParams(source=pair[0], target=pair[1])


def test_small_windows_read_again_are_read_early():
    """Exponents of 16 rows for eight tiles of a matmul: the first is there long before the last."""
    source = itensor((1,), "i16", [(16, 1, 0)])
    target = itensor((1,), "i16", [(8, 1, None), (16, 1, 0)])
    params = choose_converter(source, target)
    assert isinstance(params, InPlaceParams) and params.scheme == "ring"
    pair = PingPongParams(source=source, target=target)
    assert params.held_bits <= WORTH * pair.held_bits and params.held_bits > pair.held_bits - LEAST
    bounds = bounds_of(source, target)
    first = params.curves(bounds)["o"].cycles()[0]
    assert first + 14 <= pair.curves(bounds)["o"].cycles()[0]
    check_golden(params, [(bounds, {"i": random_tensor(Random(0), source)})])


def test_what_cannot_run_smaller_bounds_is_not_chosen():
    """A pool would keep the rows of the source that a smaller target does not read."""
    pair = transposed(12, 12)
    smaller = (pair[0], transposed(6, 12)[1])
    assert choose_converter(*pair).scheme == "pool"
    params = choose_converter(*pair, (smaller,))
    assert getattr(params, "scheme", "") != "pool"
    params.describe(bounds_of(*smaller))


@pytest.mark.parametrize("make", [used_again, transposed], ids=["ring", "pool"])
def test_one_build_runs_every_number_of_rows(make):
    params = choose_converter(*make(16, 8))
    assert isinstance(params, InPlaceParams)
    cases = [
        (bounds_of(*make(rows, other)), {"i": random_tensor(Random(rows), make(rows, other)[0])})
        for rows, other in [(16, 8), (4, 8), (1, 8), (16, 1), (7, 3), (2, 2), (1, 1)]
    ]
    for case in cases:
        check_promises(params, *case)
    check_golden(params, cases * 2, Stalls(seed=3, sources=0.3, sinks=0.3))


@pytest.mark.parametrize("name", ["transposed", "sliding"])
def test_reset_in_mid_run(name):
    pair = CHOSEN[name][0]
    params = choose_converter(*pair)
    bounds = bounds_of(*pair)
    tensor = random_tensor(Random(0), pair[0])
    streams = {"i_descriptor": [descriptor_word(params, bounds)] * 2, "i": encode_port(pair[0], tensor) * 2}
    expected = encode_port(pair[1], params.golden(bounds, {"i": tensor})["o"]) * 2
    for reset_at in (3, 90, 200):
        result = run(params.build(), streams, {"o": len(expected)}, reset_at=reset_at)
        assert result.tokens["o"] == expected


@pytest.mark.parametrize("seed", range(30))
def test_what_lies_below_a_steady_level_is_done_with(seed):
    """For any trips, no later access has an address below the base of the present iteration."""
    random = Random(seed)
    source, target = random_pair(random)
    params = PingPongParams(source=source, target=target)
    for walker in (params.writer, params.reader):
        if any(axis.clipped for axis in walker.axes):
            assert steady_level(walker, 0) == 0
            continue
        for after in range(len(walker.inner)):
            level = steady_level(walker, after)
            held = type(walker)(**{**vars(walker), "level": level, "after": after})
            for _ in range(3):
                trips = [random.randint(1, loop.trip) for loop in walker.inner if not loop.fixed]
                found = trace(held, trips)
                least = np.minimum.accumulate(found.address[::-1])[::-1]
                assert (found.base <= least).all()
                assert (np.diff(found.base) >= 0).all()


def test_chosen_params_are_written_and_read():
    for pair, _, _ in CHOSEN.values():
        params = choose_converter(*pair)
        assert decode_value(encode_value(params)) == params


@pytest.mark.parametrize("name", CHOSEN)
def test_verilog(name):
    params = choose_converter(*CHOSEN[name][0])
    first, second = (to_verilog(params.build()) for _ in range(2))
    assert first == second
    lint(first, "top")


@pytest.mark.campaign
@pytest.mark.slow
def test_verilog_of_random_pairs():
    cases = [random_params(Random(seed), scheme) for seed in range(20) for scheme in ("ring", "pool")]
    lint(joined(params.build() for params in cases))


@pytest.mark.campaign
@pytest.mark.slow
def test_resources_and_levels():
    several = [choose_converter(*pair) for pair, _, _ in CHOSEN.values()]
    check_all([(params, bounds_of(params.source, params.target)) for params in several])


def test_bad_params():
    pair = transposed(4, 4)
    given = bounds_of(*pair)
    for fields, message in [
        ({"scheme": "stack", "places": 8}, "scheme of a converter must be ring or pool, not 'stack'"),
        ({"scheme": "ring", "places": 1}, "places of a converter must be from 2 to 31, not 1"),
        ({"scheme": "pool", "places": 32}, "places of a converter must be from 2 to 31, not 32"),
        (
            {"scheme": "pool", "places": 8, "after": 1},
            "after must be one of the 2 loops that read a ring, 0 for a pool; not 1",
        ),
        (
            {"scheme": "pool", "places": 8},
            "8 places are too few for the trips {'fill0': 4, 'fill1': 4, 'read0': 4, 'read1': 4}",
        ),
    ]:
        with pytest.raises(ValueError) as error:
            InPlaceParams(**given, **fields)
        assert str(error.value) == message


def test_bad_pool():
    windows = sliding(6, 4)
    with pytest.raises(ValueError) as error:
        InPlaceParams(**bounds_of(*windows), scheme="pool", places=12)
    assert str(error.value) == (f"no pool can tell the last read of a word by the loops of {windows[1]}")
    params = InPlaceParams(**bounds_of(*transposed(4, 4)), scheme="pool", places=16)
    less = bounds_of(transposed(4, 4)[0], transposed(4, 3)[1])
    with pytest.raises(ValueError) as error:
        params.describe(less)
    assert str(error.value) == (
        "a pool keeps what is written until it is read; with the trips "
        "{'fill0': 4, 'fill1': 4, 'read0': 3, 'read1': 4} the source fills other words along dimension 1 "
        "than the target reads"
    )


def test_rows_touched():
    params = PingPongParams(**bounds_of(*sliding(6, 4)))
    assert rows_touched(params.reader, [2, 4], 0) == {0, 1, 2, 3}
    assert rows_touched(params.writer, [6, 2], 1) == {0, 1}
