"""Spaces: legal factors with their laws, points as configurations, and exact evaluations that equal the
compiler."""

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
    by_name = {factor.name: factor for factor in small_space().factors}
    assert by_name["policy"].values == ("spatial", "shared", "mixed")
    assert by_name["multipliers"].values == (256, 128, 64)
    assert by_name["token_lanes"].values == (None, 1, 2, 4)
    assert by_name["lanes"].values == (None, 1, 2, 4, 8, 16, 32)
    assert "up to a group of 32" in str(by_name["lanes"])
    layers = {name.split(".")[1] for name in by_name if name.startswith("fixed.")}
    assert len(layers) == 3
    assert all(factor.law and factor.policies for factor in by_name.values())
    assert "the compiler's choice" in str(by_name["n_lanes"])


def test_the_default_is_what_compile_takes() -> None:
    designs = small_space()
    config = designs.config_of(designs.default)
    assert replace(config, policy=None, goal=None) == BUDGETS and config.fixed == {}
    assert designs.evaluate({}) is designs.evaluate(designs.default)  # known already


@pytest.mark.slow
def test_a_digest_depends_on_values_and_not_on_texts() -> None:
    """A study of a space is therefore found again after a law got another wording."""
    designs, digest = small_space(), small_space().digest
    assert designs.digest == digest
    designs.factors = tuple(replace(factor, law="other words") for factor in designs.factors)
    assert designs.digest == digest
    for change in ({"values": (1, 3)}, {"policies": ("shared",)}, {"name": "other"}):
        first, *others = designs.factors
        designs.factors = (replace(first, **change), *others)
        assert designs.digest != digest, change
        designs.factors = (first, *others)


def test_exact_is_exact() -> None:
    designs = small_space()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(40, 24), torch.nn.ReLU(), torch.nn.Linear(24, 8)).eval()
    (matmul, *_) = [f.name for f in designs.factors if f.name.endswith(".columns")]
    point = {"multipliers": 128, matmul: 1, "token_lanes": 2}
    result = designs.evaluate(point, exact=True)
    assert result.exact and result.feasible and result.config.fixed[matmul.split(".")[1]] == {"columns": 1}
    compiled = streamgen.compile(model, torch.zeros(2, 40), result.config)
    assert result.luts == compiled.report().groups[0].resources.total.lut
    assert result.tokens_per_second == pytest.approx(4 * 300e6 / compiled.predict(4))
    rough = designs.evaluate(point)
    assert not rough.exact and rough.luts < result.luts and rough.dsps <= result.dsps


def test_more_hardware_is_faster_and_larger() -> None:
    designs = small_space()
    large, small = designs.evaluate({}), designs.evaluate({"multipliers": 64})
    assert large.tokens_per_second > small.tokens_per_second and large.luts > small.luts
    assert all(result.joules > 0 and result.first_token_ms > 0 for result in (large, small))


def test_points_that_cannot_be_built_say_why() -> None:
    designs = small_space()
    lanes = next(f.name for f in designs.factors if f.name.endswith(".lanes"))
    columns = next(f.name for f in designs.factors if f.name.endswith(".columns"))
    result = designs.evaluate({columns: 1, lanes: 32})
    assert not result.feasible and "they must be 1 or 2" in result.why
    result = designs.evaluate({"policy": "shared", "n_lanes": 4})
    assert not result.feasible or result.dsps > 0
    large = {"policy": "shared", "n_lanes": 4, "multipliers": 128}
    assert "the engine has 256 multipliers" in designs.bound(large, {})
    assert "reading the weights alone" in designs.bound({}, {"decode": 1e12})
    assert designs.bound({}, {"decode": 1.0}) == "" == designs.bound({}, {"luts": 1.0})


def test_rows_that_the_user_asks_for() -> None:
    """Without a budget of multipliers, the rows get as many multipliers as they need, by default and in a
    search."""
    designs = _again(config=replace(BUDGETS, policy="shared", n_lanes=64, multipliers=None))
    assert designs.config_of(designs.default).multipliers is None
    assert designs.bound(designs.default, {}) == "" == designs.evaluate(designs.default).why
    assert "the engine has 4096 multipliers; the budget is 512" in designs.bound({"multipliers": 512}, {})
    assert "CompileConfig.multipliers is 512, 3584 too few" in designs.evaluate({"multipliers": 512}).why


def test_a_decoder() -> None:
    designs = space(tiny_decoder(), None, TINY)
    result = designs.evaluate({"policy": "shared"})
    assert result.feasible and result.tokens_per_second > 0
    wide = space(tiny_decoder(), None, replace(TINY, lanes=None)).evaluate({"policy": "shared", "lanes": 32})
    assert wide.feasible and wide.luts > result.luts
    assert not any(f.name == "token_lanes" for f in designs.factors if "shared" in f.policies)


@pytest.mark.slow
def test_a_decoder_exactly() -> None:
    designs = space(tiny_decoder(), None, TINY)
    result = designs.evaluate({}, exact=True)
    expected = streamgen.estimate(tiny_decoder(), None, TINY, positions=(36,), prompts=(4,))
    assert result.luts == expected.groups[0].resources.total.lut
    assert result.tokens_per_second == pytest.approx(expected.tokens_per_second(expected.passes[0]))
    assert result.first_token_ms == pytest.approx(expected.milliseconds(expected.first_tokens[4]))
    rough = designs.evaluate({})
    assert abs(rough.tokens_per_second / result.tokens_per_second - 1) < 1  # of the same size


def test_what_cannot_be() -> None:
    designs = small_space()
    (columns, *_) = [f.name for f in designs.factors if f.name.endswith(".columns")]
    twice = {"0": {"columns": 2}, columns.split(".")[1]: {"columns": 4}}
    for call, message in (
        (lambda: designs.config_of({"rows": 2}), "no factor is called 'rows'; there are policy, "),
        (
            lambda: designs.config_of({"multipliers": 77}),
            "factor 'multipliers' has no value 77; multipliers",
        ),
        (lambda: _again(only={"policy": ()}), "the space is empty: factor 'policy' has no value left"),
        (lambda: _again(only={columns: (3,)}), f"factor '{columns}' has no value 3"),
        (lambda: _again(config=replace(BUDGETS, fixed=twice)), "CompileConfig.fixed gives"),
        (
            lambda: _again(config=replace(BUDGETS, cache_channels=2)),
            "CompileConfig.cache_channels is 2, but ",
        ),
    ):
        with pytest.raises(ValueError) as caught:
            call()
        assert str(caught.value).startswith(message)
    with pytest.raises(BudgetError, match="alone needs converters"):
        _again(config=replace(BUDGETS, converter_bits=1))


def _again(config: CompileConfig = BUDGETS, only: Any = None) -> Space:
    model = torch.nn.Sequential(torch.nn.Linear(40, 24), torch.nn.ReLU(), torch.nn.Linear(24, 8)).eval()
    return space(model, torch.zeros(2, 40), config, only=only)
