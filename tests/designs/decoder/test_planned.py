"""Planned designs on their simulated Verilog: bits equal golden, and cycles are those of the plan."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import streamgen
from benchmarks.u55c import config_json
from streamgen.artifact.roles import BEST
from streamgen.compiler.config import CompileConfig
from streamgen.model.frontend import default_checkpoint

NEAR = 0.05  # share by which simulated cycles may differ from predicted ones


def _require_right(accelerator: Any, words: int, passes: Sequence[int]) -> None:
    """Run passes of so many tokens, and compare bits with golden and cycles with the prediction."""
    ids = np.random.default_rng(0).integers(0, words, sum(passes)).tolist()
    session, done = accelerator.session(), 0
    for tokens in passes:
        found = session.last_logits(ids[done : done + tokens])
        done += tokens
        assert np.array_equal(found, accelerator.golden.logits(ids[:done])[-1])
    for run in accelerator.device().passes:
        predicted = accelerator.predict(run.tokens, run.position, run.variant)
        assert abs(predicted / run.cycles - 1) <= NEAR


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("goal", ["conversation", "decode"])
def test_bits_and_cycles(goal: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=256, intermediate_size=704, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=1000, max_position_embeddings=512,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    wish = CompileConfig(name="planned", goal=goal, channels=4, weights="w8", max_tokens=8)
    accelerator = streamgen.compile(model, None, wish)
    assert accelerator.plan is not None and accelerator.plan.goal == goal
    _require_right(accelerator, 1000, (11, 1, 1, 8, 1))
    estimate = streamgen.estimate(model, None, wish, positions=[20], prompts=[16])
    assert estimate.plan.factors == accelerator.plan.factors
    assert estimate.passes[0].cycles == accelerator.predict(1, 20, BEST)


@pytest.mark.campaign
@pytest.mark.parametrize("name", ["gpt2-medium", "qwen2.5-0.5b", "gemma-3-1b"])
def test_published_shapes_on_a_whole_card(name: str) -> None:
    """Two layers of a shape, with no option but the context: 32 channels and as many rows as fit."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(**config_json(name, 2))
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    accelerator = streamgen.compile(model, None, CompileConfig(name="planned", context=1024))
    assert accelerator.plan is not None and accelerator.plan.config["channels"] == 32
    _require_right(accelerator, config.vocab_size, (16, 1, 7, 1))


@pytest.mark.campaign
def test_smollm2_on_a_whole_card() -> None:
    """All layers of SmolLM2 with its weights, and no option."""
    accelerator = streamgen.compile(default_checkpoint(), None, CompileConfig(name="smollm2"))
    assert accelerator.plan is not None and accelerator.plan.goal == "conversation"
    _require_right(accelerator, 49152, (16, 1, 7, 1))
