"""The ping-pong converter: RTL equals golden for any legal pair and bounds, promises equal measurement."""

from math import prod
from random import Random

import numpy as np
import pytest

from streamgen.converters import PingPongParams
from streamgen.gateware.rtl import to_verilog
from streamgen.itensor import ITensor, same_stream
from streamgen.testing.bench import Stalls, run
from streamgen.testing.kernel import check_golden, check_promises, descriptor_word, encode_port
from streamgen.testing.lint import joined, lint
from streamgen.testing.synthesis import check_all
from tests.shared.campaigns import sampled
from tests.unit.converters.converter_pairs import itensor, random_bounds, random_pair, random_tensor

A = ITensor.parse("itensor<2x2xf32, iter_space: [4,4]*[2,2], iter_map: (d0,d1)->(d0,d1)>")
B = ITensor.parse("itensor<4x2xf32, iter_space: [4,2]*[2,4], iter_map: (d0,d1)->(d1,d0)>")
C = ITensor.parse("itensor<4x2xf32, iter_space: [4,2,2]*[2,1,4], iter_map: (d0,d1,d2)->(d2,d0)>")


def bounds_of(source: ITensor, target: ITensor) -> dict[str, ITensor]:
    return {"source": source, "target": target}


def rows_to_tiles(tokens: int, features: int = 3) -> tuple[ITensor, ITensor]:
    """Rows of quantised activations -> tiles of 4 rows, all of them sent again for 3 tiles of outputs."""
    return (
        itensor((1, 32), "mxi8s", [(tokens, 1, 0), (features, 32, 1)]),
        itensor((4, 32), "mxi8s", [(3, 1, None), (tokens // 4, 4, 0), (features, 32, 1)]),
    )


def outputs_to_rows(tokens: int, tiles: int = 3) -> tuple[ITensor, ITensor]:
    """What 4 columns of a matmul give, tile by tile of 16 outputs -> rows of (1, 16)."""
    return (
        itensor((1, 4), "f24", [(tiles, 16, 1), (tokens // 4, 4, 0), (4, 1, 0), (4, 4, 1)]),
        itensor((1, 16), "f24", [(tokens, 1, 0), (tiles, 16, 1)]),
    )


def transposed(rows: int, columns: int) -> tuple[ITensor, ITensor]:
    """Rows first -> columns first: the same stream when there is one row or one column."""
    return (
        itensor((1, 4), "i16", [(rows, 1, 0), (columns, 4, 1)]),
        itensor((1, 4), "i16", [(columns, 4, 1), (rows, 1, 0)]),
    )


def windows_of_panels(count: int) -> tuple[ITensor, ITensor]:
    """Panels of 2 x 6 that share the loop over panels; inside, columns instead of rows."""
    return (
        itensor((1, 2), "u8", [(count, 2, 0), (2, 1, 0), (3, 2, 1)]),
        itensor((2, 1), "u8", [(count, 2, 0), (6, 1, 1)]),
    )


# pair, then extents of (word, source box, target box), pieces of a token in and out
GEOMETRIES = {
    "equal tokens, no multiplexer": ((B, C), ((4, 2), (4, 2), (4, 2)), (1, 1)),
    "gather": ((A, B), ((4, 2), (2, 2), (4, 2)), (1, 1)),
    "scatter": ((B, A), ((4, 2), (4, 2), (2, 2)), (1, 1)),
    "rows to tiles": (rows_to_tiles(8), ((4, 1), (1, 1), (4, 1)), (1, 1)),
    "columns to rows": (outputs_to_rows(8), ((1, 16), (1, 4), (1, 16)), (1, 1)),
    "across": (windows_of_panels(3), ((2, 2), (1, 2), (2, 1)), (1, 1)),
    "overlapping windows": (
        (itensor((4,), "u8", [(4, 4, 0)]), itensor((3,), "u8", [(14, 1, 0)])),
        ((4,), (4,), (1,)),
        (1, 3),
    ),
    "3 to 2": (
        (itensor((3,), "u8", [(4, 3, 0)]), itensor((2,), "u8", [(6, 2, 0)])),
        ((6,), (3,), (2,)),
        (1, 1),
    ),
    "3 to 2 where the target begins inside of a token": (
        (itensor((3,), "u8", [(4, 3, 0)]), itensor((2,), "u8", [(4, 2, 0)], [2])),
        ((6,), (3,), (2,)),
        (1, 1),
    ),
    "slice that begins inside of a token": (
        (itensor((8,), "u8", [(4, 8, 0)]), itensor((8,), "u8", [(2, 8, 0)], [12])),
        ((8,), (8,), (4,)),
        (1, 2),
    ),
    "32 across 32: the word stays within 16 tokens": (
        (itensor((32, 1), "u8", [(32, 1, 1)]), itensor((1, 32), "u8", [(32, 1, 0)])),
        ((16, 32), (16, 1), (1, 32)),
        (2, 1),
    ),
}


@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometry(name):
    pair, extents, pieces = GEOMETRIES[name]
    banking = PingPongParams(source=pair[0], target=pair[1]).banking
    assert (banking.word, banking.source.box, banking.target.box) == extents
    assert (prod(banking.source.pieces), prod(banking.target.pieces)) == pieces


def check(seed: int, dtype: str = "u8") -> None:
    """A random pair: promises at the greatest and at other bounds; a sequence of bounds with stalls."""
    random = Random(seed)
    source, target = random_pair(random, dtype)
    params = PingPongParams(source=source, target=target)
    several = [bounds_of(source, target), *(random_bounds(random, params) for _ in range(4))]
    cases = [(bounds, {"i": random_tensor(random, bounds["source"])}) for bounds in several]
    for case in cases[:2]:
        check_promises(params, *case)
    chance = random.choice((0.1, 0.3, 0.6))
    stalls = Stalls(seed=seed, sources=chance, sinks=random.choice((0.1, 0.3, 0.6)))
    check_golden(params, [*cases, cases[0]], stalls)


@pytest.mark.parametrize("seed", sampled(range(40), range(20)))
def test_matches_golden(seed):
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", sampled(range(24), {8}))
def test_matches_golden_campaign(block):
    for seed in range(1000 + 25 * block, 1025 + 25 * block):
        check(seed, "mxi8s" if seed % 8 == 0 else "u8")


@pytest.mark.parametrize("pair", [(B, C), (A, B), (A, C), (B, A)], ids=["b-c", "a-b", "a-c", "b-a"])
def test_examples(pair, stalls):
    params = PingPongParams(source=pair[0], target=pair[1])
    bounds = bounds_of(*pair)
    tensors = [np.arange(64, dtype=np.float32).reshape(8, 8) + 64 * n for n in range(3)]
    check_golden(params, [(bounds, {"i": tensor}) for tensor in tensors], stalls)
    check_promises(params, bounds, {"i": tensors[0]})


def test_example_sizes():
    sizes = [PingPongParams(source=source, target=target).held_bits for source, target in ((B, C), (A, B))]
    assert sizes == [2 * 8 * 2 * 32, 2 * 8 * 8 * 32]


@pytest.mark.parametrize("seed", range(4))
def test_groups_are_not_cut(seed):
    check(seed, "mxi8s")


@pytest.mark.parametrize("make", [rows_to_tiles, outputs_to_rows])
def test_one_build_runs_every_number_of_tokens(make):
    params = PingPongParams(**bounds_of(*make(16)))
    random = Random(0)
    several = [
        bounds_of(*make(tokens, extent))
        for tokens, extent in [(4, 3), (16, 3), (8, 1), (12, 2), (4, 1), (16, 2)]
    ]
    cases = [(bounds, {"i": random_tensor(random, bounds["source"])}) for bounds in several]
    for case in cases:
        check_promises(params, *case)
    check_golden(params, cases * 2, Stalls(seed=3, sources=0.3, sinks=0.3))


def test_same_stream_at_small_bounds():
    params = PingPongParams(**bounds_of(*transposed(5, 6)))
    random = Random(0)
    shapes = [(1, 6), (5, 6), (5, 1), (1, 1), (1, 1), (3, 2), (1, 4)]
    several = [bounds_of(*transposed(*shape)) for shape in shapes]
    assert same_stream(*several[0].values())
    cases = [(bounds, {"i": random_tensor(random, bounds["source"])}) for bounds in several]
    for case in cases:
        check_promises(params, *case)
    check_golden(params, cases * 2, Stalls(seed=4, sources=0.3, sinks=0.3))


@pytest.mark.parametrize("make", [lambda: (B, C), lambda: windows_of_panels(8)], ids=["reads more", "even"])
def test_window_costs_the_greater_side(make):
    source, target = make()
    params = PingPongParams(source=source, target=target)
    bounds = bounds_of(source, target)
    cycles = check_golden(params, [(bounds, {"i": random_tensor(Random(0), source)})]).cycles
    converter = params.converter
    starts = cycles["o"][:: converter.reads]
    assert len(starts) == converter.windows > 2
    assert set(np.diff(starts)) == {max(converter.fills, converter.reads)}


def test_descriptors_follow_closely():
    """20 descriptors of one window each: filling overlaps draining, at most 4 cycles are lost each."""
    source, target = outputs_to_rows(8, 2)
    params = PingPongParams(source=source, target=target)
    bounds = bounds_of(source, target)
    case = (bounds, {"i": random_tensor(Random(0), source)})
    cycles = check_golden(params, [case] * 20).cycles
    converter = params.converter
    assert converter.windows == 1
    starts = np.array(cycles["o"][:: converter.reads])
    assert (np.diff(starts)[1:] <= max(converter.fills, converter.reads) + 4).all()


def test_reset_in_mid_run():
    source, target = rows_to_tiles(8)
    params = PingPongParams(source=source, target=target)
    bounds = bounds_of(source, target)
    tensor = random_tensor(Random(0), source)
    streams = {"i_descriptor": [descriptor_word(params, bounds)] * 3, "i": encode_port(source, tensor) * 3}
    expected = encode_port(target, params.golden(bounds, {"i": tensor})["o"]) * 3
    for reset_at in (3, 30, 55):
        result = run(params.build(), streams, {"o": len(expected)}, reset_at=reset_at)
        assert result.tokens["o"] == expected


def test_elements_that_nobody_reads_are_dropped():
    """A row of 40 tokens, of which the middle is read: the buffer holds the middle only."""
    source = itensor((2, 4), "u8", [(40, 4, 1)])
    target = itensor((1, 4), "u8", [(3, 8, 1), (2, 1, None)], [1, 60])
    params = PingPongParams(source=source, target=target)
    assert params.banking.words == 5
    bounds = bounds_of(source, target)
    check_promises(params, bounds, {"i": random_tensor(Random(0), source)})


@pytest.mark.parametrize("make", [rows_to_tiles, outputs_to_rows])
def test_verilog(make):
    params = PingPongParams(**bounds_of(*make(8)))
    first, second = (to_verilog(params.build()) for _ in range(2))
    assert first == second
    lint(first, "top")


@pytest.mark.slow
def test_verilog_of_random_pairs():
    pairs = [random_pair(Random(seed)) for seed in range(40)]
    lint(joined(PingPongParams(source=source, target=target).build() for source, target in pairs))


# pair, kind of memory, RAMB36, URAM
MAPPED = [
    ((B, C), "lutram", 0, 0),
    (rows_to_tiles(16, 18), "bram", 16, 0),
    (
        (
            itensor((1, 16), "f24", [(256, 1, 0), (8, 16, 1)]),
            itensor((1, 16), "f24", [(8, 16, 1), (256, 1, 0)]),
        ),
        "uram",
        0,
        6,
    ),
    (windows_of_panels(4), "lutram", 0, 0),
    (
        (
            itensor((1, 1, 4), "i8", [(9, 1, 0), (9, 1, 1), (4, 4, 2)]),
            itensor((3, 3, 4), "i8", [(7, 1, 0), (7, 1, 1), (4, 4, 2)]),
        ),
        "bram",
        1,
        0,
    ),
    (
        (
            itensor((2, 4), "u8", [(24, 2, 0), (40, 4, 1)]),
            itensor((1, 8), "u8", [(2, 20, 0), (5, 8, 1), (10, 2, 0)], [1, 20]),
        ),
        "bram",
        2,
        0,
    ),
]


@pytest.mark.campaign
@pytest.mark.slow
def test_resources_and_levels():
    several = [PingPongParams(source=source, target=target) for (source, target), *_ in MAPPED]
    found = check_all(
        [(params, {"source": params.source, "target": params.target}) for params in several], levels=5
    )
    for params, result, (_, kind, bram, uram) in zip(several, found, MAPPED, strict=True):
        assert params.banks.bank.kind == kind, params
        assert (result.resources.bram, result.resources.uram) == (bram, uram), params


def test_bad_params():
    with pytest.raises(ValueError) as error:
        PingPongParams(source=A, target=A)
    assert str(error.value) == f"source and target are the same stream, so no conversion is needed: {A}"
    with pytest.raises(ValueError, match="dtype must agree; the source has f32, the target u8"):
        PingPongParams(source=A, target=itensor((1, 1), "u8", [(8, 1, 0), (8, 1, 1)]))
    with pytest.raises(ValueError, match="the target reads element 8 of dimension 1"):
        PingPongParams(source=A, target=itensor((1, 1), "f32", [(8, 1, 0), (9, 1, 1)]))


def test_bad_bounds():
    params = PingPongParams(**bounds_of(*windows_of_panels(3)))
    with pytest.raises(ValueError) as error:
        params.describe(bounds_of(*windows_of_panels(4)))
    assert str(error.value) == "shared0 of this converter runs at most 3 times, not 4"
    target = windows_of_panels(3)[1]
    other = itensor((1, 2), "u8", [(3, 4, 0), (2, 1, 0), (3, 2, 1)])
    with pytest.raises(ValueError, match="the source may differ in trip counts only"):
        params.describe(bounds_of(other, target))
    with pytest.raises(ValueError, match="outgrows the buffer"):
        PingPongParams(**bounds_of(*transposed(2, 2))).describe(bounds_of(*transposed(2, 3)))
