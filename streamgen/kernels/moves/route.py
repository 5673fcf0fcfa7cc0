"""Route: a descriptor says which output the next tokens go to.

    o_<way> = i                                            tiles leave in the order in which they come in

The counterpart of `moves.select`. Outputs that a descriptor does not name have no stream in that
phase and get nothing. One register stage holds the tokens for all outputs, each with its destination: a
token that is not taken holds up those behind it, whichever way they go.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from amaranth import Cat, Module, Signal
from numpy import ndarray

from streamgen.contract import Bounds
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.gateware.stream import CountdownParams, add_rows, skid_resources
from streamgen.itensor import ITensor
from streamgen.kernels.moves.passing import Splitter, SteeredParams, add_steering


@dataclass(frozen=True, kw_only=True)
class RouteParams(SteeredParams):
    """token_bits: width of a token. ways: outputs `o_0` ... max_tokens: the longest execution.

    Bounds: {"itensor": ITensor, "way": int}, the stream that passes and the number of its output; rows (1).
    """

    ports = "outputs"

    @property
    def count(self) -> CountdownParams:
        return CountdownParams(bits=self.max_tokens.bit_length())

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"i": self._itensor(bounds)}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {f"o_{self._way(bounds)}": self._itensor(bounds)}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        return {f"o_{self._way(bounds)}": inputs["i"]}

    def cost(self, bounds: Bounds) -> Cost:
        ways = Resources(lut=2.4 * self.ways, ff=self.ways)
        return Cost(
            resources=self.counters + ways + skid_resources(self.token_bits + self.ways, 1),
            ii=1.0,
            latency=1,
            cycles=1 + self.begin + self._itensor(bounds).token_count,
        )

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        tokens = self._itensor(bounds).token_count
        begin = self.begin
        return {
            "i": Curve.nest(begin, (tokens, 1)),
            f"o_{self._way(bounds)}": Curve.nest(begin + 1, (tokens, 1)),
        }

    def build(self) -> "Route":
        return Route(self)


class Route(Splitter):
    """`i` to `o_0` … `o_{ways-1}`."""

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self._params
        chosen = Signal(p.ways, reset_less=True)
        outputs = [getattr(self, f"o_{way}") for way in range(p.ways)]
        row = add_rows(m, p.max_rows, self.i_descriptor, p.width)
        count = add_steering(m, p.count, row, self.i, chosen, outputs)
        with m.If(count.taken):
            m.d.sync += chosen.eq(Cat(row.payload.port == way for way in range(p.ways)))
        return m
