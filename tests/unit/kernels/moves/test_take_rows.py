"""streamgen.kernels.moves.take_rows: the rows asked for, and no others, without waiting for the others."""

from typing import Any

import numpy as np
import pytest
from amaranth import Module
from amaranth.sim import Simulator

from streamgen.kernels.moves.take_rows import TakeRowsParams
from streamgen.testing.bench import Stalls, run
from streamgen.testing.kernel import Case, check_golden, check_promises, encode_port


def _case(
    rng: np.random.Generator, rows: int, features: int, first: int, count: int, tile: int | None = None
) -> Case:
    data = rng.integers(-128, 128, (rows, features)).astype(np.int8)
    bounds = {"rows": rows, "features": features, "first": first, "count": count}
    return bounds | ({} if tile is None else {"tile": tile}), {"i": data}


def _params(lanes: int) -> TakeRowsParams:
    return TakeRowsParams(dtype="i8", lanes=lanes, max_tokens=63)


@pytest.mark.parametrize("lanes", [1, 4, 32])
def test_matches_golden(lanes: int, stalls: Stalls | None) -> None:
    """Random descriptors back to back; all rows, the first, the last, the longest run of tokens."""
    rng = np.random.default_rng(lanes)
    shapes = [(21, 3, 20, 1), (21, 3, 0, 1), (4, 2, 3, 0), (21, 3, 0, 21), (63, 1, 0, 0), (1, 1, 0, 0)]
    shapes += [(1, 1, 0, 1), (63, 1, 62, 1)]
    for _ in range(6):
        rows = int(rng.integers(1, 16))
        first = int(rng.integers(rows))
        shapes.append((rows, int(rng.integers(1, 5)), first, int(rng.integers(rows - first + 1))))
    cases = [_case(rng, rows, tokens * lanes, first, count) for rows, tokens, first, count in shapes]
    check_golden(_params(lanes), cases, stalls)


@pytest.mark.parametrize(("features", "tile"), [(2, None), (2, 1), (4, 2), (3, 3)])
def test_every_choice_of_rows(features: int, tile: int | None) -> None:
    rng = np.random.default_rng(3)
    choices = [(first, count) for first in range(5) for count in range(6 - first)]
    check_golden(_params(1), [_case(rng, 5, features, *choice, tile) for choice in choices])


@pytest.mark.parametrize("lanes", [1, 4])
def test_rows_in_tiles(lanes: int, stalls: Stalls | None) -> None:
    """Tiles of all rows, one after the other: their last rows are a row in order."""
    rng = np.random.default_rng(lanes)
    shapes = [(4, 12, 3, 1, 4), (5, 12, 1, 2, 2), (7, 9, 6, 1, 1), (63, 1, 62, 1, 1), (1, 6, 0, 1, 2)]
    shapes += [(4, 12, 0, 4, 3), (4, 12, 0, 0, 3), (3, 3, 0, 1, 1)]
    cases = [_case(rng, r, f * lanes, first, count, tile * lanes) for r, f, first, count, tile in shapes]
    check_golden(_params(lanes), cases, stalls)


def test_reset_in_mid_run() -> None:
    rng = np.random.default_rng(4)
    cases = [_case(rng, 6, 2, 3, 2), _case(rng, 4, 3, 0, 1), _case(rng, 3, 1, 2, 1)]
    for cycle in (3, 10, 18):
        check_golden(_params(1), cases, Stalls(seed=cycle, sources=0.2, sinks=0.2), reset_at=cycle)


@pytest.mark.parametrize(
    "shape",
    [(1, 4, 0, 1), (9, 4, 8, 1), (9, 8, 2, 3), (5, 12, 0, 5), (5, 24, 4, 1, 8), (5, 24, 1, 2, 4)],
)
def test_promises(shape: tuple[int, ...]) -> None:
    check_promises(_params(4), *_case(np.random.default_rng(5), *shape))


