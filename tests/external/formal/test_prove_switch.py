"""Switches: each descriptor moves its tokens through its port and no other, and all of them."""

from typing import Any

import pytest
from amaranth import Array, Cat, Mux, Signal, Value

from sim.formal import Theorem, prove
from sim.formal_laws import fire, obey, promise, transfer
from streamgen.gateware.stream.countdown import Countdown
from streamgen.gateware.stream.switch import Router, RouterParams, Selector, SelectorParams
from tests.external.formal.seeded import check_found


def _transfer(t: Theorem, switch: Any, ports: int, moves: Value) -> tuple[Signal, Signal]:
    """What the last descriptor says: the port and how many tokens are left of it."""
    descriptor = switch.i_descriptor
    t.assume(descriptor.payload.port < ports)
    port = Signal.like(descriptor.payload.port, name="port")
    with t.m.If(fire(descriptor)):
        t.m.d.sync += port.eq(descriptor.payload.port)
    t.reachable("the last port is used", (port == ports - 1) & moves)
    return port, transfer(t, descriptor, moves)


def select(bits: int, ports: int, token_bits: int) -> Theorem:
    """Tokens of the chosen input, and no others, come out."""
    switch = Selector(SelectorParams(bits=bits, ports=ports, token_bits=token_bits))
    t = Theorem(f"select of {ports}", switch)
    inputs = {f"i_{k}": getattr(switch, f"i_{k}") for k in range(ports)}
    obey(t, **inputs)
    port, left = _transfer(t, switch, ports, fire(switch.o))
    promise(t, o=switch.o)
    for k, i in enumerate(inputs.values()):
        t.always(
            f"i_{k} moves when o does and it is chosen, and only then",
            fire(i) == (fire(switch.o) & (port == k)),
        )
    chosen = Array(inputs.values())
    t.always(
        "a token is that of the chosen input", ~fire(switch.o) | (switch.o.payload == chosen[port].payload)
    )
    t.always("a token of the chosen input is offered", switch.o.valid == (chosen[port].valid & (left != 0)))
    return t


def route(bits: int, ports: int, token_bits: int) -> Theorem:
    """Tokens go to the chosen output, and to no other."""
    switch = Router(RouterParams(bits=bits, ports=ports, token_bits=token_bits))
    t = Theorem(f"route to {ports}", switch)
    outputs = {f"o_{k}": getattr(switch, f"o_{k}") for k in range(ports)}
    obey(t, i=switch.i)
    port, left = _transfer(t, switch, ports, fire(switch.i))
    promise(t, **outputs)
    moved = Cat(fire(o) for o in outputs.values())
    t.always("a token goes to the chosen output only", moved == Mux(fire(switch.i), 1 << port, 0))
    for k, o in enumerate(outputs.values()):
        t.always(f"what o_{k} offers is the token", ~o.valid | (o.payload == switch.i.payload))
        t.always(
            f"o_{k} is offered a token when it is chosen",
            o.valid == (switch.i.valid & (left != 0) & (port == k)),
        )
    return t


SIZES = [(3, 2, 2), (2, 3, 2), (2, 4, 3), (1, 2, 4)]


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "ports", "token_bits"), SIZES)
def test_select(bits: int, ports: int, token_bits: int) -> None:
    prove(select(bits, ports, token_bits))


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "ports", "token_bits"), SIZES)
def test_route(bits: int, ports: int, token_bits: int) -> None:
    prove(route(bits, ports, token_bits))


@pytest.mark.slow
@pytest.mark.parametrize("make", [select, route])
def test_fault_in_the_count(make: Any) -> None:
    """A token too few of every transfer of two or more."""
    found = check_found(
        lambda: make(2, 2, 2), Countdown.elaborate, "self.last.eq(left == 1)", "self.last.eq(1)"
    )
    assert found.text == "a descriptor is taken when no token is left of the one before, or with the last"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "function", "old", "new"),
    [
        (select, Selector.elaborate, "chosen[port] & self.o.ready", "self.o.ready"),
        (select, Selector.elaborate, "chosen[port].replicate(self._params.bits) & i.payload", "i.payload"),
        (route, Router.elaborate, "ready |= chosen[port] & o.ready", "ready |= o.ready"),
        (route, Router.elaborate, "chosen[port] & self.i.valid", "self.i.valid"),
    ],
    ids=["takes from all", "mixes", "drops", "sends to all"],
)
def test_faults(make: Any, function: Any, old: str, new: str) -> None:
    check_found(lambda: make(2, 2, 2), function, old, new)
