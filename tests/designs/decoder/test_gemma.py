"""Gemma 3 270M with its own weights, matmuls in the formats of the checkpoint, writes text on its Verilog."""

from fractions import Fraction

import pytest

import streamgen
from benchmarks.quality import gemma
from streamgen.api.language_model import LanguageModel
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.explore.bound import pass_cycles
from streamgen.model.frontend import load_decoder
from streamgen.model.operations import Linear
from streamgen.text.tokenizer_files import load_tokenizer

pytestmark = [pytest.mark.campaign, pytest.mark.long_runs]


@pytest.mark.timeout(7200)
def test_it_writes_text() -> None:
    """Greedy text of the Verilog is golden's; 4 and 8 bits are mixed on one engine."""
    config = CompileConfig(name="gemma", max_tokens=8, context=64, channels=8, multipliers=1024)
    graph = load_decoder(gemma(), config.context)
    quantised = graph.quantised(config.numbers(True))
    matmuls = [one.op.integers for _, one in quantised.walk() if isinstance(one.op, Linear)]
    assert {integers.format for integers in matmuls} == {"w4", "w8"}
    model = streamgen.compile(graph, config=config, tokenizer=load_tokenizer(gemma()))
    assert isinstance(model, LanguageModel)
    assert model.tokenizer is not None
    prompt = model.tokenizer.encode("The capital of France is")
    found = [int(i) for i in model.generate(prompt, 3)]
    assert found == list(model.golden.generate(prompt, 3))
    print(model.tokenizer.decode(found))
    step = model.device().passes[-1]
    memory = model.manifest.memory
    bound = pass_cycles(model.groups[0].program.at(1, step.position), Fraction(memory.beats, memory.cycles))
    print(f"{step.cycles:,} cycles a token, {bound / step.cycles:.1%} of the memory bound")
    assert step.cycles <= 1.25 * bound
    model.close()
