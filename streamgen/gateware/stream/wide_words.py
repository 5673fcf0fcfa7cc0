"""What gather and scatter share: wide words of narrow tokens, counted where a descriptor says how many."""

from dataclasses import dataclass
from typing import Any

from amaranth import Const, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from streamgen.contract import Field
from streamgen.gateware.stream.countdown import Countdown, CountdownParams
from streamgen.gateware.stream.signature import descriptor_signature


@dataclass(frozen=True, kw_only=True)
class WordParams:
    """bits: narrow width. slots: narrow tokens a word. token_bits: width of `tokens`, 0: no descriptor."""

    bits: int
    slots: int
    token_bits: int = 0

    def __post_init__(self) -> None:
        kind = type(self).__name__.removesuffix("Params").lower()
        for name, least in (("bits", 1), ("slots", 1), ("token_bits", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} of a {kind} must be at least {least}, not {getattr(self, name)}")

    def descriptor_fields(self) -> tuple[Field, ...]:
        return (Field("tokens", self.token_bits),) if self.token_bits else ()


class CountedWords(wiring.Component):
    """`i` to `o`, in tokens of so many narrow ones each; `i_descriptor` where tokens are counted."""

    def __init__(self, params: WordParams, i: int, o: int) -> None:
        self._params: Any = params
        fields = params.descriptor_fields()
        descriptor = {"i_descriptor": In(descriptor_signature(fields))} if fields else {}
        ports = {"i": In(stream.Signature(params.bits * i)), "o": Out(stream.Signature(params.bits * o))}
        super().__init__({**descriptor, **ports})

    def _count(self, m: Module, move: Signal) -> tuple[Any, Any]:
        """Whether tokens may move, and whether the next one is the last of its transfer."""
        if not self._params.token_bits:
            return Const(1), Const(0)
        m.submodules.countdown = countdown = Countdown(CountdownParams(bits=self._params.token_bits))
        descriptor = self.i_descriptor
        m.d.comb += [*countdown.takes(descriptor, descriptor.payload.tokens), countdown.step.eq(move)]
        return countdown.active, countdown.last
