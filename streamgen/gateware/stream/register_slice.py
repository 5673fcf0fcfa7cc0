"""Register slice: cuts every path of a stream, valid and payload forwards, ready backwards.

    o = i, one cycle later per stage

Order is kept. Each stage holds two tokens (an output register and a skid register that catches the
token under way when the output stops), so a token moves in every cycle although `i.ready` is a
register. Latency: `stages` cycles.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from amaranth import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from streamgen.contract.cost import Resources


@dataclass(frozen=True, kw_only=True)
class RegisterSliceParams:
    """bits: payload width. stages: slices in a row (SLR crossings take several)."""

    bits: int
    stages: int = 1

    def __post_init__(self) -> None:
        for name in ("bits", "stages"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} of a register slice must be at least 1, not {getattr(self, name)}")

    @property
    def latency(self) -> int:
        """Cycles from a token taken to the token offered."""
        return self.stages

    @property
    def resources(self) -> Resources:
        return skid_resources(self.bits, 1) * self.stages

    def build(self) -> "RegisterSlice":
        return RegisterSlice(self)


class RegisterSlice(wiring.Component):
    """`i` to `o` through `params.stages` skid registers."""

    def __init__(self, params: RegisterSliceParams) -> None:
        self._params = params
        signature = stream.Signature(params.bits)
        super().__init__({"i": In(signature), "o": Out(signature)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        i = wiring.flipped(self.i)
        for _ in range(self._params.stages - 1):
            between = stream.Signature(self._params.bits).create()
            add_skid(m, i, [between])
            i = between
        add_skid(m, i, [wiring.flipped(self.o)])
        return m


def add_skid(m: Module, i: Any, outputs: Sequence[Any]) -> Signal:
    """Add to `m` a register stage from stream `i` to every stream of `outputs`, each at its own time.

    Payload, the valid of each output and `i.ready` are registers; one token a cycle. The stage takes
    its next token when every output has taken the present one. Returns the number of tokens inside.
    """
    bits = len(i.payload)
    payload = Signal(bits, reset_less=True, name="payload")
    pending = Signal(len(outputs), name="pending")
    skid = Signal(bits, reset_less=True, name="skid")
    skid_full = Signal(name="skid_full")
    advance = Signal(name="advance")
    level = Signal(2, name="level")
    ready = Cat(o.ready for o in outputs)
    m.d.comb += [
        i.ready.eq(~skid_full),
        advance.eq((pending & ~ready) == 0),
        level.eq(pending.any() + skid_full),
    ]
    for branch, o in enumerate(outputs):
        m.d.comb += [o.payload.eq(payload), o.valid.eq(pending[branch])]
    with m.If(advance):
        with m.If(skid_full):
            m.d.sync += [payload.eq(skid), pending.eq(-1), skid_full.eq(0)]
        with m.Else():
            m.d.sync += [payload.eq(i.payload), pending.eq(i.valid.replicate(len(outputs)))]
    with m.Else():
        m.d.sync += pending.eq(pending & ~ready)
        with m.If(~skid_full):
            m.d.sync += skid_full.eq(i.valid)
    with m.If(~skid_full):
        m.d.sync += skid.eq(i.payload)
    return level


def skid_resources(bits: int, outputs: int) -> Resources:
    """What `add_skid` costs: two registers, a multiplexer, the control."""
    return Resources(lut=bits + 2 * outputs + 4, ff=2 * bits + outputs + 1)
