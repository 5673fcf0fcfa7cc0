"""Decoders whose norms and additions take 32 elements a cycle, two beats of memory; rows of heads take 16."""

from typing import Any

import pytest

from streamgen.compiler.config import CompileConfig
from streamgen.kernels.attention.quantise_rows import QuantiseRowsParams
from streamgen.kernels.attention.rope import RopeParams
from streamgen.kernels.norm.norm import NormParams
from tests.shared.campaigns import sampled
from tests.shared.decoders import check_passes, compiled_model, random_decoder

pytestmark = pytest.mark.slow

SIZES = {"hidden": 80, "heads": 2, "head_dim": 32, "wide": 96, "vocabulary": 64, "context": 40}
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gpt2": (
        {"kv_heads": 2, "rotated": 0, "norm": "layer", "bias": True, "function": "gelu_tanh"},
        {"hold_bits": 0},
    ),
    "llama": ({"kv_heads": 1, "head_dim": 64, "rotated": 64}, {"formats": {"embedding": "w8"}}),
}


@pytest.mark.parametrize("name", sampled(MODELS, ["gpt2"]))
def test_logits_are_those_of_golden_and_cycles_those_predicted(name: str) -> None:
    shape, choices = MODELS[name]
    config = CompileConfig(name=name, max_tokens=4, channels=2, n_lanes=2, lanes=32, **choices)
    model = compiled_model(random_decoder(4, **{**SIZES, **shape}), config)
    built = [node.params for node in model.groups[0].program.graph.nodes]
    assert {one.lanes for one in built if isinstance(one, NormParams)} == {32}
    assert {one.lanes for one in built if isinstance(one, QuantiseRowsParams | RopeParams)} == {16}
    check_passes(model, (4, 1, 3, 4))
