"""Rows less their mean: the front of a LayerNorm.

    d = f24(X - 8 · M)     M = round(sum X / (8 · K))     X = trunc(x · 2^(39 - E))

X are integers beside the greatest exponent E of the row (`Align`), so d is x - mean in units of 2^(E - 39):
exact but for the rounding of the mean to 2^(E - 36), then rounded once. 1 / K comes as an integer of 40 bits
and a number of places; the product that makes M errs by less than an eighth of its unit, so that of a row of
equal values all d are 0. epsilon is scaled likewise, to units of 4^(E - 39).

Tokens go out as they came in, each row when its mean is known.
"""

from dataclasses import dataclass
from operator import add
from typing import Any

import numpy as np
from amaranth import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib.wiring import Component, In, Out
from numpy import ndarray

from streamgen.contract.cost import Resources
from streamgen.gateware.arith import F24, IntToFloatParams
from streamgen.gateware.arith.pipeline import Pipeline
from streamgen.gateware.rtl import Shared
from streamgen.kernels.norm.align import KEPT_BITS, SPECIAL, AlignParams
from streamgen.kernels.norm.row_ring import RowRingParams
from streamgen.kernels.norm.row_sum import RowSumParams, delay, follow
from streamgen.kernels.norm.units import scale_epsilon, scaled_epsilon
from streamgen.kernels.row_parts import halve

CUT = 3  # bits of X below the unit of M
MEAN_BITS = 1 + KEPT_BITS - CUT
FACTOR_BITS = 40  # of 1 / K
PLACES_BITS = 5
# Two factors of a product in one DSP each: unsigned parts of 1 / K, of the sum.
FACTOR_PART, SUM_PART = 20, 17
MEAN_FIELDS = (("mean_low", FACTOR_PART), ("mean_high", FACTOR_PART), ("places", PLACES_BITS))
ORIGIN = F24.bias + KEPT_BITS - 1  # G of a row in which d has the unit 1


