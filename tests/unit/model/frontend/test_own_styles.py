"""Parts of decoders in the spellings of many authors: masks, attention, positions, heads of the vocabulary.

Each stands in a decoder of one layer; the import compares its graph with torch.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from einops import rearrange, repeat
from torch import Tensor, nn
from torch.nn import functional

from streamgen.base.errors import UnsupportedOperationError
from streamgen.model.frontend import import_any
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.operations import Attention, PositionRows

WIDTH, HEADS, DIM, VOCABULARY, CONTEXT, WINDOW = 16, 2, 8, 11, 24, 5
Attend = Callable[["Decoder", Tensor], Tensor]
Embed = Callable[["Decoder", Tensor], Tensor]


class Decoder(nn.Module):
    """One layer of attention, with the parts of a style."""

    def __init__(self, attend: Attend, embed: Embed, head: Attend) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.rows = nn.Parameter(torch.randn(1, CONTEXT, WIDTH))
        self.qkv, self.q = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.k, self.v = nn.Linear(WIDTH, DIM), nn.Linear(WIDTH, DIM)
        self.out = nn.Linear(WIDTH, VOCABULARY)
        self.register_buffer("tril", torch.tril(torch.ones(CONTEXT, CONTEXT)).view(1, 1, CONTEXT, CONTEXT))
        self.multi = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.first = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True, norm_first=True)
        self.last = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True, activation="gelu")
        self.attend, self.embed, self.head = attend, embed, head

    def heads(self, x: Tensor) -> list[Tensor]:
        """q, k and v, [1, heads, T, dim]."""
        parts = self.qkv(x).chunk(3, -1)
        return [part.view(*x.shape[:2], HEADS, DIM).transpose(1, 2) for part in parts]

    def one_of_keys(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of several heads, keys and values of one."""
        q = self.q(x).view(*x.shape[:2], HEADS, DIM).transpose(1, 2)
        return q, self.k(x)[:, None], self.v(x)[:, None]

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(self, ids)
        return self.head(self, x + self.attend(self, x))


def _merged(y: Tensor) -> Tensor:
    return y.transpose(1, 2).reshape(y.shape[0], y.shape[2], -1)


