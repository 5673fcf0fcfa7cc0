"""Planned designs of encoders on their simulated Verilog: bits equal golden, cycles are those of the plan."""

import pytest
import torch
import transformers

import streamgen
from streamgen.compiler.config import CompileConfig

NEAR = 0.05  # share by which simulated cycles may differ from predicted ones
MINILM = {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}
"""The sizes of a layer of all-MiniLM-L6-v2."""


@pytest.mark.campaign
@pytest.mark.timeout(7200)
def test_minilm_on_a_whole_card() -> None:
    """Two layers, with no option but the most tokens: 32 channels and as many rows as fit."""
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=400, num_hidden_layers=2, **MINILM)
    model = transformers.BertModel(config).eval()
    wish = CompileConfig(name="planned", weights="w8", max_tokens=128)
    accelerator = streamgen.compile(model, None, wish)
    assert accelerator.plan is not None and accelerator.plan.config["attention_lanes"] == 32
    for tokens in (17, 128):
        ids = torch.randint(3, 400, (1, tokens), generator=torch.Generator().manual_seed(tokens)).numpy()
        golden = accelerator.golden(ids)["last_hidden_state"]
        found = accelerator.run(ids, timeout=36_000)["last_hidden_state"]
        assert found.tobytes() == golden.tobytes()
        cycles = accelerator.report().cycles
        assert cycles == pytest.approx(accelerator.predict(tokens), rel=NEAR)
