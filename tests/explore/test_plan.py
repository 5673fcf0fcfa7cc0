"""The explorer: budgets hold, growth is greedy to the end, and the choice is the best that was found."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from streamgen.config import CompileConfig
from streamgen.errors import BudgetError
from streamgen.explore import explore
from streamgen.formats import MX_GROUP
from streamgen.graph.plan import LinearPlan, LinearShape, Plan
from streamgen.packing import BEAT_BITS, MemoryLayout

RATE = 0.6927


def _shapes(rng: np.random.Generator, count: int, group: int | None) -> list[LinearShape]:
    sizes = [1, 5, 32, 33, 64, 100, 576, 1536, 4096]
    return [
        LinearShape(
            name=f"linear_{i}",
            k=int(rng.choice(sizes)),
            n=int(rng.choice(sizes)),
            level=int(rng.integers(3)),
            group=group,
        )
        for i in range(count)
    ]


def _cases() -> list[tuple[list[LinearShape], CompileConfig]]:
    """Random matmuls under random budgets that hold one lane of each."""
    rng = np.random.default_rng(0)
    cases = []
    for multipliers, channels in product([64, 1000, 1536, 8192], [1, 2, 5, 8, 32]):
        weights = str(rng.choice(["w4", "w8"]))
        lanes = int(rng.choice([0, 0, 1, 2]))
        config = CompileConfig(
            multipliers=multipliers,
            channels=channels,
            weights=weights,
            group=int(rng.choice([32, 64, 128])),
            scale_bits=int(rng.integers(8, 17)),
            minimum=bool(rng.integers(2)),
            max_tokens=int(rng.choice([1, 3, 16, 100])),
            token_lanes=lanes or None,
        )
        count = int(rng.integers(1, min(12, multipliers // MX_GROUP // (lanes or 1)) + 1))
        cases.append((_shapes(rng, count, config.group if weights == "w4" else None), config))
    return cases


CASES = _cases()


def _time(shape: LinearShape, plan: LinearPlan, config: CompileConfig, lanes: int, tokens: int) -> float:
    """Cycles of a matmul, from the bytes that its column reads and the steps that its tiles take."""
    n_tiles, steps = -(-shape.n // plan.tile), -(-shape.k // MX_GROUP)
    bits = plan.n_lanes * (MX_GROUP * (4 if shape.group else 8) * steps + 32)
    if shape.group:
        layout = MemoryLayout(f"i{config.scale_bits}", (plan.n_lanes, 1, 2 if config.minimum else 1))
        bits += layout.token_slot * -(-shape.k // shape.group)
    compute = n_tiles * -(-tokens // lanes) * max(steps, lanes * plan.n_lanes)
    return max(bits * n_tiles / BEAT_BITS / RATE, compute)


def _both(shape: LinearShape, plan: LinearPlan, config: CompileConfig, lanes: int) -> float:
    return sum(_time(shape, plan, config, lanes, tokens) for tokens in (1, config.max_tokens))


def _total(shapes: list[LinearShape], plan: Plan, config: CompileConfig) -> float:
    """One token plus the most tokens, levels one after the other."""
    total = 0.0
    for tokens, level in product((1, config.max_tokens), {shape.level for shape in shapes}):
        same = [shape for shape in shapes if shape.level == level]
        total += max(_time(s, plan.linears[s.name], config, plan.token_lanes, tokens) for s in same)
    return total


@pytest.mark.parametrize(("shapes", "config"), CASES)
def test_budgets_and_units_hold(shapes: list[LinearShape], config: CompileConfig) -> None:
    plan = explore(shapes, config, RATE)
    assert set(plan.linears) == {shape.name for shape in shapes}
    assert plan.multipliers <= config.multipliers
    assert plan.multipliers == sum(
        p.columns * p.n_lanes * plan.token_lanes * MX_GROUP for p in plan.linears.values()
    )
    assert plan.token_lanes == (config.token_lanes or plan.token_lanes)
    for value in (plan.token_lanes, plan.feature_pad, *(p.tile for p in plan.linears.values())):
        assert value & (value - 1) == 0
    for shape in shapes:
        linear = plan.linears[shape.name]
        assert linear.columns <= 16
        assert linear.n_lanes * MX_GROUP * (4 if shape.group else 8) <= BEAT_BITS
        for unit in (linear.tile, MX_GROUP, shape.group or 1):
            assert plan.feature_pad % unit == 0
    used = [c for p in plan.linears.values() for c in p.channels] + [plan.io_channel]
    assert min(used) >= 0
    assert plan.channels == max(used) + 1 <= config.channels
    assert all(len(p.channels) == len(set(p.channels)) == p.columns for p in plan.linears.values())
    if len(used) <= config.channels:
        assert len(set(used)) == len(used)  # nobody shares while there are channels


@pytest.mark.parametrize(("shapes", "config"), CASES)
def test_no_affordable_doubling_would_gain(shapes: list[LinearShape], config: CompileConfig) -> None:
    plan = explore(shapes, config, RATE)
    columns = sum(p.columns for p in plan.linears.values())
    free = config.multipliers - plan.multipliers
    for shape in shapes:
        linear = plan.linears[shape.name]
        twins = [twin for twin in shapes if replace(twin, name=shape.name) == shape]
        assert all(plan.linears[twin.name].tile == linear.tile for twin in twins)
        if len(twins) * linear.tile * plan.token_lanes * MX_GROUP > free:
            continue
        now = _both(shape, linear, config, plan.token_lanes)
        if linear.columns < 16 and columns + len(twins) * linear.columns < config.channels:
            wider = replace(linear, columns=2 * linear.columns)
            assert _both(shape, wider, config, plan.token_lanes) >= now
        if 2 * linear.n_lanes * MX_GROUP * (4 if shape.group else 8) <= BEAT_BITS:
            taller = replace(linear, n_lanes=2 * linear.n_lanes)
            assert _both(shape, taller, config, plan.token_lanes) >= now


@pytest.mark.parametrize(("shapes", "config"), CASES)
def test_no_number_of_token_lanes_is_better(shapes: list[LinearShape], config: CompileConfig) -> None:
    plan = explore(shapes, config, RATE)
    if config.token_lanes is not None:
        return
    chosen = _total(shapes, plan, config)
    assert f"({chosen:.0f})" in plan.reasons[0]
    for lanes in (1, 2, 4, 8):
        if lanes < 2 * config.max_tokens and MX_GROUP * len(shapes) * lanes <= config.multipliers:
            other = explore(shapes, replace(config, token_lanes=lanes), RATE)
            assert chosen <= _total(shapes, other, config)


def test_twins_grow_together() -> None:
    """Gate and up of a feed-forward block take what is left only if both can, else down does."""
    sizes = {"gate": (576, 1536, 0), "up": (576, 1536, 0), "down": (1536, 576, 1)}
    shapes = [LinearShape(name=n, k=k, n=m, level=level, group=32) for n, (k, m, level) in sizes.items()]
    plan = explore(shapes, CompileConfig(multipliers=4096, channels=32, token_lanes=2), RATE)
    assert [plan.linears[name].tile for name in sizes] == [16, 16, 32]


def test_names_decide_nothing() -> None:
    shapes = _shapes(np.random.default_rng(3), 6, 32)
    shapes += [replace(shape, name=f"twin_{shape.name}") for shape in shapes[:3]]
    renamed = [replace(shape, name=f"z{100 - i}") for i, shape in enumerate(shapes)]
    config = CompileConfig(multipliers=4000, channels=24)
    assert list(explore(shapes, config, RATE).linears.values()) == list(
        explore(renamed, config, RATE).linears.values()
    )


def test_memory_bound_matmul_gets_columns_up_to_the_channels() -> None:
    shape = LinearShape(name="a", k=4096, n=4096, level=0, group=32)
    config = CompileConfig(multipliers=1 << 16, channels=9, max_tokens=1)
    plan = explore([shape], config, RATE)
    assert plan.linears["a"].columns == 8
    assert plan.linears["a"].channels == tuple(range(8))
    assert plan.io_channel == 8
    assert plan.reasons[-1] == "growth ended: no matmul gains from another doubling"


def test_reasons_name_what_ended_the_growth() -> None:
    shape = LinearShape(name="a", k=4096, n=4096, level=0, group=32)
    config = CompileConfig(multipliers=200, channels=9, max_tokens=1)
    plan = explore([shape], config, RATE)
    assert plan.multipliers == 128
    assert plan.reasons[-1] == "growth ended: 72 of 200 multipliers left"


def test_more_matmuls_than_channels_share() -> None:
    shapes = _shapes(np.random.default_rng(1), 7, 32)
    plan = explore(shapes, CompileConfig(multipliers=2048, channels=3), RATE)
    assert [plan.linears[s.name].channels for s in shapes] == [(i % 3,) for i in range(7)]
    assert (plan.io_channel, plan.channels) == (2, 3)


def test_no_matmul_at_all() -> None:
    plan = explore([], CompileConfig(), RATE)
    assert (plan.token_lanes, plan.feature_pad, plan.channels, plan.multipliers) == (1, MX_GROUP, 1, 0)


@pytest.mark.parametrize(
    ("count", "changes", "message"),
    [
        (
            3,
            {"multipliers": 64},
            "3 matmuls need at least 96 multipliers (32 for each of 1 token lanes), the budget is 64: 32 too "
            "few. Raise CompileConfig.multipliers, or split the module",
        ),
        (
            2,
            {"multipliers": 255, "token_lanes": 4},
            "2 matmuls need at least 256 multipliers (32 for each of 4 token lanes), the budget is 255: 1 "
            "too few. Raise CompileConfig.multipliers or lower token_lanes, or split the module",
        ),
    ],
)
def test_budget_error(count: int, changes: dict, message: str) -> None:
    shapes = _shapes(np.random.default_rng(2), count, 32)
    with pytest.raises(BudgetError) as caught:
        explore(shapes, CompileConfig(**changes), RATE)
    assert str(caught.value) == message
