"""Planned designs of encoders on their simulated Verilog: bits equal golden, cycles are those of the plan."""

import pytest
import torch
import transformers

import streamgen
from streamgen.compiler.config import CompileConfig

NEAR = 0.05  # share by which simulated cycles may differ from predicted ones
MINILM = {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}
"""The sizes of a layer of all-MiniLM-L6-v2."""


def _require_right(most: int, texts: tuple[int, ...], lanes: int, **fields: int) -> None:
    """Compile an encoder of two layers for texts of up to `most` tokens; run texts of some lengths. lanes:
    positions that attention takes per cycle in the plan."""
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=400, num_hidden_layers=2, **fields)
    model = transformers.BertModel(config).eval()
    wish = CompileConfig(name="planned", weights="w8", max_tokens=most)
    accelerator = streamgen.compile(model, None, wish)
    assert accelerator.plan is not None and accelerator.plan.config["attention_lanes"] == lanes
    for tokens in texts:
        ids = torch.randint(3, 400, (1, tokens), generator=torch.Generator().manual_seed(tokens)).numpy()
        golden = accelerator.golden(ids)["last_hidden_state"]
        found = accelerator.run(ids, timeout=36_000)["last_hidden_state"]
        assert found.tobytes() == golden.tobytes()
        cycles = accelerator.report().cycles
        assert cycles == pytest.approx(accelerator.predict(tokens), rel=NEAR)


@pytest.mark.campaign
@pytest.mark.timeout(7200)
def test_minilm_on_a_whole_card() -> None:
    """No option but the most tokens: 32 channels and as many rows as fit."""
    _require_right(128, (17, 128), 32, **MINILM)
