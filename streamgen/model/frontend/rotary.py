"""Rotary positions: which features rotate in pairs, and by which angles.

A rotated value is a sum of two products of features, moved and negated, with tables made from positions. At
position 0 one table, the cosines, is 1 and the other, the sines, is 0. Frequencies are read from the phases
at positions 1, 2, 4 ...; then cosines and sines must be those of one angle, position * frequency, at
positions over the whole context. A scaled table, or one that depends on the length, is refused.

Pairs may be complex numbers: view_as_real(view_as_complex(x) * table) is the same sum.

The importer meets such sums one by one, with the halves of a head apart, while a rotation acts on whole
heads. A sum is therefore a value that is computed `later`: attention and cache, which know the heads, have it
computed (`rotated`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.fx import Node

from streamgen.model.frontend.draft import Draft, Later
from streamgen.model.frontend.elements import ElementOrder
from streamgen.model.frontend.partial import Partial
from streamgen.model.frontend.trace import Mismatch, Unsupported, aten, shape
from streamgen.model.operations import Rotary

PROBES = 64  # number of positions at which a table is compared with its frequencies
NEEDED = (
    "a product with a table of positions must be half of a rotation of queries and keys: "
    "x * cosines + rotated x * sines"
)
Tables = Callable[[torch.Tensor], tuple[np.ndarray, np.ndarray]]  # positions [T] to cos, sin [T, pairs]


@dataclass(frozen=True, eq=False)
class Product(Partial):
    """x * table; x: contents. table: made of positions [T]. precision: of its format."""

    node: Node
    x: torch.Tensor
    table: Callable[[torch.Tensor], torch.Tensor]
    precision: float
    needed = NEEDED

    @classmethod
    def of(cls, draft: Draft, node: Node, x: Node, table: Node) -> "Product":
        """The product that `node` computes."""
        if not table.meta["val"].is_floating_point():
            raise Unsupported(NEEDED)
        contents = draft.form(node, x, lambda c: c.broadcast_to(shape(node)))
        return cls(node, contents, lambda positions: draft.tables.at(table, positions), _precision(table))

    def joined(self, draft: Draft, node: Node, other: Partial, sign: int) -> None:
        if not isinstance(other, Product) or self.x.shape != other.x.shape:
            raise Unsupported(NEEDED)
        order, columns = draft.elements.spread(self.x)
        if not draft.elements.matches(other.x, order):
            raise Unsupported(NEEDED)
        others = order.taken(other.x)[0] // draft.elements.stride
        turn = Turn(draft, node, order, ((columns, self), (others, other)), sign)
        draft.late(node, turn, len(columns), order)


@dataclass(frozen=True, eq=False)
class Complex(Partial):
    """Pairs of features as complex numbers, times a table or not yet. x: contents [.., 2]."""

    x: torch.Tensor
    table: Node | None = None
    needed = (
        "complex numbers must be a rotation of queries and keys: view_as_real(view_as_complex(x) * table), "
        "the table made of positions"
    )

    def turned(self, table: Node) -> "Complex":
        if self.table is not None or not table.meta["val"].is_complex():
            raise Unsupported(self.needed)
        return replace(self, table=table)

    def real(self, draft: Draft, node: Node) -> None:
        """`node` is view_as_real of it."""
        table = self.table
        if table is None:
            draft.keep(node, self.x)
            return

        def cosines(positions: torch.Tensor) -> torch.Tensor:
            real = draft.tables.at(table, positions).real
            return torch.stack([real, real], -1)

        def sines(positions: torch.Tensor) -> torch.Tensor:
            imaginary = draft.tables.at(table, positions).imag
            return torch.stack([-imaginary, imaginary], -1)

        first = Product(node, self.x, cosines, _precision(table))
        first.joined(draft, node, Product(node, self.x.flip(-1), sines, _precision(table)), 1)


def _precision(table: Node) -> float:
    return torch.finfo(table.meta["val"].dtype).eps


class Turn(Later):
    """x * cosines + rotated x * sines, feature by feature.

    main, partner: columns of the term that is present at position 0, and of the other term. sign: int, the
    sign of the other term.
    """

    def __init__(
        self,
        draft: Draft,
        node: Node,
        order: ElementOrder,
        terms: Sequence[tuple[torch.Tensor, Product]],
        sign: int,
    ) -> None:
        self.draft, self.node, self.order = draft, node, order
        self.tables = [product.table for _, product in terms]
        self.precision = max(product.precision for _, product in terms)
        (a, sign_a), (b, sign_b) = (_signed(draft, columns) for columns, _ in terms)
        at_zero = [factor[0] for factor in self._factors(torch.zeros_like(draft.tables.traced))]
        self.swapped = at_zero[0].abs() < at_zero[1].abs()
        ones, zeros = (torch.where(self.swapped, *pair) for pair in (at_zero[::-1], at_zero))
        if (ones - 1).abs().max() > 2.0**-7 or zeros.abs().max() > 2.0**-7:
            scale = float(ones[0])
            raise Mismatch(node, f"its cosine and sine at position 0 are {scale:.6g}, not 1 and 0")
        self.main, self.partner = (torch.where(self.swapped, *pair) for pair in ((b, a), (a, b)))
        signs = (sign * sign_b, sign_a)
        self.main_sign, self.sign = (torch.where(self.swapped, *pair) for pair in (signs, signs[::-1]))

    def _factors(self, positions: torch.Tensor) -> list[torch.Tensor]:
        """Both tables [T, features], float64."""
        return [
            self.order.taken(table(positions).broadcast_to(shape(self.node))).double()
            for table in self.tables
        ]

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [T, features]."""
        first, second = self._factors(positions)
        return torch.where(self.swapped, second, first), torch.where(self.swapped, first, second)

    def make(self, draft: Draft) -> str:
        raise Mismatch(self.node, "only queries and keys of an attention can rotate")


