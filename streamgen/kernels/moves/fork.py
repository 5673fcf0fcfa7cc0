"""Fork: copies every token to every output; each output takes its copy at its own time.

    o_0 = o_1 = ... = i                                    tiles leave in the order in which they come in

A node of the graph around `gateware.stream.Fanout`, a tree of register stages. The descriptor counts tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from amaranth import Module
from amaranth.lib import wiring
from numpy import ndarray

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve
from streamgen.fifo.clocks import Clocks, pipe
from streamgen.gateware.stream import Countdown, CountdownParams, Fanout, FanoutParams
from streamgen.itensor import ITensor
from streamgen.kernels.moves.passing import Splitter, passed


@dataclass(frozen=True, kw_only=True)
class ForkParams:
    """token_bits: width of a token. ways: outputs `o_0` ... max_tokens: the longest execution.

    Bounds: {"itensor": ITensor}, the stream to copy.
    """

    token_bits: int
    ways: int
    max_tokens: int
    moves: ClassVar[bool] = True
    copies: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("token_bits", "ways", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} of a fork must be at least 1, not {getattr(self, name)}")

    @property
    def tree(self) -> FanoutParams:
        return FanoutParams(bits=self.token_bits, branches=self.ways)

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"i": self._itensor(bounds)}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {f"o_{way}": self._itensor(bounds) for way in range(self.ways)}

    def descriptor_fields(self) -> tuple[Field, ...]:
        return (Field("tokens", self.max_tokens.bit_length()),)

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        return {"tokens": self._itensor(bounds).token_count}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        return {f"o_{way}": inputs["i"] for way in range(self.ways)}

    def cost(self, bounds: Bounds) -> Cost:
        count = CountdownParams(bits=self.max_tokens.bit_length()).resources
        return Cost(
            resources=count + self.tree.resources,
            ii=1.0,
            latency=self.tree.latency,
            cycles=1 + self.tree.latency + self._itensor(bounds).token_count,
        )

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        tokens = self._itensor(bounds).token_count
        taken, sent = Curve.nest(1, (tokens, 1)), Curve.nest(1 + self.tree.latency, (tokens, 1))
        return {"i": taken, **{f"o_{way}": sent for way in range(self.ways)}}

    def clocks(self, bounds: Bounds) -> Clocks:
        ways = tuple(f"o_{way}" for way in range(self.ways))
        latency = self.tree.latency
        return pipe(("i",), ways, self._itensor(bounds).token_count, latency, 2 * latency)

    def build(self) -> "Fork":
        return Fork(self)

    def _itensor(self, bounds: Bounds) -> ITensor:
        return passed(bounds, "a fork", self.token_bits, self.max_tokens)


class Fork(Splitter):
    """`i` to `o_0` … `o_{ways-1}`."""

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self._params
        m.submodules.count = count = Countdown(CountdownParams(bits=p.max_tokens.bit_length()))
        m.submodules.tree = tree = Fanout(p.tree)
        m.d.comb += [
            *count.takes(self.i_descriptor, self.i_descriptor.payload.tokens),
            count.step.eq(self.i.valid & self.i.ready),
            tree.i.payload.eq(self.i.payload),
            tree.i.valid.eq(self.i.valid & count.active),
            self.i.ready.eq(tree.i.ready & count.active),
        ]
        for way in range(p.ways):
            wiring.connect(m, wiring.flipped(getattr(self, f"o_{way}")), getattr(tree, f"o_{way}"))
        return m