def _flash(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Tensor:
    return _merged(functional.scaled_dot_product_attention(q, k, v, **given))


def _ahead(tokens: int) -> Tensor:
    """-inf above the diagonal."""
    return torch.triu(torch.full((tokens, tokens), float("-inf")), 1)


def _masked(mask: Callable[[Decoder, Tensor], Tensor]) -> Attend:
    def attend(self: Decoder, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        return _merged(mask(self, q @ k.transpose(-1, -2) / math.sqrt(DIM)).softmax(-1) @ v)

    return attend


def _cut(self: Decoder, scores: Tensor) -> Tensor:
    return self.tril[:, :, : scores.shape[-1], : scores.shape[-1]]


def _changed_in_place(self: Decoder, scores: Tensor) -> Tensor:
    mask = torch.full(scores.shape[-2:], float("-inf"))
    mask.triu_(1)
    return scores + mask


def _by_comparison(self: Decoder, scores: Tensor) -> Tensor:
    steps = torch.arange(scores.shape[-1])
    hidden = torch.logical_not(steps[None] <= steps[:, None])
    return scores.masked_fill(hidden, torch.finfo(scores.dtype).min)


def _by_lengths(self: Decoder, scores: Tensor) -> Tensor:
    queries, keys = scores.shape[-2:]
    return scores.masked_fill(self.tril[:, :, keys - queries : keys, :keys] == 0, -1e4)


MASKS = {
    "multiplied": lambda self, s: s * _cut(self, s) - 1e10 * (1 - _cut(self, s)),
    "changed in place": _changed_in_place,
    "added": lambda self, s: s + _ahead(s.shape[-1])[None, None],
    "a logarithm": lambda self, s: s + _cut(self, s).log(),
    "one minus": lambda self, s: s + (1.0 - _cut(self, s)) * -10000.0,
    "a comparison": _by_comparison,
    "where": lambda self, s: torch.where(_cut(self, s).bool(), s, torch.tensor(-1e9)),
    "cut by lengths": _by_lengths,
}


def _neighbours(self: Decoder, x: Tensor) -> Tensor:
    """Rotation of neighbours, tables repeated."""
    q, k, v = (part.view(*x.shape[:2], HEADS, DIM) for part in self.qkv(x).chunk(3, -1))
    frequencies = 1 / (10000 ** (torch.arange(0, DIM, 2) / DIM))
    angles = torch.einsum("i,j->ij", torch.arange(x.shape[1], dtype=torch.float), frequencies)
    sin, cos = (table.repeat_interleave(2, -1)[None, :, None, :] for table in (angles.sin(), angles.cos()))

    def turned(t: Tensor) -> Tensor:
        return t * cos + torch.stack((-t[..., 1::2], t[..., ::2]), -1).flatten(-2) * sin

    return _flash(*(t.transpose(1, 2) for t in (turned(q), turned(k), v)), is_causal=True)


def _part_of_a_head(self: Decoder, x: Tensor) -> Tensor:
    """Rotation of the first half of each head, by halves."""
    q, k, v = self.heads(x)
    half = DIM // 2
    frequencies = 1 / (10000 ** (torch.arange(0, half, 2).float() / half))
    angles = torch.outer(torch.arange(x.shape[1]).float(), frequencies)
    angles = torch.cat((angles, angles), -1)[None, None]

    def turned(t: Tensor) -> Tensor:
        a, rest = t[..., :half], t[..., half:]
        moved = torch.cat((-a[..., half // 2 :], a[..., : half // 2]), -1)
        return torch.cat((a * angles.cos() + moved * angles.sin(), rest), -1)

    return _flash(turned(q), turned(k), v, is_causal=True)


def _expanded(self: Decoder, x: Tensor) -> Tensor:
    q, k, v = self.one_of_keys(x)
    return _flash(q, k.expand(q.shape), v.expand(q.shape), is_causal=True)


def _broadcast(self: Decoder, x: Tensor) -> Tensor:
    q, k, v = self.one_of_keys(x)
    return _merged((q @ k.mT * DIM**-0.5 + _ahead(x.shape[1])).softmax(-1) @ v)


def _repeated(self: Decoder, x: Tensor) -> Tensor:
    q, k, v = self.one_of_keys(x)
    return _flash(q, k.repeat(1, HEADS, 1, 1), repeat(v[:, 0], "b t e -> b h t e", h=HEADS), is_causal=True)


def _einsum_heads_last(self: Decoder, x: Tensor) -> Tensor:
    q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, DIM).unbind(2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / DIM**0.5 + _ahead(x.shape[1])
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).reshape(x.shape)


def _einsum_ellipsis(self: Decoder, x: Tensor) -> Tensor:
    q, k, v = rearrange(self.qkv(x), "b t (three h e) -> three b h t e", three=3, h=HEADS).unbind(0)
    scores = torch.einsum("...qe,...ke->...qk", q, k) * DIM**-0.5 + _ahead(x.shape[1])
    return rearrange(torch.einsum("...qk,...ke->...qe", scores.softmax(-1), v), "b h t e -> b t (h e)")


def _batched_products(self: Decoder, x: Tensor) -> Tensor:
    q, k, v = (part.reshape(HEADS, -1, DIM) for part in self.heads(x))
    scores = (torch.bmm(q, k.transpose(1, 2)) * DIM**-0.5).view(1, HEADS, x.shape[1], x.shape[1])
    shares = (scores + _ahead(x.shape[1])).softmax(-1).view(HEADS, x.shape[1], x.shape[1])
    return _merged(torch.bmm(shares, v).view(1, HEADS, x.shape[1], DIM))


def _product_on_a_mask(self: Decoder, x: Tensor) -> Tensor:
    q, k, v = (part.reshape(HEADS, -1, DIM) for part in self.heads(x))
    mask = _ahead(x.shape[1]).expand(HEADS, -1, -1)
    scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=DIM**-0.5)
    return _merged((scores.softmax(-1) @ v).view(1, HEADS, x.shape[1], DIM))


def _scaled_on_both_sides(self: Decoder, x: Tensor) -> Tensor:
    q, k, v = self.heads(x)
    return _merged((q * DIM**-0.25 @ (k * DIM**-0.25).mT + _ahead(x.shape[1])).softmax(-1) @ v)


def _in_float32(self: Decoder, x: Tensor) -> Tensor:
    q, k, v = self.heads(x)
    scores = q @ k.mT / DIM**0.5 + _ahead(x.shape[1])
    return _merged(functional.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype) @ v)


def _head_by_head(self: Decoder, x: Tensor) -> Tensor:
    q, k, v = self.heads(x)
    mask = _ahead(x.shape[1])[None, None]
    scores = ((q[:, h] @ k[:, h].mT / DIM**0.5)[:, None] + mask for h in range(HEADS))
    return torch.cat([s[:, 0].softmax(-1) @ v[:, h] for h, s in enumerate(scores)], -1)


def _windowed(self: Decoder, x: Tensor) -> Tensor:
    steps = torch.arange(x.shape[1])
    behind = steps[:, None] - steps
    return _flash(*self.heads(x), attn_mask=(behind >= 0) & (behind < WINDOW))


def _band(self: Decoder, x: Tensor) -> Tensor:
    ones = torch.ones(x.shape[1], x.shape[1])
    return _flash(*self.heads(x), attn_mask=(ones.tril() * ones.triu(1 - WINDOW)).bool())


def _of_torch(name: str, **given: Any) -> Attend:
    def attend(self: Decoder, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        result: Tensor = getattr(self, name)(x, mask, **given)
        return result

    return attend


def _multi(**given: Any) -> Attend:
    def attend(self: Decoder, x: Tensor) -> Tensor:
        hidden = torch.triu(torch.ones(x.shape[1], x.shape[1]), 1).bool()
        result: Tensor = self.multi(x, x, x, attn_mask=hidden, **given)[0]
        return result

    return attend


def _plain(self: Decoder, x: Tensor) -> Tensor:
    return _flash(*self.heads(x), is_causal=True)


def _biased_by_distance(self: Decoder, x: Tensor) -> Tensor:
    steps = torch.arange(x.shape[1])
    bias = (steps - steps[:, None]).tril() * torch.tensor([0.5, 0.25])[:, None, None]
    return _flash(*self.heads(x), attn_mask=bias + _ahead(x.shape[1]))


ATTENTION: dict[str, Attend] = {
    **{f"mask {name}": _masked(mask) for name, mask in MASKS.items()},
    "rotates neighbours": _neighbours,
    "rotates a part": _part_of_a_head,
    "keys expanded": _expanded,
    "keys broadcast": _broadcast,
    "keys repeated": _repeated,
    "einsum, heads last": _einsum_heads_last,
    "einsum, ellipsis": _einsum_ellipsis,
    "batched products": _batched_products,
    "product on a mask": _product_on_a_mask,
    "scaled on both sides": _scaled_on_both_sides,
    "softmax in float32": _in_float32,
    "head by head": _head_by_head,
    "window": _windowed,
    "band": _band,
    "biased by distance": _biased_by_distance,
    "module with weights": _multi(),
    "module without weights": _multi(need_weights=False),
    "module that is told": _multi(is_causal=True, need_weights=False),
    "encoder layer": _of_torch("first"),
    "encoder layer that is told": _of_torch("last", is_causal=True),
}


def _sines(self: Decoder, ids: Tensor) -> Tensor:
    """Written in place, in forward."""
    steps = torch.arange(ids.shape[1])[:, None]
    frequencies = torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(1e4) / WIDTH))
    table = torch.zeros(ids.shape[1], WIDTH)
    table[:, 0::2], table[:, 1::2] = torch.sin(steps * frequencies), torch.cos(steps * frequencies)
    return self.tokens(ids) + table


def _sines_side_by_side(self: Decoder, ids: Tensor) -> Tensor:
    angles = torch.arange(ids.shape[1])[:, None] * torch.exp(torch.arange(0, WIDTH, 2) * -0.5)
    return self.tokens(ids) * WIDTH**0.5 + torch.cat([angles.sin(), angles.cos()], -1)


EMBEDDINGS: dict[str, Embed] = {
    "positions": lambda self, ids: self.tokens(ids) + self.places(torch.arange(ids.shape[1])),
    "positions of ones": lambda self, ids: self.tokens(ids) + self.places(torch.ones_like(ids).cumsum(1) - 1),
    "positions expanded": lambda self, ids: (
        self.tokens(ids)
        + self.places(torch.arange(ids.size(1), device=ids.device).unsqueeze(0).expand_as(ids))
    ),
    "a parameter": lambda self, ids: self.tokens(ids) + self.rows[:, : ids.size(1)],
    "rows by index": lambda self, ids: self.tokens.weight[ids] + self.rows[0, : ids.shape[1]],
    "sines": _sines,
    "sines side by side": _sines_side_by_side,
}
HEAD: dict[str, Attend] = {
    "a module": lambda self, x: self.out(x),
    "tied": lambda self, x: functional.linear(x, self.tokens.weight),
    "tied, transposed": lambda self, x: x @ self.tokens.weight.T,
    "tied, einsum": lambda self, x: torch.einsum("btd,vd->btv", x, self.tokens.weight),
    "soft-cap": lambda self, x: 15 * torch.tanh(self.out(x) / 15),
    "logarithms": lambda self, x: functional.log_softmax(self.out(x), -1),
    "tokens first": lambda self, x: self.out(x).transpose(0, 1),
    "last, squeezed": lambda self, x: self.out(x[:, -1:]).squeeze(1),
}


def _shares(x: Tensor) -> Tensor:
    """Shares of the two greatest elements, 0 for the others."""
    best = x.topk(2)
    return torch.zeros_like(x).scatter(-1, best.indices, best.values.softmax(-1))


ROWS: dict[str, Attend] = {
    # of a row alone, or with constants of its position
    "choice by scatter": lambda self, x: x * _shares(x),
    "choice by a threshold": lambda self, x: x.masked_fill(x < x.topk(2).values[..., -1:], -1e9).softmax(-1),
    "choice of one": lambda self, x: x * functional.one_hot(x.argmax(-1), WIDTH).float(),
    "sorted": lambda self, x: x.sort(-1, descending=True).values,
    "median": lambda self, x: (x > x.median(-1, keepdim=True).values).float() * x,
    "minus a position": lambda self, x: x - self.rows[:, : x.shape[1]],
    "a position minus it": lambda self, x: self.rows[:, : x.shape[1]] - 2 * x,
    "by a position": lambda self, x: x / (1 + self.rows[:, : x.shape[1]].abs()),
    "a position by it": lambda self, x: self.rows[:, : x.shape[1]] / (1 + x.abs()),
    "the greater one": lambda self, x: torch.maximum(x, self.rows[:, : x.shape[1]]),
    "where a position": lambda self, x: torch.where(self.rows[:, : x.shape[1]] > 0, x, x / 2),
    "where odd": lambda self, x: x.masked_fill((torch.arange(x.shape[1]) % 2 == 1)[:, None], 0.5),
    "a number for a position": lambda self, x: x * torch.arange(1, x.shape[1] + 1).log()[:, None],
}
QUICK = {
    "choice by scatter", "choice of one", "by a position", "where a position", "where odd",
    "mask multiplied", "mask changed in place", "rotates neighbours", "einsum, ellipsis", "product on a mask",
    "window", "biased by distance", "positions expanded", "rows by index", "sines", "last, squeezed",
}  # fmt: skip


def _cases(styles: Mapping[str, object]) -> list[Any]:
    """The styles, all but those of `QUICK` slow."""
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in styles]


