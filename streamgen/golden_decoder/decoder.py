"""The golden decoder: logits of a `QuantisedDecoder` in the arithmetic of the hardware.

    x = f24(embedding[ids])
    each layer:  n = norm(x)                          q, k, v = matmuls of mxi8(n)
                 q, k = rotate(q), rotate(k)          q, k, v = int8 with m·2^e, a head of a token
                 x = f24(x + matmul(mxi8(attention(q, k, v))))
                 m = norm(x)                          g, u = matmuls of mxi8(m)
                 x = f24(x + matmul(mxi8(f24(function(g) · u))))
    logits = matmul(mxi8(norm(x)))                    the head's weight is int8 a row

Every value between kernels is f24. Norms, rotations, functions, quantisers and the softmax are the kernels'
own goldens; matmuls and products of attention are exact integers, computed by GEMM in `linear` and
`attention`. Results do not depend on how a text is split into passes, but for what `attention` says of E_V.
"""

from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np
from numpy import ndarray

from streamgen.arith import F24, AddParams, GatedParams
from streamgen.formats import round_f24
from streamgen.golden_decoder.attention import KeyValues, attend, quantise_heads
from streamgen.golden_decoder.linear import ExactLinear, quantise_activations
from streamgen.graph.decoder import Attention, DecoderLayer, Norm, Rotary
from streamgen.graph.ops import Linear
from streamgen.graph.quantised_decoder import QuantisedDecoder
from streamgen.kernels.attention_softmax import AttentionSoftmaxParams
from streamgen.kernels.elementwise import UNARY_FUNCTIONS
from streamgen.kernels.norm import NormParams
from streamgen.kernels.rope import RopeParams
from streamgen.kernels.rope_tables import rotation_table
from streamgen.prompt import checked_ids
from streamgen.sampling import Sampler

__all__ = ["GoldenDecoder", "Session"]

ADD = AddParams(form=F24)
PASS_TOKENS = 256
_MakeLinear = Callable[[str, Linear], ExactLinear]


class GoldenDecoder:
    """The model of a quantised decoder."""

    def __init__(self, model: QuantisedDecoder) -> None:
        decoder = model.decoder
        self.vocabulary, self.context, self.hidden = decoder.vocabulary, decoder.context, decoder.hidden
        self._model, self._embedding = model, decoder.embedding
        softmax = AttentionSoftmaxParams(lanes=1, max_length=self.context, p_bits=model.numbers.p_bits)
        self.layers = [
            _Layer(f"layers[{index}]", layer, softmax, self._linear)
            for index, layer in enumerate(decoder.layers)
        ]
        self._norm = _Norm(decoder.norm)
        self._head = self._linear("head", decoder.head)

    def session(self) -> "Session":
        """A text to be continued, empty at first."""
        return Session(self)

    def logits(self, ids: Sequence[int] | ndarray, pass_tokens: int = PASS_TOKENS) -> ndarray:
        """float32 [tokens, vocabulary]: after each token of a text, in passes of `pass_tokens` at most.

        ValueError for no ids, unknown ids and more than the context holds; TypeError unless ids are integers.
        """
        if pass_tokens < 1:
            raise ValueError(f"pass_tokens is {pass_tokens}; at least 1 is needed")
        session = self.session()
        ids = session.checked(ids)
        parts = [ids[first : first + pass_tokens] for first in range(0, len(ids), pass_tokens)]
        return np.concatenate([session.logits(part) for part in parts])

    def generate(
        self,
        ids: Sequence[int] | ndarray,
        max_new_tokens: int,
        *,
        sampler: Sampler | None = None,
        stop: Collection[int] = (),
    ) -> Iterator[int]:
        """The ids that continue a text, as they come; the last is one of `stop`, if one of them is chosen.

        sampler: greedy by default. ValueError, before anything runs, where `logits` raises it, and when the
        text with what is to come is longer than the context.
        """
        session = self.session()
        prompt = session.checked(ids, max_new_tokens)
        return session.generate(prompt, max_new_tokens, sampler=sampler or Sampler(), stop=stop)

    def _linear(self, path: str, linear: Linear) -> ExactLinear:
        return ExactLinear(self._model.weights[path], linear.bias)

    def _run(self, ids: ndarray, position: int, caches: Sequence[KeyValues]) -> ndarray:
        """The residual behind the last layer, float32 [T, hidden]."""
        x = round_f24(self._embedding[ids])
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer.run(x, position, cache)
        return x

    def _logits(self, x: ndarray) -> ndarray:
        return self._head(quantise_activations(self._norm(x)))


