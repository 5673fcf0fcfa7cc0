"""Attention of a text over the rows of its source: a picture, a sound, or a text in another language.

    s[t, h, p] = scale · q[t, h] . k[p, g]      g = h // (heads / kv_heads)
    y[t, h] = softmax over all positions p of the source of s[t, h] @ v[p, g]

Keys and values do not depend on the text. The host writes them, as codes, into caches of the source before
the text begins (`source_rows`); every pass reads them. The exact result is that of an attention that is not
causal (`exact_attention`).
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.kernels.attention.softmax import AttentionSoftmaxParams
from streamgen.kernels.memory import KvLoadParams
from streamgen.model.graph.logical import Exact, Shape
from streamgen.model.graph.run import Run
from streamgen.model.operations.attended import AttentionOperator, AttentionRows, attended, quantised_queries
from streamgen.model.operations.cache import states_of
from streamgen.model.operations.exact_attention import attend, quantise_heads, window_bounds
from streamgen.model.operations.site import Codes, Site, Stream
from streamgen.numbers.quantisation import Numbers

KINDS = ("keys", "values")
PARTS = ("x", "scale")


@dataclass(frozen=True)
class SourceAttention(AttentionOperator):
    """scale: the factor of a product of q and k. p_bits: bits of the integers of the softmax; set by
    `quantised`. The state at its path are the keys and the values of the source: arrays or `HeadCodes`."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    p_bits: int = 12
    row_wise = True
    reads_source = True
    soft_cap = None
    causal = False
    start = 0

    def __post_init__(self) -> None:
        self.require_heads()

    def pieces(self, tile: int, operand: int = 0) -> int:
        """Queries come in tiles of whole heads."""
        return self.heads * self.head_dim // tile if not tile % self.head_dim else 1

    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        (q,), needed = inputs, self.heads * self.head_dim
        if q.features != needed or q.rows not in ("tokens", "one"):
            raise GraphError(f"{self.heads} heads of {self.head_dim} take {needed} features a token, not {q}")
        return (q,)

    def quantised(self, numbers: Numbers, path: str) -> "SourceAttention":
        return replace(self, p_bits=numbers.p_bits)

    def reference(self, run: Run, *inputs: np.ndarray) -> np.ndarray:
        q = inputs[0].reshape(len(inputs[0]), self.kv_heads, self.group, self.head_dim)
        k, v = (rows.reshape(len(rows), self.kv_heads, self.head_dim) for rows in self._held(run))
        scores = np.einsum("tghd,sgd->ghts", q, k, optimize=True) * self.scale
        terms = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares = terms / terms.sum(axis=-1, keepdims=True)
        return np.einsum("ghts,sgd->tghd", shares, v, optimize=True).reshape(len(q), -1)

    def exact(self) -> Exact:
        def compute(run: Run, x: np.ndarray) -> np.ndarray:
            keys, values = self._held(run)
            params = AttentionSoftmaxParams(lanes=1, max_length=keys.codes.shape[1], p_bits=self.p_bits)
            queries = quantise_heads(x, self.heads)
            return attend(queries, keys, values, position=0, scale=self.scale, softmax=params, causal=False)

        return compute

    def _held(self, run: Run) -> Any:
        if run.path not in run.state:
            raise ValueError(f"the text has no source: {run.path} needs keys and values")
        return run.state[run.path]

    def bind(self, site: Site, *inputs: Any) -> tuple[Stream, ...]:
        """Each head of a cache is read once, several positions per cycle."""
        queries = quantised_queries(site, self, inputs[0])
        tokens = site.count(inputs[0].shape)
        again = tokens * self.group
        keys, values = self._loaded(site, 0, (again, again)), self._loaded(site, 1, (again, 1))
        rows = AttentionRows(tokens, site.source, site.most_source, site.attention_lanes)
        seen = window_bounds(0, 0, causal=False)
        return (attended(site, self, rows, queries, keys, values, seen),)

    def _loaded(self, site: Site, kind: int, again: tuple[int, int]) -> Codes:
        """Load keys (kind 0) or values (kind 1). again: the number of times that codes and scales of a head
        are sent."""
        layouts: list[Any] = []
        streams = []
        for part, width, dtype, heads, times in (
            ("x", self.head_dim, "i8", self.kv_heads, again[0]),
            ("scale", self.kv_heads, "i24", 1, again[1]),
        ):
            layout, first, layer, step = site.caches(width, dtype, heads, *layouts, source=kind)
            behind = states_of(layout, first, source_name(kind, part))
            params = KvLoadParams(
                layout=layout,
                lanes=site.attention_lanes,
                parts=layout.width if part == "scale" else 1,
                max_new=0,
                max_again=times,
                **site.memory._asdict(),
            )
            bounds = {"layer": layer, "position": site.source, "rows": 0, "again": times}
            name = f"load_{source_name(kind, part)}"
            streams.append(site.kernel(name, params, bounds, steps={"layer": step}, behind=behind)["o"])
            layouts.append(layout)
        codes, scales = streams
        return Codes(codes, scales)

    def __str__(self) -> str:
        return f"source_attention[{self.heads} x {self.head_dim} on {self.kv_heads}]"


def source_name(kind: int, part: str) -> str:
    """The name of the caches of the keys (kind 0) or values (kind 1) of all layers; a number of a channel
    behind it makes that of a buffer. part: "x" for codes, "scale" for scales."""
    return f"source_{KINDS[kind]}_{part}"
