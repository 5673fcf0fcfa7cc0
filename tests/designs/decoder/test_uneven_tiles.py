"""Decoders whose matmuls end in half a tile: columns of 8 rows read tokens of one beat there, not of two."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamgen.compiler.config import CompileConfig
from streamgen.kernels.matmul.weights import UnevenWeightsParams
from streamgen.kernels.moves.segments import SegmentsParams
from tests.shared.campaigns import sampled
from tests.shared.decoders import check_passes, compiled_model, opened_model, random_decoder

pytestmark = pytest.mark.slow

SIZES = {"hidden": 80, "heads": 3, "kv_heads": 1, "head_dim": 24, "wide": 128, "context": 40}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"rotated": 24, "vocabulary": 103},
    "gpt2": {
        "kv_heads": 3,
        "rotated": 0,
        "norm": "layer",
        "bias": True,
        "function": "gelu_tanh",
        "vocabulary": 64,
    },
}


@pytest.mark.parametrize("name", sampled(MODELS, ["llama"]))
def test_logits_are_those_of_golden_and_cycles_those_predicted(name: str, tmp_path: Path) -> None:
    config = CompileConfig(name=name, max_tokens=4, channels=2, n_lanes=8, lanes=2)
    model = compiled_model(random_decoder(5, **{**SIZES, **MODELS[name]}), config)
    built = [node for node in model.groups[0].program.graph.nodes]
    feeds = [node for node in built if isinstance(node.params, UnevenWeightsParams)]
    assert len(feeds) == 2
    layouts = [feeds[0].params.layout(bounds) for bounds in feeds[0].bounds if bounds is not None]
    assert {1, None} == {layout.last_beats for layout in layouts}
    parted = [bounds for n in built if isinstance(n.params, SegmentsParams) for bounds in n.bounds if bounds]
    assert all(bounds["each"] for bounds in parted)
    ids = np.arange(9)
    expected = model.golden.logits(ids)
    read = opened_model(model.write(tmp_path / name))
    np.testing.assert_array_equal(read.golden.logits(ids), expected)
    check_passes(model, (4, 1, 3, 4, 1))
