"""Decoders as graphs of kernels: the graph computes what the golden model does, in any passes."""

import numpy as np
import pytest

from streamgen import golden
from streamgen.errors import GraphError
from streamgen.golden_text import GoldenModel
from streamgen.lower import insert_converters, insert_forks, place_constants
from streamgen.lower.decoder import lower_decoder
from streamgen.lower.decoder_weights import DecoderPlan, arrange_weights
from streamgen.quantisation import Numbers
from tests.decoders import tiny_decoder

CONTEXT = 16
DECODER = tiny_decoder()
IDS = np.random.default_rng(1).integers(0, 64, CONTEXT)


def _plan(**changes: int) -> DecoderPlan:
    return DecoderPlan(
        **{"max_tokens": 4, "context": CONTEXT, "columns": 2, "n_lanes": 2, "lanes": 2, **changes}
    )


@pytest.mark.parametrize(
    ("plan", "choices"),
    [
        (_plan(), {"weights": "w4", "by_layer": {"logits": "w8"}}),
        (_plan(columns=4, lanes=4, kv_channels=4), {"weights": "w8", "by_layer": {"logits": "w8"}}),
        (_plan(n_lanes=1, lanes=8, kv_channels=2), {"weights": "w4", "p_bits": 8}),
    ],
    ids=["w4", "w8", "w4 head"],
)
@pytest.mark.parametrize("passes", [(3, 4, 1, 1, 2, 1, 4), (1, 1, 4, 4, 4, 2)])
def test_any_passes_give_the_logits_of_the_golden_model(plan, choices, passes):
    model = DECODER.quantised(Numbers(**choices))
    weights = arrange_weights(model, plan)
    expected = GoldenModel(model).logits(IDS)
    state: dict[str, np.ndarray] = {}
    position = 0
    for tokens in passes:
        unfinished = lower_decoder(weights, plan, 0.6927, tokens, position)
        graph = place_constants(insert_converters(insert_forks(unfinished)))
        places = np.arange(position, position + tokens, dtype=np.uint32)
        given = {"ids": IDS[places].astype(np.uint32), "positions": places}
        outputs, _ = golden.run(graph, given, state)
        position += tokens
        np.testing.assert_array_equal(outputs["logits"][0], expected[position - 1])
        assert outputs["best_indices"] == expected[position - 1].argmax()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": 3}, "columns of a decoder must be even, not 3"),
        (
            {"columns": 4, "n_lanes": 6},
            "layers[0].q has 64 rows; a multiple of columns * n_lanes = 24 is needed",
        ),
    ],
)
def test_rows_that_do_not_tile(changes, message):
    with pytest.raises(GraphError) as raised:
        arrange_weights(DECODER.quantised(Numbers()), _plan(**changes))
    assert str(raised.value) == message
