"""Predicted cycles of language models against simulated ones: prompts and steps of texts."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streamgen.api.language_model import LanguageModel
from streamgen.artifact.roles import BEST, KEEP
from tests.shared.campaigns import sampled
from tests.shared.decoders import TINY, compiled_model, random_decoder, tiny_accelerator

SHARE = 0.05  # of the simulated cycles

MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tiny": ({}, {}),
    "four channels, three layers": ({"layers": 3}, {"channels": 4}),
    "large rows, wide lanes": ({"hidden": 128, "wide": 256}, {"n_lanes": 4, "lanes": 4, "max_tokens": 8}),
    "single lanes": ({}, {"n_lanes": 1, "lanes": 1}),
    "a head of keys for each of queries": ({"heads": 2, "kv_heads": 2}, {"max_tokens": 3}),
    "one head of keys for all": ({"kv_heads": 1}, {"lanes": 4}),
    "five layers, a long context": ({"layers": 5, "context": 256}, {"context": 200, "max_tokens": 16}),
    "a large vocabulary": ({"vocabulary": 1000}, {"channels": 4, "n_lanes": 4}),
    "large heads, six channels": (
        {"hidden": 96, "head_dim": 32, "rotated": 32, "wide": 160},
        {"channels": 6},
    ),
    "eight bits, little prefetch": ({}, {"weights": "w8", "prefetch_beats": 64}),
}
SIZES = {"hidden": 64, "head_dim": 16, "rotated": 16, "wide": 96, "vocabulary": 64, "context": 128}


def _accelerator(name: str) -> LanguageModel:
    if name == "tiny":
        return tiny_accelerator()
    shape, config = MODELS[name]
    return compiled_model(random_decoder(**{**SIZES, **shape}), replace(TINY, **config))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", sampled(MODELS, ("tiny",)))
def test_prompts_and_steps(name: str) -> None:
    """A prompt of several passes, the last one not full; steps with and without logits; more of a prompt."""
    model = _accelerator(name)
    most = model.config.size("max_tokens")
    ids = np.random.default_rng(1).integers(0, 64, 40)
    session, before = model.session(), len(model.device().passes)
    for _ in session.generate(ids[: 2 * most - 1].tolist(), 3):
        pass
    for count in (1, most, 1):
        session.last_logits(ids[:count])
    found = model.device().passes[before:]
    assert {one.tokens for one in found} >= {1, most - 1, most}
    assert {one.variant for one in found} == {None, BEST, KEEP}
    for one in found:
        predicted = model.predict(one.tokens, one.position, one.variant)
        what = (one.tokens, one.position, one.variant, predicted, one.cycles)
        assert abs(predicted - one.cycles) <= SHARE * one.cycles, what
    assert model.predict(2 * most - 1, 0, BEST) == sum(
        model.predict(one.tokens, one.position, one.variant) for one in found[:2]
    )
    model.close()


@pytest.mark.slow
def test_passes_that_there_are_not() -> None:
    model = tiny_accelerator()
    for arguments, message in (
        ((0,), "tokens is 0; at least 1 is needed"),
        ((4, 69), "position is 69; 0 to 68 are allowed for 4 token tiles"),
        ((1, 0, "other"), "variant is 'other'; None, 'best' and 'keep' are allowed"),
    ):
        with pytest.raises(ValueError) as caught:
            model.predict(*arguments)
        assert str(caught.value) == message