@dataclass(frozen=True, kw_only=True)
class RowMeanParams:
    """total_bits: width of the sum, signed."""

    total_bits: int

    @property
    def parts(self) -> int:
        """Parts of the sum."""
        return -(-self.total_bits // SUM_PART)

    @property
    def latency(self) -> int:
        """Cycles from the sum to M: products, two stages of sums, shift, rounding."""
        return 5

    @property
    def resources(self) -> Resources:
        products = 2 * self.parts
        return Resources(lut=40 * products + 110, ff=60 * products + 90, dsp=products)

    def golden(self, total: ndarray, valid_k: int) -> ndarray:
        """int64 array of M."""
        factor, places = _inverse(valid_k)
        shift = FACTOR_BITS - 1 + CUT + places
        rounded = [(int(value) * factor + (1 << shift - 1)) >> shift for value in total]
        return np.array(rounded, np.int64)

    def build(self) -> "RowMean":
        return RowMean(self)


class RowMean(Component):
    """total, factor, places -> o, `latency` cycles later."""

    def __init__(self, params: RowMeanParams) -> None:
        self._params = params
        super().__init__(
            {
                "total": In(signed(params.total_bits)),
                "factor": In(FACTOR_BITS),
                "places": In(PLACES_BITS),
                "o": Out(signed(MEAN_BITS)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        pipe = Pipeline(m, Const(1))
        products: dict[str, Value] = {}
        offsets = []
        for i in range(self._params.parts):
            part: Value = self.total[i * SUM_PART : (i + 1) * SUM_PART]
            part = part.as_signed() if i == self._params.parts - 1 else part
            for j in range(FACTOR_BITS // FACTOR_PART):
                products[f"product{len(products)}"] = part * self.factor.word_select(j, FACTOR_PART)
                offsets.append(i * SUM_PART + j * FACTOR_PART)
        s = pipe.stage(**products)
        terms: list[Value] = [
            Cat(Const(0, offset), getattr(s, name)).as_signed()
            if getattr(s, name).shape().signed
            else Cat(Const(0, offset), getattr(s, name))
            for name, offset in zip(products, offsets, strict=True)
        ]
        for _ in range(2):
            terms = halve(halve(terms, add), add)
            s = pipe.stage(**{f"term{index}": value for index, value in enumerate(terms)})
            terms = list(vars(s).values())
        (product,) = terms
        places = delay(pipe, self.places, pipe.depth)
        above = product[FACTOR_BITS + CUT - 2 :].as_signed()
        s = pipe.stage(twice=(above >> places)[: MEAN_BITS + 1].as_signed())
        m.d.comb += self.o.eq(pipe.stage(mean=((s.twice + 1) >> 1)[:MEAN_BITS].as_signed()).mean)
        return m


@dataclass(frozen=True, kw_only=True)
class RowCentreParams:
    """lanes: elements of a token. max_tokens: longest row.

    The head of a row comes as last_row (1 bit), inverse, epsilon (f24), MEAN_FIELDS; the first three go on.
    """

    lanes: int
    max_tokens: int

    @property
    def sums(self) -> RowSumParams:
        return RowSumParams(
            lanes=self.lanes,
            max_tokens=self.max_tokens,
            squares=False,
            head_bits=1 + 2 * F24.bits + FACTOR_BITS + PLACES_BITS,
            lead=1,
        )

    @property
    def mean(self) -> RowMeanParams:
        return RowMeanParams(total_bits=self.sums.total_bits)

    @property
    def align(self) -> AlignParams:
        return AlignParams(square=False)

    @property
    def convert(self) -> IntToFloatParams:
        return IntToFloatParams(width=KEPT_BITS + 2, form=F24)

    @property
    def ring(self) -> RowRingParams:
        """The ring in which rows wait for their mean."""
        return RowRingParams(
            bits=self.lanes * F24.bits,
            head_bits=1 + F24.bits,
            tail_bits=MEAN_BITS + 8 + F24.bits,
            max_tokens=self.max_tokens,
            ahead=self.sums.latency + self.mean.latency + 4,
        )

    @property
    def lead(self) -> int:
        """Cycles from `o_issue` to `o_valid`: memory, alignment, difference, conversion, padding."""
        return 1 + self.align.latency + 1 + self.convert.latency + 1

    def latency(self, row: int) -> int:
        """Cycles from the first token of a row of that many tokens to the first one that leaves."""
        return 2 * (row - 1) + self.sums.waits + self.sums.latency + self.mean.latency + 1 + self.lead

    @property
    def resources(self) -> Resources:
        per_lane = self.align.resources + self.convert.resources + Resources(lut=45, ff=45 + F24.bits)
        control = Resources(lut=200, ff=200)
        fixed = self.sums.resources + self.mean.resources + self.ring.resources + control
        return fixed + self.lanes * per_lane

    def describe(self, valid_k: int) -> dict[str, int]:
        """The values of MEAN_FIELDS."""
        factor, places = _inverse(valid_k)
        low, high = factor & ((1 << FACTOR_PART) - 1), factor >> FACTOR_PART
        return {"mean_low": low, "mean_high": high, "places": places}

    def golden(self, x: ndarray, epsilon: ndarray) -> tuple[ndarray, ndarray]:
        """Rows [T, K] of f24 and epsilon [T] -> (d [T, K], epsilon scaled [T])."""
        greatest, terms = self.align.golden(x)
        mean = self.mean.golden(terms.sum(axis=1), x.shape[1])
        d = self.convert.golden(terms - (mean[:, None] << CUT))
        return d, scaled_epsilon(epsilon, greatest, ORIGIN)

    def build(self) -> "RowCentre":
        return RowCentre(self)


def _inverse(valid_k: int) -> tuple[int, int]:
    """(f, places): f · 2^-(39 + places) is 1 / K, rounded to 40 bits."""
    places = (valid_k - 1).bit_length()
    return ((1 << FACTOR_BITS + places) // valid_k + 1) >> 1, places


class RowCentre(Component):
    """The ports of `RowSum`, except those of a sum. o_special: a row with NaN or an infinity."""

    def __init__(self, params: RowCentreParams) -> None:
        self._params = params
        ring = params.sums.ring
        super().__init__(
            {
                "room": Out(1),
                "grant": In(1),
                "grant_row": In(1),
                "valid": In(1),
                "data": In(ring.bits),
                "first": In(1),
                "last": In(1),
                "head": In(ring.head_bits),
                "end": In(ring.end_bits),
                "o_room": In(1),
                "o_issue": Out(1),
                "o_issue_row": Out(1),
                "o_valid": Out(1),
                "o_data": Out(ring.bits),
                "o_first": Out(1),
                "o_last": Out(1),
                "o_head": Out(1 + 2 * F24.bits),
                "o_end": Out(ring.end_bits),
                "o_special": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self._params
        m.submodules.sums = sums = p.sums.build()
        m.submodules.mean = mean = p.mean.build()
        m.submodules.ring = ring = p.ring.build()
        pipe = Pipeline(m, Const(1))
        m.d.comb += [
            *(
                getattr(sums, name).eq(getattr(self, name))
                for name in ("grant", "grant_row", "valid", "data")
            ),
            *(getattr(sums, name).eq(getattr(self, name)) for name in ("first", "last", "head", "end")),
            self.room.eq(sums.room),
            sums.o_room.eq(ring.room),
            ring.grant.eq(sums.o_issue),
            ring.grant_row.eq(sums.o_issue_row),
            ring.write.eq(sums.o_valid),
            ring.data.eq(sums.o_data),
            ring.first.eq(sums.o_first),
            ring.head.eq(sums.o_head),
            ring.end.eq(sums.o_end),
        ]
        # The mean completes a row.
        epsilon_at = 1 + F24.bits
        epsilon, rest = sums.s_head[epsilon_at : epsilon_at + F24.bits], sums.s_head[epsilon_at + F24.bits :]
        scaled = scale_epsilon(pipe, epsilon, sums.s_greatest, ORIGIN)
        m.d.comb += [
            mean.total.eq(sums.s_total),
            mean.factor.eq(rest[:FACTOR_BITS]),
            mean.places.eq(rest[FACTOR_BITS:]),
            ring.complete.eq(follow(m, sums.s_valid, p.mean.latency)),
            ring.tail.eq(
                Cat(
                    mean.o,
                    delay(pipe, sums.s_greatest, p.mean.latency),
                    delay(pipe, scaled, p.mean.latency - 2),
                )
            ),
        ]
        # Rows leave.
        m.d.comb += [
            self.o_issue.eq(ring.row & self.o_room),
            self.o_issue_row.eq(self.o_issue & ring.begins),
            ring.step.eq(self.o_issue),
            ring.enable.eq(1),
        ]
        s = pipe.stage(
            mean=ring.o_tail[:MEAN_BITS].as_signed(),
            greatest=ring.o_tail[MEAN_BITS : MEAN_BITS + 8],
            epsilon=ring.o_tail[MEAN_BITS + 8 :],
            head=ring.o_head,
            end=ring.o_end,
            first=ring.begins,
            last=ring.last,
        )
        behind = p.lead - 1
        m.d.comb += [
            self.o_valid.eq(follow(m, self.o_issue, p.lead)),
            self.o_first.eq(delay(pipe, s.first, behind)),
            self.o_last.eq(delay(pipe, s.last, behind)),
            self.o_head.eq(delay(pipe, Cat(s.head, s.epsilon), behind)),
            self.o_end.eq(delay(pipe, s.end, behind)),
            self.o_special.eq(delay(pipe, s.greatest == SPECIAL, behind)),
        ]
        subtrahend = Cat(Const(0, CUT), delay(pipe, s.mean, p.align.latency)).as_signed()
        for lane in range(p.lanes):
            m.submodules[f"align_{lane}"] = align = Shared(p.align)
            m.submodules[f"convert_{lane}"] = convert = Shared(p.convert)
            x = ring.o_data.word_select(lane, F24.bits)
            padding = (x[F24.fraction_bits : -1] == 0) & x[0]
            difference = Signal(signed(p.convert.width), name=f"difference_{lane}", reset_less=True)
            element = Signal(F24.bits, name=f"element_{lane}", reset_less=True)
            m.d.sync += [
                difference.eq(align.o - subtrahend),
                element.eq(Mux(delay(pipe, padding, behind - 1), 1, convert.o)),
            ]
            m.d.comb += [
                align.x.eq(x),
                align.greatest.eq(s.greatest),
                convert.enable.eq(1),
                convert.i.eq(difference),
                self.o_data.word_select(lane, F24.bits).eq(element),
            ]
        return m
