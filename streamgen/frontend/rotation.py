"""Rotary positions of an exported decoder: which features turn in pairs, and by which angles.

A rotated value is a sum of two products of one Linear's output, moved and negated, with tables made of
positions. At position 0 one table is 1, the cosines, and one is 0, the sines. Frequencies are read from the
phases at positions 1, 2, 4 ...; then cosines and sines must be those of one angle, position * frequency, at
positions all over the context: a scaled table, or one that depends on the length, is refused.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch.fx import Node

from streamgen.frontend.assembly import Rotation
from streamgen.frontend.origins import Origins, renamed
from streamgen.frontend.trace import Mismatch, aten, shape
from streamgen.frontend.values import Values

__all__ = ["Turn", "find_rotary"]

PROBES = 64  # positions at which a table is held to its frequencies
Tables = Callable[[torch.Tensor], tuple[np.ndarray, np.ndarray]]  # positions [T] to cos, sin [T, rotated / 2]


class Turn:
    """x * cosines + rotated x * sines: a sum of two products of a Linear's output with tables.

    main, partner: of the elements asked for, 1 + position in the Linear's output of the term that is there at
    position 0 and of the one that is not, the latter negative where it is subtracted.
    """

    def __init__(
        self, values: Values, node: Node, positions: torch.Tensor, mask: torch.Tensor, tokens: int
    ) -> None:
        self.values = values
        self.node = node
        self.mask = mask
        self.at = positions[mask]
        self.tokens = tokens
        self.precision = 0.0  # of the coarser table
        needed = "heads must come from a Linear, rotated or not"
        pair = self.values.operands(node, aten.add.Tensor)
        minus = 1
        if pair is None:
            pair, minus = self.values.operands(node, aten.sub.Tensor), -1
        if pair is None or any(operand not in self.values.data for operand in pair):
            raise Mismatch(node, needed)
        self.factors: list[Node] = []
        terms = []
        linears = set()
        for operand, sign in zip(pair, (1, minus), strict=True):
            product = self.values.data_and_other(renamed(operand), aten.mul.Tensor)
            if (
                product is None
                or not self.values.is_table(product[1])
                or not product[1].meta["val"].is_floating_point()
            ):
                raise Mismatch(renamed(operand), needed)
            origins = Origins()
            moved = origins.of(product[0])
            parts = origins.split(moved)
            if len(parts) != 1 or self.values.target(parts[0][0]) != aten.linear.default:
                raise Mismatch(parts[0][0], needed)
            linears.add(parts[0][0])
            signed = (1 + parts[0][2]) * torch.sign(moved) * sign
            terms.append(signed.broadcast_to(shape(node)).reshape(-1)[self.at])
            self.factors.append(product[1])
            precision = torch.finfo(product[1].meta["val"].dtype).eps
            self.precision = max(self.precision, precision)
        if len(linears) != 1:
            raise Mismatch(node, "heads must come from one Linear")
        self.linear = linears.pop()
        at_zero = self._factors(torch.zeros(tokens, dtype=torch.int64))
        swapped = at_zero[0].abs() < at_zero[1].abs()
        ones, zeros = (torch.where(swapped, *pair) for pair in ((at_zero[1], at_zero[0]), at_zero))
        if (ones - 1).abs().max() > 2.0**-7 or zeros.abs().max() > 2.0**-7:
            scale = float(ones.reshape(-1)[0])
            raise Mismatch(node, f"its cosine and sine at position 0 are {scale:.6g} and not 1 and 0")
        self.swapped = swapped
        self.main = torch.where(swapped, terms[1], terms[0])
        self.partner = torch.where(swapped, terms[0], terms[1])

    def _factors(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Both factors of the elements asked for, float64."""
        first, second = (
            self.values.table(factor, positions).broadcast_to(shape(self.node)).reshape(-1)[self.at].double()
            for factor in self.factors
        )
        return first, second

    def tables(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines in the places of the elements asked for, 0 elsewhere."""
        first, second = self._factors(positions)
        cos, sin = (torch.zeros(self.mask.shape, dtype=torch.float64) for _ in range(2))
        cos[self.mask] = torch.where(self.swapped, second, first)
        sin[self.mask] = torch.where(self.swapped, first, second)
        return cos, sin


def find_rotary(rows: torch.Tensor, partner: torch.Tensor, turns: list[Turn], context: int) -> Rotation:
    """The rotation of heads [n, T, head_dim] whose features are `rows` [n, head_dim] of one Linear.

    partner: [n, T, head_dim] as in `Turn`, 0 where nothing rotates.
    """
    node = turns[0].node
    rotated = int((partner[0, 0] != 0).sum())
    half = rotated // 2
    tokens = torch.arange(partner.shape[1])[None, :, None] * shape(turns[0].linear)[-1]
    dims = torch.arange(rotated)
    layouts = {False: (dims + half) % max(rotated, 1), True: dims ^ 1}
    turned = partner[..., :rotated].abs()
    fits = {
        interleaved: rotated % 2 == 0
        and torch.equal(turned, (tokens + rows[:, paired][:, None] + 1).expand_as(turned))
        for interleaved, paired in layouts.items()
    }
    if not any(fits.values()):
        raise Mismatch(node, "its features rotate in pairs that are neither halves nor neighbours")
    interleaved = not fits[False]
    paired = layouts[interleaved]
    if partner[..., rotated:].any():
        raise Mismatch(node, "only the first features of a head may rotate")
    first = torch.arange(half) * 2 if interleaved else torch.arange(half)
    second = paired[first]
    sign = torch.sign(partner[..., :rotated])

    def tables(positions: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """cos and sin [T, rotated / 2], after the checks that all heads and both of a pair agree."""
        cos, sin = (torch.zeros(partner.shape, dtype=torch.float64) for _ in range(2))
        for turn in turns:
            c, s = turn.tables(positions)
            cos, sin = cos + c, sin + s
        cos, sin = cos[..., :rotated], sin[..., :rotated] * sign
        same = (
            (cos == cos[:1]).all()
            and (sin == sin[:1]).all()
            and torch.equal(cos[..., first], cos[..., second])
            and torch.equal(-sin[..., first], sin[..., second])
        )
        if not same:
            raise Mismatch(node, "its heads, or both features of a pair, rotate by different angles")
        return cos[0][:, first].numpy(), sin[0][:, second].numpy()

    found = _frequencies(tables, partner.shape[1], context)
    precision = max(turn.precision for turn in turns)
    _verify(found, tables, precision, partner.shape[1], context, node)
    return Rotation(found, interleaved)


def _frequencies(tables: Tables, T: int, context: int) -> np.ndarray:
    """Radians a position: phases at 1, 2, 4, ... unwrapped."""
    frequencies = np.zeros(())
    p = 1
    while p < context:
        cos, sin = tables(torch.full((T,), p))
        phase = np.arctan2(sin[0], cos[0])
        whole = np.rint((p * frequencies - phase) / (2 * np.pi)) if p > 1 else 0.0
        frequencies = (phase + 2 * np.pi * whole) / p
        p *= 2
    return frequencies


def _verify(
    frequencies: np.ndarray, tables: Tables, precision: float, T: int, context: int, node: Node
) -> None:
    """Hold the tables to the frequencies, all over the context."""
    spread = np.unique(np.linspace(0, context - 1, PROBES).astype(np.int64))
    for start in range(0, len(spread), T):
        probe = np.resize(spread[start : start + T], T)
        cos, sin = tables(torch.from_numpy(probe))
        angles = probe[:, None] * frequencies
        # float32 angles are off by 2^-23 of themselves, here and in the module; tables by their format.
        bound = precision + (1 + np.abs(angles)) * 2.0**-21
        for table, exact in ((cos, np.cos(angles)), (sin, np.sin(angles))):
            wrong = np.abs(table - exact) > bound
            if wrong.any():
                t, j = np.argwhere(wrong)[0]
                raise Mismatch(
                    node,
                    f"its rotary table at position {probe[t]}, pair {j} is {table[t, j]:.6g}; one angle "
                    f"position * {frequencies[j]:.6g} gives {exact[t, j]:.6g}",
                )
