"""streamgen.graph.decoder: checks of the dataclasses, and the float64 reference against its equations."""

import dataclasses
import math
import re

import numpy as np
import pytest

from streamgen.errors import GraphError
from streamgen.graph.decoder import Attention, Decoder, DecoderLayer, GatedFeedForward, Norm, Rotary
from streamgen.graph.ops import Linear

HIDDEN, FEATURES, VOCABULARY, HEADS, KV_HEADS, HEAD_DIM = 12, 10, 17, 4, 2, 6


def _decoder(*, interleaved: bool = False, rotated: int = 4, layers: int = 2) -> Decoder:
    rng = np.random.default_rng(1)

    def array(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    rotary = Rotary(10.0 ** -np.arange(rotated / 2), interleaved)
    made = []
    for _ in range(layers):
        heads, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
        attention = Attention(
            HEADS,
            KV_HEADS,
            HEAD_DIM,
            Linear(array(heads, HIDDEN), array(heads)),
            Linear(array(kv, HIDDEN)),
            Linear(array(kv, HIDDEN)),
            Linear(array(HIDDEN, heads)),
            0.3,
            rotary,
        )
        block = GatedFeedForward(
            Linear(array(FEATURES, HIDDEN)),
            Linear(array(FEATURES, HIDDEN)),
            Linear(array(HIDDEN, FEATURES)),
            "silu",
        )
        norms = (
            Norm("layer", array(HIDDEN), 1e-3, array(HIDDEN)),
            Norm("rms", array(HIDDEN), 1e-3, None, True),
        )
        made.append(DecoderLayer(norms[0], attention, norms[1], block))
    embedding = array(VOCABULARY, HIDDEN)
    return Decoder("tiny", embedding, tuple(made), Norm("rms", array(HIDDEN), 1e-5), Linear(embedding), 9)


def _norm(norm: Norm, x: list[float]) -> list[float]:
    mean = sum(x) / len(x) if norm.kind == "layer" else 0.0
    power = sum((a - mean) ** 2 for a in x) / len(x)
    bias = norm.bias if norm.bias is not None else [0.0] * len(x)
    return [
        (a - mean) / math.sqrt(power + norm.epsilon) * (float(w) + norm.plus_one) + float(b)
        for a, w, b in zip(x, norm.weight, bias, strict=True)
    ]


def _by_hand(decoder: Decoder, ids: list[int]) -> np.ndarray:
    """One token after the other, one head after the other, pairs as complex numbers."""
    keys: list[list[np.ndarray]] = [[] for _ in decoder.layers]
    values: list[list[np.ndarray]] = [[] for _ in decoder.layers]
    logits = []
    for p, token in enumerate(ids):
        x = decoder.embedding[token].astype(np.float64)
        for index, layer in enumerate(decoder.layers):
            a = layer.attention
            n = np.array(_norm(layer.attention_norm, list(x)))

            def turned(rows: np.ndarray, a: Attention = a, p: int = p) -> np.ndarray:
                out = rows.copy()
                half = a.rotary.rotated // 2
                for j, f in enumerate(a.rotary.frequencies):
                    i, k = (2 * j, 2 * j + 1) if a.rotary.interleaved else (j, j + half)
                    z = (rows[:, i] + 1j * rows[:, k]) * np.exp(1j * p * f)
                    out[:, i], out[:, k] = z.real, z.imag
                return out

            q = turned((a.q.weight.astype(float) @ n + a.q.bias).reshape(HEADS, HEAD_DIM))
            keys[index].append(turned((a.k.weight.astype(float) @ n).reshape(KV_HEADS, HEAD_DIM)))
            values[index].append((a.v.weight.astype(float) @ n).reshape(KV_HEADS, HEAD_DIM))
            out = np.zeros((HEADS, HEAD_DIM))
            for h in range(HEADS):
                terms = [math.exp(a.scale * float(q[h] @ k[h // 2])) for k in keys[index]]
                out[h] = sum(e * v[h // 2] for e, v in zip(terms, values[index], strict=True)) / sum(terms)
            x = x + a.o.weight.astype(float) @ out.reshape(-1)
            m = np.array(_norm(layer.feed_forward_norm, list(x)))
            gate = layer.feed_forward.gate.weight.astype(float) @ m
            up = layer.feed_forward.up.weight.astype(float) @ m
            x = x + layer.feed_forward.down.weight.astype(float) @ (gate / (1 + np.exp(-gate)) * up)
        logits.append(decoder.head.weight.astype(float) @ np.array(_norm(decoder.norm, list(x))))
    return np.array(logits)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotated", [4, 6])
def test_reference_is_the_equations(interleaved: bool, rotated: int) -> None:
    decoder = _decoder(interleaved=interleaved, rotated=rotated)
    ids = np.random.default_rng(2).integers(0, VOCABULARY, decoder.context)
    logits, cache = decoder.reference(ids)
    assert logits.shape == (decoder.context, VOCABULARY) and logits.dtype == np.float64
    assert [array.shape for pair in cache for array in pair] == [(decoder.context, KV_HEADS, HEAD_DIM)] * 4
    np.testing.assert_allclose(logits, _by_hand(decoder, list(ids)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("split", [(9,), (1,) * 9, (4, 5), (7, 1, 1), (1, 8)])
def test_any_split_into_passes(split: tuple[int, ...]) -> None:
    """Same logits, and the caches of earlier passes stay as they are."""
    decoder = _decoder()
    ids = np.random.default_rng(3).integers(0, VOCABULARY, 9)
    whole, final = decoder.reference(ids)
    cache, parts, start = None, [], 0
    for count in split:
        before = cache
        logits, cache = decoder.reference(ids[start : start + count], cache)
        if before is not None:
            assert all(len(array) == start for pair in before for array in pair)
        start += count
        parts.append(logits)
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-12, atol=1e-12)
    for pair, expected in zip(cache, final, strict=True):
        np.testing.assert_allclose(pair, expected, rtol=1e-12, atol=1e-12)


def test_tied() -> None:
    decoder = _decoder()
    assert decoder.tied
    assert not dataclasses.replace(decoder, head=Linear(decoder.embedding.copy())).tied


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([], ValueError, "ids have shape [0]; [T] with T >= 1 is needed"),
        ([[1, 2]], ValueError, "ids have shape [1, 2]; [T] with T >= 1 is needed"),
        ([1.0], TypeError, "ids are float64; integers are needed"),
        ([1, 17], ValueError, "ids[1] is 17; the vocabulary is 0 to 16"),
        ([-1], ValueError, "ids[0] is -1; the vocabulary is 0 to 16"),
        ([1] * 10, ValueError, "0 positions in the cache and 10 tokens exceed the context of 9"),
    ],
)
def test_bad_ids(ids: list, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        _decoder().reference(ids)


def test_bad_cache() -> None:
    decoder = _decoder()
    _, cache = decoder.reference([1, 2, 3])
    with pytest.raises(ValueError, match=r"^3 positions in the cache and 7 tokens exceed the context of 9$"):
        decoder.reference([1] * 7, cache)
    with pytest.raises(ValueError, match=r"^the cache has 1 layers, the decoder 2$"):
        decoder.reference([1], cache[:1])
    with pytest.raises(
        ValueError,
        match=r"^the values of layer 1 in the cache have shape \[2, 2, 6\]; \[3, 2, 6\] is needed$",
    ):
        decoder.reference([1], (cache[0], (cache[1][0], cache[1][1][:2])))


def _fields(part: object, **changes: object) -> object:
    return dataclasses.replace(part, **changes)  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda d: Norm("l2", d.norm.weight, 1e-5),
            "there is no norm of kind 'l2'; 'rms' and 'layer' are known",
        ),
        (
            lambda d: Norm("rms", d.embedding, 1e-5),
            "the weight of a norm has shape [17, 12]; [features] is needed",
        ),
        (
            lambda d: Norm("layer", d.norm.weight, 1e-5, d.norm.weight[:3]),
            "a norm has weight [12] and bias [3]; both must be [features]",
        ),
        (
            lambda d: Norm("rms", d.norm.weight, -1.0),
            "the epsilon of a norm is -1.0; it must be finite, 0 or more",
        ),
        (lambda d: Rotary(np.zeros(0)), "frequencies have shape [0]; [rotated / 2] is needed"),
        (lambda d: Rotary(np.array([1.0, np.nan])), "rotary frequencies must all be finite"),
        (
            lambda d: _fields(d.layers[0].attention, rotary=Rotary(np.ones(4))),
            "8 dimensions rotate, a head has 6",
        ),
        (
            lambda d: _fields(d.layers[0].attention, kv_heads=0),
            "kv_heads of an attention is 0; at least 1 is needed",
        ),
        (
            lambda d: _fields(d.layers[0].attention, kv_heads=3),
            "4 query heads cannot share 3 key heads evenly",
        ),
        (
            lambda d: _fields(d.layers[0].feed_forward, up=d.layers[0].feed_forward.down),
            "gate [10, 12], up [12, 10] and down [12, 10] of a feed-forward block do not fit",
        ),
        (
            lambda d: _fields(d, embedding=d.embedding[0]),
            "the embedding has shape [12]; [vocabulary, hidden] is needed",
        ),
        (lambda d: _fields(d, layers=()), "a decoder needs at least one layer"),
        (lambda d: _fields(d, context=0), "the context is 0 positions; at least 1 is needed"),
        (
            lambda d: _fields(d, norm=Norm("rms", np.ones(4, np.float32), 1e-5)),
            "norm has 4 features at the residual, which has 12",
        ),
        (lambda d: _fields(d, embedding=d.embedding[:5]), "the head has 17 rows, the embedding 5"),
    ],
)
def test_bad_parts(make, message: str) -> None:
    with pytest.raises(GraphError, match=f"^{re.escape(message)}$"):
        make(_decoder())
