"""Fanout: every token goes to every branch, each branch takes it at its own time.

    o_0 = o_1 = ... = i

A branch that is ready runs ahead of the others by up to the tokens that the tree holds (two per level).
The fork is a balanced tree of register stages with at most `fan_out` branches each, so no register
drives more than that and no ready path is longer than one stage. Latency: `levels` cycles on every
branch.
"""

from dataclasses import dataclass
from typing import Any

from amaranth import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from streamgen.contract.cost import Resources
from streamgen.gateware.stream.register_slice import add_skid, skid_resources


@dataclass(frozen=True, kw_only=True)
class FanoutParams:
    """bits: payload width. branches: outputs `o_0` ... fan_out: outputs of one register stage."""

    bits: int
    branches: int
    fan_out: int = 8

    def __post_init__(self) -> None:
        for name, least in (("bits", 1), ("branches", 1), ("fan_out", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} of a fork must be at least {least}, not {getattr(self, name)}")

    @property
    def levels(self) -> int:
        """Register stages between `i` and each branch."""
        levels = 1
        while self.fan_out**levels < self.branches:
            levels += 1
        return levels

    @property
    def latency(self) -> int:
        """Cycles from a token taken to the token offered."""
        return self.levels

    @property
    def tree(self) -> tuple[tuple[int, ...], ...]:
        """For each level from `i` on, the number of outputs of each stage."""
        tree: list[tuple[int, ...]] = []
        leaves = self.branches
        while len(tree) < self.levels:
            stages = -(-leaves // self.fan_out) if len(tree) < self.levels - 1 else 1
            tree.insert(0, tuple(leaves // stages + (k < leaves % stages) for k in range(stages)))
            leaves = stages
        return tuple(tree)

    @property
    def resources(self) -> Resources:
        stages = [outputs for level in self.tree for outputs in level]
        return sum((skid_resources(self.bits, outputs) for outputs in stages), Resources(lut=0, ff=0))

    def build(self) -> "Fanout":
        return Fanout(self)


class Fanout(wiring.Component):
    """`i` to `o_0` … `o_{branches-1}`."""

    def __init__(self, params: FanoutParams) -> None:
        self._params = params
        signature = stream.Signature(params.bits)
        super().__init__(
            {"i": In(signature), **{f"o_{branch}": Out(signature) for branch in range(params.branches)}}
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        sources = [wiring.flipped(self.i)]
        for level, stages in enumerate(self._params.tree):
            if level == self._params.levels - 1:
                targets = [
                    wiring.flipped(getattr(self, f"o_{branch}")) for branch in range(self._params.branches)
                ]
            else:
                targets = [stream.Signature(self._params.bits).create() for _ in range(sum(stages))]
            first = 0
            for source, outputs in zip(sources, stages, strict=True):
                add_skid(m, source, targets[first : first + outputs])
                first += outputs
            sources = targets
        return m
