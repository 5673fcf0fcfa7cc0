"""How kernels and DMAs are joined inside a kernel with memory ports, and the pace that memory sets."""

from fractions import Fraction
from typing import Any

from amaranth import Module, Value

from streamgen.cost import Curve

__all__ = ["join", "paced"]


def join(m: Module, source: Any, target: Any) -> None:
    """One stream drives another one whose payload has the same bits."""
    m.d.comb += [
        target.valid.eq(source.valid),
        Value.cast(target.payload).eq(source.payload),
        source.ready.eq(target.ready),
    ]


def paced(first: int, tokens: int, pace: Fraction) -> Curve:
    """Tokens from cycle `first` on, `pace` cycles each, at least one."""
    if pace <= 1:
        return Curve.nest(first, (tokens, 1))
    cycles, group = pace.numerator, pace.denominator  # `group` tokens in `cycles` cycles
    whole, rest = divmod(tokens, group)
    pieces: list[tuple[int, tuple[tuple[int, int], ...]]] = []
    if whole:
        pieces.append((first, ((whole, cycles), (group, cycles // group))))
    if rest:
        pieces.append((first + whole * cycles, ((rest, cycles // group),)))
    return Curve(tuple(pieces))
