"""Calls that torch does not take apart itself, as formulas of other calls, in torch.

A formula has the parameters of its call. Places of elements, which are integers in torch, are whole numbers
below 2^16, which f24 holds exactly. A formula raises Unsupported for arguments that it does not take.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from streamgen.model.frontend import chosen, orders
from streamgen.model.frontend.trace import Unsupported, aten


def _dims(dim: int | Sequence[int] | None, rank: int) -> list[int]:
    if dim is None:
        return list(range(rank))
    return [dim] if isinstance(dim, int) else list(dim)


def _any(x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    return torch.where(x != 0, 1.0, 0.0).amax(_dims(dim, x.ndim), keepdim)


def _all(x: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    return torch.where(x != 0, 1.0, 0.0).amin(_dims(dim, x.ndim), keepdim)


def _count(x: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    return torch.where(x != 0, 1.0, 0.0).sum(_dims(dim, x.ndim))


def _distances(x: Tensor, y: Tensor, p: float = 2.0, compute_mode: int | None = None) -> Tensor:
    return torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, -1)


def _distances_of_pairs(x: Tensor, p: float = 2.0) -> Tensor:
    pairs = [(x[k : k + 1] - x[k + 1 :]) for k in range(len(x) - 1)]
    return torch.linalg.vector_norm(torch.cat(pairs), p, -1)


def _bilinear(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    features, _, others = weight.shape
    rows = torch.nn.functional.linear(x, weight.transpose(1, 2).reshape(features * others, -1))
    product = (rows.unflatten(-1, (features, others)) * y.unsqueeze(-2)).sum(-1)
    return product if bias is None else product + bias


def _sum_of_products(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return beta * x + alpha * torch.bmm(a, b).sum(0)


def _bags(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Tensor, None, None, None]:
    """Bags of as many ids each (`lookups.require_equal_bags`)."""
    bags = len(offsets) - include_last_offset
    rows = torch.nn.functional.embedding(indices, weight).unflatten(0, (bags, -1))
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.reshape(bags, -1, 1)
    if padding_idx is None or padding_idx == -1:
        result = rows.amax(1) if mode == 2 else rows.mean(1) if mode else rows.sum(1)
    elif mode == 2:
        raise Unsupported("it leaves ids of padding out of a maximum")
    else:
        kept = torch.where(indices != padding_idx, 1.0, 0.0).reshape(bags, -1, 1)
        result = (rows * kept).sum(1)
        result = result / kept.sum(1).clamp(min=1.0) if mode else result
    return result, None, None, None


def _is_in(
    elements: Tensor, others: Tensor | float, *, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    given = others.reshape(-1) if isinstance(others, Tensor) else others
    alike = torch.where(elements.unsqueeze(-1) == given, 1.0, 0.0).amax(-1)
    return alike == 0 if invert else alike != 0


def _bessel(x: Tensor) -> Tensor:
    """The modified Bessel function of order 0: Abramowitz and Stegun, 9.8.1 and 9.8.2."""
    size = x.abs()
    small, large = (size / 3.75) ** 2, 3.75 / torch.maximum(size, torch.full((), 3.75))
    near, far = torch.zeros_like(x), torch.zeros_like(x)
    for c in (0.0045813, 0.0360768, 0.2659732, 1.2067492, 3.0899424, 3.5156229, 1.0):
        near = near * small + c
    for c in (
        0.00392377,
        -0.01647633,
        0.02635537,
        -0.02057706,
        0.00916281,
        -0.00157565,
        0.00225319,
        0.01328592,
    ):
        far = far * large + c
    far = (far * large + 0.39894228) * torch.exp(size) * torch.rsqrt(size)
    return torch.where(size < 3.75, near, far)


def _inverse_erf(x: Tensor) -> Tensor:
    """M. Giles, Approximating the erfinv function, 2012: single precision, table 5."""
    w = -torch.log((1 - x) * (1 + x))
    near, far = torch.zeros_like(x), torch.zeros_like(x)
    for c in (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
              -0.00417768164, 0.246640727, 1.50140941):  # fmt: skip
        near = near * (w - 2.5) + c
    for c in (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
              0.00943887047, 1.00167406, 2.83297682):  # fmt: skip
        far = far * (w.sqrt() - 3) + c
    inside = torch.where(w < 5, near, far) * x
    return torch.where(x.abs() == 1, torch.where(x < 0, -torch.inf, torch.inf), inside)


def _angle(x: Tensor) -> Tensor:
    return torch.where(x != x, x, torch.where(x < 0, math.pi, 0.0))


def _histogram(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Numbers of elements in bins of one width, the last with its upper end."""
    flat = x.reshape(-1)
    low: Any = min - float(min == max)
    high: Any = max + float(min == max)
    if min == max == 0:
        low, high = flat.amin(), flat.amax()
        wider = torch.where(low == high, 1.0, 0.0)
        low, high = low - wider, high + wider
    place = ((flat - low) / (high - low) * bins).floor()
    last = torch.logical_and(flat <= high, place >= bins)
    place = torch.where(last, bins - 1.0, place)
    return torch.where(place.unsqueeze(-1) == torch.arange(float(bins)), 1.0, 0.0).sum(0)


