"""What theorems about streams are made of: the stream law, tokens inside, one token followed.

A followed token stands for every token: `follow` is a free input, so the prover may pick any token of any
run. What it must meet, in its turn and with its value, holds for all of them: none is lost, none comes
twice, none overtakes another, none changes.
"""

from typing import Any

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import stream

from sim.formal import Theorem

__all__ = ["Follow", "Inside", "Line", "fire", "held", "obey", "promise", "transfer"]


def fire(port: Any) -> Value:
    """A token moves in this cycle."""
    return port.valid & port.ready


def held(theorem: Theorem, name: str, port: Any) -> Value:
    """Law 3 of streams: what was valid and not taken is still there, unchanged."""
    m: Module = theorem.m
    payload = Value.cast(port.payload)
    waited = Signal(name=f"_{name}_waited")
    before = Signal(len(payload), name=f"_{name}_before")
    m.d.sync += [waited.eq(port.valid & ~port.ready), before.eq(payload)]
    return ~waited | (port.valid & (payload == before))


def obey(theorem: Theorem, **ports: stream.Interface) -> None:
    """The neighbours keep the law at these inputs of the component."""
    for name, port in ports.items():
        theorem.assume(held(theorem, name, port))


def promise(theorem: Theorem, **ports: Any) -> None:
    """The component keeps the law at these outputs."""
    for name, port in ports.items():
        theorem.always(
            f"what is valid on {name} stays, unchanged, until it is taken", held(theorem, name, port)
        )


def transfer(theorem: Theorem, descriptor: Any, moves: Any) -> Signal:
    """Tokens left of the last descriptor {..., tokens}; `moves`: one of them moves in this cycle.

    Proves that exactly `tokens` move for each descriptor, without a pause between descriptors.
    """
    m: Module = theorem.m
    obey(theorem, i_descriptor=descriptor)
    left = Signal.like(descriptor.payload.tokens, name="left")
    with m.If(fire(descriptor)):
        m.d.sync += left.eq(descriptor.payload.tokens)
    with m.Elif(moves):
        m.d.sync += left.eq(left - 1)
    theorem.always("no token moves without a descriptor", ~moves | (left != 0))
    theorem.always(
        "a descriptor is taken when no token is left of the one before, or with the last",
        descriptor.ready == ((left == 0) | (moves & (left == 1))),
    )
    theorem.reachable("a transfer ends with a token", moves & (left == 1))
    return left


class Inside:
    """How many tokens have gone in and not come out.

    add, remove: how many go in and out in this cycle. capacity: the most there may be.
    """

    def __init__(self, theorem: Theorem, name: str, add: Any, remove: Any, capacity: int) -> None:
        add, remove = Value.cast(add), Value.cast(remove)
        reserve = max(2 ** len(add), 2 ** len(remove))
        self.count = Signal(range(capacity + reserve + 1), name=f"{name}_inside")
        theorem.m.d.sync += self.count.eq(self.count + add - remove)
        theorem.always(f"at most {capacity} tokens are inside {name}", self.count <= capacity)
        theorem.always(f"what comes out of {name} has gone in", remove <= self.count)


class Line:
    """One place in a line, followed from the cycle in which it is taken to the cycle in which it leaves.

    behind: how many are ahead of it when it is taken in a cycle with `take`; leave: how many leave in
    this cycle. `first` says that it is next, `gone` that it has left.
    """

    def __init__(self, theorem: Theorem, name: str, take: Any, behind: Any, leave: Any, bits: int) -> None:
        m: Module = theorem.m
        self.taken = Signal(name=f"{name}_taken")
        self.gone = Signal(name=f"{name}_gone")
        self.ahead = Signal(bits, name=f"{name}_ahead")
        self.here = Signal(name=f"_{name}_here")
        self.start = Signal(name=f"_{name}_start")
        leave = Value.cast(leave)
        self.leaves = self.here & (leave > self.ahead)
        m.d.comb += [self.here.eq(self.taken & ~self.gone), self.start.eq(take & ~self.taken)]
        with m.If(self.start):
            m.d.sync += [self.taken.eq(1), self.ahead.eq(behind)]
        with m.If(self.here):
            m.d.sync += self.ahead.eq(self.ahead - leave)
        with m.If(self.leaves):
            m.d.sync += self.gone.eq(1)


class Follow:
    """One token followed from `i` to `o`, streams of equal payload, that hold at most `capacity` tokens.

    Proves the law at `o`, the capacity and that the followed token comes in its turn with its value.
    latency: after so many cycles in a row with a token inside and with `given` one is valid.
    """

    def __init__(
        self,
        theorem: Theorem,
        i: Any,
        o: Any,
        *,
        capacity: int,
        latency: int,
        name: str = "o",
        given: Any = 1,
    ) -> None:
        m: Module = theorem.m
        follow = getattr(theorem, "follow", None)
        self.follow = follow if follow is not None else theorem.free("follow")
        promise(theorem, **{name: o})
        self.inside = Inside(theorem, name, fire(i), fire(o), capacity).count
        self.line = line = Line(
            theorem,
            name,
            fire(i) & self.follow,
            self.inside - fire(o),
            fire(o),
            len(self.inside),
        )
        value = Signal(len(Value.cast(i.payload)), name=f"{name}_value")
        with m.If(line.start):
            m.d.sync += value.eq(i.payload)
        theorem.always(
            f"each token comes on {name} in its turn with its value",
            ~line.leaves | (Value.cast(o.payload) == value),
        )
        waits = Signal(range(latency + 1), name=f"_{name}_waits")
        m.d.sync += waits.eq(Mux((self.inside != 0) & ~o.valid & given, waits + 1, 0))
        theorem.always(f"a token is valid on {name} within {latency} cycles", waits < latency)
        theorem.reachable(f"a followed token leaves on {name}", line.gone)
