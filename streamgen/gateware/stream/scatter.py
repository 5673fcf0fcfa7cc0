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

from amaranth import Module, Signal

from streamgen.contract.cost import Resources
from streamgen.gateware.stream.countdown import CountdownParams
from streamgen.gateware.stream.wide_words import CountedWords, WordParams


@dataclass(frozen=True, kw_only=True)
class ScatterParams(WordParams):
    """bits: narrow width. slots: narrow tokens a word. token_bits: width of `tokens`, 0: no descriptor."""

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


class Scatter(CountedWords):
    """`i` (wide) to `o` (narrow)."""

    def __init__(self, params: ScatterParams) -> None:
        super().__init__(params, params.slots, 1)

    def elaborate(self, platform: Any) -> Module:
        params = self._params
        m = Module()
        slot = Signal(params.slots, init=1)  # one-hot: the token in the lowest bits of word
        word = Signal(params.bits * params.slots, reset_less=True)
        full = Signal()
        move = Signal()
        active, last = self._count(m, move)
        ends = slot[-1] | last if params.token_bits else slot[-1]
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
