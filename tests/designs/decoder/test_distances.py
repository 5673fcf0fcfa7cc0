"""Language models whose scores have a bias for each head and distance, such as ALiBi."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streamgen.base.errors import GraphError
from streamgen.compiler.config import CompileConfig
from streamgen.model.graph.interpret import reference
from streamgen.model.graph.logical import LogicalGraph, Operation, Repeat
from streamgen.model.graph.run import Run
from streamgen.model.operations import Attention, Constant
from tests.shared.campaigns import sampled
from tests.shared.decoders import check_passes, compiled_model, random_decoder

SIZES = {"hidden": 64, "head_dim": 16, "rotated": 0, "wide": 96, "vocabulary": 64, "context": 40, "layers": 3}
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "two positions a cycle": ({}, {"channels": 4, "n_lanes": 2, "lanes": 2}, 40),
    "shared keys": ({"heads": 6, "kv_heads": 2, "hidden": 96}, {"channels": 2, "lanes": 2}, 64),
    "own columns": ({"layers": 1}, {"channels": 2, "policy": "spatial"}, 40),
    "eight positions a cycle": ({}, {"channels": 8, "attention_lanes": 8, "lanes": 8}, 47),
}


def biased_decoder(seed: int, distances: int, **sizes: Any) -> LogicalGraph:
    """`random_decoder` with a table of numbers of distances in each layer."""
    graph, rng = random_decoder(seed, **{**SIZES, **sizes}), np.random.default_rng(seed + 1)

    def biased(layer: LogicalGraph) -> LogicalGraph:
        operations: list[Operation] = []
        for operation in layer.operations:
            if isinstance(operation.op, Attention):
                table = rng.normal(size=operation.op.heads * distances).astype(np.float32)
                operations.append(Operation("distances", Constant(table), ()))
                op = replace(operation.op, biased=True, distances=distances)
                operation = replace(operation, op=op, inputs=(*operation.inputs, "distances"))
            operations.append(operation)
        return replace(layer, operations=tuple(operations))

    return replace(
        graph,
        operations=tuple(
            replace(o, op=Repeat(tuple(map(biased, o.op.layers)))) if isinstance(o.op, Repeat) else o
            for o in graph.operations
        ),
    )


def test_the_bias_is_a_number_of_the_distance() -> None:
    """Against scores of a definition of their own."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(6, 8)) for _ in range(3))
    table = rng.normal(size=(2, 9))
    op = Attention(2, 2, 4, 0.5, biased=True, distances=9)
    scores = np.einsum("thd,shd->hts", q.reshape(6, 2, 4), k.reshape(6, 2, 4)) * 0.5
    for t in range(6):
        for p in range(6):
            scores[:, t, p] += table[:, 8 - (t - p)] if p <= t else -np.inf
    shares = np.exp(scores - scores.max(axis=2, keepdims=True))
    shares /= shares.sum(axis=2, keepdims=True)
    wanted = np.einsum("hts,shd->thd", shares, v.reshape(6, 2, 4)).reshape(6, 8)
    found = op.reference(Run(6), q, k, v, table.reshape(1, -1))
    np.testing.assert_allclose(found, wanted, atol=1e-12)
    last = op.reference(Run(1, position=5), q[5:], k, v, table.reshape(1, -1))
    np.testing.assert_allclose(last[0], wanted[5], atol=1e-12)


def test_golden_follows_the_reference() -> None:
    graph = biased_decoder(2, 40)
    model = compiled_model(graph, CompileConfig(name="biased", max_tokens=4, channels=2, weights="w8"))
    ids = np.random.default_rng(0).integers(0, 64, 12)
    wanted = reference(graph)({"ids": ids}, every_row=True)[0]["logits"]
    assert np.abs(model.golden.logits(ids) - wanted).max() < 0.06 * np.abs(wanted).max()


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(MODELS, ["two positions a cycle", "own columns"]))
def test_logits_are_those_of_golden_and_cycles_those_predicted(name: str) -> None:
    sizes, choices, distances = MODELS[name]
    config = CompileConfig(name="biased", max_tokens=4, weights="w8", **choices)
    check_passes(compiled_model(biased_decoder(3, distances, **sizes), config), (4, 1, 3, 9, 4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"causal": False}, "has a bias of distances; it must be causal, over a whole cache"),
        ({"window": 3}, "has a bias of distances; it must be causal, over a whole cache"),
        ({"distances": 7}, "the bias of 4 heads has 7 distances each, not every x 160"),
    ],
)
def test_other_biases_over_a_cache_are_refused(change: dict[str, Any], message: str) -> None:
    layer = biased_decoder(2, 40).by_name["layers"].op.layers[0]  # type: ignore[attr-defined]
    changed = tuple(
        replace(o, op=replace(o.op, **change)) if isinstance(o.op, Attention) else o for o in layer.operations
    )
    with pytest.raises(GraphError, match=message):
        replace(layer, operations=changed)


def test_a_table_with_too_few_distances() -> None:
    config = CompileConfig(name="biased", max_tokens=4, channels=2, weights="w8")
    with pytest.raises(GraphError, match=r"^a bias has numbers for 39 distances; 40 are needed$"):
        compiled_model(biased_decoder(2, 39), config)
