"""Calls that say several things at once, written apart before a module is traced.

torch.einsum becomes permutations, views and one matrix product. `torch.autocast` within a module has no
effect: a graph computes in its own arithmetic, and casts are no operations of it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from string import ascii_letters
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


@contextmanager
def plain_calls() -> Iterator[None]:
    """Meanwhile calls are made in their plain form."""
    with without_autocast(), _PlainEinsum():
        yield


@contextmanager
def without_autocast() -> Iterator[None]:
    """Meanwhile `torch.autocast` has no effect."""
    kind: Any = torch.autocast
    before = kind.__enter__, kind.__exit__
    kind.__enter__, kind.__exit__ = (lambda self: self), (lambda self, *raised: None)
    try:
        yield
    finally:
        kind.__enter__, kind.__exit__ = before


class _PlainEinsum(TorchFunctionMode):
    def __torch_function__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if call is torch.functional.einsum and (result := _einsum(*args)) is not None:
            return result
        return call(*args, **(kwargs or {}))


def _einsum(equation: Any, *operands: Any) -> torch.Tensor | None:
    """A product of two tensors that sums some indices; None for every other einsum, which stays as it is."""
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or len(operands) != 2:
        return None
    given, arrow, result = equation.replace(" ", "").partition("->")
    a, _, b = given.partition(",")
    (a, b), result = _spelled_out((a, b), operands, result)
    if not arrow or "." in a + b + result or any(len(set(names)) != len(names) for names in (a, b, result)):
        return None
    alone = (set(a) ^ set(b)) - set(result)
    if alone or set(result) - set(a) - set(b):
        return None  # sums of one operand
    extents = dict(zip(a + b, (*operands[0].shape, *operands[1].shape), strict=True))
    batch = [n for n in result if n in a and n in b]
    left, right = ([n for n in result if n in names and n not in batch] for names in (a, b))
    summed = [n for n in a if n in b and n not in result]
    if not left or not right or not summed:
        return None
    *lead, row = left  # b is the same for all of `lead`
    x = _permuted(operands[0], [a.index(n) for n in (*batch, *lead, row, *summed)])
    y = _permuted(operands[1], [b.index(n) for n in (*batch, *summed, *right)])
    x = _viewed(x, [*(extents[n] for n in (*batch, *lead, row)), -1])
    y = _viewed(y, [*(extents[n] for n in batch), *(1 for _ in lead), x.shape[-1], -1])
    order = [*batch, *lead, row, *right]
    product = _viewed(x @ y, [extents[n] for n in order])
    return _permuted(product, [order.index(n) for n in result])


def _spelled_out(
    names: Sequence[str], operands: Sequence[torch.Tensor], result: str
) -> tuple[list[str], str]:
    """The same indices with letters in place of `...`, where all operands have as many dimensions there."""
    free = [letter for letter in ascii_letters if letter not in "".join(names) + result]
    counts = {x.ndim - len(n) + 3 for n, x in zip(names, operands, strict=True) if "..." in n}
    if len(counts) != 1 or not 0 <= (count := counts.pop()) <= len(free):
        return [*names], result
    rest = "".join(free[:count])
    return [n.replace("...", rest) for n in names], result.replace("...", rest)


def _permuted(tensor: torch.Tensor, order: list[int]) -> torch.Tensor:
    return tensor if order == sorted(order) else tensor.permute(order)


def _viewed(tensor: torch.Tensor, extents: list[int]) -> torch.Tensor:
    """The tensor in other extents, -1 for the rest of them."""
    alike = len(extents) == tensor.ndim and all(
        n in (m, -1) for n, m in zip(extents, tensor.shape, strict=True)
    )
    return tensor if alike else tensor.reshape(extents)