class Session:
    """One text: tokens so far, with their keys and values. An interrupted pass leaves it as it was."""

    def __init__(self, model: GoldenDecoder) -> None:
        self._model = model
        self.reset()

    @property
    def position(self) -> int:
        """Tokens so far."""
        return self._position

    def reset(self) -> None:
        """Forget the text."""
        self._position = 0
        self._caches = [layer.cache() for layer in self._model.layers]

    def logits(self, ids: Sequence[int] | ndarray) -> ndarray:
        """Append tokens as one pass: float32 [tokens, vocabulary], after each of them."""
        return self._model._logits(self._append(ids))

    def last_logits(self, ids: Sequence[int] | ndarray) -> ndarray:
        """Append tokens as one pass: float32 [vocabulary], after the last of them."""
        return self._model._logits(self._append(ids)[-1:])[0]

    def generate(
        self,
        ids: Sequence[int] | ndarray,
        max_new_tokens: int,
        *,
        sampler: Sampler,
        stop: Collection[int] = (),
    ) -> Iterator[int]:
        """Append tokens and continue; the last token given out is not yet appended."""
        for index in range(max_new_tokens):
            ids = [sampler(self.last_logits(ids))]
            yield ids[0]
            if ids[0] in stop or index + 1 == max_new_tokens:
                return

    def checked(self, ids: Sequence[int] | ndarray, room: int = 0) -> ndarray:
        """ids as an array; ValueError or TypeError unless they, and `room` more, can be appended."""
        model = self._model
        return checked_ids(ids, model.vocabulary, model.context, self._position, room)

    def _append(self, ids: Sequence[int] | ndarray) -> ndarray:
        ids = self.checked(ids)
        x = self._model._run(ids, self._position, self._caches)
        self._position += len(ids)
        return x


class _Norm:
    """A norm with its parameters in f24."""

    def __init__(self, norm: Norm) -> None:
        features = len(norm.weight)
        self._params = NormParams(
            kind=norm.kind,
            lanes=1,
            max_k=features,
            max_rows=1 << 16,
            bias=norm.bias is not None,
            plus_one=norm.plus_one,
        )
        self._bounds = {"k": features, "valid_k": features, "epsilon": norm.epsilon}
        self._parameters = {"i_weight": round_f24(norm.weight)[None]}
        if norm.bias is not None:
            self._parameters["i_bias"] = round_f24(norm.bias)[None]

    def __call__(self, x: ndarray) -> ndarray:
        return self._params.golden(self._bounds | {"t": len(x)}, self._parameters | {"i": x})["o"]


class _Layer:
    """A layer with quantised weights."""

    def __init__(
        self, name: str, layer: DecoderLayer, softmax: AttentionSoftmaxParams, linear: _MakeLinear
    ) -> None:
        attention, block = layer.attention, layer.feed_forward
        self._attention, self._softmax = attention, softmax
        self._attention_norm, self._norm = _Norm(layer.attention_norm), _Norm(layer.feed_forward_norm)
        self._q, self._k, self._v, self._o = (
            linear(f"{name}.attention.{part}", getattr(attention, part)) for part in "qkvo"
        )
        self._gate, self._up, self._down = (
            linear(f"{name}.feed_forward.{part}", getattr(block, part)) for part in ("gate", "up", "down")
        )
        self._gated = GatedParams(function=UNARY_FUNCTIONS[block.function])

    def cache(self) -> KeyValues:
        return KeyValues(self._attention.kv_heads, self._attention.head_dim)

    def run(self, x: ndarray, position: int, cache: KeyValues) -> ndarray:
        x = _add(x, self._attend(x, position, cache))
        m = quantise_activations(self._norm(x))
        h = self._gated.golden(self._gate(m), self._up(m)).astype(np.float32)
        return _add(x, self._down(quantise_activations(h)))

    def _attend(self, x: ndarray, position: int, cache: KeyValues) -> ndarray:
        a = self._attention
        n = quantise_activations(self._attention_norm(x))
        q, k, v = self._q(n), self._k(n), self._v(n)
        if a.rotary is not None:
            places = np.arange(position, position + len(x))
            table = rotation_table(places, a.rotary.frequencies)
            q, k = _rotate(a, a.rotary, q, a.heads, table), _rotate(a, a.rotary, k, a.kv_heads, table)
        cache.store(position, quantise_heads(k, a.kv_heads), quantise_heads(v, a.kv_heads))
        o = attend(quantise_heads(q, a.heads), cache, position, a.scale, self._softmax)
        return self._o(quantise_activations(o))


def _rotate(attention: Attention, rotary: Rotary, x: ndarray, heads: int, table: ndarray) -> ndarray:
    rope = RopeParams(
        lanes=2 if rotary.interleaved else 1,
        dims=attention.head_dim,
        rotated=rotary.rotated,
        interleaved=rotary.interleaved,
        max_heads=len(x) * heads,
    )
    return rope.golden({"rows": len(x), "heads": heads}, {"i": x, "i_table": table})["o"]


def _add(a: ndarray, b: ndarray) -> ndarray:
    return ADD.golden(a, b).astype(np.float32)
