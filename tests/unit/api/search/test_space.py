"""Spaces: legal factors with their laws; points as configurations; what is exact is what compile says."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import streamgen
from streamgen.api.search import Space, space
from streamgen.base.errors import BudgetError
from streamgen.compiler.config import CompileConfig
from tests.shared.decoders import TINY, tiny_decoder
from tests.unit.api.search.models import BUDGETS, small_space


def test_factors_of_a_network() -> None:
    found = {factor.name: factor for factor in small_space().factors}
    assert found["policy"].values == ("spatial", "shared", "mixed")
    assert found["multipliers"].values == (256, 128, 64)
    assert found["token_lanes"].values == (None, 1, 2, 4)
    assert found["lanes"].values == (None, 1, 2, 4, 8, 16, 32)
    assert "up to a group of 32" in str(found["lanes"])
    layers = {name.split(".")[1] for name in found if name.startswith("fixed.")}
    assert len(layers) == 3
    assert all(factor.law and factor.policies for factor in found.values())
    assert "the compiler's choice" in str(found["n_lanes"])


def test_the_default_is_what_compile_takes() -> None:
    one = small_space()
    config = one.config_of(one.default)
    assert replace(config, policy=None) == BUDGETS and config.fixed == {}
    assert one.evaluate({}) is one.evaluate(one.default)  # known already


@pytest.mark.slow
def test_exact_is_exact() -> None:
    one = small_space()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(40, 24), torch.nn.ReLU(), torch.nn.Linear(24, 8)).eval()
    (matmul, *_) = [f.name for f in one.factors if f.name.endswith(".columns")]
    point = {"multipliers": 128, matmul: 1, "token_lanes": 2}
    found = one.evaluate(point, exact=True)
    assert found.exact and found.feasible and found.config.fixed[matmul.split(".")[1]] == {"columns": 1}
    compiled = streamgen.compile(model, torch.zeros(2, 40), found.config)
    assert found.luts == compiled.report().groups[0].resources.total.lut
    assert found.tokens_per_second == pytest.approx(4 * 300e6 / compiled.predict(4))
    rough = one.evaluate(point)
    assert not rough.exact and rough.luts < found.luts and rough.dsps <= found.dsps


def test_more_hardware_is_faster_and_larger() -> None:
    one = small_space()
    large, small = one.evaluate({}), one.evaluate({"multipliers": 64})
    assert large.tokens_per_second > small.tokens_per_second and large.luts > small.luts
    assert all(found.joules > 0 and found.first_token_ms > 0 for found in (large, small))


def test_points_that_cannot_be_built_say_why() -> None:
    one = small_space()
    lanes = next(f.name for f in one.factors if f.name.endswith(".lanes"))
    columns = next(f.name for f in one.factors if f.name.endswith(".columns"))
    found = one.evaluate({columns: 1, lanes: 32})
    assert not found.feasible and "are possible" in found.why
    found = one.evaluate({"policy": "shared", "n_lanes": 4})
    assert not found.feasible or found.dsps > 0
    large = {"policy": "shared", "n_lanes": 4, "multipliers": 128}
    assert "the engine has 256 multipliers" in one.bound(large, {})
    assert "memory alone" in one.bound({}, {"tokens/s": 1e12})
    assert one.bound({}, {"tokens/s": 1.0}) == "" == one.bound({}, {"luts": 1.0})


def test_rows_that_the_user_asks_for() -> None:
    """Without a budget of multipliers they ask for as many as they need, by default and in a search."""
    one = _again(config=replace(BUDGETS, policy="shared", n_lanes=64, multipliers=None))
    assert one.config_of(one.default).multipliers is None
    assert one.bound(one.default, {}) == "" == one.evaluate(one.default).why
    assert "the engine has 4096 multipliers; the budget is 512" in one.bound({"multipliers": 512}, {})
    assert "CompileConfig.multipliers is 512: 3584 too few" in one.evaluate({"multipliers": 512}).why


def test_a_decoder() -> None:
    one = space(tiny_decoder(), None, TINY)
    found = one.evaluate({"policy": "shared"})
    assert found.feasible and found.tokens_per_second > 0
    wide = space(tiny_decoder(), None, replace(TINY, lanes=None)).evaluate({"policy": "shared", "lanes": 32})
    assert wide.feasible and wide.luts > found.luts
    assert not any(f.name == "token_lanes" for f in one.factors if "shared" in f.policies)


@pytest.mark.slow
def test_a_decoder_exactly() -> None:
    one = space(tiny_decoder(), None, TINY)
    found = one.evaluate({}, exact=True)
    expected = streamgen.estimate(tiny_decoder(), None, TINY, positions=(36,), prompts=(4,))
    assert found.luts == expected.groups[0].resources.total.lut
    assert found.tokens_per_second == pytest.approx(expected.tokens_per_second(expected.passes[0]))
    assert found.first_token_ms == pytest.approx(expected.milliseconds(expected.first_tokens[4]))
    rough = one.evaluate({})
    assert abs(rough.tokens_per_second / found.tokens_per_second - 1) < 1  # of the same size


def test_what_cannot_be() -> None:
    one = small_space()
    (columns, *_) = [f.name for f in one.factors if f.name.endswith(".columns")]
    twice = {"0": {"columns": 2}, columns.split(".")[1]: {"columns": 4}}
    for call, message in (
        (lambda: one.config_of({"rows": 2}), "no factor is called 'rows'; there are policy, "),
        (
            lambda: one.config_of({"multipliers": 77}),
            "factor 'multipliers' has no value 77; multipliers",
        ),
        (lambda: _again(only={"policy": ()}), "the space is empty: factor 'policy' has no value left"),
        (lambda: _again(only={columns: (3,)}), f"factor '{columns}' has no value 3"),
        (lambda: _again(config=replace(BUDGETS, fixed=twice)), "CompileConfig.fixed gives"),
        (lambda: _again(config=replace(BUDGETS, cache_channels=2)), "CompileConfig.cache_channels is 2; "),
    ):
        with pytest.raises(ValueError) as caught:
            call()
        assert str(caught.value).startswith(message)
    with pytest.raises(BudgetError, match="alone needs converters"):
        _again(config=replace(BUDGETS, converter_bits=1))


def _again(config: CompileConfig = BUDGETS, only: Any = None) -> Space:
    model = torch.nn.Sequential(torch.nn.Linear(40, 24), torch.nn.ReLU(), torch.nn.Linear(24, 8)).eval()
    return space(model, torch.zeros(2, 40), config, only=only)
