"""Select: a descriptor says which input the next tokens come from.

    o = i_<way>                                            tiles leave in the order in which they come in

A node of the graph around `gateware.stream.Selector`: it joins what differs between the phases of one graph.
Inputs that a descriptor does not name have no stream in that phase; none of their tokens is taken.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from amaranth import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.contract import Bounds
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.gateware.stream import (
    SelectorParams,
    add_rows,
    add_skid,
    descriptor_signature,
    skid_resources,
)
from streamgen.itensor import ITensor
from streamgen.kernels.moves.passing import SteeredParams


@dataclass(frozen=True, kw_only=True)
class SelectParams(SteeredParams):
    """token_bits: width of a token. ways: inputs `i_0` ... max_tokens: the longest execution.

    Bounds: {"itensor": ITensor, "way": int}, the stream that passes and the number of its input; rows (1).
    """

    ports = "inputs"

    @property
    def switch(self) -> SelectorParams:
        return SelectorParams(bits=self.token_bits, ports=self.ways, token_bits=self.max_tokens.bit_length())

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {f"i_{self._way(bounds)}": self._itensor(bounds)}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"o": self._itensor(bounds)}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        return {"o": inputs[f"i_{self._way(bounds)}"]}

    def cost(self, bounds: Bounds) -> Cost:
        # The register slice chooses in the same LUTs, of 6 inputs, as long as there are two streams.
        choice = 0.0 if self.ways == 2 else 0.6 * self.ways - 0.8
        own = Resources(lut=choice * self.token_bits + 3 * self.ways, ff=self.ways)
        return Cost(
            resources=self.counters + own + skid_resources(self.token_bits, 1),
            ii=1.0,
            latency=1,
            cycles=1 + self.begin + self._itensor(bounds).token_count,
        )

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        tokens = self._itensor(bounds).token_count
        begin = self.begin
        return {
            f"i_{self._way(bounds)}": Curve.nest(begin, (tokens, 1)),
            "o": Curve.nest(begin + 1, (tokens, 1)),
        }

    def build(self) -> "Select":
        return Select(self)


class Select(wiring.Component):
    """`i_0` … `i_{ways-1}` to `o`, which is registered."""

    def __init__(self, params: SelectParams) -> None:
        self._params = params
        token = stream.Signature(params.token_bits)
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                **{f"i_{way}": In(token) for way in range(params.ways)},
                "o": Out(token),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.switch = switch = self._params.switch.build()
        if self._params.max_rows == 1:
            wiring.connect(m, wiring.flipped(self.i_descriptor), switch.i_descriptor)
        else:
            row = add_rows(m, self._params.max_rows, self.i_descriptor, self._params.width)
            m.d.comb += [
                switch.i_descriptor.valid.eq(row.valid),
                switch.i_descriptor.payload.port.eq(row.payload.port),
                switch.i_descriptor.payload.tokens.eq(row.payload.tokens),
                row.ready.eq(switch.i_descriptor.ready),
            ]
        for way in range(self._params.ways):
            wiring.connect(m, wiring.flipped(getattr(self, f"i_{way}")), getattr(switch, f"i_{way}"))
        add_skid(m, switch.o, [wiring.flipped(self.o)])
        return m
