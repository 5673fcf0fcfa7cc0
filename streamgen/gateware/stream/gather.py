"""Gather: `slots` narrow tokens make one wide word, the first in the lowest bits.

    o[k*bits : (k+1)*bits] = token number slots*n + k of i,  n = number of the word

Without descriptor the words follow one another for ever. With `token_bits` > 0 a descriptor {tokens}
on `i_descriptor` says how many narrow tokens a transfer has; each transfer starts a new word, and a
word that the last token leaves incomplete is sent with zeros above (`partial="emit"`) or dropped
(`partial="drop"`). A narrow token is taken in every cycle, also from one transfer to the next.
Latency: 1 cycle from the last token of a word taken to the word offered; a descriptor comes one cycle
before its first token. `i.ready` depends on `o.ready`; the output is registered.
"""

from dataclasses import dataclass
from typing import Any, Literal

from amaranth import Module, Signal

from streamgen.contract.cost import Resources
from streamgen.gateware.stream.countdown import CountdownParams
from streamgen.gateware.stream.wide_words import CountedWords, WordParams


@dataclass(frozen=True, kw_only=True)
class GatherParams(WordParams):
    """bits: narrow width. slots: narrow tokens a word. token_bits: width of `tokens`, 0: no descriptor."""

    partial: Literal["emit", "drop"] = "emit"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.partial not in ("emit", "drop"):
            raise ValueError(f"partial of a gather must be 'emit' or 'drop', not {self.partial!r}")

    @property
    def latency(self) -> int:
        """Cycles from the last narrow token of a word taken to the word offered."""
        return 1

    @property
    def resources(self) -> Resources:
        word = Resources(lut=self.bits * (self.slots - 1), ff=(self.bits + 1) * self.slots + 1)
        if not self.token_bits:
            return word + Resources(lut=2 * self.slots + 2, ff=0)
        return word + Resources(lut=self.slots + 2, ff=0) + CountdownParams(bits=self.token_bits).resources

    def build(self) -> "Gather":
        return Gather(self)


class Gather(CountedWords):
    """`i` (narrow) to `o` (wide)."""

    def __init__(self, params: GatherParams) -> None:
        super().__init__(params, 1, params.slots)

    def elaborate(self, platform: Any) -> Module:
        params = self._params
        m = Module()
        slot = Signal(params.slots, init=1)  # one-hot: where the next token goes
        word = Signal(params.bits * params.slots, reset_less=True)
        full = Signal()
        move = Signal()
        active, last = self._count(m, move)
        ends = slot[-1] | last if params.token_bits else slot[-1]
        complete = ends if params.partial == "emit" else slot[-1]
        m.d.comb += [
            self.o.valid.eq(full),
            self.o.payload.eq(word),
            self.i.ready.eq(active & (~full | self.o.ready)),
            move.eq(self.i.valid & self.i.ready),
        ]
        with m.If(~full | self.o.ready):
            m.d.sync += full.eq(move & complete)
        with m.If(move):
            for k in range(params.slots):
                with m.If(slot[k] | slot[0]):
                    m.d.sync += word.word_select(k, params.bits).eq(
                        self.i.payload if k == 0 else self.i.payload & slot[k].replicate(params.bits)
                    )
            m.d.sync += slot.eq(slot.rotate_left(1))
            with m.If(ends):
                m.d.sync += slot.eq(1)
        return m