def _imported(
    attend: Attend = _plain, embed: Embed = EMBEDDINGS["positions"], head: Attend = HEAD["a module"]
) -> LogicalGraph:
    return import_any(Decoder(attend, embed, head).eval(), torch.zeros(1, 6, dtype=torch.int64))[0]


@pytest.mark.parametrize("name", _cases(ATTENTION))
def test_attention(name: str) -> None:
    """Causal heads are found, with their window, and grouped where they share their keys."""
    graph = _imported(ATTENTION[name])
    attentions = [o.op for _, o in graph.walk() if isinstance(o.op, Attention)]
    assert graph.context == CONTEXT and all(op.causal for op in attentions)
    assert sum(op.heads for op in attentions) == HEADS
    assert {op.window for op in attentions} == {WINDOW if name in ("window", "band") else None}
    assert sum(op.kv_heads for op in attentions) == (1 if name.startswith("keys") else HEADS)


@pytest.mark.parametrize("name", _cases(EMBEDDINGS))
def test_embedding(name: str) -> None:
    assert _imported(embed=EMBEDDINGS[name]).context == (2048 if name.startswith("sines") else CONTEXT)


@pytest.mark.parametrize("name", _cases(HEAD))
def test_head(name: str) -> None:
    assert _imported(head=HEAD[name]).context == CONTEXT


