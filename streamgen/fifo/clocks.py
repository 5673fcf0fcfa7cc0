"""How the sides of a kernel move: clocks with what they wait for, and the transfers of its memory ports.

A kernel is a few parts, each with a clock that stands while a token is missing at an input of the part or an
output has no room, and streams between them: what one part waits for of another. Kernels whose Params have a
method `clocks(bounds)` say so themselves. For others all follows from their curves:

    all inputs move on one clock, all outputs on another
    a token of an output waits for the inputs of its row where, nothing stalling, all of them come before any
    output of the row; else for those of its share of the input, token by token; at the distance of the curves
    an input waits for the outputs that come before it

so inputs stand while outputs have no room, and an execution begins while the one before drains. What such a
kernel has to do with memory is in its curves; it takes no beats from other clients of its channels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamgen.fifo.curves import KernelSide, NodeStream


@dataclass(frozen=True, eq=False)
class Transfers:
    """What an execution moves through a memory port: commands, one after the other, cut into bursts.

    asks: the part that gives the commands, and the move of each; None for writes, whose bursts go when their
    beats are there. beats, offsets: of each command. moves: by beat, the move of `part` that takes it
    from the FIFO of the client, or sends it there. burst, depth, under_way: of the client. latency: of its
    FIFO, or from a response to `done`: the part and the move that waits until all beats of the execution are
    in memory.
    """

    port: str
    burst: int
    depth: int
    latency: int
    beats: np.ndarray
    offsets: np.ndarray
    part: KernelSide
    moves: np.ndarray
    asks: tuple[KernelSide, np.ndarray] | None = None
    done: tuple[KernelSide, np.ndarray] | None = None
    under_way: int | None = None


@dataclass(frozen=True, eq=False)
class Clocks:
    """parts: of the kernel, the same in all executions, in topological order; those with inputs or commands
    begin the next execution when they are through. ports: part and move of each token. streams: between the
    parts, with depth and latency, the same number in every run."""

    parts: tuple[KernelSide, ...]
    ports: Mapping[str, tuple[KernelSide, np.ndarray]]
    streams: tuple[NodeStream, ...] = ()
    transfers: tuple[Transfers, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Ports at which tokens come in: by law 1 of the contract their names begin with i."""
        return tuple(name for name in self.ports if name.startswith("i"))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parts."""
        return tuple(part.name for part in self.parts)

    def at(self, port: str) -> tuple[str, np.ndarray | None]:
        """The part that a port belongs to, and what its clock shows; None where the curves alone say it."""
        if port not in self.ports:
            return self.parts[0].name, None
        part, moves = self.ports[port]
        return part.name, part.clock[moves]

    def named(self, node: str) -> "Clocks":
        """The same with the name of a node before those of its parts."""
        parts = {part: replace(part, name=f"{node}.{part.name}") for part in self.parts}
        return replace(
            self,
            parts=tuple(parts.values()),
            ports={port: (parts[part], moves) for port, (part, moves) in self.ports.items()},
            streams=tuple(
                replace(s, source=f"{node}.{s.source}", target=f"{node}.{s.target}") for s in self.streams
            ),
        )


def clocks_of(params: Any, bounds: Any) -> Clocks:
    """The clocks of a kernel: its own, or what follows from its curves."""
    if hasattr(params, "clocks"):
        clocks: Clocks = params.clocks(bounds)
        return clocks
    return of_curves(params, bounds)


def sides_of(node: str, params: Any, bounds: Any) -> Clocks:
    """What FIFO sizing takes a node for: the parts of a kernel whose Params are `apart`, which hold more than
    streams between nodes do; else one part that moves as the curves say."""
    if getattr(params, "apart", False):
        return clocks_of(params, bounds).named(node)
    return Clocks((KernelSide(node, np.zeros(0, np.int64)),), {})


def pipe(
    inputs: Sequence[str], outputs: Sequence[str], tokens: int, latency: int, holds: int, first: int = 1
) -> Clocks:
    """A token of each input makes one of each output, `latency` cycles later, from cycle `first` on; `holds`
    tokens inside."""
    own = np.arange(tokens)
    take, sends = (
        KernelSide("take", first + own),
        [KernelSide(name, first + latency + own) for name in outputs],
    )
    streams = [take.to(send, own, own, latency=latency) for send in sends]
    streams += [send.to(take, own[:-holds], own[holds:]) for send in sends]
    ports = {name: (take, own) for name in inputs} | {send.name: (send, own) for send in sends}
    return Clocks((take, *sends), ports, tuple(streams))


def of_curves(params: Any, bounds: Any, kept: Mapping[str, int] | None = None) -> Clocks:
    """What follows from the curves of a kernel. kept: inputs that are one row, which serves every row of the
    only output, with the cycles from a token of it to what is made with it; they move on clocks of their own,
    and the first row that is sent waits for them."""
    kept = kept or {}
    inputs = {port: itensor for port, itensor in params.inputs(bounds).items() if port not in kept}
    outputs = params.outputs(bounds)
    curves = {name: curve.cycles() for name, curve in params.curves(bounds).items()}
    sides = []
    for name, ports in (("take", inputs), ("send", outputs)):
        cycles = np.unique(np.concatenate([np.zeros(0, np.int64), *(curves[port] for port in ports)]))
        sides.append(KernelSide(name, cycles, None))
    take, send = sides
    moves = {
        port: (side, np.searchsorted(side.cycles, curves[port]))
        for side, names in ((take, inputs), (send, outputs))
        for port in names
    }
    if not inputs or not outputs:
        side = send if outputs else take
        return Clocks((side,), moves)
    streams = []
    for into in inputs:
        for out in outputs:
            wanted, lag = _wanted(curves[into], curves[out], inputs[into].shape[0], outputs[out].shape[0])
            first = np.flatnonzero(np.diff(wanted, prepend=-1) > 0)
            sent, taken = moves[into][1][wanted[first]], moves[out][1][first]
            streams.append(take.to(send, sent, taken, latency=lag))
    parts = [take, send]
    for port, latency in kept.items():
        own = np.arange(len(curves[port]))
        parts.append(part := KernelSide(port, curves[port]))
        streams.append(part.to(send, own, own, latency=latency))
        moves[port] = part, own
    before = np.searchsorted(send.cycles, take.cycles) - 1  # the last move of `send` that comes before
    first = np.flatnonzero(np.diff(before, prepend=-1) > 0)
    streams.append(send.to(take, before[first], first))
    return Clocks(tuple(parts), moves, tuple(streams))


def _wanted(taken: np.ndarray, sent: np.ndarray, rows_in: int, rows_out: int) -> tuple[np.ndarray, int]:
    """By token that is sent, the last token that must have been taken, and the cycles from that to it."""
    number = np.arange(len(sent))
    if rows_in == rows_out and not len(taken) % rows_in and not len(sent) % rows_out:
        row = number // (len(sent) // rows_out)
        wanted = (row + 1) * (len(taken) // rows_in) - 1
        if (lag := int((sent - taken[wanted]).min())) > 0:
            return wanted, lag
    wanted = -(-(number + 1) * len(taken) // len(sent)) - 1
    if (lag := int((sent - taken[wanted]).min())) > 0:
        return wanted, lag
    wanted = np.searchsorted(taken, sent, side="right") - 1
    return wanted, 0
