"""Attention of a module: as one call, or as scores, softmax and weighted sums.

    softmax(scale · q @ k.T + mask) @ v                    q, k, v [.., tokens, features of a head]
    softmax(cap · tanh(scale · q @ k.T / cap) + mask) @ v

The attention is over the given tokens or, in a language model, over the positions of a cache. Masks are
constants of the traced tokens, or tables of their positions. A mask must show each token all tokens, those up
to itself, the last few of these, or a few on both sides of it. In a frame, any constant may be added: it is a
bias of scores. In a language model, a bias may have a number for each head and distance. Heads, and key heads
that several query heads share, are recognised by the contents of the tensors.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch.fx import Node

from streamgen.model.frontend.distances import distances_of
from streamgen.model.frontend.draft import Draft
from streamgen.model.frontend.elements import HeadOrder
from streamgen.model.frontend.partial import Partial
from streamgen.model.frontend.rotary import rotated
from streamgen.model.frontend.sourced import NEEDED as SOURCE
from streamgen.model.frontend.sourced import is_of_source
from streamgen.model.frontend.trace import Unsupported, aten, shape
from streamgen.model.operations import Attention, Cache, Constant, LogSoftmax, Softmax, SourceAttention

HIDDEN = -(2.0**100)  # a bias that hides a score
MASKED = -1e4  # a mask adds at most this number, so that no float keeps anything of the term
MASK = "only scores of an attention can be masked, with a constant"
SHARES = "the softmax of attention scores can only multiply values: softmax(q @ k.T) @ v"


ACROSS = (
    "it multiplies rows of several sequences with one another; a sequence is computed by itself. Give an "
    "example of one sequence, and multiply the rows of several ones on the host"
)


def _are_rows_of_sequences(draft: Draft, contents: torch.Tensor) -> bool:
    """Whether a matrix holds single values of several sequences."""
    elements = draft.elements
    rows = contents % elements.stride
    several = bool((rows[..., :1, :] != rows).any())
    return several and bool(elements.run) and elements.are_single(contents // elements.stride)


@dataclass(frozen=True, eq=False)
class Scores(Partial):
    """scale · q @ k.T, perhaps soft-capped. q, k: contents, broadcast. masks: rows and columns of their
    masks. seen: bool of these extents; None means all. hidden_at: the greatest number that hidden scores
    became. form: "tanh" if the multiplication by the cap is still missing. framed: whether constants may be
    biases. counted: whether they may be biases by distance. bias: float64, the constants that are added in a
    frame, or by position, 0 where a mask hides scores; None means none."""

    q: torch.Tensor
    k: torch.Tensor
    masks: tuple[int, int]
    scale: float = 1.0
    seen: torch.Tensor | None = None
    zeroed: torch.Tensor | None = None
    hidden_at: float = -math.inf
    soft_cap: float | None = None
    form: Literal["product", "tanh", "capped"] = "product"
    framed: bool = False
    counted: bool = False
    bias: torch.Tensor | None = None
    needed = (
        "a product of two values must be scores of an attention: softmax(scale * q @ k.T + mask) @ v, "
        "the mask a constant"
    )

    @classmethod
    def of(cls, draft: Draft, node: Node, a: Any, b: Any) -> "Scores":
        """a @ b of two values."""
        q, k = _operand(draft, node, a), _operand(draft, node, b, transposed=True)
        lead, tokens = shape(node)[:-2], shape(node)[-2:]
        if is_of_source(q):
            raise Unsupported(SOURCE)
        if min(q.ndim, k.ndim) > 1 and _are_rows_of_sequences(draft, q):
            raise Unsupported(ACROSS)
        if min(q.ndim, k.ndim) < 2 or not (
            is_of_source(k)
            or tokens[1] in (tokens[0], draft.elements.stride)
            or draft.tables.counts
            or draft.elements.framed
        ):
            raise Unsupported(cls.needed)
        k = k.transpose(-1, -2)
        masks = _masks(draft, tokens[0], k)
        framed = draft.elements.framed
        counted = draft.tables.counts and not is_of_source(k)
        q, k = (operand.expand(*lead, *operand.shape[-2:]) for operand in (q, k))
        return cls(q, k, masks, framed=framed, counted=counted)

    def times(self, factor: float) -> "Scores":
        if self.seen is not None and not self.hidden_at * factor <= MASKED:
            raise Unsupported(f"masked scores that are scaled must stay at most {MASKED:.0f}")
        if self.form == "tanh":  # tanh(scale · x) · cap is cap · tanh((scale · cap) · x / cap)
            return replace(self, scale=self.scale * factor, soft_cap=factor, form="capped")
        if self.form == "capped":
            raise Unsupported("scores must be scaled before they are soft-capped")
        bias = None if self.bias is None else self.bias * factor
        return replace(self, scale=self.scale * factor, hidden_at=self.hidden_at * factor, bias=bias)

    def weighed(self, factors: torch.Tensor) -> "Scores":
        kept = factors == 1
        if self.zeroed is not None or self.form != "product" or not (kept | (factors == 0)).all():
            raise Unsupported(
                "scores can be multiplied with one number, or with zeros where a mask hides them"
            )
        return replace(self, zeroed=_by_tokens(~kept, *self.masks))

    def tanh(self) -> "Scores":
        if self.seen is not None or self.form != "product":
            raise Unsupported("scores must be soft-capped once, before they are masked")
        return replace(self, form="tanh")

    def plus(self, constant: torch.Tensor) -> "Scores":
        if self.framed:
            return self._biased(constant)
        if self.counted:
            return self._by_distance(constant)
        seen = _added(constant)
        return self._masked(seen, float(constant[~seen].max()) if not seen.all() else -math.inf)

    def hidden(self, mask: torch.Tensor, fill: float) -> "Scores":
        if fill > MASKED:
            raise Unsupported(f"masked scores must become one number of at most {MASKED:.0f}")
        if self.framed:
            return self._biased(torch.zeros(mask.shape).masked_fill(mask, HIDDEN))
        return self._masked(~mask, fill)

    def _biased(self, constant: torch.Tensor) -> "Scores":
        """Plus a constant, of which numbers of at most MASKED hide scores."""
        if self.form == "tanh":
            return replace(self, soft_cap=1.0, form="capped")._biased(constant)
        wide = constant.double()
        wide = wide.masked_fill(wide <= MASKED, -math.inf)
        return replace(self, bias=wide if self.bias is None else self.bias + wide)

    def _by_distance(self, constant: torch.Tensor) -> "Scores":
        """Plus a constant of a language model, of which numbers of at most MASKED hide scores."""
        if self.form == "tanh":
            return replace(self, soft_cap=1.0, form="capped")._by_distance(constant)
        seen = constant > MASKED
        numbers = constant.double().masked_fill(~seen, 0.0)
        found = self
        if not seen.all():
            found = self._masked(seen, float(constant[~seen].max()))
        if not numbers.any():
            return found
        return replace(found, bias=numbers if self.bias is None else self.bias + numbers)

    def softmax(self) -> "Shares":
        if self.zeroed is not None and self.framed:
            raise Unsupported("scores of a frame can only be multiplied with one number")
        if self.zeroed is not None and (self.seen is None or (self.zeroed & self.seen).any()):
            raise Unsupported("a mask must hide the scores that are multiplied with zero")
        return Shares(self if self.form != "tanh" else replace(self, soft_cap=1.0))

    def _masked(self, seen: torch.Tensor, hidden_at: float) -> "Scores":
        if self.form == "tanh":
            return replace(self, soft_cap=1.0, form="capped")._masked(seen, hidden_at)
        seen = _by_tokens(seen, *self.masks)
        return replace(
            self,
            seen=seen if self.seen is None else seen & self.seen,
            hidden_at=max(hidden_at, self.hidden_at),
        )


@dataclass(frozen=True, eq=False)
class Shares(Partial):
    """softmax(scores)."""

    scores: Scores
    needed = SHARES

    def summed(self, draft: Draft, node: Node, other: Node) -> None:
        scores = self.scores
        v = _operand(draft, node, other)
        if v.ndim < 2 or v.shape[-2] != scores.k.shape[-2]:
            raise Unsupported(SHARES)
        lead = scores.q.shape[:-2]
        alike = v.shape[:-2].numel() == lead.numel()  # although the softmax lost a leading 1
        v = v.reshape(*lead, *v.shape[-2:]) if alike else v.expand(*lead, *v.shape[-2:])
        _attend(draft, node, scores, v)


def _masks(draft: Draft, tokens: int, k: torch.Tensor) -> tuple[int, int]:
    """Rows and columns of masks of scores with these keys."""
    rows, columns = draft.tables.masks(tokens, k.shape[-2])
    return rows, k.shape[-2] if is_of_source(k) else columns


def _operand(draft: Draft, node: Node, source: Any, *, transposed: bool = False) -> torch.Tensor:
    """Contents of queries, keys or values, which may be constants of a frame. transposed: whether tokens are
    the last dimension."""
    if draft.elements.framed and not draft.knows(source) and source in draft.constants.tensors:
        array = draft.constants.array(node, source)
        if array.ndim > 1:
            swapped = draft.sequences.constant(node, array.swapaxes(-1, -2) if transposed else array)
            return swapped.mT if transposed else swapped
    contents: torch.Tensor = draft.form(node, source, lambda c: c)
    return contents


def _attend(draft: Draft, node: Node, scores: Scores, v: torch.Tensor) -> None:
    """Add the attention of as many heads of q, k and v; equal neighbouring heads of k and v become one."""
    elements = draft.elements
    tokens, features = scores.q.shape[-2:]
    if is_of_source(scores.k) or is_of_source(v):
        return _attend_source(draft, node, scores, v)
    if draft.tables.counts and scores.k.shape[-2] > tokens:
        scores, v = _without_later_places(scores, v, draft.tables.context)
    if scores.k.shape[-2] != v.shape[-2] or v.shape[-1] != features:
        raise Unsupported(
            "queries, keys and values must have the same head size, and there must be as many keys as values"
        )
    q = elements.heads(scores.q)
    heads = len(q.columns)
    start, places = _places_of_keys(draft, scores.k, v)
    keys = [_heads_of(draft, contents, q.order) for contents in (scores.k, v)]
    group = next(
        g
        for g in range(heads, 0, -1)
        if heads % g == 0 and all(torch.equal(heads_of, _shared(heads_of, g)) for heads_of in keys)
    )
    before = elements.before + q.first - start
    distances = 0
    if elements.framed:
        causal, window, bias = _of_frame(draft, node, scores, q, places, before)
    else:
        causal, window, bias = *_mask(scores.seen, before), ""
        if scores.bias is not None:
            if not causal or window is not None:
                raise Unsupported("a bias of its scores by distance needs a causal mask without a window")
            table = distances_of(scores.bias, scores.masks, scores.q.shape[:-2], q.order[0])
            bias, distances = draft.add(node, f"{node.name}_distances", Constant(table)), table.size // heads
    queries, factor = draft.unscaled(q.columns)
    op = Attention(
        heads,
        heads // group,
        features,
        scores.scale * factor,
        causal=causal,
        window=window,
        start=start,
        biased=bool(bias),
        distances=distances,
        soft_cap=scores.soft_cap,
    )
    parts = (queries, *(heads_of[::group] for heads_of in keys))
    columns = [rotated(draft, node, features_of) for features_of in parts]
    names = [draft.value(node, features_of.reshape(-1)) for features_of in columns]
    if draft.elements.before:
        _require_caches(draft, names[1:], heads)
    name = draft.add(node, node.name, op, *names, *filter(None, [bias]))
    _keep_heads(draft, node, name, q, features)


def _attend_source(draft: Draft, node: Node, scores: Scores, v: torch.Tensor) -> None:
    """Add an attention over keys and values of the source."""
    features = scores.q.shape[-1]
    if not (is_of_source(scores.k) and is_of_source(v)):
        raise Unsupported("keys and values must both be of the source, or both of the text")
    if scores.k.shape != v.shape:
        raise Unsupported("keys and values of the source must have one shape")
    if scores.soft_cap is not None or (scores.seen is not None and not scores.seen.all()):
        raise Unsupported("each token must see all rows of the source, with scores that have no soft-cap")
    assert draft.source is not None
    q = draft.elements.heads(scores.q)
    heads = len(q.columns)
    reads = [draft.source.heads(contents, q.order) for contents in (scores.k, v)]
    group = next(
        g
        for g in range(heads, 0, -1)
        if heads % g == 0 and all(torch.equal(columns, _shared(columns, g)) for _, _, columns in reads)
    )
    for call, rows, columns in reads:
        draft.source.read(call, rows, columns[::group])
    queries, factor = draft.unscaled(q.columns)
    op = SourceAttention(heads, heads // group, features, scores.scale * factor)
    read = draft.value(node, rotated(draft, node, queries).reshape(-1))
    _keep_heads(draft, node, draft.add(node, node.name, op, read), q, features)


def _keep_heads(draft: Draft, node: Node, name: str, q: HeadOrder, features: int) -> None:
    """Make heads of the queries' order out of the result of an attention."""
    heads, tokens = len(q.columns), len(q.places)
    mixed = draft.columns(name, heads * features).reshape(1, heads, 1, features)
    contents = torch.empty(q.order.numel(), tokens, features, dtype=torch.int64)
    contents[q.order] = draft.elements.indices(mixed, q.rows[:, None, :, None])
    draft.keep(node, contents.reshape(shape(node)))