def test_what_is_dropped_does_not_wait() -> None:
    """Rows behind the one that passes are taken while it is not."""
    params = _params(1)
    bounds, inputs = _case(np.random.default_rng(6), 30, 1, 3, 1)
    golden = params.golden(bounds, inputs)["o"]
    streams = {
        "i_descriptor": [30 | 3 << 6 | 1 << 12 | 29 << 18],
        "i": encode_port(params.inputs(bounds)["i"], inputs["i"]),
    }
    result = run(params.build(), streams, {"o": 1}, hold={"o": 100})
    assert result.tokens["o"] == encode_port(params.outputs(bounds)["o"], golden)
    assert result.cycles["i"][-1] < 40 < 100 <= result.cycles["o"][0]


@pytest.mark.parametrize("stalls", [0.0, 0.4])
def test_done_behind_the_last_token_of_each_descriptor(stalls: float) -> None:
    """Though no rows pass, or those that do have long gone; never before."""
    m = Module()
    m.submodules.take = take = _params(1).build()
    tokens, given = [4, 1, 6, 3], iter([(4, 0, 0, 0), (1, 0, 1, 0), (6, 2, 1, 5), (3, 0, 0, 0)])
    names = tuple(field.name for field in _params(1).descriptor_fields())
    taken: list[int] = []
    done: list[int] = []
    random = np.random.default_rng(1)

    async def testbench(ctx: Any) -> None:
        told, waits = next(given), False
        ctx.set(take.o.ready, 1)
        for cycle in range(200):
            for name, value in zip(names, told or (0, 0, 0, 0), strict=True):
                ctx.set(take.i_descriptor.payload[name], value)
            ctx.set(take.i_descriptor.valid, told is not None)
            valid = waits or random.random() >= stalls
            ctx.set(take.i.valid, valid)
            waits = valid and not ctx.get(take.i.ready)
            if valid and not waits:
                taken.append(cycle)
            if ctx.get(take.done):
                done.append(cycle)
            if told is not None and ctx.get(take.i_descriptor.ready):
                told = next(given, None)
            await ctx.tick()

    simulator = Simulator(m)
    simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    simulator.run()
    ends = np.cumsum(tokens) - 1
    assert len(taken) == sum(tokens)
    assert done == [taken[end] + 1 for end in ends]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lanes": 0}, "TakeRows.lanes is 0; at least 1 is needed"),
        ({"max_tokens": 0}, "TakeRows.max_tokens is 0; 1 to 2^32 - 1 are allowed"),
        ({"max_tokens": 1 << 32}, "TakeRows.max_tokens is 4294967296; 1 to 2^32 - 1 are allowed"),
        (
            {"dtype": "mxi8s"},
            "the last extent of a mxi8s tile must be a multiple of 32; shape (1, 4)",
        ),
    ],
)
def test_bad_params(change: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        TakeRowsParams(**{"dtype": "f24", "lanes": 4, "max_tokens": 64} | change)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": 6}, "TakeRows: features is 6; it must be a multiple of lanes, 4"),
        ({"features": 0}, "TakeRows: features is 0; it must be a multiple of lanes, 4"),
        ({"rows": 0}, "TakeRows: rows is 0; it must be 1 to 63 tokens of 4"),
        ({"rows": 32}, "TakeRows: rows is 32; it must be 1 to 63 tokens of 4"),
        (
            {"tile": 12},
            "TakeRows: tile is 12; it must be a multiple of lanes, 4, that divides 8 features",
        ),
        ({"tile": 2}, "TakeRows: tile is 2; it must be a multiple of lanes, 4, that divides 8 features"),
        ({"first": 4}, "TakeRows: first is 4; it must be 0 to 3"),
        ({"first": -1}, "TakeRows: first is -1; it must be 0 to 3"),
        ({"count": -1}, "TakeRows: count is -1; it must be 0 to 3"),
        ({"count": 4}, "TakeRows: count is 4; it must be 0 to 3"),
    ],
)
def test_bad_bounds(change: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        _params(4).describe({"rows": 4, "features": 8, "first": 1, "count": 1} | change)
    assert str(caught.value) == message
