"""Models of one's own as hardware: the RTL is the golden model's, and a shape has one design."""

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import streamgen
from streamgen.observe.estimate import Estimate
from tests.shared.own_models import built, others, shaped, style

PROMPT, NEW = [1, 5, 3, 7, 2], 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt_in_one_file", "llama_complex", "windows_and_caps", "cache_buffers"])
def test_rtl_is_golden(name: str) -> None:
    """A prompt in several passes, then steps: logits and text are the golden model's, bit for bit."""
    ids = shaped(name, torch.zeros(6, dtype=torch.int64))
    config = streamgen.CompileConfig(name="own", weights="w8", max_tokens=4)
    model = streamgen.compile(built(name), (ids, *others(name, 6)), config)
    assert isinstance(model, streamgen.LanguageModel)
    assert list(model.generate(PROMPT, NEW)) == list(model.golden.generate(PROMPT, NEW))
    assert np.array_equal(model.logits(PROMPT), model.golden.logits(PROMPT))


def _estimated(model: torch.nn.Module) -> Estimate:
    config = streamgen.CompileConfig(goal="small", multipliers=4096, channels=32, context=1024)
    return streamgen.estimate(model.eval(), config=config)


@pytest.mark.slow
def test_gpt2_medium_is_the_design_of_transformers() -> None:
    """Cycles and resources of GPT-2 Medium's shape are within 1 % of those of transformers' class."""
    one_file = style("gpt_in_one_file")
    config = one_file.Config(block_size=1024, vocab_size=50257, n_layer=24, n_head=16, n_embd=1024)
    with torch.device("meta"):
        own = one_file.GPT(config)
        theirs = GPT2LMHeadModel(GPT2Config(n_embd=1024, n_layer=24, n_head=16))
    mine, given = _estimated(own), _estimated(theirs)
    for a, b in zip(mine.passes, given.passes, strict=True):
        assert a.cycles == pytest.approx(b.cycles, rel=0.01)
    for own_group, their_group in zip(mine.groups, given.groups, strict=True):
        for kind, amount in vars(their_group.resources.total).items():
            assert vars(own_group.resources.total)[kind] == pytest.approx(amount, rel=0.01), kind
