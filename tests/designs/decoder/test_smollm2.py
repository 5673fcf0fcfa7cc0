"""Two layers of SmolLM2-135M-Instruct with their own weights, and the whole model, on their Verilog."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from streamgen.api.language_model import LanguageModel
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.explore.bound import pass_cycles
from streamgen.model.frontend import default_checkpoint, load_decoder
from streamgen.model.graph.logical import LogicalGraph, Repeat
from streamgen.model.operations import Embedding, Linear
from tests.shared.decoders import compiled_model

PROMPT = np.array([504, 3426, 314, 253, 1507, 1248, 282, 5420, 913, 338, 7725, 768, 282, 260])


def same_as_golden(model: LanguageModel, prompt: np.ndarray, count: int) -> None:
    """Logits of the prompt and of so many greedy tokens, bit for bit."""
    session, golden, ids = model.session(), model.golden.session(), prompt
    for step in range(count):
        expected = golden.last_logits(ids)
        np.testing.assert_array_equal(session.last_logits(ids), expected, f"step {step}")
        ids = np.array([expected.argmax()])


def two_layers() -> LogicalGraph:
    """The first two layers; of the vocabulary the ids below 8,192."""
    decoder = load_decoder(default_checkpoint())
    few = decoder.op("embedding").table[:8192].copy()
    ops = {
        "embedding": Embedding(few),
        "layers": Repeat(decoder.by_name["layers"].op.layers[:2]),
        "logits": Linear(few),
    }
    operations = tuple(replace(o, op=ops.get(o.name, o.op)) for o in decoder.operations)
    return replace(decoder, operations=operations)


@pytest.mark.long_runs
@pytest.mark.campaign  # test_decoder.py has two layers of a smaller model, `make demo` all of this one
@pytest.mark.timeout(900)
def test_two_layers() -> None:
    config = CompileConfig(
        name="two_layers", goal="small", max_tokens=8, context=128, channels=4, multipliers=512
    )
    model = compiled_model(two_layers(), config)
    same_as_golden(model, PROMPT, 4)
    step = model.device().passes[-1]
    memory = model.manifest.memory
    bound = pass_cycles(model.groups[0].program.at(1, step.position), Fraction(memory.beats, memory.cycles))
    assert step.cycles <= 1.25 * bound
    model.close()