def _of_frame(
    draft: Draft, node: Node, scores: Scores, q: HeadOrder, places: torch.Tensor, before: int
) -> tuple[bool, int | None, str]:
    """Whether attention in a frame is causal, its window, and the name of its bias, empty for none."""
    if scores.bias is None:
        return False, None, ""
    lead, extents = scores.q.shape[:-2], (scores.q.shape[-2], scores.k.shape[-2])
    added = scores.bias.broadcast_to(*lead, *extents).reshape(-1, *extents)
    added = added[:, q.places.argsort()][:, :, places.argsort()]  # by place
    seen = added > -math.inf
    try:
        causal, window = _mask(_by_tokens(seen, *extents), before, framed=True)
        rest = added.masked_fill(~seen, 0.0)
    except Unsupported:  # any other mask is numbers
        causal, window, rest = False, None, added.masked_fill(~seen, HIDDEN)
    if not rest.any():
        return causal, window, ""
    elements = draft.elements
    run = elements.run or elements.rows
    runs, heads = q.order.shape
    numbers = torch.zeros(runs, extents[0], heads, run)
    numbers[..., run - extents[1] :] = rest[q.order].transpose(1, 2)
    rows = q.rows.sort(dim=1).values.reshape(-1)
    columns = draft.sequences.by_place(node, numbers.flatten(2).flatten(0, 1).numpy(), rows)
    if columns is None:
        raise Unsupported("the bias of its scores differs between sequences")
    return causal, window, draft.value(node, columns)


