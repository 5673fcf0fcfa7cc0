"""Attention of queries over keys and values: grouped heads, causal or not, a window, a soft-cap.

    s[t, h, p] = scale · q[t, h] . k[p, g]      g = h // (heads / kv_heads)
    s = cap · tanh(s / cap), if there is a cap
    s = s + b[t, h, p], if there is a bias; or + b[h, t - p], a number for each distance
    y[t, h] = softmax over the positions p that t sees of s[t, h] @ v[p, g]

If causal, position t sees p <= t, and of these the last `window`. If not causal, a window shows the
positions |t - p| < `window`. Nothing sees the positions before `start`. Keys and values have one row for each
position of the text (from a `Cache`) or, without a cache, one row for each token of the pass. The exact
result is defined in `exact_attention`.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.kernels.attention.softmax import AttentionSoftmaxParams
from streamgen.kernels.memory import KvLoadParams, PassTilesParams
from streamgen.model.graph.logical import Exact, Shape
from streamgen.model.graph.run import Run
from streamgen.model.operations.attended import (
    AttentionOperator,
    AttentionRows,
    attended,
    distance_rows,
    quantised_queries,
)
from streamgen.model.operations.cache import quantise_heads_of
from streamgen.model.operations.exact_attention import HeadCodes, attend, quantise_heads, window_bounds
from streamgen.model.operations.site import Codes, Kept, Site, Stream
from streamgen.numbers.quantisation import Numbers


@dataclass(frozen=True)
class Attention(AttentionOperator):
    """scale: the factor of a product of q and k. window: the number of positions that a query sees, itself
    included: before it and, if the attention is not causal, as many behind it; None means all. start: the
    first position that may be seen; of an attention without a cache. biased: whether there is a fourth value,
    whose rows hold a number for each query head and position of a sequence. A design with such a bias takes
    sequences of that number of positions alone. distances: of a bias over a cache: the fourth value is a
    constant that holds, for each query head, the numbers of so many distances, from the farthest one to 0.

    p_bits: bits of the integers of the softmax; set by `quantised`.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    causal: bool = True
    window: int | None = None
    soft_cap: float | None = None
    start: int = 0
    biased: bool = False
    distances: int = 0
    p_bits: int = 12
    mixes_tokens = True

    def __post_init__(self) -> None:
        self.require_heads()
        if self.window is not None and self.window < 1:
            raise GraphError(f"the window of an attention is {self.window} positions; at least 1 is needed")
        if self.start < 0:
            raise GraphError(f"an attention starts at position {self.start}; at least 0 is needed")
        if self.soft_cap is not None and not 0 < self.soft_cap < np.inf:
            raise GraphError(f"the soft-cap of an attention is {self.soft_cap}; it must be above 0")

    @property
    def arity(self) -> int:  # type: ignore[override]
        return 4 if self.biased else 3

    @property
    def takes_one_position(self) -> bool:
        """Whether a bias of the rows of a pass is added: no converter would pad its tiles."""
        return self.biased and not self.distances

    def pieces(self, tile: int, operand: int = 0) -> int:
        """Queries come in tiles of whole heads. Keys and values that are rows of the pass come in
        whole rows."""
        return self.heads * self.head_dim // tile if operand == 0 and not tile % self.head_dim else 1

    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        q, k, v, *biases = inputs
        for bias in biases:
            rows = "every" if self.distances else "tokens"
            if bias.features % self.heads or bias.rows != rows:
                raise GraphError(f"the bias of {self.heads} heads has a number for each position, not {bias}")
            if self.distances and bias.features != self.heads * self.distances:
                raise GraphError(
                    f"the bias of {self.heads} heads has {self.distances} distances each, not {bias}"
                )
        for name, shape, heads in (("q", q, self.heads), ("k", k, self.kv_heads), ("v", v, self.kv_heads)):
            if shape.features != heads * self.head_dim:
                raise GraphError(
                    f"{name} has {shape.features} features; {heads} heads of {self.head_dim} need "
                    f"{heads * self.head_dim}"
                )
        if k.rows != v.rows or q.rows != "tokens" or k.rows not in ("tokens", "positions"):
            raise GraphError(f"attention takes tokens and positions; it is given {q}, {k} and {v}")
        cached = k.rows == "positions"
        if cached and (self.start or (self.biased and not self.distances)):
            raise GraphError(
                f"{self} reads a cache; it starts at position 0 there, and its bias has a number for each "
                "distance"
            )
        if self.distances and not (cached and self.causal and self.biased and self.window is None):
            raise GraphError(f"{self} has a bias of distances; it must be causal, over a whole cache")
        if self.window is not None and not self.causal and k.rows == "positions":
            raise GraphError(
                f"a window of {self.window} positions on both sides reads later tokens, which no cache "
                "holds; causal attention is needed over a cache"
            )
        return (q,)

    def quantised(self, numbers: Numbers, path: str) -> "Attention":
        return replace(self, p_bits=numbers.p_bits)

    def reference(self, run: Run, *inputs: np.ndarray) -> np.ndarray:
        q, k, v = (array.reshape(len(array), -1, self.head_dim) for array in inputs[:3])
        places = np.arange(len(k)) + (0 if len(k) == run.position + run.tokens else run.position)
        grouped = q.reshape(len(q), self.kv_heads, self.group, self.head_dim)
        scores = np.einsum("tghd,sgd->ghts", grouped, k, optimize=True) * self.scale
        if self.soft_cap is not None:
            scores = self.soft_cap * np.tanh(scores / self.soft_cap)
        for bias in inputs[3:]:
            numbers = self._numbers(run, bias).reshape(len(q), self.kv_heads, self.group, -1)
            scores = scores + numbers.transpose(1, 2, 0, 3)
        scores[..., ~self._seen(run.positions, places)] = -np.inf
        greatest = scores.max(axis=-1, keepdims=True)
        terms = np.exp(scores - np.where(np.isneginf(greatest), 0.0, greatest))
        total = terms.sum(axis=-1, keepdims=True)
        shares = terms / np.where(total == 0, 1.0, total)  # a row that sees nothing gives zeros
        return np.einsum("ghts,sgd->tghd", shares, v, optimize=True).reshape(len(q), -1)

    def _seen(self, tokens: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Whether each token sees each position: bool [tokens, positions]."""
        behind = tokens[:, None] - places
        seen = behind >= 0 if self.causal else np.ones_like(behind, bool)
        seen &= places >= self.start
        return seen if self.window is None else seen & (np.abs(behind) < self.window)

    def exact(self) -> Exact:
        def compute(run: Run, x: np.ndarray, keys: Any, values: Any, *bias: np.ndarray) -> np.ndarray:
            cached = [
                rows if isinstance(rows, HeadCodes) else quantise_heads(rows, self.kv_heads)
                for rows in (keys, values)
            ]
            length = cached[0].codes.shape[1]
            softmax = AttentionSoftmaxParams(lanes=1, max_length=length, p_bits=self.p_bits)
            return attend(
                quantise_heads(x, self.heads),
                *cached,
                position=run.position if length == run.position + run.tokens else 0,
                scale=self.scale,
                softmax=softmax,
                causal=self.causal,
                window=self.window or 0,
                start=self.start,
                bias=self._numbers(run, bias[0]) if bias else None,
                soft_cap=self.soft_cap,
            )

        return compute

    def _numbers(self, run: Run, bias: np.ndarray) -> np.ndarray:
        """A bias [tokens, heads, positions]; positions behind a token are hidden and have any number."""
        if not self.distances:
            return bias.reshape(run.tokens, self.heads, -1)
        places = self.distances - 1 - run.positions[:, None] + np.arange(run.position + run.tokens)
        table = bias.reshape(self.heads, self.distances)
        numbers: np.ndarray = table[:, np.minimum(places, self.distances - 1)].swapaxes(0, 1)
        return numbers

    def bind(self, site: Site, *inputs: Any) -> tuple[Stream, ...]:
        """Scores, softmax and sums of values, several positions per cycle. Each head of a cache is read once.

        Keys and values that are rows of the pass come in tiles of positions, too.
        """
        q, keys, values, *biases = inputs
        queries = quantised_queries(site, self, q)
        cached = isinstance(keys, Kept)
        lanes = 1 if self.takes_one_position else site.attention_lanes
        if cached:
            again = site.tokens * self.group
            keys = Codes(_loaded(site, keys, 0, again), _loaded(site, keys, 1, again))
            values = Codes(_loaded(site, values, 0, again), _loaded(site, values, 1, 1))
        else:
            keys, values = (
                self._tiles(site, part, stream, lanes, again)
                for part, stream, again in (("keys", keys, site.tokens * self.group), ("values", values, 1))
            )
        position, most = (site.position, site.context) if cached else (0, site.tokens)
        window = 0 if self.window is None or (self.causal and self.window >= most) else self.window
        seen = window_bounds(position, window, causal=self.causal)
        rows = AttentionRows(site.tokens, position + site.tokens, most, lanes)
        if self.distances:
            biases = [distance_rows(site, self, rows, biases[0])]
        return (attended(site, self, rows, queries, keys, values, seen, biases),)

    def _tiles(self, site: Site, part: str, stream: Stream, lanes: int, scales_again: int) -> Codes:
        """The codes of keys or values that are rows of the pass, with several positions in tiles of these.
        scales_again: the number of times that the scales of a head are sent."""
        codes = quantise_heads_of(site, f"quantise_{site.name}_{part}", self.kv_heads, self.head_dim, stream)
        if lanes == 1:
            return codes
        again = site.tokens * self.group
        return Codes(
            self._tiled(site, part, codes.x, lanes, again),
            self._tiled(site, f"{part}_scales", codes.scale, lanes, scales_again),
        )

    def _tiled(self, site: Site, part: str, rows: Stream, lanes: int, again: int) -> Stream:
        """Rows of heads in tiles of `lanes` positions, head by head; each head is sent `again` times."""
        params = PassTilesParams(
            dtype=rows.itensor.dtype,
            width=rows.itensor.shape[1] // self.kv_heads,
            heads=self.kv_heads,
            lanes=lanes,
            max_rows=site.tokens,
            max_again=again,
        )
        bounds = {"rows": site.tokens, "again": again}
        return site.kernel(f"tiles_of_{site.name}_{part}", params, bounds, i=rows)["o"]

    def __str__(self) -> str:
        parts = [f"{self.heads} x {self.head_dim} on {self.kv_heads}"]
        parts += ["causal"] if self.causal else []
        parts += [] if self.window is None else [f"window {self.window}"]
        parts += [f"from {self.start}"] if self.start else []
        parts += ["biased"] if self.biased and not self.distances else []
        parts += [f"{self.distances} distances"] if self.distances else []
        return f"attention[{', '.join(parts + ([] if self.soft_cap is None else [f'cap {self.soft_cap}']))}]"


def _loaded(site: Site, kept: Kept, part: int, again: int) -> Stream:
    """Load the codes (part 0) or the scales (part 1) of a cache, one tile of positions per token; each head
    is sent `again` times."""
    layout = kept.layout[part]
    bounds = {"layer": kept.layer, "position": site.position, "rows": site.tokens, "again": again}
    params = KvLoadParams(
        layout=layout,
        lanes=site.attention_lanes,
        parts=layout.width if part else 1,
        pieces=kept.pieces,
        max_new=site.tokens,
        max_again=again,
        **site.memory._asdict(),
    )
    name = f"load_{kept.name}_{('x', 'scale')[part]}"
    rows = (kept.rows.x, kept.rows.scale)[part]
    ports = site.kernel(name, params, bounds, steps={"layer": kept.step}, behind=kept.behind[part], i=rows)
    return ports["o"]
