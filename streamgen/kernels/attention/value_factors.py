"""The factors of values: probabilities and scales of a tile become one integer for each position.

    factor = p * m * 2^(15 - d)        d = E - e of the position; 0 where d > 15

The multiplier after this unit takes factors of 26 bits, so only a part of the shift is done here:

    15 - d = near + far * stride       0 <= near < stride = 19 - p_bits

`factor` is p * m * 2^near; the adder of the products applies `far`. There are only registers: factors come
`latency` cycles after their operands, one tile per cycle.
"""

from dataclasses import dataclass
from typing import Any

from amaranth import Array, Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from streamgen.contract.cost import Resources
from streamgen.gateware.arith.pipeline import Pipeline
from streamgen.kernels.attention.row_codes import SCALE

FACTOR_BITS = 26
PLACES = 15  # the greatest d that is not too far
_KEY_BITS = 16


@dataclass(frozen=True, kw_only=True)
class ValueFactorsParams:
    """lanes: positions of a tile. p_bits: of a probability, 8 to 16."""

    lanes: int
    p_bits: int

    @property
    def stride(self) -> int:
        """The shift that one unit of `far` stands for."""
        return FACTOR_BITS - self.p_bits - 8 + 1

    @property
    def choices(self) -> int:
        """The number of values of `far`."""
        return PLACES // self.stride + 1

    @property
    def far_bits(self) -> int:
        return (self.choices - 1).bit_length()

    @property
    def latency(self) -> int:
        return 3

    @property
    def resources(self) -> Resources:
        """Fitted to synthesis."""
        product = self.p_bits + 8
        near = (self.stride - 1).bit_length()
        lane = Resources(lut=30 + FACTOR_BITS * near / 2, ff=2 * product + FACTOR_BITS + 14, dsp=1)
        return self.lanes * lane

    def build(self) -> "ValueFactors":
        return ValueFactors(self)


class ValueFactors(wiring.Component):
    """p, scales of the lanes and the key of E in; factors and far out."""

    def __init__(self, params: ValueFactorsParams) -> None:
        self._params = params
        super().__init__(
            {
                "p": In(params.lanes * params.p_bits),
                "scales": In(data.ArrayLayout(SCALE, params.lanes)),
                "key": In(_KEY_BITS),
                "factors": Out(params.lanes * FACTOR_BITS),
                "far": Out(params.lanes * params.far_bits),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        lanes = [self._lane(m, n) for n in range(self._params.lanes)]
        m.d.comb += [
            self.factors.eq(Cat(factor for factor, _ in lanes)),
            self.far.eq(Cat(far for _, far in lanes)),
        ]
        return m

    def _lane(self, m: Module, lane: int) -> tuple[Value, Value]:
        params = self._params
        pipe = Pipeline(m, Const(1))
        e = Value.cast(self.scales[lane].e)
        # Of positions beyond the length this means nothing; their m is 0.
        distance = (self.key - Cat(e[:15], ~e[15]))[:_KEY_BITS]
        s = pipe.stage(
            product=self.p.word_select(lane, params.p_bits) * self.scales[lane].m,
            places=~distance[:4],
            zero=distance[4:].any(),
        )
        split = [divmod(places, params.stride) for places in range(PLACES + 1)]
        near_bits = (params.stride - 1).bit_length()
        near, far = Signal(unsigned(near_bits)), Signal(unsigned(params.far_bits))
        m.d.comb += [
            near.eq(Array(Const(rest, near_bits) for _, rest in split)[s.places]),
            far.eq(Array(Const(times, params.far_bits) for times, _ in split)[s.places]),
        ]
        s = pipe.stage(product=s.product, near=near, far=far, zero=s.zero)
        s = pipe.stage(factor=Mux(s.zero, 0, s.product << s.near)[:FACTOR_BITS], far=s.far)
        return s.factor, s.far
