"""Model families of transformers: imported by structure, equal to eager; every feature matters."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from streamgen.model.frontend import import_decoder
from streamgen.model.graph.logical import LogicalGraph, Operator
from streamgen.model.operations import (
    Attention,
    Binary,
    Identity,
    Linear,
    Norm,
    PositionRows,
    Rotary,
    Scalar,
    Unary,
)
from tests.shared.decoders import stepper
from tests.unit.model.frontend.families import (
    CONTEXT,
    FAMILIES,
    PARTS,
    VOCABULARY,
    family,
    partly_rotating,
    stepper_of,
)

PROMPT, STEPS = 13, 8
CHIEF = ("GPT2", "Qwen3", "Gemma2")  # which have, together, every feature
NAMES = [name if name in CHIEF else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]
BODY = {"Gemma3": 6, "SmolLM3": 4, "Gemma2": 2}  # layers that differ
IDS = np.random.default_rng(1).integers(0, VOCABULARY, PROMPT + STEPS)


@cache
def graph_of(name: str) -> LogicalGraph:
    """The family's graph; weights are its model's."""
    return import_decoder(family(name))


def _logits(graph: LogicalGraph) -> np.ndarray:
    """Behind every token of a prompt and the steps after it, in float64."""
    step = stepper(graph)
    return np.concatenate([step(IDS[:PROMPT]), *(step(IDS[i : i + 1]) for i in range(PROMPT, len(IDS)))])


@pytest.mark.parametrize("name", NAMES)
def test_as_eager(name: str) -> None:
    model = family(name)
    graph = import_decoder(model)
    layers = graph.by_name["layers"].op
    assert (graph.context, layers.period) == (CONTEXT, BODY.get(name, 1))
    eager = stepper_of(model)
    expected = np.concatenate(
        [eager(IDS[:PROMPT]), *(eager(IDS[i : i + 1]) for i in range(PROMPT, len(IDS)))]
    )
    assert np.abs(_logits(graph) - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize(
    "name", [name if name == "Glm" else pytest.param(name, marks=pytest.mark.slow) for name in PARTS]
)
def test_any_even_part_of_a_head_rotates(name: str) -> None:
    """Neighbours or halves of them, as eager does."""
    model = partly_rotating(name)
    graph = import_decoder(model)
    rotations = [o.op for _, o in graph.walk() if isinstance(o.op, Rotary)]
    assert {op.rotated for op in rotations} == {PARTS[name][2]}
    assert all(op.rotated < op.head_dim for op in rotations)
    eager = stepper_of(model)
    expected = np.concatenate(
        [eager(IDS[:PROMPT]), *(eager(IDS[i : i + 1]) for i in range(PROMPT, len(IDS)))]
    )
    assert np.abs(_logits(graph) - expected).max() <= 1e-5 * np.abs(expected).max()


BIASES = dict.fromkeys("qkv", "bias of q, k and v") | {"o": "bias of o"}
SCALES = {"scale": "scale of the embeddings", "logits": "scale of the logits"}


def _without(path: str, op: Operator) -> Iterator[tuple[str, Operator]]:
    """A feature of an operation, and the operation without it."""
    name = path.rpartition(".")[2]
    if isinstance(op, Attention):
        if op.window is not None:
            yield "window", replace(op, window=None)
        if op.soft_cap is not None:
            yield "soft-cap of scores", replace(op, soft_cap=None)
        yield "scale of scores", replace(op, scale=op.head_dim**-0.5 * 1.25)
    elif isinstance(op, Norm):
        kind = "norm of heads" if name in ("norm_q", "norm_k") else "norm"
        yield f"weight of a {kind}", replace(op, weight=np.ones_like(op.weight))
        if kind == "norm of heads" or name.startswith("post_"):
            yield kind if kind == "norm of heads" else "norm behind a block", Identity()
        if op.bias is not None:
            yield "bias of a norm", replace(op, bias=None)
        if op.kind == "layer":
            yield "mean of a norm", replace(op, kind="rms")
    elif isinstance(op, Linear):
        if op.bias is not None:
            yield BIASES.get(name, "bias of the feed-forward"), Linear(op.weight)
        if name == "gate":
            yield "gate", Linear(np.zeros_like(op.weight), np.ones(len(op.weight), np.float32))
    elif isinstance(op, Rotary):
        yield "rotation", replace(op, frequencies=tuple(0.0 for _ in op.frequencies))
        yield "pairs of a rotation", replace(op, interleaved=not op.interleaved)
        if op.rotated < op.head_dim:
            more = np.geomspace(1, 0.01, op.head_dim // 2)
            yield "part of a head that rotates", replace(op, frequencies=tuple(more))
    elif isinstance(op, Scalar):
        capped = op.function == "soft_cap"
        kind = "final soft-cap" if capped else SCALES.get(path, "scale of the residual")
        yield kind, Scalar("scale", 1.0)
    elif isinstance(op, PositionRows):
        yield "learned positions", PositionRows(np.zeros_like(op.table))
    elif isinstance(op, Unary) or (isinstance(op, Binary) and op.gate):
        other = "silu" if "relu" in str(op) or "gelu" in str(op) else "relu"
        yield "function", Unary(other) if isinstance(op, Unary) else Binary(f"{other}_mul")


def _with_others(name: str, graph: LogicalGraph) -> Iterator[tuple[str, str, Operator]]:
    """Features that other operations, or the family, tell; of each a path, and the operation without it."""
    ops = {path: operation.op for path, operation in graph.walk()}
    windows = [op.window for op in ops.values() if isinstance(op, Attention) and op.window]
    bases = [op.frequencies for op in ops.values() if isinstance(op, Rotary)]
    for path, op in ops.items():
        if isinstance(op, Attention) and op.window is None and windows:
            yield "layers without a window", path, replace(op, window=windows[0])
        if isinstance(op, Rotary) and op.frequencies != bases[0]:
            yield "second base of rotation", path, replace(op, frequencies=bases[0])
        if isinstance(op, Rotary) and name == "Llama":
            plain = 10000.0 ** -(np.arange(0, op.rotated, 2) / op.rotated)
            yield "scaling of a rotation", path, replace(op, frequencies=tuple(plain))
        if isinstance(op, Norm) and name in ("Gemma2", "Gemma3"):
            yield "1 of 1 + weight", path, replace(op, weight=op.weight - 1)


PLAIN = ("function", "scale of scores", "weight of a norm")
ROTATION = ("rotation", "pairs of a rotation")
GATED = (*PLAIN, *ROTATION, "gate")
BIASED = (*BIASES.values(), "bias of the feed-forward")
LAYER_NORM = ("bias of a norm", "mean of a norm")
HEADS = ("norm of heads", "weight of a norm of heads")
LOCAL = ("window", "layers without a window")
SCALED = "scale of the embeddings"
GEMMA = (*GATED, *LOCAL, SCALED, "norm behind a block", "1 of 1 + weight")
FEATURES: dict[str, tuple[str, ...]] = {
    "GPT2": (*PLAIN, *BIASED, *LAYER_NORM, "learned positions"),
    "Llama": (*GATED, *BIASED, "scaling of a rotation"),
    "Mistral": (*GATED, "window"),
    "Qwen2": (*GATED, "bias of q, k and v"),
    "Qwen3": (*GATED, *HEADS),
    "Gemma2": (*GEMMA, "soft-cap of scores", "final soft-cap"),
    "Gemma3": (*GEMMA, *HEADS, "second base of rotation"),
    "OPT": (*PLAIN, *BIASED, *LAYER_NORM, "learned positions"),
    "Phi3": GATED,
    "SmolLM3": GATED,
    "Phi": (*PLAIN, *ROTATION, *BIASED, *LAYER_NORM, "part of a head that rotates"),
    "Olmo2": (*GATED, *HEADS, "norm behind a block"),
    "GPTNeoX": (*PLAIN, *ROTATION, *BIASED, *LAYER_NORM, "part of a head that rotates"),
    "Granite": (*GATED, SCALED, "scale of the residual", "scale of the logits"),
    "Starcoder2": (*PLAIN, *ROTATION, *BIASED, *LAYER_NORM),
    "Cohere": (*GATED, "mean of a norm", "scale of the logits"),
}
EACH = [
    pytest.param(name, feature, marks=() if name in CHIEF else (pytest.mark.slow,))
    for name, features in FEATURES.items()
    for feature in features
]


@cache
def _changes(name: str) -> dict[str, dict[str, Operator]]:
    """By feature, the operations without it, by their paths."""
    graph = graph_of(name)
    each = ((what, path, op) for path, one in graph.walk() for what, op in _without(path, one.op))
    found: dict[str, dict[str, Operator]] = {}
    for feature, path, without in (*each, *_with_others(name, graph)):
        found.setdefault(feature, {})[path] = without
    return found


@cache
def _own_logits(name: str) -> np.ndarray:
    return _logits(graph_of(name))


@pytest.mark.parametrize("name", NAMES)
def test_features_are_known(name: str) -> None:
    assert _changes(name).keys() == {*FEATURES[name]}


@pytest.mark.parametrize(("name", "feature"), EACH)
def test_every_feature_moves_the_logits(name: str, feature: str) -> None:
    without = _changes(name)[feature]
    changed = graph_of(name).map(lambda path, operation: without.get(path, operation.op))
    logits = _own_logits(name)
    assert np.abs(_logits(changed) - logits).max() > 1e-3 * np.abs(logits).max()


def test_names_and_constants_of_gemma() -> None:
    """Norms have 1 + w, the residual starts scaled, attention of the layers is local and global in turn."""
    model = family("Gemma2")
    graph = import_decoder(model)
    first, second = graph.by_name["layers"].op.layers
    names = [operation.name for operation in first.operations]
    assert {"post_attention_norm", "post_feed_forward_norm", "gate", "up", "gated", "down"} <= set(names)
    attention: Any = first.op("attention")
    assert (attention.window, second.op("attention").window, attention.soft_cap) == (5, None, 1.5)
    assert attention.scale == pytest.approx(20**-0.5)
    weight = model.model.layers[0].input_layernorm.weight.detach().numpy()
    np.testing.assert_allclose(first.op("attention_norm").weight, 1 + weight, rtol=1e-6)
    assert str(graph.op("scale")) == f"scale[{48**0.5:g}]"
    assert str(graph.op("logits")) == "soft_cap[2]"
    assert graph.op("head").weight is graph.op("embedding").table


def test_a_fused_projection_is_cut() -> None:
    graph = graph_of("GPT2")
    assert [graph.op(f"layers[0].{part}").extents for part in "qkv"] == [(48, 48)] * 3
    assert graph.op("position_rows").table.shape == (CONTEXT, 48)
    assert not any(operation.name.startswith("rotate") for _, operation in graph.walk())
