"""Rotary position embedding: RTL equal to golden, golden and tables near float64, promises measured."""

from typing import Any

import numpy as np
import pytest
import torch

import streamgen
from streamgen.compiler.lower import GraphBuilder
from streamgen.itensor import ITensor, infer_converter
from streamgen.kernels.attention.rope import RopeParams
from streamgen.kernels.attention.rope_tables import (
    LinearScaling,
    Llama3Scaling,
    rope_frequencies,
    rotation_table,
)
from streamgen.numbers.formats import round_f24
from streamgen.testing.bench import Stalls
from streamgen.testing.conformance import ASPECTS, check
from streamgen.testing.kernel import Case, check_golden, check_promises

ULP = 2.0**-16  # of f24: the relative error of one rounding
LARGEST = float(round_f24(np.array(3.4e38)))
LLAMA3 = Llama3Scaling(factor=8.0, low=1.0, high=4.0, original_positions=8192)

# lanes, dims, rotated, interleaved
SHAPES = [
    (2, 8, 8, False),
    (1, 6, 4, False),
    (3, 6, 6, False),
    (2, 16, 4, False),
    (2, 8, 8, True),
    (2, 12, 4, True),
    (2, 2, 2, True),
]


def rope_table(positions: int | np.ndarray, dims: int, base: float, scaling: Any = None) -> np.ndarray:
    return rotation_table(positions, rope_frequencies(dims, base, scaling))


def rope(lanes: int, dims: int, rotated: int, interleaved: bool, max_heads: int = 40) -> RopeParams:
    return RopeParams(lanes=lanes, dims=dims, rotated=rotated, interleaved=interleaved, max_heads=max_heads)