def _require_caches(draft: Draft, names: Sequence[str], heads: int) -> None:
    """Raise Unsupported unless keys and values are whole caches."""
    caches = {o.name: o.op for o in draft.operations if isinstance(o.op, Cache)}
    if not caches.keys() >= set(names):
        group = heads // max(op.heads for op in caches.values())
        raise Unsupported(f"query head h must read the keys and values of head h // {group}")


def _places_of_keys(draft: Draft, k: torch.Tensor, v: torch.Tensor) -> tuple[int, torch.Tensor]:
    """The place of the first key in its sequence, and the place of each. Only keys in front of the others can
    be hidden."""
    elements = draft.elements
    if not elements.framed:
        return 0, torch.arange(k.shape[-2])
    keys, values = (elements.heads(contents) for contents in (k, v))
    run = elements.run or elements.rows
    if not torch.equal(keys.places, values.places) or keys.first + len(keys.places) != run:
        raise Unsupported("the places of its keys and values must be the last ones of their sequences")
    return keys.first, keys.places


def _without_later_places(scores: Scores, v: torch.Tensor, context: int) -> tuple[Scores, torch.Tensor]:
    """Scores and values without the places of a buffer that no token has filled; a mask must hide them."""
    if scores.seen is None or scores.seen[:, context:].any():
        raise Unsupported("a mask must hide the places of its buffers that no token has filled yet")
    tokens = scores.q.shape[-2]
    cut = replace(scores, k=scores.k[..., :tokens, :], seen=scores.seen[:, :context])
    return cut, v[..., :tokens, :]


