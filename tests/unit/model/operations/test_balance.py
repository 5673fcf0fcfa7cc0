"""Scales move between the norms of queries and keys: the same function, rounded less."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from streamgen.model.graph.interpret import exact, reference
from streamgen.model.graph.logical import Input, LogicalGraph, Operation, Operator, Repeat
from streamgen.model.operations import Attention, Cache, Norm, Rotary
from streamgen.model.operations.balance import balanced
from tests.shared.decoders import random_decoder

HEADS, KV_HEADS, DIM = 4, 2, 32
RNG = np.random.default_rng(3)
INPUTS = {
    "q": RNG.normal(size=(24, HEADS * DIM)),
    "k": RNG.normal(size=(24, KV_HEADS * DIM)),
    "v": RNG.normal(size=(24, KV_HEADS * DIM)),
}


def _norm(heads: int, seed: int, **changes: object) -> Norm:
    """Some of its features are sixteen times as large as the others; one is never anything."""
    rng = np.random.default_rng(seed)
    weight = rng.uniform(0.5, 1.5, DIM) * np.where(rng.random(DIM) < 0.1, 16, 1) * rng.choice([-1, 1], DIM)
    weight[5] = 0
    given: dict[str, object] = {"kind": "rms", "weight": weight.astype(np.float32), "epsilon": 1e-6}
    return Norm(**given | {"heads": heads} | changes)  # type: ignore[arg-type]


def _attention(
    q: Norm | None = None,
    k: Norm | None = None,
    rotated: int = DIM,
    interleaved: bool = False,
    read: str = "",
) -> LogicalGraph:
    """Normalised heads, rotated if `rotated`, on a cache. read: a value that is an output, too."""
    frequencies = tuple(1000.0 ** (-np.arange(0, rotated, 2) / max(rotated, 1)))
    operations = [
        Operation("norm_q", q or _norm(HEADS, 1), ("q",)),
        Operation("norm_k", k or _norm(KV_HEADS, 2), ("k",)),
    ]
    queries, keys = "norm_q", "norm_k"
    if rotated:
        operations += [
            Operation("rotate_q", Rotary(HEADS, DIM, frequencies, interleaved), (queries,)),
            Operation("rotate_k", Rotary(KV_HEADS, DIM, frequencies, interleaved), (keys,)),
        ]
        queries, keys = "rotate_q", "rotate_k"
    operations += [
        Operation("keys", Cache(KV_HEADS, DIM), (keys,)),
        Operation("values", Cache(KV_HEADS, DIM), ("v",)),
        Operation("y", Attention(HEADS, KV_HEADS, DIM, DIM**-0.5 / 8), (queries, "keys", "values")),
    ]
    inputs = tuple(Input(name, array.shape[1]) for name, array in INPUTS.items())
    outputs = ("y", read) if read else ("y",)
    return LogicalGraph(inputs, tuple(operations), outputs, context=64)


def _result(graph: LogicalGraph) -> np.ndarray:
    outputs, _ = reference(graph)(INPUTS)
    return outputs["y"]


def _lost(graph: LogicalGraph) -> float:
    outputs, _ = exact(graph)(INPUTS)
    expected = _result(graph)
    return float(np.square(outputs["y"] - expected).mean() / np.square(expected).mean())


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotated", [0, 16, DIM])
@pytest.mark.parametrize("plus_one", [False, True])
def test_the_same_function_rounded_less(rotated: int, interleaved: bool, plus_one: bool) -> None:
    bias = RNG.normal(size=DIM).astype(np.float32)
    q = _norm(HEADS, 1, plus_one=plus_one)
    k = _norm(KV_HEADS, 2, plus_one=plus_one, kind="layer", bias=bias)
    model = _attention(q, k, rotated, interleaved)
    found = balanced(model)
    assert (found.op("norm_q").weight != model.op("norm_q").weight).sum() > DIM // 2
    np.testing.assert_allclose(_result(found), _result(model), rtol=1e-5, atol=1e-5)
    plain = _attention(rotated=rotated, interleaved=interleaved)
    assert _lost(balanced(plain)) < 0.5 * _lost(plain)


def test_features_are_alike() -> None:
    """Each feature, where nothing rotates, and the root of a pair's mean square, where it does."""
    for rotated, interleaved in ((0, False), (DIM, False), (16, True)):
        found = balanced(_attention(rotated=rotated, interleaved=interleaved))
        q, k = (np.square(found.op(name).weight.astype(np.float64)) for name in ("norm_q", "norm_k"))
        for squares in (q, k):
            turning = squares[:rotated]
            pairs = turning.reshape(-1, 2) if interleaved else turning.reshape(2, -1).T
            pairs[:] = pairs.mean(axis=1, keepdims=True)
        used = (q > 0) & (k > 0)
        assert used.sum() >= DIM - 2
        np.testing.assert_allclose(q[used], k[used], rtol=1e-5)


def test_it_is_done_once_in_each_layer() -> None:
    """Of layers, too, each with its own factors."""
    model = random_decoder()
    layers = tuple(
        replace(layer, operations=tuple(_normalised(layer, seed)))
        for seed, layer in enumerate(model.by_name["layers"].op.layers)  # type: ignore[attr-defined]
    )
    model = replace(model, operations=_replaced(model, "layers", Repeat(layers)))
    found = balanced(model)
    assert balanced(found) is found
    changed = [path for path, o in found.walk() if o.op is not model.op(path)]
    assert changed == [f"layers[{i}].norm_{part}" for i in range(2) for part in "qk"]
    ids = np.arange(9)
    expected, given = (
        reference(one)({"ids": ids}, every_row=True, outputs=("logits",))[0]["logits"]
        for one in (model, found)
    )
    np.testing.assert_allclose(given, expected, rtol=1e-5, atol=1e-5)


def _normalised(layer: LogicalGraph, seed: int) -> Iterator[Operation]:
    """The operations of a layer, with norms of queries and keys."""
    for operation in layer.operations:
        name = operation.name
        if name in ("rotate_q", "rotate_k"):
            part = name[-1]
            yield Operation(
                f"norm_{part}", _norm(HEADS if part == "q" else KV_HEADS, seed + ord(part)), (part,)
            )
            yield replace(operation, inputs=(f"norm_{part}",))
        else:
            yield operation


def _replaced(graph: LogicalGraph, name: str, op: Operator) -> tuple[Operation, ...]:
    return tuple(replace(o, op=op) if o.name == name else o for o in graph.operations)


def test_what_is_left_alone() -> None:
    """A value between that something else reads, norms of whole rows, rotations that differ."""
    for read in ("norm_q", "rotate_k", "keys"):
        model = _attention(read=read)
        assert balanced(model) is model
    whole = np.arange(1, HEADS * DIM + 1, dtype=np.float32)
    model = _attention(_norm(1, 1, weight=whole))
    assert balanced(model) is model
    model = _attention()
    other = Rotary(HEADS, DIM, (1.0,) * (DIM // 2))
    model = replace(model, operations=_replaced(model, "rotate_q", other))
    assert balanced(model) is model
