"""Sums of values: for each dimension the products of a tile, shifted and added up over the tiles of a row.

    sum[j] = (0 if first else sum[j]) + sum over n of factor[n] * v[n][j] * 2^(stride * far[n])    when valid

One multiplier of 27 x 18 bits for each value of the tile; what each factor and each `far` means is said in
`streamgen.kernels.attention.value_factors`. Integers, wide enough for the longest row: exact in any order.

Timing, in cycles after `factors`, `far`, `v`, `valid`, `first`: sums change `latency` later.
"""

from dataclasses import dataclass
from typing import Any

from amaranth import Array, Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.pipeline import delayed, registered
from streamgen.gateware.rtl import Shared
from streamgen.kernels.attention.value_factors import FACTOR_BITS, ValueFactorsParams

_TO_PRODUCT = 3  # the operands, two registers of the product
_PRODUCT_BITS = FACTOR_BITS + 8


@dataclass(frozen=True, kw_only=True)
class ValueSumsParams:
    """dims: the number of sums. factors: positions of a tile, and the form of their factors. sum_bits: of a
    signed sum."""

    dims: int
    factors: ValueFactorsParams
    sum_bits: int

    @property
    def levels(self) -> int:
        """Levels of the adder tree over a tile, one stage each."""
        return ceil_log2(self.factors.lanes)

    @property
    def latency(self) -> int:
        return _TO_PRODUCT + self.levels + 1

    @property
    def column(self) -> "ValueColumnParams":
        return ValueColumnParams(factors=self.factors, sum_bits=self.sum_bits)

    @property
    def resources(self) -> Resources:
        """Fitted to synthesis: the columns, the factors before them."""
        lanes = self.factors.lanes
        shared = Resources(
            lut=lanes * self.factors.far_bits + 2, ff=lanes * (FACTOR_BITS + self.factors.far_bits) + 2
        )
        return self.dims * self.column.resources + shared

    def build(self) -> "ValueSums":
        return ValueSums(self)


class ValueSums(wiring.Component):
    """factors, far, v, first, valid -> sums."""

    def __init__(self, params: ValueSumsParams) -> None:
        self._params = params
        lanes = params.factors.lanes
        super().__init__(
            {
                "factors": In(lanes * FACTOR_BITS),
                "far": In(lanes * params.factors.far_bits),
                "v": In(lanes * params.dims * 8),
                "first": In(1),
                "valid": In(1),
                "sums": Out(params.dims * params.sum_bits),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self._params
        factors = registered(m, self.factors)
        far = delayed(m, self.far, _TO_PRODUCT)
        first = delayed(m, self.first, _TO_PRODUCT + p.levels)
        valid = delayed(m, self.valid, _TO_PRODUCT + p.levels)
        columns = [Shared(p.column) for _ in range(p.dims)]
        for j, column in enumerate(columns):
            m.submodules[f"column_{j}"] = column
            m.d.comb += [
                column.factors.eq(factors),
                column.far.eq(far),
                column.v.eq(Cat(self.v.word_select(n * p.dims + j, 8) for n in range(p.factors.lanes))),
                column.first.eq(first),
                column.valid.eq(valid),
            ]
        m.d.comb += self.sums.eq(Cat(column.sum for column in columns))
        return m


@dataclass(frozen=True, kw_only=True)
class ValueColumnParams:
    """The sum of one dimension: its multipliers, the tree over the tile, the accumulator."""

    factors: ValueFactorsParams
    sum_bits: int

    @property
    def term_bits(self) -> int:
        """Bits of a shifted product, signed."""
        return _PRODUCT_BITS + self.factors.stride * (self.factors.choices - 1)

    @property
    def resources(self) -> Resources:
        """Fitted to synthesis."""
        registers, adders, values, bits = 0, 0, self.factors.lanes, self.term_bits
        while values > 1:
            adders += values // 2 * (bits + 1)
            values, bits = -(-values // 2), bits + 1
            registers += values * bits
        lanes, choices = self.factors.lanes, self.factors.choices
        # A choice of up to three fits into the LUT of an adder, for one of its two operands.
        chosen = self.term_bits * (-(-lanes // 2) if choices <= 3 else lanes if choices <= 4 else 2 * lanes)
        return Resources(
            lut=chosen + adders + self.sum_bits,
            ff=lanes * (8 + 2 * _PRODUCT_BITS) + registers + self.sum_bits,
            dsp=lanes,
        )

    def build(self) -> "ValueColumn":
        return ValueColumn(self)


class ValueColumn(wiring.Component):
    """factors a cycle after v, the others when they are wanted -> sum."""

    def __init__(self, params: ValueColumnParams) -> None:
        self._params = params
        lanes = params.factors.lanes
        super().__init__(
            {
                "factors": In(lanes * FACTOR_BITS),
                "far": In(lanes * params.factors.far_bits),
                "v": In(lanes * 8),
                "first": In(1),
                "valid": In(1),
                "sum": Out(signed(params.sum_bits)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p, lanes = self._params, self._params.factors.lanes
        values = registered(m, self.v)
        terms: list[Value] = []
        for n in range(lanes):
            factor = Cat(self.factors.word_select(n, FACTOR_BITS), 0).as_signed()
            product = registered(
                m, registered(m, factor * values.word_select(n, 8).as_signed(), _PRODUCT_BITS)
            )
            far = self.far.word_select(n, p.factors.far_bits)
            term = Signal(signed(p.term_bits), name=f"term_{n}")
            m.d.comb += term.eq(Array(product << p.factors.stride * k for k in range(p.factors.choices))[far])
            terms.append(term)
        while len(terms) > 1:
            pairs = zip(terms[::2], terms[1::2], strict=False)
            sums: list[Value] = [registered(m, a + b) for a, b in pairs]
            terms = sums + [registered(m, term) for term in terms[len(terms) & ~1 :]]
        total = Signal(signed(p.sum_bits), reset_less=True)
        with m.If(self.valid):
            m.d.sync += total.eq(terms[0] + Mux(self.first, 0, total))
        m.d.comb += self.sum.eq(total)
        return m
