"""The operands of a matmul column: tokens of x, w and s become what its lanes take, in step.

    codes[t], low[pair], high[pair]         with the tokens (cycle 0 of a lane)
    scales[n], steps[t]                     lane.factor_delay after that
    minimums[n], f[t] * sums[t]             lane.scale_delay after that
    shifts[t] = 15 - d[t]                   lane.shift_delay after that

A lane takes weights in pairs of rows (see `dot`). 4-bit weights in a column for both widths are extended
to 8 bits; its 8-bit weights come in two tokens, the first of which (`half` low) is kept for the second.
Weights that are not `grouped` have a scale of 1 and a minimum of 0. Registers only: nothing waits here, and
what comes out while nothing is issued means nothing.
"""

from dataclasses import dataclass
from typing import Any

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from streamgen.cost import Resources
from streamgen.kernels.matmul.dot import (
    FACTOR_BITS,
    K_LANES,
    STEP_BITS,
    SUM_BITS,
    DotParams,
    delayed,
    registered,
    times_factor,
)
from streamgen.numbers import formats

__all__ = ["ROW_BITS", "WEIGHT_BITS", "Operands", "OperandsParams"]

WEIGHT_BITS = {"w4": 4, "w8": 8}
ROW_BITS = formats.token_bits("mxi8s", (K_LANES,))  # 32 codes, shift, sum


@dataclass(frozen=True, kw_only=True)
class OperandsParams:
    """t_lanes, n_lanes, formats: of the column. lane: the lane of a pair of rows, for widths and timing."""

    t_lanes: int
    n_lanes: int
    formats: tuple[str, ...]
    lane: DotParams

    @property
    def two_widths(self) -> bool:
        return len(self.formats) == 2

    @property
    def token_bits(self) -> int:
        """Width of a token of w."""
        return self.n_lanes * K_LANES * WEIGHT_BITS[self.formats[0]]

    @property
    def scale_bits(self) -> int:
        """Width of the scale of a row, with its minimum."""
        return self.lane.scale_bits * (1 + self.lane.minimum)

    @property
    def resources(self) -> Resources:
        scales = self.n_lanes * self.scale_bits
        sums = SUM_BITS * self.lane.minimum
        chains = scales + self.t_lanes * (4 + STEP_BITS + 2 * sums)  # a LUT each
        mixed = K_LANES * self.n_lanes * 4 if self.two_widths else 0
        return Resources(lut=chains + 4 * self.t_lanes + 4 + 2 * mixed, ff=scales + mixed + 4)

    def build(self) -> "Operands":
        return Operands(self)


class Operands(wiring.Component):
    """Payloads of x, w, s and the choices of the step in; per token, pair and row the operands out."""

    def __init__(self, params: OperandsParams) -> None:
        self._params = p = params
        lane = p.lane
        ports: dict[str, Any] = {
            "x": In(p.t_lanes * ROW_BITS),
            "w": In(p.token_bits),
            "half": In(1),
            "wide": In(1),
            "codes": Out(p.t_lanes * K_LANES * 8),
            "steps": Out(p.t_lanes * STEP_BITS),
            "shifts": Out(p.t_lanes * 4),
            "low": Out(-(-p.n_lanes // 2) * K_LANES * lane.weight_bits),
            "high": Out(p.n_lanes // 2 * K_LANES * lane.weight_bits),
        }
        if lane.scale_bits:
            ports |= {"s": In(p.n_lanes * p.scale_bits), "grouped": In(1)}
            ports["scales"] = Out(p.n_lanes * lane.scale_bits)
        if lane.minimum:
            ports["minimums"] = Out(p.n_lanes * lane.scale_bits)
            ports["sums"] = Out(p.t_lanes * SUM_BITS)
        super().__init__(ports)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p, lane = self._params, self._params.lane
        tokens = [self.x.word_select(t, ROW_BITS) for t in range(p.t_lanes)]
        shifts = Cat(~token[8 * K_LANES :][:4] for token in tokens)
        steps = [token[8 * K_LANES + 5 :][:STEP_BITS] for token in tokens]
        rows = self._weights(m)
        m.d.comb += [
            self.codes.eq(Cat(token[: 8 * K_LANES] for token in tokens)),
            self.steps.eq(delayed(m, Cat(steps), lane.factor_delay)),
            self.shifts.eq(delayed(m, shifts, lane.shift_delay)),
            self.low.eq(Cat(rows[::2])),
            self.high.eq(Cat(rows[1::2])),
        ]
        if lane.scale_bits:
            scales = [
                Mux(self.grouped, self.s.word_select(n, p.scale_bits), 1)[: p.scale_bits]
                for n in range(p.n_lanes)
            ]
            low = Cat(scale[: lane.scale_bits] for scale in scales)
            m.d.comb += self.scales.eq(delayed(m, low, lane.factor_delay))
        if lane.minimum:
            high = Cat(scale[lane.scale_bits :] for scale in scales)
            totals = (token[8 * K_LANES + 8 :][: SUM_BITS - FACTOR_BITS].as_signed() for token in tokens)
            products = (registered(m, times_factor(t, step)) for t, step in zip(totals, steps, strict=True))
            m.d.comb += [
                self.minimums.eq(delayed(m, high, lane.scale_delay)),
                self.sums.eq(delayed(m, Cat(products), lane.scale_delay - 1)),
            ]
        return m

    def _weights(self, m: Module) -> list[Value]:
        """The 32 weights of each row, as they come in."""
        p = self._params
        rows = [range(n * K_LANES, (n + 1) * K_LANES) for n in range(p.n_lanes)]
        if not p.two_widths:
            return [self.w.word_select(n, K_LANES * p.lane.weight_bits) for n in range(p.n_lanes)]
        before = Signal(len(self.w), reset_less=True)
        with m.If(~self.half):
            m.d.sync += before.eq(self.w)
        halves = [range(n * K_LANES // 2, (n + 1) * K_LANES // 2) for n in range(p.n_lanes)]
        return [
            Cat(
                Mux(self.wide, wide, narrow)
                for wide, narrow in zip(
                    (source.word_select(j, 8) for source in (before, self.w) for j in half),
                    (Cat(code, code[-1].replicate(4)) for code in (self.w.word_select(j, 4) for j in row)),
                    strict=True,
                )
            )
            for half, row in zip(halves, rows, strict=True)
        ]
