"""A decoder without rotation, whose columns send whole heads in a tile: queries are quantised as they come,
rows leave converters while the last tile comes in, and the quantiser of operands is as wide as the columns.
"""

import numpy as np
import pytest

from streamgen.compiler.config import CompileConfig
from streamgen.converters import InPlaceParams
from streamgen.kernels.attention.quantise_rows import QuantiseRowsParams
from streamgen.kernels.matmul.quantise import QuantiseParams
from tests.shared.decoders import compiled_model, random_decoder

pytestmark = pytest.mark.slow

SIZES = {"hidden": 64, "heads": 4, "kv_heads": 4, "head_dim": 16, "wide": 96, "rotated": 0, "norm": "layer"}
CONFIG = CompileConfig(name="tiled", max_tokens=8, context=64, channels=8, n_lanes=2, lanes=2)


@pytest.mark.campaign
def test_logits_are_those_of_golden_and_cycles_those_promised() -> None:
    graph = random_decoder(3, **SIZES, bias=True, function="gelu_tanh", vocabulary=64)
    model = compiled_model(graph, CONFIG)
    nodes = {node.name: node for node in model.groups[0].program.graph.nodes}
    queries = nodes["quantise_attention"]
    assert isinstance(queries.params, QuantiseRowsParams)
    assert [bounds["tile"] for bounds in queries.bounds if bounds is not None] == [16]
    operands = nodes["quantise"].params
    assert isinstance(operands, QuantiseParams) and operands.lanes == 8
    converters = {name: node.params for name, node in nodes.items() if isinstance(node.params, InPlaceParams)}
    folded = {name.removeprefix("convert_") for name, params in converters.items() if params.fold is not None}
    assert folded == {"route_attention_sum_i", "select_quantise_i_1", "select_quantise_i_2"}
    ids = np.random.default_rng(0).integers(0, 64, 34)
    expected, session, at = model.golden.logits(ids), model.session(), 0
    try:
        for tokens in (8, 1, 5, 8, 3, 1, 8):
            np.testing.assert_array_equal(
                session.last_logits(ids[at : at + tokens]), expected[at + tokens - 1]
            )
            at += tokens
        for run in model.device().passes:
            assert run.cycles == pytest.approx(model.predict(run.tokens, run.position, run.variant), rel=0.01)
    finally:
        model.close()