def case(params: RopeParams, rows: int, heads: int, seed: int, special: bool = True) -> Case:
    """Values of all sizes, some of them special; positions in any order."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, heads * params.dims)) * np.exp2(rng.integers(-10, 10, (rows, 1)))
    if special:
        wild = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan, 2.0**-126, LARGEST, -LARGEST], x.shape)
        x = np.where(rng.random(x.shape) < 0.15, wild, x)
    positions = rng.integers(0, 1 << 17, rows)
    positions[0] = 0
    table = rope_table(positions, params.rotated, 10_000.0)
    return {"rows": rows, "heads": heads}, {"i": round_f24(x), "i_table": table}


@pytest.mark.parametrize("shape", SHAPES)
def test_matches_golden(shape: tuple[int, int, int, bool]) -> None:
    """Descriptors back to back, one head, many heads, many rows."""
    params = rope(*shape)
    cases = [case(params, rows, heads, k) for k, (rows, heads) in enumerate([(1, 1), (3, 2), (1, 5), (4, 1)])]
    for k, (sources, sinks) in enumerate([(0.0, 0.0), (0.5, 0.0), (0.0, 0.5), (0.4, 0.4), (0.9, 0.8)]):
        check_golden(params, cases, Stalls(seed=k, sources=sources, sinks=sinks))


@pytest.mark.parametrize("shape", SHAPES)
def test_reset(shape: tuple[int, int, int, bool]) -> None:
    """A reset in mid-run leaves nothing in the ring."""
    params = rope(*shape)
    for cycle in (3, 9, 20):
        check_golden(params, [case(params, 2, 2, cycle)] * 2, reset_at=cycle)


@pytest.mark.parametrize("shape", SHAPES)
def test_promises(shape: tuple[int, int, int, bool]) -> None:
    """A token a cycle from the first to the last, whatever the heads and rows."""
    params = rope(*shape)
    for rows, heads in ((1, 1), (3, 2), (8, 5)):
        check_promises(params, *case(params, rows, heads, 1))


def turned(x: torch.Tensor, positions: np.ndarray, params: RopeParams, frequencies: np.ndarray) -> Any:
    """x [rows, heads, dims] in float64, by complex numbers (interleaved) or by halves."""
    angle = torch.from_numpy(positions[:, None] * frequencies)[:, None]
    turning, rest = x[:, :, : params.rotated], x[:, :, params.rotated :]
    if params.interleaved:
        pairs = torch.view_as_complex(turning.reshape(*turning.shape[:2], -1, 2).contiguous())
        result = torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(2)
    else:
        cos, sin = torch.cos(angle).repeat(1, 1, 2), torch.sin(angle).repeat(1, 1, 2)
        first, second = turning.chunk(2, dim=-1)
        result = turning * cos + torch.cat([-second, first], dim=-1) * sin
    return torch.cat([result, rest], dim=-1)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotated", [16, 32, 64])
@pytest.mark.parametrize(
    ("base", "scaling"),
    [(10_000.0, None), (1_000_000.0, LinearScaling(factor=8.0)), (500_000.0, LLAMA3)],
)
def test_golden_is_near_torch(interleaved: bool, rotated: int, base: float, scaling: Any) -> None:
    """Table and products, a rounding each, of both terms, at most |x1| + |x2| together; then the sum."""
    params = rope(8, 64, rotated, interleaved)
    rng = np.random.default_rng(rotated)
    positions = np.array([0, 1, 77, 4095, 131_071])
    x = round_f24(rng.normal(size=(5, 3, 64)) * np.exp2(rng.integers(-8, 9, (5, 3, 1))))
    inputs = {"i": x.reshape(5, 192), "i_table": rope_table(positions, rotated, base, scaling)}
    found = params.golden({"rows": 5, "heads": 3}, inputs)["o"].reshape(x.shape)
    frequencies = rope_frequencies(rotated, base, scaling)
    wide = torch.from_numpy(x.astype(np.float64))
    exact = turned(wide, positions, params, frequencies).numpy()

    partner = turned(wide, np.ones(5), params, np.full(rotated // 2, np.pi / 2)).numpy()  # a quarter turn
    terms = np.abs(x) + np.abs(partner)
    bound = (2 * ULP * terms + ULP * (np.abs(exact) + 2 * ULP * terms)) * 1.001
    assert (np.abs(found - exact)[:, :, :rotated] <= bound[:, :, :rotated]).all()
    np.testing.assert_array_equal(found[:, :, rotated:], x[:, :, rotated:])
    np.testing.assert_array_equal(found[0], x[0])


def test_specials() -> None:
    """Position 0 turns by nothing; an infinity times the 0 of its table is NaN; the rest passes as it is."""
    params = rope(1, 6, 2, False)
    x = np.array([[1.0, np.inf, np.inf, -0.0, np.nan, -LARGEST]], np.float32)
    table = rope_table(1, 2, 10.0)
    assert table.tolist() == [[[1.0], [0.0]]]
    found = params.golden({"rows": 1, "heads": 1}, {"i": x, "i_table": table})["o"]
    np.testing.assert_array_equal(found, [[np.nan, np.inf, np.inf, -0.0, np.nan, -LARGEST]])
    assert np.signbit(found[0, 3])
    check_golden(params, [({"rows": 1, "heads": 1}, {"i": x, "i_table": table})] * 2)


def test_largest_values_overflow() -> None:
    """Two largest values turn beyond the format where they add up; others stay finite."""
    params = rope(2, 2, 2, True)
    x = np.array([[LARGEST, LARGEST]], np.float32)
    angle = np.array([[[np.cos(0.75)], [np.sin(0.75)]]])
    found = params.golden({"rows": 1, "heads": 1}, {"i": x, "i_table": round_f24(angle)})["o"]
    assert np.isfinite(found[0, 0])
    assert found[0, 1] == np.inf


def test_tables() -> None:
    """Two bases are two tables; entries by their definition; any positions."""
    local, wide = rope_table(100, 8, 10_000.0), rope_table(100, 8, 1_000_000.0)
    assert local.shape == wide.shape == (100, 2, 4)
    assert local.dtype == np.float32
    for j in range(4):
        for p in (0, 1, 99):
            angle = p / 10_000.0 ** (j / 4)
            np.testing.assert_allclose(local[p, :, j], [np.cos(angle), np.sin(angle)], rtol=ULP)
    assert (local[1:, 1, 1:] != wide[1:, 1, 1:]).all()
    np.testing.assert_array_equal(local, round_f24(local))
    np.testing.assert_array_equal(rope_table(np.array([99, 5]), 8, 10_000.0), local[[99, 5]])


def test_linear_scaling() -> None:
    """Position 8p with factor 8 is position p without."""
    scaled = rope_table(8 * np.arange(50), 16, 1e4, LinearScaling(factor=8.0))
    np.testing.assert_allclose(scaled, rope_table(50, 16, 1e4), rtol=2 * ULP, atol=1e-12)


def test_llama3_scaling() -> None:
    """As its configuration defines it, by wavelengths; all three ranges occur."""
    plain, scaled = rope_frequencies(128, 500_000.0), rope_frequencies(128, 500_000.0, LLAMA3)
    kinds = set()
    for before, after in zip(plain, scaled, strict=True):
        wavelength = 2 * np.pi / before
        if wavelength < 8192 / 4:
            kinds.add("kept")
            expected = before
        elif wavelength > 8192 / 1:
            kinds.add("divided")
            expected = before / 8
        else:
            kinds.add("between")
            smooth = (8192 / wavelength - 1) / (4 - 1)
            expected = (1 - smooth) * before / 8 + smooth * before
        assert after == pytest.approx(expected, rel=1e-12)
    assert len(kinds) == 3


@pytest.mark.parametrize("interleaved", [False, True])
def test_table_from_memory(interleaved: bool) -> None:
    """What a load sends row by row becomes what the kernel asks for in a converter of one row."""
    params = rope(8, 64, 32, interleaved)
    asked = params.inputs({"rows": 5, "heads": 3})["i_table"]
    pairs = asked.element_shape[2]
    sent = ITensor((1, 2, pairs), "f24", (5, 16 // pairs), (1, pairs), ((0,), (), (1,)))
    converter = infer_converter(sent, asked)
    assert converter is not None
    assert converter.buffer_shape == (1, 2, 16)
    table = rope_table(np.arange(30, 35), 32, 1e4)
    np.testing.assert_array_equal(sent.from_tokens(sent.to_tokens(table)), table)
    assert asked.to_tokens(table).shape == (5 * 3 * (2 if not interleaved else 1) * 16 // pairs, 1, 2, pairs)


@pytest.mark.slow
def test_in_an_accelerator() -> None:
    """Rows and table from memory, a converter in between that sends a table row for every head."""
    params = rope(4, 32, 32, False)
    bounds = {"rows": 5, "heads": 3}
    ports = params.inputs(bounds)
    builder = GraphBuilder("rope")
    x = builder.load("x", ports["i"], shape=(5, 96), channel=0)
    sent = ITensor((1, 2, 4), "f24", (5, 4), (1, 4), ((0,), (), (1,)))
    table = builder.load("turns", sent, shape=(5, 2, 16), channel=1)
    y = builder.kernel("rope", params, bounds, i=x, i_table=table)["o"]
    builder.store("y", y, shape=(5, 96), channel=0)
    accelerator = streamgen.assemble(builder.build())
    values = np.random.default_rng(1).normal(size=(5, 96)).astype(np.float32)
    turns = rope_table(np.arange(70, 75), 32, 1e4)
    found = accelerator.run(values, turns)
    expected = params.golden(bounds, {"i": round_f24(values), "i_table": turns})["o"]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lanes": 0}, "Rope.lanes is 0; it must be at least 1"),
        ({"lanes": 3, "interleaved": True}, "Rope.lanes is 3; it must be even and at least 2"),
        ({"lanes": 3}, "Rope.dims is 64; it must be a multiple of lanes = 3"),
        ({"rotated": 24}, "Rope.rotated is 24; it must be a multiple of 16 from 16 to dims = 64"),
        ({"rotated": 80}, "Rope.rotated is 80; it must be a multiple of 16 from 16 to dims = 64"),
        ({"rotated": 0}, "Rope.rotated is 0; it must be a multiple of 16 from 16 to dims = 64"),
        (
            {"rotated": 4, "interleaved": True},
            "Rope.rotated is 4; it must be a multiple of 8 from 8 to dims = 64",
        ),
        ({"max_heads": 0}, "Rope.max_heads is 0; it must be at least 1, of fewer than 2^32 tokens"),
        (
            {"max_heads": 1 << 29},
            "Rope.max_heads is 536870912; it must be at least 1, of fewer than 2^32 tokens",
        ),
    ],
)
def test_bad_params(change: dict[str, Any], message: str) -> None:
    good = {"lanes": 8, "dims": 64, "rotated": 64, "interleaved": False, "max_heads": 9}
    with pytest.raises(ValueError) as caught:
        RopeParams(**good | change)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("rows", "heads", "message"),
    [
        (0, 1, "Rope: rows is 0; it must be at least 1"),
        (1, 0, "Rope: heads is 0; it must be at least 1"),
        (7, 6, "Rope: 7 rows of 6 heads are more than max_heads = 40"),
    ],
)
def test_bad_bounds(rows: int, heads: int, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        rope(8, 64, 64, False).describe({"rows": rows, "heads": heads})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rope_table(4, 7, 1e4), "dims is 7; an even number from 2 on is needed"),
        (lambda: rope_table(4, 0, 1e4), "dims is 0; an even number from 2 on is needed"),
        (lambda: rope_table(4, 8, -1.0), "base is -1.0; a positive number is needed"),
        (lambda: rope_table(0, 8, 1e4), "positions must be at least one number from 0 on"),
        (lambda: rope_table(np.array([3, -1]), 8, 1e4), "positions must be at least one number from 0 on"),
        (lambda: LinearScaling(factor=0.0), "factor is 0.0; a positive number is needed"),
        (
            lambda: Llama3Scaling(factor=8.0, low=4.0, high=4.0, original_positions=8192),
            "high is 4.0; it must be above low, 4.0",
        ),
        (
            lambda: Llama3Scaling(factor=8.0, low=1.0, high=4.0, original_positions=0),
            "original_positions is 0; a positive number is needed",
        ),
    ],
)
def test_bad_tables(make: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        make()
    assert str(caught.value) == message


@pytest.mark.slow
@pytest.mark.parametrize("aspect", [aspect for aspect in ASPECTS if aspect != "resources"])
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param((4, 64, 64, False), marks=pytest.mark.campaign),
        (4, 32, 16, False),
        (8, 32, 16, True),
    ],
)
def test_conforms(shape: tuple[int, int, int, bool], aspect: str) -> None:
    """Resources are in the sweep of all blocks."""
    params = rope(*shape)
    cases = [case(params, rows, heads, rows) for rows, heads in ((1, 1), (3, 9), (10, 2), (40, 1))]
    check(params, cases, refused=[{"rows": 41, "heads": 1}], aspects=[aspect])
