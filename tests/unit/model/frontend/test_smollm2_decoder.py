"""SmolLM2-135M-Instruct: the decoder of its GGUF file and of its torch module against eager transformers."""

import time
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from sim.smollm2 import eager_smollm2
from streamgen.model.frontend import default_checkpoint, import_decoder, load_decoder
from streamgen.model.golden_text import vocabulary_of
from streamgen.model.graph.logical import LogicalGraph
from tests.shared.decoders import is_tied, stepper

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers

# The bound. Eager rounds norms and angles to float32, which leaves far less.
BOUND = 1e-5
PROMPT = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411]
STEPS = 4


@pytest.fixture(scope="module")
def model() -> Any:
    return eager_smollm2()


def _greedy(decoder: LogicalGraph, model: Any) -> float:
    """Prefill and decode steps of both; the greatest difference, relative to the largest logit."""
    eager = transformers.DynamicCache()
    step = stepper(decoder)
    ids, worst, texts = list(PROMPT), 0.0, []
    for _ in range(1 + STEPS):
        logits = step(ids)
        with torch.no_grad():
            expected = model(torch.tensor([ids]), past_key_values=eager, use_cache=True).logits[0].numpy()
        worst = max(worst, np.abs(logits - expected).max() / np.abs(expected).max())
        assert np.array_equal(logits.argmax(1), expected.argmax(1))
        ids = [int(logits[-1].argmax())]
        texts += ids
    assert len(set(texts)) > 1
    return worst


@pytest.mark.campaign
@pytest.mark.slow
def test_file_and_module(model: Any, capsys: pytest.CaptureFixture[str]) -> None:
    start = time.monotonic()
    loaded = load_decoder(default_checkpoint())
    load_seconds = time.monotonic() - start
    attention, layers = loaded.op("layers[29].attention"), loaded.by_name["layers"].op.layers
    assert (len(layers), vocabulary_of(loaded), loaded.context, is_tied(loaded)) == (30, 49152, 8192, True)
    assert (attention.heads, attention.kv_heads, attention.head_dim, attention.scale) == (9, 3, 64, 0.125)
    assert loaded.op("logits").grid is None and loaded.op("layers[29].q").grid is not None
    start = time.monotonic()
    imported = import_decoder(model)
    import_seconds = time.monotonic() - start
    model.double()
    worst = {name: _greedy(decoder, model) for name, decoder in (("file", loaded), ("module", imported))}
    with capsys.disabled():
        print(
            f"\n  loaded in {load_seconds:.1f} s, imported in {import_seconds:.1f} s; difference relative to "
            f"the largest logit: {', '.join(f'{name} {value:.1e}' for name, value in worst.items())}"
        )
    assert max(worst.values()) <= BOUND