@pytest.mark.parametrize("name", _cases(ROWS))
def test_rows(name: str) -> None:
    assert _imported(head=lambda self, x: self.out(ROWS[name](self, x))).context == CONTEXT


def test_zeros_for_every_token_are_no_table() -> None:
    graph = _imported(head=lambda self, x: self.out(ROWS["choice by scatter"](self, x)))
    assert sum(isinstance(o.op, PositionRows) for _, o in graph.walk()) == 1  # of the embedding


class _Bigrams(nn.Module):
    """Logits of the next token by the last one alone."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, VOCABULARY)

    def forward(self, ids: Tensor, targets: None = None) -> tuple[Tensor, None]:
        return self.table(ids), None


def test_no_attention() -> None:
    assert import_any(_Bigrams().eval())[0].context == 2048


def _softmax_by_hand(self: Decoder, x: Tensor) -> Tensor:
    q, k, v = self.heads(x)
    scores = q @ k.mT + _ahead(x.shape[1])
    terms = (scores - scores.max(-1, keepdim=True).values).exp()
    return _merged(terms / terms.sum(-1, keepdim=True) @ v)


def _biased_by_place(self: Decoder, x: Tensor) -> Tensor:
    steps = torch.arange(x.shape[1])
    bias = (steps * steps[:, None]).tril() * torch.tensor([0.5, 0.25])[:, None, None]
    return _flash(*self.heads(x), attn_mask=bias + _ahead(x.shape[1]))


def _biased_in_a_window(self: Decoder, x: Tensor) -> Tensor:
    steps = torch.arange(x.shape[1])
    behind = steps[:, None] - steps
    hidden = torch.zeros(behind.shape).masked_fill((behind < 0) | (behind >= WINDOW), -torch.inf)
    return _flash(*self.heads(x), attn_mask=hidden - 0.5 * behind.tril())


def _zeros_that_are_seen(self: Decoder, x: Tensor) -> Tensor:
    q, k, v = self.heads(x)
    scores = (q @ k.mT) * torch.ones(x.shape[1], x.shape[1]).tril()
    return _merged(scores.softmax(-1) @ v)


def _scaled_up(self: Decoder, x: Tensor) -> Tensor:
    q, k, v = self.heads(x)
    scores = (q @ k.mT + torch.triu(torch.full((x.shape[1], x.shape[1]), -2e4), 1)) * 1e-3
    return _merged(scores.softmax(-1) @ v)


@pytest.mark.parametrize(
    ("attend", "message"),
    [
        (_softmax_by_hand, "aten.max.dim"),
        (_biased_by_place, "a bias of its scores must be a number for each head and distance of positions"),
        (_biased_in_a_window, "a bias of its scores by distance needs a causal mask without a window"),
        (_zeros_that_are_seen, "a mask must hide the scores that are multiplied with zero"),
        (_scaled_up, "masked scores that are scaled must stay at most -10000"),
    ],
)
def test_refused(attend: Attend, message: str) -> None:
    with pytest.raises(UnsupportedOperationError) as caught:
        _imported(attend)
    assert message in str(caught.value)
