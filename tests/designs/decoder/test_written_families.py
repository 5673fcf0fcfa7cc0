"""Families of language models on their emitted Verilog: golden's bits for prompts, steps and texts."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import streamgen
from streamgen.api.language_model import LanguageModel
from tests.shared.decoders import TINY
from tests.unit.model.frontend.families import FAMILIES, PARTS, VOCABULARY, family, partly_rotating

# schedule/test_derive.py has the same bits without hardware, in a few seconds
pytestmark = [pytest.mark.slow, pytest.mark.campaign, pytest.mark.long_runs]


DEPTHS = {"GPT2": (1, 2, 6), "Gemma2": (1, 2, 6), "Gemma3": (1, 2, 6, 8), "SmolLM3": (1, 4, 6)}
"""Layers; of the last three they take turns, and may end within one."""
CASES = [(name, layers) for name in FAMILIES for layers in DEPTHS.get(name, (1, 2))]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("name", "layers"), CASES)
def test_on_verilog(name: str, layers: int) -> None:
    _same_bits(name, family(name, **{"n_layer" if name == "GPT2" else "num_hidden_layers": layers}))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", PARTS)
def test_parts_of_heads_rotate_on_verilog(name: str) -> None:
    _same_bits(name, partly_rotating(name))


def _same_bits(name: str, model: Any) -> None:
    config = replace(TINY, name=name.lower(), context=32)
    accelerator = streamgen.compile(model, config=config)
    assert isinstance(accelerator, LanguageModel)
    ids = np.random.default_rng(2).integers(0, VOCABULARY, 14)
    np.testing.assert_array_equal(accelerator.logits(ids), accelerator.golden.logits(ids))
    prompt = [int(i) for i in ids[:6]]
    assert list(accelerator.generate(prompt, 5)) == list(accelerator.golden.generate(prompt, 5))
    accelerator.close()
