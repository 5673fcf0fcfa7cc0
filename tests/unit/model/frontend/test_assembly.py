"""model.frontend.assembly: language models out of their parts, held to the oracle, and bad parts."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streamgen.base.errors import GraphError
from streamgen.gateware.functions import FUNCTIONS
from streamgen.model.frontend.assembly import Rotation
from streamgen.model.operations import Linear, Norm
from tests.shared.decoders import assembled, is_tied, logits_of, random_parts, stepper

IDS = np.random.default_rng(2).integers(0, 70, 40)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"interleaved": True, "rotated": 16, "kv_heads": 1},
        {"rotated": 0, "bias": True, "norm": "layer", "function": "gelu_tanh"},
        {"plus_one": True, "function": "gelu", "windows": (7, None, 1), "layers": 3},
        {"kv_heads": 4, "head_dim": 20, "rotated": 12, "function": "relu", "scale": np.float64(0.3)},
    ],
)
def test_reference_is_the_equations(changes: dict[str, Any]) -> None:
    """float64 to its rounding; float32, whose own is 2^-24, to 10^-5 of the greatest logit."""
    parts = random_parts(**changes)
    graph, expected = assembled(parts), logits_of(parts, IDS)
    greatest = np.abs(expected).max()
    for dtype, bound in ((np.float64, 1e-12), (np.float32, 1e-5)):
        step = stepper(graph, dtype)
        found = np.concatenate([step(part) for part in np.split(IDS, [9, 10, 30])])
        assert found.dtype == dtype
        assert np.abs(found - expected).max() <= bound * greatest


def test_tied() -> None:
    parts = random_parts()
    assert not is_tied(assembled(parts))
    assert is_tied(assembled(parts | {"head": Linear(parts["embedding"])}))


def _attention(parts: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The second layer with another attention."""
    first, second = parts["layers"]
    return parts | {"layers": [first, replace(second, attention=replace(second.attention, **changes))]}


def _block(parts: dict[str, Any], **changes: Any) -> dict[str, Any]:
    first, second = parts["layers"]
    return parts | {"layers": [first, replace(second, feed_forward=replace(second.feed_forward, **changes))]}


def _weights(N: int, K: int) -> Linear:
    return Linear(np.ones((N, K), np.float32))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p | {"layers": []}, "a repetition needs at least one layer"),
        (lambda p: p | {"context": 0}, "the context is 0 positions; at least 1 is needed"),
        (
            lambda p: p | {"embedding": p["embedding"][0]},
            "the table of Embedding has shape [96]; [rows, features] is needed",
        ),
        (
            lambda p: p | {"embedding": p["embedding"][:5]},
            "logits has 70 rows; 5 are needed, as many as ids",
        ),
        (
            lambda p: p | {"norm": Norm("rms", np.ones(4, np.float32), 1e-5)},
            "'norm': a norm of 4 features is given 96",
        ),
        (
            lambda p: _attention(p, q=_weights(64, 96)),
            "layers[1].q has 64 rows; 128 are needed, 4 heads of 32",
        ),
        (
            lambda p: _attention(p, v=_weights(128, 96)),
            "layers[1].v has 128 rows; 64 are needed, 2 heads of 32",
        ),
        (
            lambda p: _attention(p, o=_weights(95, 128)),
            "layers[1].o has 95 rows; 96 are needed, the features of the residual",
        ),
        (
            lambda p: _attention(p, k=_weights(64, 90)),
            "layers[1].k: a Linear of weight [64, 90] takes 90 features; it is given 96",
        ),
        (
            lambda p: _attention(p, o=_weights(96, 64)),
            "layers[1].o: a Linear of weight [96, 64] takes 64 features; it is given 128",
        ),
        (
            lambda p: _attention(p, kv_heads=3, k=_weights(96, 96), v=_weights(96, 96)),
            "layers[1]: 4 query heads cannot share 3 key heads evenly",
        ),
        (
            lambda p: _attention(p, rotation=Rotation(np.ones(20))),
            "layers[1]: 40 dimensions rotate; a head has 32",
        ),
        (
            lambda p: _attention(p, rotation=Rotation(np.array([1.0, np.nan]))),
            "layers[1]: rotary frequencies must all be finite, one or more",
        ),
        (
            lambda p: _block(p, up=_weights(150, 96)),
            "layers[1].up has 150 rows; 160 are needed, as many as gate has",
        ),
        (
            lambda p: _block(p, down=_weights(96, 96)),
            "layers[1].down: a Linear of weight [96, 96] takes 96 features; it is given 160",
        ),
        (
            lambda p: _block(p, function="cube"),
            f"layers[1]: there is no unary function 'cube'; {', '.join(FUNCTIONS)}",
        ),
    ],
)
def test_parts_that_do_not_fit(change: Any, message: str) -> None:
    with pytest.raises(GraphError) as caught:
        assembled(change(random_parts()))
    assert str(caught.value) == message
