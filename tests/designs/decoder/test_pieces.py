"""Decoders whose keys and values come in pieces, as columns make them: first heads before the others."""

from typing import Any

import pytest

from streamgen.compiler.config import CompileConfig
from streamgen.kernels.memory import KvLoadParams, KvStoreParams
from tests.shared.campaigns import sampled
from tests.shared.decoders import check_passes, compiled_model, random_decoder

pytestmark = pytest.mark.slow

SIZES = {"hidden": 64, "head_dim": 8, "wide": 96, "vocabulary": 64, "context": 40, "layers": 3}
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any], set[int], set[int]]] = {
    "as many heads": ({"heads": 8, "kv_heads": 8, "rotated": 0}, {"n_lanes": 8}, {1, 4}, {4}),
    "groups": ({"heads": 8, "kv_heads": 4, "rotated": 0}, {"n_lanes": 4}, {1, 4}, {4}),
    "only values": (
        {"heads": 4, "kv_heads": 4, "rotated": 8},
        {"n_lanes": 4, "hold_bits": 0},
        {1, 4},
        {1, 4},
    ),
}


@pytest.mark.parametrize("name", sampled(MODELS, ["as many heads"]))
def test_logits_are_those_of_golden_and_cycles_those_predicted(name: str) -> None:
    shape, choices, stored, loaded = MODELS[name]
    config = CompileConfig(name="pieces", max_tokens=4, channels=2, lanes=8, **choices)
    model = compiled_model(random_decoder(4, **{**SIZES, **shape}), config)
    built = [node.params for node in model.groups[0].program.graph.nodes]
    assert {one.pieces for one in built if isinstance(one, KvStoreParams)} == stored
    assert {one.pieces for one in built if isinstance(one, KvLoadParams)} == loaded
    check_passes(model, (4, 1, 3, 9, 4))
