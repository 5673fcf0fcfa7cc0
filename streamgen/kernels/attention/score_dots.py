"""Dot products of one query with the keys of a tile: dims products for each of `lanes` keys, every cycle.

    dot[n] = sum over j of q[j] * k[n][j]                    j = 0 ... dims - 1, n = 0 ... lanes - 1

Two keys share a multiplier of 27 x 18 bits as two weights do in `streamgen.kernels.matmul.dot`: the factor
k[1] * 2^18 + k[0] times q holds both products as long as at most 8 of them are added, since
8 * 127 * 128 < 2^17; then the fields part.
So a key may hold -128, a query not (quantisers clamp to +-127). A last odd key has multipliers of its own.

`begins` is high from the cycle after a query has come until its first tile is there; the query is read then.
Nothing waits: dots come `latency` cycles after `k`.
"""

from dataclasses import dataclass
from typing import Any

from amaranth import Cat, Module, Signal, Value, signed, unsigned
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.pipeline import registered
from streamgen.gateware.rtl import Shared

_FIELD = 18  # distance of two keys in a multiplier
_PACKED_LEVELS = 3


@dataclass(frozen=True, kw_only=True)
class ScoreDotsParams:
    """dims: products of a dot. lanes: keys."""

    dims: int
    lanes: int

    @property
    def dot_bits(self) -> int:
        """Bits of a signed dot product."""
        return (self.dims * 127 * 128).bit_length() + 1

    @property
    def levels(self) -> int:
        """Levels of the adder tree, one stage each."""
        return ceil_log2(self.dims)

    @property
    def latency(self) -> int:
        """Stages: operands, two registers of the product, the tree and, if keys share multipliers, the split
        of the fields."""
        return 3 + self.levels + (self.lanes > 1)

    @property
    def multipliers(self) -> int:
        return self.dims * -(-self.lanes // 2)

    @property
    def resources(self) -> Resources:
        """Operands, products, and adders by their widths; the odd value of a level waits in a shift
        register."""
        pairs, single = divmod(self.lanes, 2)
        lut = ff = 0
        for packed, count in ((True, pairs), (False, single)):
            fields, factor = (2, _FIELD + 9) if packed else (1, 8)
            tree = sum(sums * bits for sums, bits in self._levels(packed))
            parting = self._parted * self._sum_bits(False, 8) if self.lanes > 1 else 0
            lut += count * (tree + (parting + 9 * self.dims if packed else 0))
            ff += count * (tree + fields * parting + self.dims * (2 * (factor + 8) + (17 if packed else 8)))
        return Resources(lut=lut, ff=ff + 8 * self.dims, dsp=self.multipliers)

    def _sum_bits(self, packed: bool, products: int) -> int:
        largest = 127 * 128
        if packed:
            largest = (largest << _FIELD) + largest
        return (largest * products).bit_length() + 1

    def _levels(self, packed: bool) -> list[tuple[int, int]]:
        """(sums, bits) of each level of the tree; split fields count twice."""
        values, levels = self.dims, []
        for level in range(self.levels):
            together = packed and level < _PACKED_LEVELS
            bits = self._sum_bits(together, min(2 << level, self.dims))
            levels.append((values // 2 * (2 if packed and not together else 1), bits))
            values = -(-values // 2)
        return levels

    @property
    def _parted(self) -> int:
        """The number of values at the level of the tree where the fields are split."""
        return -(-self.dims // (1 << min(_PACKED_LEVELS, self.levels)))

    def build(self) -> "ScoreDots":
        return ScoreDots(self)


class ScoreDots(wiring.Component):
    """q, begins, k -> dots; see the module's docstring for the timing."""

    def __init__(self, params: ScoreDotsParams) -> None:
        self._params = params
        super().__init__(
            {
                "q": In(unsigned(8 * params.dims)),
                "begins": In(1),
                "k": In(unsigned(8 * params.dims * params.lanes)),
                "dots": Out(unsigned(params.lanes * params.dot_bits)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self._params
        query = Signal(8 * p.dims, reset_less=True)
        with m.If(self.begins):
            m.d.sync += query.eq(self.q)
        dots: list[Value] = []
        for n in range(0, p.lanes, 2):
            keys = min(2, p.lanes - n)
            m.submodules[f"keys_{n}"] = pair = Shared(KeyDotsParams(tile=p, keys=keys))
            m.d.comb += [pair.q.eq(query), pair.k.eq(self.k[8 * p.dims * n :])]
            dots.append(pair.dots)
        m.d.comb += self.dots.eq(Cat(dots))
        return m


@dataclass(frozen=True, kw_only=True)
class KeyDotsParams:
    """keys: one of the `tile`, or two that share their multipliers."""

    tile: ScoreDotsParams
    keys: int

    def build(self) -> "KeyDots":
        return KeyDots(self)


class KeyDots(wiring.Component):
    """k -> dots with q, which is read in the cycle behind k."""

    def __init__(self, params: KeyDotsParams) -> None:
        self._params = params
        tile, keys = params.tile, params.keys
        super().__init__(
            {
                "q": In(unsigned(8 * tile.dims)),
                "k": In(unsigned(8 * tile.dims * keys)),
                "dots": Out(unsigned(keys * tile.dot_bits)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p, two = self._params.tile, self._params.keys == 2
        lows = registered(m, self.k[: 8 * p.dims])
        terms: list[Value] = []
        for j in range(p.dims):
            factor: Value = lows.word_select(j, 8).as_signed()
            if two:
                extended = Signal(signed(_FIELD), name=f"low_{j}")
                m.d.comb += extended.eq(factor)
                low, high = (self.k.word_select(n * p.dims + j, 8) for n in (0, 1))
                upper = (high.as_signed() - low[-1])[:9]
                factor = Cat(extended, registered(m, upper)).as_signed()
            terms.append(registered(m, registered(m, factor * self.q.word_select(j, 8).as_signed())))
        trees = [terms]
        for level in range(p.levels + 1):
            if level == min(_PACKED_LEVELS, p.levels) and p.lanes > 1:
                trees = self._part(m, trees[0], two)
            if level < p.levels:
                packed = len(trees) == 1 and two
                bits = p._sum_bits(packed, min(2 << level, p.dims))
                trees = [_halve(m, tree, bits) for tree in trees]
        m.d.comb += self.dots.eq(Cat(tree[0][: p.dot_bits] for tree in trees))
        return m

    def _part(self, m: Module, terms: list[Value], packed: bool) -> list[list[Value]]:
        """Both fields of sums of at most 8 products; the sign of the low field is added back to the high
        field."""
        if not packed:
            return [[registered(m, term) for term in terms]]
        bits = self._params.tile._sum_bits(False, 8)
        return [
            [registered(m, term[:_FIELD].as_signed(), bits) for term in terms],
            [registered(m, (term >> _FIELD) + term[_FIELD - 1], bits) for term in terms],
        ]


def _halve(m: Module, terms: list[Value], bits: int) -> list[Value]:
    """One level of the tree, registered; an odd value stays."""
    pairs = zip(terms[::2], terms[1::2], strict=False)
    sums = [registered(m, a + b, bits) for a, b in pairs]
    return sums + [registered(m, term) for term in terms[len(terms) & ~1 :]]
