"""Weights of a column out of one stream of beats: the order in memory, and what unpacks it."""

import re
from dataclasses import replace

import numpy as np
import pytest

from streamgen.artifact.packing import MemoryLayout
from streamgen.artifact.weight_layout import CODES, ROWS, SCALES
from streamgen.kernels.matmul.weights import UnevenWeightsParams, WeightsParams
from streamgen.testing.bench import Stalls
from streamgen.testing.clocks import check_clocks
from streamgen.testing.kernel import check_golden, check_promises
from streamgen.testing.synthesis import check_all
from tests.unit.kernels.matmul.matmul_cases import beats_of, bounds_of, column, operands, random_bounds

BUILDS = {
    name: WeightsParams(column=params)
    for name, params in {
        "two-tokens-a-beat": column(),
        "a-beat": column(n_lanes=4, max_n=40, minimum=True),
        "two-beats-both": column(n_lanes=8, max_n=64, minimum=True, formats=("w4", "w8")),
        "padded-slots": column(n_lanes=3, max_n=30, group=64, max_k=192, scale_bits=12),
        "four-tokens-a-beat": column(n_lanes=1, max_n=33, scale_bits=0, formats=("w8",)),
        "two-tokens": column(t_lanes=2, max_t=8, max_n=20, formats=("w8",), scale_bits=0),
        "sent-once": column(max_t=1, max_n=12, n_lanes=4),
        "scales-of-two-beats": column(n_lanes=20, max_n=60, scale_bits=16, minimum=True),
        "biases": column(n_lanes=8, max_n=64, bias=True, formats=("w4", "w8")),
        "biases-of-rows-that-share-no-beat": column(n_lanes=3, max_n=30, bias=True),
        "short-bytes": column(max_k=256, max_k_w8=64, n_lanes=4, max_n=12, formats=("w4", "w8")),
        "block-memory": column(n_lanes=4, max_k=2048, max_n=12, max_t=3),
    }.items()
}
BUILDS |= {
    name: UnevenWeightsParams(column=params)
    for name, params in {
        "uneven-in-halves": column(n_lanes=8, max_n=40, minimum=True, formats=("w4", "w8")),
        "uneven-in-quarters": column(n_lanes=14, max_n=42, bias=True),
        "uneven-bytes": column(n_lanes=6, max_n=24, formats=("w8",), scale_bits=0),
        "uneven-sent-once": column(n_lanes=12, max_n=36, max_t=1, group=64),
    }.items()
}


@pytest.fixture(params=BUILDS.values(), ids=BUILDS.keys())
def params(request):
    return request.param


def cases_of(params: WeightsParams, seed: int, count: int):
    rng = np.random.default_rng(seed)
    several = [random_bounds(params.column, rng) for _ in range(count)]
    if params.uneven:
        rows = params.column.n_lanes
        several = [{**b, "used": b["n"] - int(rng.integers(rows))} for b in several]
    return [(b, beats_of(params, b, _padded(b, operands(params.column, b, rng)))) for b in several]


def _padded(bounds, inputs):
    """Operands whose rows behind those that are used are 0."""
    used = bounds.get("used", bounds["n"])
    for port in {"i_w", "i_s", "i_r"} & inputs.keys():
        inputs[port][used:] = 0
    return inputs


