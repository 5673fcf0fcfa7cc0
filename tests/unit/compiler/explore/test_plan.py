"""The explorer: budgets hold, growth is greedy to the end, widths match, and the choice is the best found."""

from dataclasses import replace
from itertools import product
from math import lcm

import numpy as np
import pytest

from streamgen.base.errors import BudgetError
from streamgen.compiler.budget import Budget, budget_of
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.explore import explore
from streamgen.compiler.explore.estimate import GAP, WORTH, ClosedForms
from streamgen.model.graph.plan import LinearPlan, LinearShape, Shape, VectorShape, agree
from streamgen.numbers.formats import MX_GROUP
from streamgen.numbers.weights import FORMATS
from streamgen.platform.boards import Channel


def _budget(config: CompileConfig, rate: float = 0.6927) -> Budget:
    return replace(budget_of(config), memory=Channel(rate=rate, latency=100))


BUDGET = _budget(CompileConfig())


def _linear(name: str, k: int, n: int, level: int = 0, **changes: object) -> LinearShape:
    own = {"group": 32, **changes}
    return LinearShape(
        name=name, k=k, n=n, level=level, form=FORMATS["w8" if own["group"] is None else "w4"], **own
    )


def _shapes(rng: np.random.Generator, count: int, group: int | None) -> list[LinearShape]:
    sizes = [1, 5, 32, 33, 64, 100, 576, 1536, 4096]
    return [
        _linear(
            f"linear_{i}",
            int(rng.choice(sizes)),
            int(rng.choice(sizes)),
            int(rng.integers(3)),
            group=group,
            reads=f"x{i}",
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
            converter_bits=int(rng.choice([10**6, 10**7, 10**9])),
            weights=weights,
            group=int(rng.choice([32, 64, 128])),
            scale_bits=int(rng.integers(8, 17)),
            minimum=bool(rng.integers(2)),
            max_tokens=int(rng.choice([1, 3, 16, 100])),
            token_lanes=lanes or None,
        )
        count = int(rng.integers(1, min(8, multipliers // MX_GROUP // (lanes or 1)) + 1))
        cases.append((_shapes(rng, count, config.group if weights == "w4" else None), config))
    return cases


CASES = _cases()


@pytest.mark.parametrize(("shapes", "config"), CASES)
def test_budgets_and_units_hold(shapes: list[LinearShape], config: CompileConfig) -> None:
    plan = explore(shapes, _budget(config))
    assert set(plan.linears) == {shape.name for shape in shapes}
    assert plan.multipliers <= config.multipliers
    assert plan.multipliers == sum(
        p.columns * p.n_lanes * plan.token_lanes * MX_GROUP for p in plan.linears.values()
    )
    assert plan.token_lanes == (config.token_lanes or plan.token_lanes)
    for value in (plan.token_lanes, *(p.tile for p in plan.linears.values())):
        assert value & (value - 1) == 0
    for shape in shapes:
        linear = plan.linears[shape.name]
        assert linear.columns <= 16 and linear.n_lanes <= 16
        assert plan.pads[shape.name] == linear.tile
        assert plan.pads[shape.reads] == max(MX_GROUP, shape.group or 0)
        assert len(linear.channels) == linear.columns
        assert len(set(linear.channels)) == min(linear.columns, config.size("channels"))
    used = [c for p in plan.linears.values() for c in p.channels] + [plan.io_channel]
    assert min(used) >= 0 and plan.channels == max(used) + 1 <= config.size("channels")
    estimate = ClosedForms(shapes, _budget(config), plan.token_lanes)
    ones = {shape.name: LinearPlan() for shape in shapes}
    if estimate.converter_bits(ones) <= _budget(config).converter_bits:
        assert estimate.converter_bits(plan.linears) <= _budget(config).converter_bits
    for level in {shape.level for shape in shapes}:
        columns = [c for s in shapes if s.level == level for c in plan.linears[s.name].channels]
        if len(columns) <= config.size("channels"):
            assert len(set(columns)) == len(columns)  # side by side, nobody shares while there are channels


@pytest.mark.parametrize(("shapes", "config"), CASES)
def test_no_affordable_doubling_would_gain(shapes: list[LinearShape], config: CompileConfig) -> None:
    plan = explore(shapes, _budget(config))
    estimate = ClosedForms(shapes, _budget(config), plan.token_lanes)

    def latency(choice: dict[str, LinearPlan], names: list[str]) -> float:
        passes = [estimate.times(choice, tokens) for tokens in (1, config.size("max_tokens"))]
        return max(sum(times[name].cycles for times in passes) for name in names)

    now = dict(plan.linears)
    for shape in shapes:
        twins = [t.name for t in shapes if (t.k, t.n, t.level) == (shape.k, shape.n, shape.level)]
        linear = now[shape.name]
        assert all(now[name].tile == linear.tile for name in twins)
        steps = [replace(linear, columns=2 * linear.columns)] if linear.columns < 16 else []
        steps += [replace(linear, n_lanes=2 * linear.n_lanes)] if linear.n_lanes < 16 else []
        for step in steps:
            choice = now | dict.fromkeys(twins, step)
            assert (
                estimate.multipliers(choice) > config.multipliers
                or estimate.converter_bits(choice) > _budget(config).converter_bits
                or latency(now, twins) - latency(choice, twins) < WORTH * 2 * GAP
                or estimate.total(choice) > estimate.total(now)
            )


@pytest.mark.parametrize(("shapes", "config"), CASES)
def test_no_number_of_token_lanes_is_better(shapes: list[LinearShape], config: CompileConfig) -> None:
    if config.token_lanes is not None:
        return
    plan = explore(shapes, _budget(config))
    chosen = ClosedForms(shapes, _budget(config), plan.token_lanes).total(plan.linears)
    assert f"({chosen:.0f})" in plan.reasons[0]
    for lanes in (1, 2, 4, 8):
        if lanes < 2 * config.size("max_tokens") and MX_GROUP * len(shapes) * lanes <= config.multipliers:
            other = explore(shapes, _budget(replace(config, token_lanes=lanes)))
            total = ClosedForms(shapes, _budget(config), lanes).total(other.linears)
            assert chosen <= total + WORTH * 2 * GAP * len({shape.level for shape in shapes})
            assert chosen <= total or plan.multipliers < other.multipliers
            assert other.reasons[0] == f"{lanes} token lane{'s' * (lanes > 1)}: fixed by the user"


def test_times_by_hand() -> None:
    """Two matmuls side by side and one after them, on two channels."""
    config = CompileConfig(channels=2, max_tokens=3, scale_bits=8, minimum=True)
    shapes = [_linear("a", 64, 48), _linear("b", 64, 40), _linear("c", 48, 8, 1, reads="a")]
    estimate = ClosedForms(shapes, _budget(config, rate=0.5), lanes=2)
    linears = {
        "a": LinearPlan(columns=2, n_lanes=4),
        "b": LinearPlan(columns=1, n_lanes=2),
        "c": LinearPlan(n_lanes=16),
    }
    # 48 features of a are padded to 64 for c; 40 of b fit its tiles; c has one tile of 16
    row = 64 * 4 + 2 * 2 * 8 + 32  # codes, scales and minimums of two groups, the row's scale
    load = [32 * row + 40 * row, 32 * row]  # of the two channels: half of a each, b on the first
    for tokens, tiles in ((1, 1), (3, 2)):
        times = estimate.times(linears, tokens)
        assert times["a"].memory == times["b"].memory == max(load) / 512 / 0.5
        assert times["c"].memory == 16 * row / 512 / 0.5
        assert times["a"].multipliers == 8 * tiles * 8  # t_lanes x n_lanes results a tile, in turn
        assert times["b"].multipliers == 20 * tiles * 4
        assert times["c"].multipliers == 1 * tiles * 32
    assert {name: time.bound for name, time in times.items()} == {
        "a": "multipliers", "b": "multipliers", "c": "multipliers"
    }  # fmt: skip
    assert estimate.times(linears, 1)["a"].bound == "memory"
    assert estimate.multipliers(linears) == (8 + 2 + 16) * 2 * 32
    # activations twice in every column (280 bits a group), panels of weights twice
    copies = (2 + 1) * 2 * 4 * 2 * 280 + 1 * 2 * 4 * 2 * 280
    assert estimate.converter_bits(linears) == copies + (8 + 2 + 16) * 2 * 64 * 4


def test_levels_share_channels_for_nothing() -> None:
    """The demo block: two matmuls side by side on two channels each, the next one on all four."""
    shapes = [_linear("gate", 576, 1536), _linear("up", 576, 1536), _linear("down", 1536, 576, 1, reads="h")]
    plan = explore(shapes, _budget(CompileConfig(multipliers=768, channels=4)))
    assert {name: p.channels for name, p in plan.linears.items()} == {
        "gate": (0, 1), "up": (2, 3), "down": (0, 1, 2, 3)
    }  # fmt: skip
    assert plan.multipliers == 768


def test_twins_grow_together() -> None:
    """Gate and up of a feed-forward block take what is left only if both can, else down does."""
    sizes = {"gate": (576, 1536, 0), "up": (576, 1536, 0), "down": (1536, 576, 1)}
    shapes = [_linear(name, *size) for name, size in sizes.items()]
    plan = explore(shapes, _budget(CompileConfig(multipliers=4096, channels=32, token_lanes=2)))
    assert [plan.linears[name].tile for name in sizes] == [16, 16, 32]


def test_names_decide_nothing() -> None:
    shapes = _shapes(np.random.default_rng(3), 6, 32)
    shapes += [replace(shape, name=f"twin_{shape.name}") for shape in shapes[:3]]
    renamed = [replace(shape, name=f"z{100 - i}") for i, shape in enumerate(shapes)]
    config = CompileConfig(multipliers=4000, channels=24)
    assert list(explore(shapes, _budget(config)).linears.values()) == list(
        explore(renamed, _budget(config)).linears.values()
    )


def test_the_memory_of_converters_ends_the_growth() -> None:
    shapes = [_linear("a", 4096, 4096)]
    config = CompileConfig(multipliers=1 << 14, channels=32, max_tokens=64)
    free = explore(shapes, _budget(config))
    copy = 2 * 64 * 4096 // 32 * 280  # of the activations
    tight = explore(shapes, _budget(replace(config, converter_bits=3 * copy)))
    assert free.linears["a"].columns > 2 >= tight.linears["a"].columns
    assert "converters hold" in tight.reasons[-1] and f"of {3 * copy} bits" in tight.reasons[-1]


def test_reasons_name_what_ended_the_growth() -> None:
    config = CompileConfig(multipliers=200, channels=9, max_tokens=1)
    plan = explore([_linear("a", 4096, 4096)], _budget(config))
    assert plan.multipliers == 128
    assert plan.reasons[-1] == "growth ended: 72 of 200 multipliers left"
    plan = explore([_linear("a", 32, 1)], _budget(config))
    assert plan.reasons[-1] == "growth ended: no further doubling saves enough"


def test_more_matmuls_than_channels_share() -> None:
    shapes = [_linear(f"a{i}", 64, 64, reads=f"x{i}") for i in range(7)]
    plan = explore(shapes, _budget(CompileConfig(multipliers=32 * 7, channels=3)))
    assert [plan.linears[s.name].channels for s in shapes] == [(i % 3,) for i in range(7)]
    assert plan.channels == 3


def _vector(name: str, function: str, *operands: str, features: int = 512, level: int = 1) -> VectorShape:
    return VectorShape(name=name, features=features, level=level, operands=operands, function=function)


def _gated(bias: bool = False) -> list[Shape]:
    return [
        _linear("gate", 512, 512, bias=bias),
        _vector("act", "silu", "gate"),
        _linear("up", 512, 512),
        _vector("product", "multiply", "act", "up"),
        _linear("down", 512, 512, 1, reads="product"),
    ]


def test_widths_follow_the_matmul() -> None:
    """16 steps a tile: tokens of 8 elements of a row pass in parts of 1, those of 8 rows of 4 or more."""
    config = CompileConfig(multipliers=1 << 14, channels=16, token_lanes=1)
    for rows, width in ((1, 1), (2, 1), (4, 2), (8, 4), (16, 8)):
        factors = {"columns": 8, "n_lanes": rows}
        plan = explore(_gated(), _budget(replace(config, fixed={"gate": factors, "up": factors})))
        assert {plan.widths["act"], plan.widths["product"]} == {width}
    plan = explore(_gated(bias=True), _budget(replace(config, fixed={"gate": factors})))
    assert plan.widths["gate"] == 8


def test_a_narrow_stream_must_be_worth_its_converter() -> None:
    """Lanes of relu cost less than a converter between widths; those of silu more."""
    config = CompileConfig(multipliers=1 << 14, token_lanes=1, fixed={"gate": {"columns": 8, "n_lanes": 1}})
    for function, width in (("relu", 8), ("silu", 1)):
        plan = explore([_linear("gate", 512, 512), _vector("act", function, "gate")], _budget(config))
        assert plan.widths["act"] == width


def test_widths_follow_the_memory() -> None:
    """What one channel gives: 11 elements a cycle to one stream, half of that to two."""
    config = CompileConfig(multipliers=64, channels=2)
    read = explore([_vector("y", "relu", "x", level=0), _linear("a", 512, 512, reads="y")], _budget(config))
    assert read.widths == {"x": 16, "y": 16} and read.quantisers == {"y": 16}
    alone = explore([_vector("y", "relu", "x", level=0)], _budget(config))  # x is read while y is written
    assert alone.widths == {"x": 8, "y": 8}
    two = explore([_vector("y", "add", "x", "z", level=0)], _budget(config))
    assert two.widths == {"x": 4, "z": 4, "y": 4}


def test_quantisers_take_little_of_what_they_feed() -> None:
    """Behind a matmul T * K / lanes cycles are at most 1/64 of the next one's, if 32 lanes can do that."""
    for multipliers, expected in ((64, 4), (512, 32), (4096, 32)):
        shapes = [_linear("a", 512, 512), _linear("b", 512, 512, 1, reads="a")]
        plan = explore(shapes, _budget(CompileConfig(multipliers=multipliers, channels=8, max_tokens=16)))
        lanes = plan.quantisers["a"]
        estimate = ClosedForms(shapes, _budget(CompileConfig(channels=8)), plan.token_lanes)
        times = {tokens: estimate.times(plan.linears, tokens)["b"].cycles for tokens in (1, 16)}
        enough = [w for w in (1, 2, 4, 8, 16, 32) if all(t * 512 / w <= c / 64 for t, c in times.items())]
        assert lanes == expected == (enough or [32])[0]


def test_values_are_padded_for_their_own_readers() -> None:
    shapes = [
        _linear("a", 40, 100),
        _vector("s", "silu", "a", features=100),
        _linear("b", 100, 7, 1, reads="s", group=64),
        _linear("c", 40, 300),
    ]
    fixed = {"a": {"columns": 3, "n_lanes": 2}, "c": {"columns": 16, "n_lanes": 16}, "b": {"n_lanes": 4}}
    plan = explore(shapes, _budget(CompileConfig(fixed=fixed, multipliers=1 << 14, token_lanes=1)))
    assert plan.pads["x"] == 32
    assert plan.pads["a"] == plan.pads["s"] == lcm(64, 6)
    assert plan.pads["c"] == 256
    assert plan.pads["b"] % plan.linears["b"].tile == 0 and plan.pads["b"] < 64
    assert plan.extent("s", 100) == 192
    assert frozenset(("a", "s")) in plan.classes


def test_plans_agree_about_the_padding_of_what_they_share() -> None:
    first = explore([_linear("a", 40, 100), _vector("s", "relu", "a", features=100)], BUDGET)
    second = explore([_linear("b", 100, 7, reads="s", group=128)], BUDGET)
    one, two = agree([first, second])
    assert first.pads["s"] < 128 == second.pads["s"]
    assert one.pads["a"] == one.pads["s"] == two.pads["s"] == 128
    assert (one.pads["x"], two.pads["b"]) == (first.pads["x"], second.pads["b"])


def test_no_matmul_at_all() -> None:
    plan = explore([], BUDGET)
    assert (plan.token_lanes, plan.pads, plan.channels, plan.multipliers) == (1, {}, 1, 0)


def test_a_line_for_each_layer() -> None:
    config = CompileConfig(
        multipliers=256, channels=3, max_tokens=16, token_lanes=1,
        fixed={"down": {"columns": 2, "n_lanes": 1}, "act": {"lanes": 2}},
    )  # fmt: skip
    plan = explore(_gated(), _budget(config, rate=1.0))
    assert plan.reasons == (
        "1 token lane: fixed by the user",
        "gate: 1 column x 2 rows x 1 token x 32, its quantiser takes 16 per cycle, channels 0; "
        "1 token 4096 cycles (multipliers), 16 tokens 65536 cycles (multipliers); by default",
        "act: 2 lanes; 1 token 256 cycles (its source), 16 tokens 4096 cycles (its source), behind gate; "
        "fixed: lanes",
        "up: 1 column x 2 rows x 1 token x 32, its quantiser takes 16 per cycle, channels 1; "
        "1 token 4096 cycles (multipliers), 16 tokens 65536 cycles (multipliers); by default",
        "product: 1 lane; 1 token 512 cycles (its source), 16 tokens 8192 cycles (its source), "
        "behind gate; by default",
        "down: 2 columns x 1 row x 1 token x 32, its quantiser takes 8 per cycle, channels 2, 0; "
        "1 token 4096 cycles (multipliers), 16 tokens 65536 cycles (multipliers); fixed: columns, n_lanes",
        "growth ended: 64 of 256 multipliers left",
    )


def _message(error: type[Exception], shapes: list[Shape], **changes: object) -> str:
    with pytest.raises(error) as caught:
        explore(shapes, _budget(CompileConfig(**changes)))
    return str(caught.value)


def test_too_few_multipliers() -> None:
    shapes: list[Shape] = [_linear(name, 64, 64) for name in "abc"]
    assert _message(BudgetError, shapes, multipliers=64) == (
        "3 matmuls need at least 96 multipliers (32 for each of 1 token lanes); the budget is 64, 32 too "
        "few. Raise CompileConfig.multipliers, or split the module"
    )
    assert _message(BudgetError, shapes[:2], multipliers=255, token_lanes=4) == (
        "2 matmuls need at least 256 multipliers (32 for each of 4 token lanes); the budget is 255, 1 "
        "too few. Raise CompileConfig.multipliers or lower token_lanes, or split the module"
    )
    assert _message(BudgetError, shapes, fixed={"b": {"columns": 4, "n_lanes": 16}}) == (
        "3 matmuls need at least 2112 multipliers (32 for each of 1 token lanes and each row of a tile; "
        "fixed: b has columns 4 and n_lanes 16); the budget is 1024, 1088 too few. "
        "Raise CompileConfig.multipliers, "
        "lower the fixed factors, or split the module"
    )


def _fixed(layer: str, **factors: int) -> dict[str, object]:
    return {"fixed": {layer: factors}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            _fixed("dwn", columns=2),
            "CompileConfig.fixed names 'dwn', which is not a layer; did you mean 'down'?",
        ),
        (
            _fixed("softmax", lanes=2),
            "CompileConfig.fixed names 'softmax', which is not a layer; the layers are gate, act, up, "
            "product, down",
        ),
        (
            _fixed("down", rows=2),
            "CompileConfig.fixed['down'] has 'rows'; the factors of a matmul are columns, n_lanes, "
            "quantise_lanes, lanes",
        ),
        (
            _fixed("act", columns=2),
            "CompileConfig.fixed['act'] has 'columns'; the factors of an elementwise operation are lanes",
        ),
        (_fixed("up", columns=17), "CompileConfig.fixed['up']['columns'] is 17; it must be 1 to 16"),
        (_fixed("up", n_lanes=32), "CompileConfig.fixed['up']['n_lanes'] is 32; it must be 1 to 16"),
        (
            _fixed("up", quantise_lanes=3),
            "CompileConfig.fixed['up']['quantise_lanes'] is 3; it must be 1, 2, 4, 8, 16 or 32",
        ),
        (
            _fixed("act", lanes=64),
            "CompileConfig.fixed['act']['lanes'] is 64; it must be 1, 2, 4, 8, 16 or 32",
        ),
        (
            _fixed("up", lanes=2),
            "CompileConfig.fixed['up']['lanes'] is 2; 'lanes' of a matmul belong to the addition of its "
            "bias, and 'up' has no bias",
        ),
        (
            {"fixed": {"gate": {"quantise_lanes": 8}, "up": {"quantise_lanes": 16}}},
            "CompileConfig.fixed gives 'gate' quantise_lanes 8 and 'up' 16; both read 'x' through one "
            "quantiser, so the two must be equal",
        ),
        (
            {"fixed": {"gate": {"columns": 3, "n_lanes": 2}, "act": {"lanes": 2}}},
            "the lanes of 'act' are 2; behind 'gate' with 3 columns of 2 rows they must be 1",
        ),
        (
            {"fixed": {"gate": {"columns": 4, "n_lanes": 1}, "product": {"lanes": 16}}},
            "the lanes of 'product' are 16; behind 'gate' with 4 columns of 1 row they must be 1, 2 or 4",
        ),
    ],
)
def test_fixed_factors_that_cannot_be(changes: dict[str, object], message: str) -> None:
    assert _message(ValueError, _gated(), **changes) == message


def test_layers_by_the_path_of_their_module() -> None:
    def at(path: str, *names: str) -> list[Shape]:
        return [replace(_linear(name, 64, 64), path=path) for name in names]

    shapes = [*at("block.0.up", "block_0_up"), *at("block.1", "first", "second")]
    plan = explore(shapes, _budget(CompileConfig(fixed={"block.0.up": {"columns": 2}})))
    assert plan.linears["block_0_up"].columns == 2
    assert any(line.startswith("block_0_up: 2 columns") and "fixed: columns" in line for line in plan.reasons)
    assert _message(ValueError, shapes, **_fixed("block.1", columns=2)) == (
        "CompileConfig.fixed names 'block.1', which has several operations; name one of them: first, second"
    )
    both = {"block.0.up": {"columns": 2}, "block_0_up": {"columns": 4}}
    assert _message(ValueError, shapes, fixed=both) == (
        "CompileConfig.fixed gives 'block_0_up' two values of columns: 2, and 4 under the name 'block_0_up'"
    )


def test_factors_of_other_parts_are_left_alone() -> None:
    """`fixed` by operation, of a whole of which these layers are a part."""
    plan = explore([_linear("a", 64, 64)], BUDGET, {"a": {"columns": 4}, "b": {"columns": 2}})
    assert plan.linears["a"].columns == 4


@pytest.mark.parametrize(
    ("fixed", "error", "message"),
    [
        ([], TypeError, "CompileConfig.fixed is []; a mapping from layers to factors is needed"),
        (
            {"a": 2},
            TypeError,
            "CompileConfig.fixed['a'] is 2; a mapping like {'columns': 2} is needed",
        ),
        *(
            (
                {"a": {"columns": value}},
                ValueError,
                f"CompileConfig.fixed['a']['columns'] is {value!r}; it must be an integer of at least 1",
            )
            for value in (0, -1, 2.0, True, "2")
        ),
    ],
)
def test_fixed_factors_that_are_none(fixed: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        CompileConfig(fixed=fixed)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("budget", "law"),
    [
        ("multipliers", "None or at least 32"),
        ("channels", "None or 1 to 32"),
        ("converter_bits", "None or at least 1"),
    ],
)
def test_zero_budgets_are_refused(budget: str, law: str) -> None:
    with pytest.raises(ValueError) as caught:
        CompileConfig(**{budget: 0})
    assert str(caught.value) == f"CompileConfig.{budget} is 0; it must be {law}"


def test_a_configuration_keeps_its_own_factors() -> None:
    fixed = {"a": {"columns": 2}}
    config = CompileConfig(fixed=fixed)
    fixed["a"]["columns"] = 4
    assert config.fixed == {"a": {"columns": 2}} and hash(config) == hash(CompileConfig())