def _heads_of(draft: Draft, contents: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Columns [heads, features] of keys or values, with the heads in the order of the queries."""
    if not draft.elements.before:
        return draft.elements.heads(contents, order).columns
    if contents.shape[-2] != draft.elements.stride:
        raise Unsupported("its keys and values must be those of all positions, from the cache")
    return draft.elements.cached(contents)[order[0]]


def _shared(columns: torch.Tensor, group: int) -> torch.Tensor:
    """Columns of the heads, with the first head of each group in place of all its heads."""
    return columns[::group].repeat_interleave(group, 0)


def _added(mask: torch.Tensor) -> torch.Tensor:
    """The positions that an added mask leaves visible."""
    seen = mask == 0
    if not (seen | (mask <= MASKED)).all():
        raise Unsupported(
            f"its mask adds a number other than 0 that is above {MASKED:.0f}; biases of scores, such as "
            "those of relative positions, cannot be compiled"
        )
    return seen


def _by_tokens(seen: torch.Tensor, tokens: int, keys: int) -> torch.Tensor:
    """The [tokens, keys] part of a mask that is the same for all heads and runs."""
    wide = seen.broadcast_to((*seen.shape[:-2], tokens, keys)).reshape(-1, tokens, keys)
    if (wide != wide[:1]).any():
        raise Unsupported("its mask differs from head to head or from sequence to sequence")
    return wide[0]


def _mask(seen: torch.Tensor | None, before: int, *, framed: bool = False) -> tuple[bool, int | None]:
    """Whether a mask is causal, and its window. before: the position of the first token, counted from the
    first key."""
    if seen is None or seen.all():
        if before and not framed:
            raise Unsupported("it has no causal mask")
        return False, None
    tokens, keys = seen.shape
    behind = before + torch.arange(tokens)[:, None] - torch.arange(keys)
    window = int(seen[-1].sum())
    if torch.equal(seen, behind >= 0):
        return True, None
    if torch.equal(seen, (behind >= 0) & (behind < window)):
        return True, window
    window = int(seen[0].sum())
    if not before and torch.equal(seen, behind.abs() < window):
        return False, window
    raise Unsupported(
        "its mask must be causal: each token sees all tokens up to itself, or the last few of them"
        + ("" if before else "; without a cache, it may also see as many behind itself as before")
    )


def _scaled_dot_product(draft: Draft, node: Node) -> None:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given: dict[str, Any] = dict(zip(names, node.args, strict=False)) | node.kwargs
    if given.get("dropout_p"):
        raise Unsupported("it has dropout; call module.eval() first")
    q, k, v = (_operand(draft, node, given[name]) for name in names[:3])
    lead, tokens = shape(node)[:-2], q.shape[-2]
    if given.get("enable_gqa"):
        k, v = (heads.repeat_interleave(q.shape[-3] // heads.shape[-3], -3) for heads in (k, v))
    scale = given.get("scale")
    masks = _masks(draft, tokens, k)
    if is_of_source(q):
        raise Unsupported(SOURCE)
    scores = Scores(
        q.expand(*lead, *q.shape[-2:]),
        k.expand(*lead, *k.shape[-2:]),
        masks,
        1 / math.sqrt(q.shape[-1]) if scale is None else float(scale),
        framed=draft.elements.framed,
        counted=draft.tables.counts and not is_of_source(k),
    )
    if given.get("is_causal"):
        if draft.elements.before:
            raise Unsupported(
                "is_causal aligns the first query with the first key of the cache; give a mask instead"
            )
        causal = torch.ones(masks, dtype=torch.bool).tril()
        scores = scores.hidden(~causal, -math.inf) if scores.framed else replace(scores, seen=causal)
    if (mask := given.get("attn_mask")) is not None:
        if draft.knows(mask):
            raise Unsupported("its mask is computed at run time")
        shown = draft.tables.shown(mask)
        if scores.framed:
            truth = shown.dtype == torch.bool
            scores = scores.hidden(~shown, -math.inf) if truth else scores.plus(shown)
        else:
            truth = shown.dtype == torch.bool
            scores = replace(scores, seen=_by_tokens(shown, *masks)) if truth else scores.plus(shown)
    _attend(draft, node, scores, v.expand(*lead, *v.shape[-2:]))


def _softmax(draft: Draft, node: Node) -> None:
    x, dim = node.args[:2]
    if dim not in (-1, len(shape(node)) - 1):
        raise Unsupported("softmax must be over the last dimension")
    logarithm = node.target == aten.log_softmax.int
    if x in draft.partial:
        if logarithm:
            raise Unsupported(SHARES)
        return draft.half(node, draft.partial[x].softmax())
    rows, columns = draft.form(node, x, draft.elements.lines)
    op = LogSoftmax() if logarithm else Softmax()
    draft.lines(node, draft.add(node, node.name, op, draft.value(node, columns)), rows, len(columns))


def filled(draft: Draft, node: Node) -> None:
    """masked_fill(scores, mask, fill), or where(mask, scores, fill)."""
    wheres = node.target in (aten.where.self, aten.where.ScalarOther)
    mask, scores, fill = (*node.args[:3],) if wheres else (node.args[1], node.args[0], node.args[2])
    if scores not in draft.partial or draft.knows(mask) or draft.knows(fill):
        raise Unsupported(MASK)
    number = draft.tables.shown(fill) if isinstance(fill, Node) else torch.tensor(float(fill))
    if number.numel() != 1:
        raise Unsupported(f"masked scores must become one number of at most {MASKED:.0f}")
    hidden = draft.tables.shown(mask)
    draft.half(node, draft.partial[scores].hidden(~hidden if wheres else hidden, float(number)))


CALLS = {
    aten.scaled_dot_product_attention.default: _scaled_dot_product,
    **dict.fromkeys([aten.softmax.int, aten.log_softmax.int], _softmax),
}
