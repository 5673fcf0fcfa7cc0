"""The kernels of an attention over codes: scores, their soft-cap and bias, the softmax, sums of values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from streamgen.base.errors import GraphError
from streamgen.itensor import ITensor
from streamgen.kernels.attention.distance_rows import DistanceRowsParams
from streamgen.kernels.attention.scores import AttentionScoresParams
from streamgen.kernels.attention.softmax import AttentionSoftmaxParams
from streamgen.kernels.attention.values import AttentionValuesParams
from streamgen.kernels.elementwise import BinaryParams, ScalarParams
from streamgen.model.graph.heads import AttentionHeads
from streamgen.model.graph.logical import Operator
from streamgen.model.operations.cache import quantise_heads_of
from streamgen.model.operations.site import Codes, Fixed, Site, Stream, head_lanes


class Attending(AttentionHeads, Protocol):
    """The properties of an attention that its kernels need."""

    @property
    def scale(self) -> float:
        """The factor of a product of q and k."""

    @property
    def soft_cap(self) -> float | None:
        """The limit of scores; None for none."""

    @property
    def causal(self) -> bool:
        """Whether a token sees no later positions."""

    @property
    def start(self) -> int:
        """The first position that may be seen."""


class AttentionOperator(Operator):
    """The common part of attentions; the heads are fields of the operations."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float

    def require_heads(self) -> None:
        """Raise GraphError for heads and scales that no attention has; make the scale a float."""
        for name in ("heads", "kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise GraphError(f"{name} of an attention is {getattr(self, name)}; at least 1 is needed")
        if self.heads % self.kv_heads:
            raise GraphError(f"{self.heads} query heads cannot share {self.kv_heads} key heads evenly")
        if not np.isfinite(self.scale):
            raise GraphError(f"the scale of an attention is {self.scale}; it must be finite")
        object.__setattr__(self, "scale", float(self.scale))  # a numpy scalar would widen float32

    @property
    def group(self) -> int:
        """The number of query heads that share a head of keys."""
        return self.heads // self.kv_heads

    @property
    def takes_one_position(self) -> bool:
        """Whether it takes one position per cycle in any design."""
        return False

    @property
    def attention(self) -> AttentionHeads:
        return self  # type: ignore[return-value]


@dataclass(frozen=True)
class AttentionRows:
    """The sizes of an attention in a run. tokens: rows of queries. length: rows of keys and of values. most:
    the most of these in any run. lanes: rows of keys and of values per cycle."""

    tokens: int
    length: int
    most: int
    lanes: int


def quantised_queries(site: Site, op: AttentionHeads, q: Stream) -> Codes:
    """The codes of queries, whose heads come in any order of a matmul."""
    return quantise_heads_of(site, f"quantise_{site.name}", op.heads, op.head_dim, q, lambda tile: True)


def attended(
    site: Site,
    op: Attending,
    rows: AttentionRows,
    queries: Codes,
    keys: Codes,
    values: Codes,
    seen: Mapping[str, int],
    biases: Sequence[Stream] = (),
) -> Stream:
    """The kernels of an attention over codes. seen: bounds of the softmax of the positions that a token sees
    (`window_bounds`). biases: none, or one that is added to the scores."""
    built: dict[str, int] = {
        "dims": op.head_dim,
        "lanes": rows.lanes,
        "group": op.group,
        "max_length": rows.most,
        "max_rows": rows.tokens * op.heads,
    }
    where = {"heads": op.kv_heads, "t": rows.tokens, "length": rows.length}
    scores = site.kernel(
        "scores",
        AttentionScoresParams(**built),
        {**where, "scale": op.scale},
        i_q=queries.x,
        i_q_scale=queries.scale,
        i_k=keys.x,
        i_k_scale=keys.scale,
    )["o"]
    sizes = {"rows": rows.tokens * op.heads, "length": rows.length}
    if op.soft_cap is not None:
        cap = ScalarParams(
            function="soft_cap",
            lanes=rows.lanes,
            max_tokens=-(-rows.most // rows.lanes),
            max_rows=rows.tokens * op.heads,
        )
        bounds = {"itensor": scores.itensor, "constant": op.soft_cap, **sizes}
        scores = site.kernel("soft_cap", cap, bounds, i=scores)["o"]
    for bias in biases:
        scores = _with_bias(site, op, rows, scores, bias, sizes)
    longest = rows.most
    if seen["window"] and not op.causal:  # numbers of the softmax have the bits of its longest row
        last = seen["position"] + rows.tokens - 1
        longest = max(rows.most, seen["window"], 1 << (last.bit_length() - 1))
    params = AttentionSoftmaxParams(lanes=rows.lanes, max_length=longest, p_bits=op.p_bits)
    mask = {**sizes, **seen, "rows_per_position": op.group, "rows_per_head": rows.tokens * op.group}
    mask |= {"start": op.start} if op.start else {}
    shares = site.kernel("softmax", params, mask, i=scores)
    sums = AttentionValuesParams(**built, p_bits=op.p_bits, width=head_lanes(site, op.head_dim))
    ports = site.kernel(
        "values",
        sums,
        where,
        i_p=shares["o_p"],
        i_sum=shares["o_sum"],
        i_v=values.x,
        i_v_scale=values.scale,
    )
    return ports["o"]


def distance_rows(site: Site, op: Attending, rows: AttentionRows, table: np.ndarray) -> Stream:
    """The numbers of distances for scores over a cache. table: float32 [walks, 1, heads * distances]."""
    context = site.context
    by_head = table.reshape(len(table), op.heads, -1)
    if by_head.shape[2] < context:
        raise GraphError(f"a bias has numbers for {by_head.shape[2]} distances; {context} are needed")
    params = DistanceRowsParams(
        lanes=rows.lanes,
        heads=op.heads,
        group=op.group,
        span=context,
        max_tokens=rows.tokens,
        max_length=rows.most,
    )
    bounds = {"t": rows.tokens, "position": rows.length - rows.tokens, "length": rows.length}
    order = params.inputs(bounds)["i"]
    held = np.zeros((len(table), *order.shape), table.dtype)
    held[:, :, :context] = by_head[:, :, -context:]
    return site.kernel("distance_rows", params, bounds, i=Fixed(order, list(held)))["o"]


def _with_bias(
    site: Site,
    op: AttentionHeads,
    rows: AttentionRows,
    scores: Stream,
    bias: Stream,
    sizes: Mapping[str, int],
) -> Stream:
    """Scores plus the numbers of their heads and positions: of each position of a cache, several per cycle;
    of rows with a number for each position, one per cycle."""
    bounds: dict[str, Any] = {"itensor": scores.itensor}
    longest = -(-rows.most // rows.lanes)
    if bias.itensor != scores.itensor:
        positions = bias.shape.features // op.heads
        loops = (op.kv_heads, rows.tokens, op.group, rows.length)
        steps = (op.group * positions, 1, positions, 1)
        bounds["b"] = ITensor((1, 1), "f24", loops, steps, ((1,), (0, 2, 3)))
        longest = rows.tokens
    bounds |= sizes
    add = BinaryParams(operation="add", lanes=rows.lanes, max_tokens=longest, max_rows=rows.tokens * op.heads)
    return site.kernel("score_bias", add, bounds, i_a=scores, i_b=bias)["o"]
