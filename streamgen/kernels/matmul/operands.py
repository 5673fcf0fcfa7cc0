"""The operands of a matmul column: tokens of x, w and s become what its lanes take, in step.

    codes_k[t], low_k[pair], high_k[pair]   with the tokens (cycle 0 of a lane), slice k lane.skew[k] later
    minimums[n], sums[t], far[t]            lane.minimum_delay after that
    scales[n]                               lane.scale_delay after that
    powers[t]                               lane.power_delay after that

A lane takes weights in pairs of rows (see `dot`). A column for both widths takes an 8-bit step as two steps
of 16 weights, in halves of 4 bits: the first (`half` low) with the token of x, of which what the second needs
is kept. Weights that are not `grouped` have a scale of 1 and a minimum of 0. Registers only: nothing waits
here, and what comes out while nothing is issued means nothing.
"""

from dataclasses import dataclass
from typing import Any

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.pipeline import delayed
from streamgen.kernels.matmul.dot import (
    CHAIN,
    FAR,
    K_LANES,
    POWER_BITS,
    SLICE,
    SUM_BITS,
    DotParams,
)
from streamgen.numbers import formats
from streamgen.numbers.weights import FORMATS

SHIFT_BITS, STEP_BITS = 4, 2
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
        return self.n_lanes * K_LANES * FORMATS[self.formats[0]].code_bits

    @property
    def scale_bits(self) -> int:
        """Width of the scale of a row, with its minimum."""
        return self.lane.scale_bits * (1 + self.lane.minimum)

    @property
    def resources(self) -> Resources:
        scales = self.n_lanes * self.scale_bits
        factor = SHIFT_BITS + STEP_BITS
        token = Resources(lut=38 + SUM_BITS * self.lane.minimum, ff=0)  # shift registers, f * 2^s
        if self.two_widths:
            token += Resources(lut=8 * K_LANES + factor, ff=4 * K_LANES + factor)
        skewed = sum(self.lane.skew) * SLICE * (8 * self.t_lanes + self.lane.weight_bits * self.n_lanes)
        return token * self.t_lanes + Resources(lut=scales, ff=scales + skewed)

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
            **{f"codes_{k}": Out(p.t_lanes * SLICE * 8) for k in range(CHAIN)},
            **{f"low_{k}": Out(-(-p.n_lanes // 2) * SLICE * lane.weight_bits) for k in range(CHAIN)},
            **{f"high_{k}": Out(p.n_lanes // 2 * SLICE * lane.weight_bits) for k in range(CHAIN)},
            "far": Out(p.t_lanes),
            "powers": Out(p.t_lanes * POWER_BITS),
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
        codes, factors = self._activations(m, tokens)
        bits = K_LANES * lane.weight_bits
        rows = [self.w.word_select(n, bits) for n in range(p.n_lanes)]
        for name, vectors, width in (("codes", codes, 8), ("low", rows[::2], 0), ("high", rows[1::2], 0)):
            size = SLICE * (width or lane.weight_bits)
            for k, skew in enumerate(lane.skew):
                part = Cat(vector[k * size :][:size] for vector in vectors)
                m.d.comb += getattr(self, f"{name}_{k}").eq(delayed(m, part, skew))

        early = delayed(m, Cat(shift[-2:].all() for shift, _ in factors), lane.minimum_delay)
        late = delayed(m, Cat(Cat(factor) for factor in factors), lane.power_delay)
        m.d.comb += [self.far.eq(early), self.powers.eq(Cat(_power(late, t) for t in range(p.t_lanes)))]
        if lane.scale_bits:
            scales = [
                Mux(self.grouped, self.s.word_select(n, p.scale_bits), 1)[: p.scale_bits]
                for n in range(p.n_lanes)
            ]
            low = Cat(scale[: lane.scale_bits] for scale in scales)
            m.d.comb += self.scales.eq(delayed(m, low, lane.scale_delay))
        if lane.minimum:
            high = Cat(scale[lane.scale_bits :] for scale in scales)
            sums = Cat(token[8 * K_LANES + 8 :][:SUM_BITS] for token in tokens)
            m.d.comb += [
                self.minimums.eq(delayed(m, high, lane.minimum_delay)),
                self.sums.eq(delayed(m, sums, lane.minimum_delay)),
            ]
        return m

    def _activations(self, m: Module, tokens: list[Value]) -> tuple[list[Value], list[tuple[Value, Value]]]:
        """The 32 codes of each token in the form for its lanes; the shift 15 - d and the step of
        each token."""
        codes = [token[: 8 * K_LANES] for token in tokens]
        factors = [
            (~token[8 * K_LANES :][:SHIFT_BITS], token[8 * K_LANES + 5 :][:STEP_BITS]) for token in tokens
        ]
        if not self._params.two_widths:
            return codes, factors
        chosen, later = [], []
        for code, (shift, step) in zip(codes, factors, strict=True):
            kept = Signal(4 * K_LANES, reset_less=True)
            kept_shift, kept_step = Signal.like(shift, reset_less=True), Signal.like(step, reset_less=True)
            with m.If(~self.half):
                m.d.sync += [kept.eq(code[4 * K_LANES :]), kept_shift.eq(shift), kept_step.eq(step)]
            halves = (
                Mux(self.half, kept, code[: 4 * K_LANES]).word_select(j // 2, 8) for j in range(K_LANES)
            )
            chosen.append(Cat(Mux(self.wide, half, code.word_select(j, 8)) for j, half in enumerate(halves)))
            later.append((Mux(self.half, kept_shift, shift), Mux(self.half, kept_step, step)))
        return chosen, later


def _power(factors: Value, t: int) -> Value:
    """(5 + step) * 2^(shift, less FAR where scales are shifted)."""
    word = factors.word_select(t, SHIFT_BITS + STEP_BITS)
    shift, step = word[:SHIFT_BITS], word[SHIFT_BITS:]
    places = Mux(shift[-2:].all(), shift - FAR, shift)[:SHIFT_BITS]
    return ((step + formats.MX_LEAST_FACTOR) << places)[:POWER_BITS]
