"""Switches: a descriptor says which port the next tokens come from (Selector) or go to (Router).

    Selector: o = the next `tokens` tokens of i_<port>, descriptor by descriptor
    Router:  o_<port> = the next `tokens` tokens of i, descriptor by descriptor

Descriptors {port, tokens} come on `i_descriptor`; the first token can move in the cycle after the
descriptor, and the next descriptor is taken together with the last token, so no cycle is lost between
transfers. Tokens of 0 moves nothing. Data paths are combinational (latency 0) behind a registered
choice. A `port` that does not exist stops the switch for good.
"""

from dataclasses import dataclass
from typing import Any

from amaranth import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from streamgen.contract import Field
from streamgen.contract.cost import Resources
from streamgen.gateware.stream.countdown import Countdown, CountdownParams
from streamgen.gateware.stream.signature import descriptor_signature


@dataclass(frozen=True, kw_only=True)
class _SwitchParams:
    """bits: payload width. ports: streams to choose from. token_bits: width of `tokens`."""

    bits: int
    ports: int
    token_bits: int = 32

    def __post_init__(self) -> None:
        name = type(self).__name__.removesuffix("Params").lower()
        for field, least in (("bits", 1), ("ports", 2), ("token_bits", 1)):
            if getattr(self, field) < least:
                raise ValueError(f"{field} of a {name} must be at least {least}, not {getattr(self, field)}")

    def descriptor_fields(self) -> tuple[Field, ...]:
        return Field("port", bits_for(self.ports - 1)), Field("tokens", self.token_bits)

    @property
    def latency(self) -> int:
        """Cycles from a token taken to the token offered, once the descriptor is there."""
        return 0

    @property
    def _control(self) -> Resources:
        return CountdownParams(bits=self.token_bits).resources + Resources(lut=3 * self.ports, ff=self.ports)


class SelectorParams(_SwitchParams):
    """n -> 1. bits: payload width. ports: inputs `i_0` ... token_bits: width of `tokens`."""

    @property
    def resources(self) -> Resources:
        return self._control + Resources(lut=self.bits * -(-(2 * self.ports - 1) // 5), ff=0)

    def build(self) -> "Selector":
        return Selector(self)


class RouterParams(_SwitchParams):
    """1 -> n. bits: payload width. ports: outputs `o_0` ... token_bits: width of `tokens`."""

    @property
    def resources(self) -> Resources:
        return self._control

    def build(self) -> "Router":
        return Router(self)


class _Switch(wiring.Component):
    def _choice(self, m: Module, step: Signal) -> Signal:
        """One-hot register: the port whose tokens may move now."""
        m.submodules.countdown = countdown = Countdown(CountdownParams(bits=self._params.token_bits))
        chosen = Signal(self._params.ports)
        descriptor = self.i_descriptor
        m.d.comb += [
            *countdown.takes(descriptor, descriptor.payload.tokens),
            countdown.step.eq(step),
        ]
        with m.If(countdown.i_count.ready):
            for port in range(self._params.ports):
                moves = countdown.taken & (descriptor.payload.tokens != 0)
                m.d.sync += chosen[port].eq(moves & (descriptor.payload.port == port))
        return chosen


class Selector(_Switch):
    """`i_0` … `i_{n-1}` to `o`."""

    def __init__(self, params: SelectorParams) -> None:
        self._params = params
        signature = stream.Signature(params.bits)
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                **{f"i_{port}": In(signature) for port in range(params.ports)},
                "o": Out(signature),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        chosen = self._choice(m, self.o.valid & self.o.ready)
        inputs = [getattr(self, f"i_{port}") for port in range(self._params.ports)]
        valid = payload = 0
        for port, i in enumerate(inputs):
            valid |= chosen[port] & i.valid
            payload |= chosen[port].replicate(self._params.bits) & i.payload
            m.d.comb += i.ready.eq(chosen[port] & self.o.ready)
        m.d.comb += [self.o.valid.eq(valid), self.o.payload.eq(payload)]
        return m


class Router(_Switch):
    """`i` to `o_0` … `o_{n-1}`."""

    def __init__(self, params: RouterParams) -> None:
        self._params = params
        signature = stream.Signature(params.bits)
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i": In(signature),
                **{f"o_{port}": Out(signature) for port in range(params.ports)},
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        chosen = self._choice(m, self.i.valid & self.i.ready)
        ready = 0
        for port in range(self._params.ports):
            o = getattr(self, f"o_{port}")
            ready |= chosen[port] & o.ready
            m.d.comb += [o.valid.eq(chosen[port] & self.i.valid), o.payload.eq(self.i.payload)]
        m.d.comb += self.i.ready.eq(ready)
        return m