def _signed(draft: Draft, columns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The columns before some were negated, and the sign of each, 1 or -1."""
    unsigned, signs = [], []
    parts = draft.elements.parts(columns)
    for own in columns.split([len(features) for _, features in parts]):
        before, factor = draft.unscaled(own)
        negated = factor == -1
        unsigned.append(before if negated else own)
        signs.append(torch.full((len(own),), -1 if negated else 1))
    return torch.cat(unsigned), torch.cat(signs)


def rotated(draft: Draft, node: Node, columns: torch.Tensor) -> torch.Tensor:
    """Columns [heads, features of a head]. If they are sums that are a rotation, the rotation is added."""
    heads, dims = columns.shape
    flat = columns.reshape(-1)
    turns: list[tuple[slice, Turn, torch.Tensor]] = []
    first = 0
    for name, features in draft.elements.parts(flat):
        value = draft.later.get(name)
        if isinstance(value, Turn):
            turns.append((slice(first, first + len(features)), value, features))
        first += len(features)
    if not turns:
        return columns
    main, partner = flat.clone(), torch.full_like(flat, -1)
    for place, turn, features in turns:
        main[place], partner[place] = turn.main[features], turn.partner[features]
    rotary = _Rotation(draft, turns, main.reshape(heads, dims), partner.reshape(heads, dims)).operation()
    name = draft.add(node, f"rotate_{node.name}", rotary, draft.value(node, main))
    return draft.columns(name, heads * dims).reshape(heads, dims)


class _Rotation:
    """Heads with features `main`, each rotated with its `partner`; -1 means no partner."""

    def __init__(
        self,
        draft: Draft,
        turns: Sequence[tuple[slice, Turn, torch.Tensor]],
        main: torch.Tensor,
        partner: torch.Tensor,
    ) -> None:
        self.turns, self.main = turns, main
        self.node = turns[0][1].node
        self.tokens, self.context = len(draft.tables.traced), draft.tables.context
        self.count = int((partner[0] >= 0).sum())
        if (partner[:, self.count :] >= 0).any():
            raise Mismatch(self.node, "only the first features of a head may rotate")
        half, dims = self.count // 2, torch.arange(self.count)
        layouts = {False: (dims + half) % self.count, True: dims ^ 1}
        fits = [
            interleaved
            for interleaved, paired in layouts.items()
            if self.count % 2 == 0 and torch.equal(partner[:, : self.count], main[:, paired])
        ]
        if not fits:
            raise Mismatch(self.node, "its features rotate in pairs that are neither halves nor neighbours")
        self.interleaved = fits[0]
        self.first = 2 * torch.arange(half) if self.interleaved else torch.arange(half)
        self.second = layouts[self.interleaved][self.first]

    def operation(self) -> Rotary:
        frequencies = self._frequencies()
        self._verify(frequencies)
        heads, dims = self.main.shape
        return Rotary(heads, dims, tuple(frequencies), self.interleaved)

    def _tables(self, positions: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """cos and sin [T, pairs]; all heads and both features of a pair must have the same angle."""
        heads, dims = self.main.shape
        cos, sin = (torch.zeros(self.tokens, heads * dims, dtype=torch.float64) for _ in range(2))
        for place, turn, features in self.turns:
            c, s = turn.at(positions)
            cos[:, place] = c[:, features] * turn.main_sign[features]
            sin[:, place] = s[:, features] * turn.sign[features]
        cos, sin = (table.reshape(self.tokens, heads, dims)[..., : self.count] for table in (cos, sin))
        same = (
            (cos == cos[:, :1]).all()
            and (sin == sin[:, :1]).all()
            and torch.equal(cos[..., self.first], cos[..., self.second])
            and torch.equal(-sin[..., self.first], sin[..., self.second])
        )
        if not same:
            raise Mismatch(self.node, "its heads, or both features of a pair, rotate by different angles")
        return cos[:, 0, self.first].numpy(), sin[:, 0, self.second].numpy()

    def _frequencies(self) -> np.ndarray:
        """Radians per position, from the phases at positions 1, 2, 4, ..., unwrapped."""
        frequencies = np.zeros(())
        p = 1
        while p < self.context:
            cos, sin = self._tables(torch.full((self.tokens,), p))
            phase = np.arctan2(sin[0], cos[0])
            whole = np.rint((p * frequencies - phase) / (2 * np.pi)) if p > 1 else 0.0
            frequencies = (phase + 2 * np.pi * whole) / p
            p *= 2
        return frequencies

    def _verify(self, frequencies: np.ndarray) -> None:
        """Compare the tables with the frequencies over the whole context."""
        precision = max(turn.precision for _, turn, _ in self.turns)
        spread = np.unique(np.linspace(0, self.context - 1, PROBES).astype(np.int64))
        for start in range(0, len(spread), self.tokens):
            probe = np.resize(spread[start : start + self.tokens], self.tokens)
            angles = probe[:, None] * frequencies
            # float32 angles are off by a relative 2^-23, here and in the module; tables by their format.
            bound = precision + (1 + np.abs(angles)) * 2.0**-21
            for table, exact in zip(
                self._tables(torch.from_numpy(probe)), (np.cos(angles), np.sin(angles)), strict=True
            ):
                wrong = np.abs(table - exact) > bound
                if wrong.any():
                    t, j = np.argwhere(wrong)[0]
                    raise Mismatch(
                        self.node,
                        f"its rotary table at position {probe[t]}, pair {j} is {table[t, j]:.6g}; one angle "
                        f"position * {frequencies[j]:.6g} gives {exact[t, j]:.6g}",
                    )


def _view_as_complex(draft: Draft, node: Node) -> None:
    draft.half(node, Complex(draft.form(node, node.args[0], lambda c: c)))


def _view_as_real(draft: Draft, node: Node) -> None:
    source = draft.partial.get(node.args[0])
    if not isinstance(source, Complex):
        raise Unsupported(Complex.needed)
    source.real(draft, node)


CALLS = {aten.view_as_complex.default: _view_as_complex, aten.view_as_real.default: _view_as_real}