def by_hand(params: WeightsParams, bounds) -> list[int]:
    """Kinds of beats: whoever lacks tokens gets the next beat."""
    layout = params.layout(bounds)
    have, kinds = dict.fromkeys((ROWS, SCALES, CODES), 0), []
    streams = {ROWS: layout.r, SCALES: layout.s, CODES: layout.w}

    def want(kind: int, tokens: int, beats: int | None = None) -> None:
        place = MemoryLayout.of(streams[kind])
        while have[kind] < tokens:
            have[kind] += place.tokens_per_beat
            kinds.extend([kind] * (beats or place.beats_per_token))

    rows = params.column.n_lanes
    last = bounds.get("used", bounds["n"]) - bounds["n"] + rows
    slot = MemoryLayout.of(layout.w)
    beats = -(-last * (slot.elements // rows) * slot.element_slot // 512)  # of a token of the last tile

    for tile in range(layout.tiles):
        for word in range(layout.words):
            number = tile * layout.words + word
            if not word:
                want(ROWS, (tile + 1) * params.column.n_lanes)
            if layout.s is not None:
                want(SCALES, number // (params.column.group // 32) + 1)
            want(CODES, number + 1, beats if tile == layout.tiles - 1 else None)
    return kinds


def test_order_is_that_of_use(params):
    for bounds, inputs in [*cases_of(params, 3, 4), (bounds_of(params.column), None)]:
        layout = params.layout(bounds)
        assert layout.kinds.tolist() == by_hand(params, bounds)
        streams = [it for it in (layout.w, layout.r, layout.s) if it is not None]
        whole = sum(MemoryLayout.of(it).beats(it.token_count) for it in streams)
        assert len(layout.kinds) == layout.beats <= whole
        assert layout.beats == whole or params.uneven
        if inputs is not None:
            arrays = layout.unpack(inputs["i"])
            assert np.array_equal(layout.pack(**arrays), inputs["i"])


def test_beats_of_padding_alone_are_not_read():
    params = BUILDS["uneven-in-quarters"]  # a token of 14 rows has 4 beats
    bounds = bounds_of(params.column, n=28, k=128)
    beats = {used: params.layout({**bounds, "used": used}).beats for used in range(15, 29)}
    assert [beats[28] - beats[used] for used in (15, 18, 19, 22, 23, 26, 27)] == [12, 12, 8, 8, 4, 4, 0]


def test_matches_golden(params, stalls):
    check_golden(params, cases_of(params, stalls.seed if stalls else 0, 5), stalls)


def test_reset_in_the_middle(params):
    cases = cases_of(params, 9, 2)
    for cycle in (3, 19, 40):
        check_golden(params, cases, Stalls(seed=cycle, sources=0.2, sinks=0.2), reset_at=cycle)


def test_promises(params):
    for bounds, inputs in cases_of(params, 1, 3):
        check_promises(params, bounds, inputs)
        check_clocks(params, bounds)


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "tiles", "bias"), [(2, 600, False), (2, 600, True), (20, 60, True)])
def test_rings_that_are_full(rows, tiles, bias):
    """More words, and more rows, than the rings hold; tiles whose rows lie in several beats, too."""
    small = WeightsParams(column=column(n_lanes=rows, max_n=rows * tiles, max_t=5, bias=bias))
    bounds = bounds_of(small.column, k=32, t=5)
    rng = np.random.default_rng(4)
    case = bounds, beats_of(small, bounds, operands(small.column, bounds, rng))
    assert small.layout(bounds).tiles > small.replay.depth
    check_promises(small, *case)
    check_clocks(small, bounds)
    check_golden(small, [case], Stalls(seed=2, sources=0.1, sinks=0.4))


def test_a_ring_holds_no_longer_rows_than_there_are():
    """8-bit rows that are short, as those of a head: 288 of 512 words, not 576 of 1,024."""
    long = {"n_lanes": 8, "max_n": 64, "max_k": 8192, "formats": ("w4", "w8")}
    whole, short = (WeightsParams(column=column(**long, **more)) for more in ({}, {"max_k_w8": 2048}))
    assert (whole.replay.depth, short.replay.depth) == (1024, 512)
    assert whole.max_words == 512 and short.max_words == 256
    bounds = bounds_of(whole.column)
    one, other = (params.cost(bounds).resources for params in (whole, short))
    assert (one.uram, one.bram, other.uram, other.bram) == (16, 0, 0, 15.5)


@pytest.mark.campaign
@pytest.mark.slow
def test_resources():
    """An engine's column, with biases too, and those whose tokens lie several in a beat."""
    engine = column(n_lanes=8, max_n=3200, max_k=2816, max_t=32, minimum=True, formats=("w4", "w8"))
    several = [WeightsParams(column=replace(engine, bias=bias)) for bias in (False, True)]
    several += [UnevenWeightsParams(column=engine)]
    several += [BUILDS["four-tokens-a-beat"], BUILDS["two-tokens-a-beat"]]
    check_all([(params, bounds_of(params.column)) for params in several])


def test_refused():
    layout = BUILDS["a-beat"].layout(bounds_of(BUILDS["a-beat"].column))
    message = f"the weights take beats of shape ({layout.beats}, 64), not (1, 64)"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        layout.unpack(np.zeros((1, 64), np.uint8))


def test_refused_padding():
    whole, uneven = BUILDS["two-beats-both"], BUILDS["uneven-in-halves"]
    bounds = bounds_of(whole.column, n=16)
    for params, used, message in (
        (whole, 12, "used is 12 of 16 rows; the weights are built for whole tiles"),
        (uneven, 8, "used is 8; the last of 2 tiles of 8 rows must have some of them"),
        (uneven, 17, "used is 17; the last of 2 tiles of 8 rows must have some of them"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            params.layout({**bounds, "used": used})
    message = "a token of 4 rows of the weights has one beat and cannot have fewer"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        UnevenWeightsParams(column=BUILDS["a-beat"].column)
    layout = uneven.layout({**bounds, "used": 12})
    arrays = {"w": np.ones((16, 128), np.int8), "r": np.zeros(16, np.float32)}
    arrays["s"] = np.zeros((16, 4, 2), np.int8)
    message = "the last tile has codes other than 0 behind 1 beats of a token"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        layout.pack(**arrays)
