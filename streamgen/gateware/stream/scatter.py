"""Scatter: one wide word makes `slots` narrow tokens, the lowest bits first.

    token number slots*n + k of o = i[k*bits : (k+1)*bits] of word n

Without descriptor every word gives all its tokens. With `token_bits` > 0 a descriptor {tokens} on
`i_descriptor` says how many narrow tokens a transfer has; each transfer starts with a new word, and what
is left of its last word is dropped. A narrow token leaves in every cycle, also from one word and one
transfer to the next (a word may be taken before its descriptor). Latency: 1 cycle from a word taken to
its first token offered, likewise from a descriptor. `i.ready` depends on `o.ready`; the output is registered.
"""

from dataclasses import dataclass
from typing import Any

from amaranth import Const, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from streamgen.contract import Field
from streamgen.contract.cost import Resources
from streamgen.gateware.stream.countdown import Countdown, CountdownParams
from streamgen.gateware.stream.signature import descriptor_signature


@dataclass(frozen=True, kw_only=True)
class ScatterParams:
    """bits: narrow width. slots: narrow tokens a word. token_bits: width of `tokens`, 0: no descriptor."""

    bits: int
    slots: int
    token_bits: int = 0

    def __post_init__(self) -> None:
        for name, least in (("bits", 1), ("slots", 1), ("token_bits", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} of a scatter must be at least {least}, not {getattr(self, name)}")

    def descriptor_fields(self) -> tuple[Field, ...]:
        return (Field("tokens", self.token_bits),) if self.token_bits else ()

    @property
    def latency(self) -> int:
        """Cycles from a word taken to its first narrow token offered."""
        return 1

    @property
    def resources(self) -> Resources:
        word = Resources(lut=self.bits * (self.slots - 1) + 5, ff=(self.bits + 1) * self.slots + 1)
        return word + CountdownParams(bits=self.token_bits).resources if self.token_bits else word

    def build(self) -> "Scatter":
        return Scatter(self)


class Scatter(wiring.Component):
    """`i` (wide) to `o` (narrow)."""

    def __init__(self, params: ScatterParams) -> None:
        self._params = params
        descriptor = (
            {"i_descriptor": In(descriptor_signature(params.descriptor_fields()))}
            if params.token_bits
            else {}
        )
        super().__init__(
            {
                **descriptor,
                "i": In(stream.Signature(params.bits * params.slots)),
                "o": Out(stream.Signature(params.bits)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        params = self._params
        m = Module()
        slot = Signal(params.slots, init=1)  # one-hot: the token in the lowest bits of word
        word = Signal(params.bits * params.slots, reset_less=True)
        full = Signal()
        move = Signal()
        ends: Any = slot[-1]
        active: Any = Const(1)
        if params.token_bits:
            m.submodules.countdown = countdown = Countdown(CountdownParams(bits=params.token_bits))
            m.d.comb += [
                countdown.i_count.valid.eq(self.i_descriptor.valid),
                countdown.i_count.payload.eq(self.i_descriptor.payload.tokens),
                self.i_descriptor.ready.eq(countdown.i_count.ready),
                countdown.step.eq(move),
            ]
            active = countdown.active
            ends = slot[-1] | countdown.last
        m.d.comb += [
            self.o.valid.eq(full & active),
            self.o.payload.eq(word[: params.bits]),
            move.eq(self.o.valid & self.o.ready),
            self.i.ready.eq(~full | (move & ends)),
        ]
        with m.If(self.i.ready):
            m.d.sync += [full.eq(self.i.valid), word.eq(self.i.payload), slot.eq(1)]
        with m.Elif(move):
            m.d.sync += [word.eq(word[params.bits :]), slot.eq(slot << 1)]
        return m