def _mean_or_sum(losses: Tensor, reduction: int) -> Tensor:
    return (losses, losses.mean(), losses.sum())[reduction]


def _hinge_embedding_loss(x: Tensor, target: Tensor, margin: float = 1.0, reduction: int = 1) -> Tensor:
    apart = torch.where(target != 1, (margin - x).clamp_min(0.0), 0.0)
    return _mean_or_sum(apart + torch.where(target != -1, x, 0.0), reduction)


def _cosine_embedding_loss(
    a: Tensor, b: Tensor, target: Tensor, margin: float = 0.0, reduction: int = 1
) -> Tensor:
    epsilon = 1e-12
    cosine = (a * b).sum(-1) / ((a * a).sum(-1) + epsilon).sqrt() / ((b * b).sum(-1) + epsilon).sqrt()
    apart = torch.where(target == -1, (cosine - margin).clamp_min(0.0), 0.0)
    return _mean_or_sum(torch.where(target == 1, 1 - cosine, 0.0) + apart, reduction)


def _to_the_power(x: Tensor, exponent: Tensor) -> Tensor:
    """2 ^ (exponent · log2 |x|), negative for a negative number to an odd power, NaN to one that is not
    whole."""
    size = torch.exp2(exponent * torch.log2(x.abs()))
    half = exponent * 0.5
    odd = torch.where(half == half.floor(), size, -size)
    nothing = (size - size) / (size - size)
    signed = torch.where(exponent == exponent.floor(), odd, nothing)
    return torch.where(exponent == 0, 1.0, torch.where(x < 0, signed, size))


def _to_a_power(x: Tensor, exponent: float) -> Tensor:
    if exponent == 0:
        return torch.fill(x, 1.0)
    size = torch.exp2(exponent * torch.log2(x.abs()))
    if exponent % 2 == 0:
        return size
    below = -size if exponent % 1 == 0 else (size - size) / (size - size)
    return torch.where(x < 0, below, size)


def _rounded(x: Tensor, *, decimals: int) -> Tensor:
    return (x * 10.0**decimals).round() / 10.0**decimals


def _is_close(
    x: Tensor, y: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    near = (x - y).abs() <= atol + rtol * y.abs()
    close = torch.logical_or(x == y, torch.logical_and(near, y.abs() < torch.inf))
    return torch.logical_or(close, torch.logical_and(x != x, y != y)) if equal_nan else close


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if dropout_p:
        raise Unsupported("it has dropout; call module.eval() first")
    if enable_gqa and query.ndim > 2:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = torch.where(attn_mask, scores, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax(-1) @ value


FORMULAS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys([aten.any.default, aten.any.dim, aten.any.dims], _any),
    **dict.fromkeys([aten.all.default, aten.all.dim, aten.all.dims], _all),
    **dict.fromkeys([aten.count_nonzero.default, aten.count_nonzero.dim_IntList], _count),
    aten.cdist.default: _distances,
    aten.pdist.default: _distances_of_pairs,
    aten.bilinear.default: _bilinear,
    aten.addbmm.default: _sum_of_products,
    **dict.fromkeys([aten.embedding_bag.default, aten.embedding_bag.padding_idx], _bags),
    aten.pow.Tensor_Tensor: _to_the_power,
    aten.pow.Tensor_Scalar: _to_a_power,
    aten.round.decimals: _rounded,
    aten.isclose.default: _is_close,
    **dict.fromkeys([aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar], _is_in),
    **dict.fromkeys([aten.i0.default, aten.special_i0.default], _bessel),
    aten.scaled_dot_product_attention.default: _attention,
    **dict.fromkeys([aten.erfinv.default, aten.special_erfinv.default], _inverse_erf),
    aten.angle.default: _angle,
    aten.histc.default: _histogram,
    aten.hinge_embedding_loss.default: _hinge_embedding_loss,
    aten.cosine_embedding_loss.default: _cosine_embedding_loss,
    **orders.FORMULAS,
    **chosen.FORMULAS,
}
"""By call: a function with its parameters."""
