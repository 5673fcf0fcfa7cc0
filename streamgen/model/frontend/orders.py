"""Calls about the order of elements, as formulas in torch: places of extremes, sorting, medians, quantiles.

sort        each element is compared with all others of its line: its place is the number of those before it
median      the element at a place of the sorted line
argmax      the greatest number of places behind an element, among those of the greatest elements
cummax      as many steps as the extent has bits
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from streamgen.model.frontend.trace import Unsupported, aten

MOST_SORTED = 64  # elements of a line that is sorted: each is compared with all others


def _places(x: Tensor, dim: int) -> Tensor:
    """0, 1, 2, ... along a dimension."""
    extents = [1] * x.ndim
    if x.ndim:
        extents[dim] = x.shape[dim]
    return torch.arange(x.shape[dim] if x.ndim else 1, dtype=torch.float32).reshape(extents)


def _place_of_greatest(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The first place: the greatest number of places behind it, among those of the greatest elements. NaN is
    greater than all numbers."""
    if dim is None:
        place = _place_of_greatest(x.reshape(-1), 0)
        return place.reshape([1] * x.ndim) if keepdim else place
    count = x.shape[dim] if x.ndim else 1
    behind = count - _places(x, dim)
    here = torch.logical_or(x == x.amax(dim, True), x != x)
    of_greatest = torch.where(here, behind, 0.0)
    return count - of_greatest.amax(dim, keepdim)


