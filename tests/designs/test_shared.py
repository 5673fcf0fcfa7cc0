"""Accelerators whose operations share hardware, of models that are no language models, on their Verilog."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import streamgen
from streamgen.base.errors import BudgetError
from streamgen.base.progress import PASSES
from streamgen.compiler.budget import budget_of
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.plan.policy import choices, hardware, whole
from streamgen.model.graph.interpret import exact
from streamgen.model.graph.logical import Input, LogicalGraph, Operation, Repeat
from streamgen.model.operations import Attention, Binary, Linear, Norm, Unary
from streamgen.numbers.formats import round_f24
from tests.shared.accelerators import Gated, values

CONFIG = CompileConfig(name="block", max_tokens=5, channels=2, multipliers=128, policy="shared")


def _linear(n: int, k: int, bias: bool = True, seed: int = 0) -> Linear:
    rng = np.random.default_rng((n, k, seed))
    weight = (rng.normal(size=(n, k)) * k**-0.5).astype(np.float32)
    return Linear(weight, rng.normal(size=n).astype(np.float32) if bias else None)


def _norm(seed: int) -> Norm:
    rng = np.random.default_rng(seed)
    weight, bias = (rng.normal(size=40).astype(np.float32) for _ in range(2))
    return Norm("layer", weight, 1e-5, bias=bias)


def _block(seed: int) -> LogicalGraph:
    """A layer of an encoder: 40 features, 2 heads of 24, all tokens see one another."""
    q, k, v = (_linear(48, 40, seed=seed + i) for i in range(3))
    return LogicalGraph(
        (Input("x", 40),),
        (
            Operation("n", _norm(seed), ("x",)),
            Operation("q", q, ("n",)),
            Operation("k", k, ("n",)),
            Operation("v", v, ("n",)),
            Operation("mixed", Attention(2, 2, 24, 24**-0.5, causal=False), ("q", "k", "v")),
            Operation("o", _linear(40, 48, seed=seed), ("mixed",)),
            Operation("y", Binary("add"), ("x", "o")),
            Operation("m", _norm(seed + 1), ("y",)),
            Operation("up", _linear(70, 40, seed=seed), ("m",)),
            Operation("gelu", Unary("gelu"), ("up",)),
            Operation("down", _linear(40, 70, seed=seed), ("gelu",)),
            Operation("z", Binary("add"), ("y", "down")),
        ),
        ("z",),
    )


def encoder(layers: int) -> LogicalGraph:
    return LogicalGraph(
        (Input("x", 30),),
        (
            Operation("embedding", _linear(40, 30), ("x",)),
            Operation("layers", Repeat(tuple(_block(seed) for seed in range(layers))), ("embedding",)),
            Operation("head", _linear(7, 40), ("layers",)),
        ),
        ("head",),
    )


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_an_encoder(tmp_path: Path) -> None:
    """Two layers without a cache: sequences of all lengths, several at once; loaded again; probed. Every pass
    shows what it has made."""
    passes: dict[str, str] = {}
    accelerator = streamgen.compile(
        encoder(2), None, CONFIG, after=lambda name, made: passes.update({name: str(made)})
    )
    assert [*passes] == [*PASSES]
    assert "section, walked 2 times" in passes["schedule"] and "held from phase" in passes["bind"]
    assert "design.v: " in passes["emit"] and all(passes.values())
    assert not isinstance(accelerator, streamgen.LanguageModel)
    compute = exact(encoder(2).quantised(CONFIG.numbers(False)))
    for shape in ((1, 30), (3, 30), (5, 30), (2, 4, 30)):
        x = values(*shape)
        y = accelerator.run(x)
        assert y.shape == (*shape[:-1], 7) and y.tobytes() == accelerator.golden(x).tobytes()
        sequences = x.reshape(-1, *shape[-2:])
        expected = [compute({"x": round_f24(one)})[0]["head"] for one in sequences]
        np.testing.assert_array_equal(y.reshape(-1, 7), np.concatenate(expected))
    with pytest.raises(ValueError, match="a sequence has 6 tokens; the accelerator takes at most 5 "):
        accelerator.run(values(6, 30))
    again = streamgen.load(accelerator.write(tmp_path / "encoder"))
    x = values(5, 30)
    assert again.run(x, probe=True).tobytes() == again.golden(x).tobytes()
    assert again.probed is not None and again.probed.difference is None
    assert str(again.graph) == str(accelerator.graph) and again.graph.sections == accelerator.graph.sections
    again.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_network_either_way() -> None:
    """Spatial and shared give the same bits; more tokens than a pass has are several passes."""
    module, x = Gated().eval(), values(7, 33)
    shared = streamgen.compile(module, torch.zeros(2, 33), CONFIG)
    spatial = streamgen.compile(
        module, torch.zeros(2, 33), CompileConfig(name="spatial", max_tokens=5, multipliers=128, channels=2)
    )
    y = shared.run(x)
    assert y.tobytes() == shared.golden(x).tobytes() == spatial.golden(x).tobytes()


@pytest.mark.parametrize(
    ("budgets", "plan"),
    [
        ({}, (8, 1, 1)),
        ({"multipliers": 1024}, (8, 4, 4)),
        ({"channels": 32, "multipliers": 8192}, (32, 8, 8)),
        ({"channels": 5, "multipliers": 1024}, (4, 8, 8)),
        ({"channels": 32, "multipliers": 96}, (2, 1, 1)),
        ({"channels": 32, "n_lanes": 8, "lanes": 32}, (32, 8, 32)),
        ({"channels": 4, "multipliers": 100_000}, (4, 512, 16)),
    ],
)
def test_what_budgets_allow(budgets: dict[str, int], plan: tuple[int, int, int]) -> None:
    model = encoder(1)
    built = hardware(model, budget_of(CompileConfig(policy="shared", **budgets), model))
    assert (built.columns, built.n_lanes, built.lanes) == plan


def test_what_may_be_held_by_default() -> None:
    """An eighth of block and ultra RAM, more than passes of few tokens need."""
    model, config = encoder(2).quantised(CONFIG.numbers(False)), replace(CONFIG, board="u280")
    assert hardware(model, budget_of(config, model)).hold_bits == config.card.memory_bits // 8 == 42_241_536
    assert not whole(model, CONFIG).spilled
    spilled = choices(whole(model, replace(CONFIG, hold_bits=0)), model)
    assert spilled[-1] == "exponents waits in memory on channel 0"


@pytest.mark.parametrize("budgets", [{"channels": 1}, {"multipliers": 63}])
def test_budgets_without_an_engine(budgets: dict[str, int]) -> None:
    model = encoder(1)
    with pytest.raises(BudgetError, match="a shared engine needs 2 channels and 64 multipliers"):
        hardware(model, budget_of(CompileConfig(policy="shared", **budgets), model))
