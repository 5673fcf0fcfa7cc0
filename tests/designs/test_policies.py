"""Matmuls with columns of their own in models of all kinds: the bits do not depend on who shares what."""

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import streamgen
from streamgen.api.search import Space
from streamgen.api.search.factors import factors_of
from streamgen.base.errors import BudgetError
from streamgen.compiler.budget import budget_of, multipliers_of
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.plan.grouping import parts_of
from streamgen.compiler.plan.policy import finished, hardware, whole
from streamgen.model.frontend import import_module
from streamgen.model.graph.interpret import exact
from streamgen.model.graph.logical import LogicalGraph
from streamgen.numbers.formats import round_f24
from tests.designs.test_shared import encoder
from tests.shared.accelerators import values
from tests.shared.decoders import random_decoder

CONFIG = CompileConfig(name="block", max_tokens=5, channels=2, multipliers=512)
SMALL = {"hidden": 64, "head_dim": 16, "rotated": 16, "wide": 96, "vocabulary": 64, "context": 32}
FIXED = {"layers[0].o": {"columns": 2, "n_lanes": 1}, "head": {"columns": 1}}


def _plan(model: LogicalGraph, **choices: object) -> tuple[int, int, list[str], tuple[str, ...]]:
    """Columns and rows of the engine, matmuls that have their own, phases."""
    config = replace(CONFIG, **choices)
    derived = whole(model.quantised(config.numbers(False)), config)
    return derived.plan.columns, derived.plan.n_lanes, sorted(derived.plan.alone), derived.phases


def test_who_has_columns_of_its_own() -> None:
    model = encoder(2)
    assert _plan(model, policy="shared") == (
        *(2, 8, []),
        ("", "embedding", "n", "q+k+v", "o", "up", "down", "", "head"),
    )
    matmuls = ["embedding", "head", *(f"layers[0].{name}" for name in ("down", "k", "o", "q", "up", "v"))]
    assert _plan(model, policy="spatial") == (0, 1, matmuls, ("embedding", "q+k+v+o+up+down", "head"))
    # the engine gives half of its rows up
    assert _plan(model, policy="mixed", fixed=FIXED) == (
        *(2, 4, ["head", "layers[0].o"]),
        ("", "embedding", "n", "q+k+v+o", "up", "down", "head"),
    )


def test_mixed_is_what_the_budgets_allow() -> None:
    model = encoder(1)
    assert _plan(model, policy="mixed")[:3] == (2, 8, [])  # nothing is saved by leaving the engine
    columns, _, alone, phases = _plan(model, policy="mixed", channels=1)  # no engine fits
    assert (columns, len(alone), len(phases)) == (0, 8, 1)
    with pytest.raises(BudgetError, match="allow 8 matmuls neither an engine nor columns of their own"):
        _plan(model, policy="mixed", channels=1, multipliers=64)
    with pytest.raises(BudgetError, match="8 matmuls need at least 256 multipliers"):
        _plan(model, policy="spatial", multipliers=64)


def test_factors_that_no_matmul_takes() -> None:
    with pytest.raises(ValueError, match="fixed names 'head', but in a design with the policy 'shared' no"):
        _plan(encoder(1), policy="shared", fixed={"head": {"columns": 1}})
    with pytest.raises(
        ValueError, match="token_lanes is 2; it must be 1, because tokens depend on one another"
    ):
        _plan(encoder(1), policy="spatial", token_lanes=2)


@pytest.mark.parametrize(
    ("policy", "factor", "said"),
    [
        ("spatial", "n_lanes", "has no engine. Give rows to matmuls in CompileConfig.fixed, or use"),
        ("shared", "token_lanes", "one engine computes all matmuls, one token at a time. Use"),
    ],
)
def test_factors_that_the_policy_does_not_take(policy: str, factor: str, said: str) -> None:
    """Refused where they are asked for; in a search they are those of other policies."""
    config = replace(CONFIG, policy=policy, **{factor: 1})
    network = import_module(torch.nn.Linear(40, 8).eval(), torch.zeros(1, 40))
    for model in (encoder(1), network):
        with pytest.raises(ValueError, match=f"{factor} is 1, but .* policy '{policy}' .*{re.escape(said)}"):
            parts_of(model.quantised(config.numbers(False)), config)
    searched = Space(network, replace(config, policy=None), {})
    assert getattr(searched.config_of({"policy": policy}), factor) is None
    other = {"spatial": "shared", "shared": "spatial"}[policy]
    assert getattr(searched.config_of({"policy": other}), factor) == 1


@pytest.mark.parametrize("policy", ["spatial", "shared", "mixed"])
@pytest.mark.parametrize(
    ("factor", "missing", "of_encoders"),
    [
        ("attention_lanes", "attention that takes several positions per cycle", True),
        ("cache_channels", "cache of keys and values", False),
    ],
)
def test_factors_of_attention_where_there_is_none(
    policy: str, factor: str, missing: str, of_encoders: bool
) -> None:
    """Of an encoder, whose attention has no cache, and of a network without attention."""
    config = replace(CONFIG, policy=policy, **{factor: 2})
    network = import_module(torch.nn.Linear(40, 8).eval(), torch.zeros(1, 40))
    for model, has in ((encoder(1), of_encoders), (network, False)):
        quantised = model.quantised(config.numbers(False))
        for call in (parts_of, factors_of):
            assert call(quantised, replace(config, **{factor: None}))
            if has:
                assert call(quantised, config)
                continue
            with pytest.raises(ValueError) as caught:
                call(quantised, config)
            assert str(caught.value) == (
                f"CompileConfig.{factor} is 2, but {model.name!r} has no {missing}, so the option has no "
                "effect. Leave it out"
            )


