"""Attention without a cache that takes several positions per cycle: the same bits in fewer cycles."""

from dataclasses import replace

import numpy as np
import pytest

import streamgen
from tests.designs.test_several_extents import CONFIG as FRAMED
from tests.designs.test_shared import encoder
from tests.designs.test_transformers_encoders import CONFIG as OF_TEXTS
from tests.shared.framed_modules import framed_module
from tests.shared.transformers_encoders import encoded, small

LAYERS, HEADS = 2, 2  # of `encoder(2)`
GRAPH = streamgen.CompileConfig(name="lanes", max_tokens=21, channels=2, multipliers=512)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("lanes", [2, 8, 32])
def test_grouped_heads(lanes: int) -> None:
    """Sequences of several lengths: whole tiles, others, less than a tile; several sequences."""
    one = streamgen.compile(encoder(2), None, GRAPH)
    several = streamgen.compile(encoder(2), None, replace(GRAPH, attention_lanes=lanes))
    rng = np.random.default_rng(lanes)
    for shape in ((2, 7, 30), (1, 30), (16, 30), (21, 30)):
        x = rng.normal(size=shape).astype(np.float32)
        golden, found = one.golden(x), several.run(x)
        assert found.tobytes() == golden.tobytes() == several.golden(x).tobytes()
    cycles = several.report().cycles
    assert cycles == pytest.approx(several.predict(21), rel=0.05)
    skipped = LAYERS * HEADS * 21 * (21 - -(-21 // lanes))  # cycles of attention that are no longer needed
    assert one.predict(21) - several.predict(21) > 0.75 * skipped


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_windows_of_both_kinds() -> None:
    accelerator = streamgen.compile(small("ModernBert"), None, replace(OF_TEXTS, attention_lanes=4))
    for tokens in (2, 7, 12):
        ids = encoded(tokens)["input_ids"]
        golden, found = (make(ids)["last_hidden_state"] for make in (accelerator.golden, accelerator.run))
        assert found.tobytes() == golden.tobytes()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_frames() -> None:
    """Masks of places."""
    module, example = framed_module("cross, longer queries")
    accelerator = streamgen.compile(module, example, replace(FRAMED, attention_lanes=8))
    given = tuple(x.numpy() for x in example)
    golden, found = accelerator.golden(*given), accelerator.run(*given)
    assert np.asarray(golden).tobytes() == np.asarray(found).tobytes()


def test_biases_take_one_position() -> None:
    module, example = framed_module("relative places")
    with pytest.raises(ValueError, match=r"attention_lanes is 8, but .* has no attention that takes several"):
        streamgen.compile(module, example, replace(FRAMED, attention_lanes=8))