def _place_of_least(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _place_of_greatest(-x, dim, keepdim)


def _greatest(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return x.amax(dim, keepdim), _place_of_greatest(x, dim, keepdim)


def _least(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return x.amin(dim, keepdim), _place_of_least(x, dim, keepdim)


def _sorted(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """Elements by their rank, the number of elements before them; equal elements stay in order. NaN is
    greater than all numbers."""
    if not x.ndim:
        return x.clone(), x * 0.0
    lines = x.movedim(dim, -1)
    count = lines.shape[-1]
    if count > MOST_SORTED:
        raise Unsupported(f"it sorts lines of {count} elements; at most {MOST_SORTED} can be compiled")
    mine, other = lines.unsqueeze(-1), lines.unsqueeze(-2)
    earlier = torch.ones(count, count).tril(-1)
    low, high = (mine, other) if descending else (other, mine)
    apart = torch.logical_or(low < high, torch.logical_and(low == low, high != high))
    alike = torch.logical_or(other == mine, torch.logical_and(other != other, mine != mine))
    ranks = (torch.where(apart, 1.0, 0.0) + torch.where(alike, earlier, 0.0)).sum(-1)
    here = torch.where(ranks.unsqueeze(-2) == torch.arange(count, dtype=torch.float32)[:, None], 1.0, 0.0)
    values = torch.where(here != 0, other, 0.0).sum(-1)
    places = (here * torch.arange(count, dtype=torch.float32)).sum(-1)
    return values.movedim(-1, dim), places.movedim(-1, dim)


def _sorted_stable(
    x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    return _sorted(x, dim, descending)


def _places_sorted(x: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    return _sorted(x, dim, descending)[1]


def _values_sorted(x: Tensor) -> Tensor:
    return _sorted(x, 0)[0]


def _top(
    x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    values, places = _sorted(x, dim, largest)
    return (values.narrow(dim, 0, k), places.narrow(dim, 0, k)) if x.ndim else (values, places)


def _at_rank(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    values, places = (part if x.ndim else part.reshape(1) for part in _sorted(x, dim))
    chosen = [part.select(dim, k - 1) for part in (values, places)]
    return tuple(part.unsqueeze(dim) if keepdim and x.ndim else part for part in chosen)


def _median(x: Tensor) -> Tensor:
    return _median_of(x.reshape(-1), 0)[0]


def _median_of(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The first NaN, if there is one, and its place."""
    value, place = _at_rank(x, ((x.shape[dim] if x.ndim else 1) + 1) // 2, dim, keepdim)
    none = torch.where(x != x, x, 0.0).sum(dim, keepdim)
    return value + none, torch.where(none != none, _place_of_greatest(x, dim, keepdim), place)


def _median_without_nan_of(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The lesser of two in the middle of the numbers, and its place; NaN if there are none."""
    lines = x.movedim(dim, -1) if x.ndim else x.reshape(1)
    values, places = _sorted(lines)
    numbers = torch.where(lines == lines, 1.0, 0.0).sum(-1, True)
    middle = torch.maximum(((numbers - 1) * 0.5).floor(), torch.zeros(()))
    found = [_between(part, middle, "lower") for part in (values, places)]
    if not x.ndim:
        return found[0].reshape(()), found[1].reshape(())
    return tuple(part.movedim(-1, dim) if keepdim else part.squeeze(-1) for part in found)


def _median_without_nan(x: Tensor) -> Tensor:
    return _median_without_nan_of(x.reshape(-1), 0)[0]


def _running(both: Callable[[Tensor, Tensor], Tensor], x: Tensor, dim: int) -> Tensor:
    """Running results along a dimension, in as many steps as its extent has bits."""
    count, step = x.shape[dim] if x.ndim else 1, 1
    while step < count:
        rest = both(x.narrow(dim, step, count - step), x.narrow(dim, 0, count - step))
        x = torch.cat([x.narrow(dim, 0, step), rest], dim)
        step *= 2
    return x


def _running_greatest(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The last place of those of equal elements, as torch."""
    values = _running(torch.maximum, x, dim)
    places = torch.where(x == values, _places(x, dim), 0.0)
    return values, _running(torch.maximum, places, dim)


def _running_least(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    values, places = _running_greatest(-x, dim)
    return -values, places


def _running_log_sum_exp(x: Tensor, dim: int) -> Tensor:
    return _running(torch.logaddexp, x, dim)


def _quantile(
    x: Tensor, q: float, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    if dim is None and keepdim:
        raise Unsupported("it keeps the dimensions of a quantile of all elements")
    lines, dim = (x.reshape(-1), 0) if dim is None else (x, dim)
    values = _sorted(lines, dim)[0] if lines.ndim else lines.reshape(1)
    place = q * (values.shape[dim] - 1)
    below = math.floor(place)
    near, far = values.select(dim, below), values.select(dim, math.ceil(place))
    share = {
        "linear": place - below,
        "lower": 0.0,
        "higher": 1.0,
        "midpoint": 0.5,
        "nearest": float(round(place) > below),
    }[interpolation]
    quantile = near + (far - near) * share
    return quantile.unsqueeze(dim) if keepdim and lines.ndim else quantile


def _between(values: Tensor, place: Tensor, interpolation: str) -> Tensor:
    """Elements [.., m] between those of sorted lines [.., n], at places [.., m] that need not be whole."""
    below = place.floor()
    every = torch.arange(values.shape[-1], dtype=torch.float32)

    def at(places: Tensor) -> Tensor:
        return torch.where(places.unsqueeze(-1) == every, values.unsqueeze(-2), 0.0).sum(-1)

    near, far = at(below), at(place.ceil())
    if interpolation in ("lower", "higher"):
        return near if interpolation == "lower" else far
    share = place - below
    if interpolation == "nearest":
        share = place.round() - below
    elif interpolation == "midpoint":
        share = torch.where(share != 0, 0.5, 0.0)
    return near + (far - near) * share


def _quantiles(
    x: Tensor,
    q: Tensor | float,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
    skips: bool = False,
) -> Tensor:
    """Quantiles q [] or [m], in dimension 0. skips: NaN; else NaN of a line with NaN."""
    if keepdim and dim is None:
        raise Unsupported("it keeps the dimensions of quantiles of all elements")
    lines = x.reshape(1, -1).squeeze(0) if dim is None or not x.ndim else x.movedim(dim, -1)
    values = _sorted(lines)[0]
    none = torch.where(lines != lines, 1.0, 0.0).sum(-1, True)
    last = lines.shape[-1] - 1 - none if skips else torch.full_like(none, lines.shape[-1] - 1.0)
    found = _between(values, torch.maximum(last, torch.zeros(())) * q, interpolation)
    nothing = (none - none) / (none - none)
    found = torch.where(last < 0 if skips else none != 0, nothing, found)
    of_several = isinstance(q, Tensor) and q.ndim
    kept = found if not keepdim or not x.ndim else found.unsqueeze(dim - 1 if dim < 0 else dim)  # type: ignore[operator]
    return kept.movedim(-1, 0) if of_several else kept.squeeze(-1)


def _quantiles_without_nan(
    x: Tensor,
    q: Tensor | float,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Tensor:
    return _quantiles(x, q, dim, keepdim, interpolation=interpolation, skips=True)


def _most_frequent(x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The least of the most frequent elements, and its last place."""
    if not x.ndim:
        return x.clone(), x * 0.0
    lines = x.movedim(dim, -1)
    if (count := lines.shape[-1]) > MOST_SORTED:
        raise Unsupported(f"it counts equal elements of {count}; at most {MOST_SORTED} can be compiled")
    alike = torch.where(lines.unsqueeze(-1) == lines.unsqueeze(-2), 1.0, 0.0).sum(-1)
    value = torch.where(alike == alike.amax(-1, True), lines, torch.inf).amin(-1, True)
    place = torch.where(lines == value, torch.arange(count, dtype=torch.float32), 0.0).amax(-1, True)
    found = value.movedim(-1, dim), place.movedim(-1, dim)
    return found if keepdim else (found[0].squeeze(dim), found[1].squeeze(dim))


FORMULAS: dict[Any, Callable[..., Any]] = {
    aten.argmax.default: _place_of_greatest,
    aten.argmin.default: _place_of_least,
    aten.max.dim: _greatest,
    aten.min.dim: _least,
    aten.sort.default: _sorted,
    aten.sort.stable: _sorted_stable,
    aten.argsort.default: _places_sorted,
    aten.msort.default: _values_sorted,
    aten.topk.default: _top,
    aten.kthvalue.default: _at_rank,
    aten.median.default: _median,
    aten.median.dim: _median_of,
    aten.cummax.default: _running_greatest,
    aten.cummin.default: _running_least,
    aten.logcumsumexp.default: _running_log_sum_exp,
    aten.quantile.scalar: _quantile,
    aten.quantile.default: _quantiles,
    **dict.fromkeys([aten.nanquantile.default, aten.nanquantile.scalar], _quantiles_without_nan),
    aten.nanmedian.default: _median_without_nan,
    aten.nanmedian.dim: _median_without_nan_of,
    aten.mode.default: _most_frequent,
}
"""By call: a function with its parameters."""