@pytest.mark.parametrize("policy", ["shared", "mixed"])
def test_rows_against_the_multipliers(policy: str) -> None:
    """Those that are asked for are within the multipliers that are asked for too, if they are."""
    model = encoder(1)
    assert _plan(model, policy=policy, n_lanes=8)[:3] == (2, 8, [])
    assert _plan(model, policy=policy, n_lanes=64, multipliers=None)[:3] == (2, 64, [])
    with pytest.raises(BudgetError) as caught:
        _plan(model, policy=policy, n_lanes=9)
    assert str(caught.value) == (
        "CompileConfig.n_lanes is 9; 9 rows in each of 2 columns need 576 multipliers (32 per row), but "
        "CompileConfig.multipliers is 512, 64 too few. Raise it, or lower n_lanes or channels"
    )


@pytest.mark.parametrize("policy", ["spatial", "mixed"])
@pytest.mark.parametrize("layers", [1, 2])
def test_golden_of_any_policy(policy: str, layers: int) -> None:
    config = replace(CONFIG, policy=policy, fixed=FIXED)
    model = encoder(layers).quantised(config.numbers(False))
    derived = whole(model, config)
    program, _ = finished(derived, model, config.sizing)
    compute = exact(model)
    for tokens in (1, 5):
        x = round_f24(values(tokens, 30))
        graph = program.at(tokens, 0)
        (tensor,) = (tensor for tensor in graph.tensors if tensor.role == "input")
        given = np.zeros(graph.tensor_itensor(tensor).shape, np.float32)
        given[:, :30] = x
        outputs, _ = streamgen.model.golden.run(graph, {"x": given})
        np.testing.assert_array_equal(outputs["head"][:, :7], compute({"x": x})[0]["head"])


@pytest.mark.slow
@pytest.mark.long_runs
@pytest.mark.timeout(900)
@pytest.mark.campaign
@pytest.mark.parametrize("policy", ["spatial", "mixed"])
def test_an_encoder(policy: str) -> None:
    """Attention, norms and layers that are walked, with columns of their own, on Verilog; cycles as they are
    predicted."""
    accelerator = streamgen.compile(encoder(2), None, replace(CONFIG, policy=policy, fixed=FIXED))
    for shape in ((1, 30), (5, 30), (2, 4, 30)):
        x = values(*shape)
        assert accelerator.run(x).tobytes() == accelerator.golden(x).tobytes()
        if len(shape) == 2:
            found = accelerator.report().cycles
            assert abs(accelerator.predict(shape[0]) - found) <= 0.05 * found
    accelerator.close()


@pytest.mark.campaign
@pytest.mark.long_runs
@pytest.mark.timeout(900)
def test_a_language_model() -> None:
    """A layer that is one phase, with its cache."""
    config = CompileConfig(
        name="spatial", policy="spatial", max_tokens=4, context=32, channels=4, multipliers=512
    )
    model = streamgen.compile(random_decoder(**SMALL), None, config)
    assert isinstance(model, streamgen.LanguageModel)
    ids = np.random.default_rng(0).integers(0, 64, 20)
    expected, session, position = model.golden.logits(ids), model.session(), 0
    for count in (4, 1, 1, 3, 6, 1, 4):
        found = session.last_logits(ids[position : position + count])
        position += count
        np.testing.assert_array_equal(found, expected[position - 1])
    model.close()


def test_hardware_of_a_network() -> None:
    """By default a network has columns for every matmul."""
    model = encoder(1).quantised(CONFIG.numbers(False))
    assert hardware(model, budget_of(CONFIG, model)).columns == 2


@pytest.mark.parametrize(("channels", "beats"), [(4, 1024), (16, 1024), (32, 512)])
def test_prefetch_takes_a_fifth_of_block_ram_at_most(channels: int, beats: int) -> None:
    config = CompileConfig(policy="shared", channels=channels, multipliers=64 * channels)
    model = encoder(1).quantised(config.numbers(False))
    assert hardware(model, budget_of(config, model)).prefetch == beats
    assert hardware(model, budget_of(replace(config, prefetch_beats=64), model)).prefetch == 64


def test_small_models_get_small_budgets() -> None:
    """Products of a token over 512 cycles, a power of two; 32 for each matmul, 1,024 at most."""

    def budget(*sizes: int, **changes: Any) -> int:
        layers = [torch.nn.Linear(*both) for both in pairwise(sizes)]
        model = import_module(torch.nn.Sequential(*layers).eval(), torch.zeros(1, sizes[0]))
        return multipliers_of(model, CompileConfig(**changes))

    assert [budget(8, 8), budget(32, 16, 8), budget(64, 64), budget(256, 128)] == [64, 64, 64, 64]
    assert [budget(256, 129), budget(256, 256, 256), budget(33, 512)] == [128, 256, 64]
    assert [budget(512, 1024), budget(512, 1025), budget(8, 8, 8, 8)] == [1024, 1024, 96]
    assert [budget(8, 8, multipliers=320), budget(8, 8, n_lanes=4), budget(8, 8, token_lanes=2)] == [
        320, 1024, 1024,
    ]  # fmt: skip
    assert budget(576, 1536) == 1024, "one matmul of SmolLM2's: published shapes have all"
    fixed = {"layers.0": {"columns": 4}}
    assert budget(8, 8, fixed=fixed) == 1024
    network = import_module(torch.nn.Linear(64, 64).eval(), torch.zeros(1, 64))
    (part,) = parts_of(network.quantised(CompileConfig().numbers(False)), CompileConfig())
    own = part.plan.own
    assert own is not None and sum(one.tile * 32 for one in own.linears.values()) == 64
