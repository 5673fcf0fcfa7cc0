"""Join: one token of every input makes one token of the output.

    o = i_0 | i_1 << bits[0] | i_2 << (bits[0] + bits[1]) | ...

`i_0` is in the lowest bits. Combinational: latency 0, no registers; `ready` of an input depends on
the valid of all inputs, `o.valid` on no ready.
"""

from dataclasses import dataclass
from typing import Any

from amaranth import Cat, Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from streamgen.contract.cost import Resources


@dataclass(frozen=True, kw_only=True)
class JoinParams:
    """bits: payload width of each input `i_0`, `i_1` ..."""

    bits: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.bits or min(self.bits) < 1:
            raise ValueError(f"bits of a join must be a width of at least 1 for each input, not {self.bits}")

    @property
    def latency(self) -> int:
        """Cycles from the last of the tokens offered to the joint token offered."""
        return 0

    @property
    def resources(self) -> Resources:
        return Resources(lut=-(-len(self.bits) // 4) + 3, ff=0)

    def build(self) -> "Join":
        return Join(self)


class Join(wiring.Component):
    """`i_0` … `i_{n-1}` to `o`."""

    def __init__(self, params: JoinParams) -> None:
        self._params = params
        super().__init__(
            {
                **{f"i_{k}": In(stream.Signature(bits)) for k, bits in enumerate(params.bits)},
                "o": Out(stream.Signature(sum(params.bits))),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        inputs = [getattr(self, f"i_{k}") for k in range(len(self._params.bits))]
        m.d.comb += [
            self.o.valid.eq(Cat(i.valid for i in inputs).all()),
            self.o.payload.eq(Cat(i.payload for i in inputs)),
        ]
        for i in inputs:
            m.d.comb += i.ready.eq(self.o.valid & self.o.ready)
        return m
