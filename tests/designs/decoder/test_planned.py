"""A planned design on its simulated Verilog: bits equal golden, and cycles are those of its plan."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import streamgen
from streamgen.artifact.roles import BEST
from streamgen.compiler.config import CompileConfig

NEAR = 0.05  # share by which simulated cycles may differ from predicted ones


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
    ids = np.random.default_rng(0).integers(0, 1000, 24).tolist()
    session, done = accelerator.session(), 0
    for tokens in (11, 1, 1, 8, 1):
        found = session.last_logits(ids[done : done + tokens])
        done += tokens
        assert np.array_equal(found, accelerator.golden.logits(ids[:done])[-1])
    for run in accelerator.device().passes:
        predicted = accelerator.predict(run.tokens, run.position, run.variant)
        assert abs(predicted / run.cycles - 1) <= NEAR
    estimate = streamgen.estimate(model, None, wish, positions=[20], prompts=[16])
    assert estimate.plan.factors == accelerator.plan.factors
    assert estimate.passes[0].cycles == accelerator.predict(1, 20, BEST)
