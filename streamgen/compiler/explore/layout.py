"""The moving parts of a run of a graph, by number: parts of nodes, streams, clients of memory, channels."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from streamgen.base.turns import Turn
from streamgen.contract import Bounds, KernelParams
from streamgen.fifo.clocks import Clocks, Transfers, clocks_of
from streamgen.fifo.curves import ENOUGH, KernelSide
from streamgen.fifo.groups import StreamEnd, grouped
from streamgen.fifo.symmetry import Contents

OUTSIDE = -(1 << 31)
"""The end of a stream that lies at the sequencer."""


@dataclass(frozen=True)
class Fifo:
    """An edge. source, target: node and port at its ends. latency: cycles through the FIFO. depth: tokens; 0
    for no limit. back: cycles after which the source knows that a place is free."""

    source: tuple[str, str]
    target: tuple[str, str]
    latency: int
    depth: int
    back: int = 0


@dataclass(frozen=True, eq=False)
class Descriptors:
    """The way of descriptors to the nodes.

    walks: walks of the table; a walk is a sequence of descriptors as (node, slots). beats: beats of the table
    that are read first, then for each walk. dropped: beats behind the first walk that do not belong to it.
    channel: channel of the table. burst, depth: burst length and FIFO depth of the client that reads the
    table. latency: cycles from its FIFO to the sequencer. waiting: number of descriptors that can wait at a
    node. way: cycles to a node.
    """

    walks: Sequence[Sequence[tuple[str, int]]]
    beats: Sequence[int]
    dropped: int
    channel: int
    burst: int
    depth: int
    latency: int
    waiting: int
    way: int


@dataclass(frozen=True)
class InnerStream:
    """A stream by number. source, target: number of a part, or -1 - number of a client."""

    source: int
    target: int
    depth: int
    latency: int
    back: int


@dataclass(frozen=True, eq=False)
class Client:
    """A client of a memory channel.

    channel: number of the channel. burst: longest burst in beats. depth: depth of its FIFO. asks, beats,
    done: streams of commands, beats and completions; -1 if there is none. under_way: limit on the beats that
    memory owes; 0 for no limit. commands: by phase, rows of (beats, offset).
    """

    channel: int
    writes: bool
    burst: int
    depth: int
    asks: int
    beats: int
    done: int = -1
    under_way: int = 0
    commands: dict[int, np.ndarray] = field(default_factory=dict)


Moves = tuple[np.ndarray, np.ndarray, int]  # cycles and clock of some moves of a part, and their event number
Groups = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Groups of events. All events that are due in a cycle form a group, with inputs first. The arrays are the
clock of each group, the index of the first event of each group, and the events. An event is 2 * index among
the moves, plus 1 for an output. A group without events stands for a part that does nothing."""


class Known:
    """Results that several runs share: clocks of executions, moves of their parts, contents.

    turn: lock for threads that predict side by side; the C code of a run does not need it.
    """

    def __init__(self) -> None:
        self.turn = Turn()
        self.contents = Contents()
        self._clocks: dict[Hashable, Clocks] = {}
        self._parts: dict[int, tuple[KernelSide, np.ndarray]] = {}  # by id: a part in here stays alive
        self._moves: dict[tuple[int, int], tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self._groups: dict[Hashable, tuple[Sequence[Moves], Groups]] = {}
        self._shortened: dict[tuple[int, int, int], tuple[Groups, Groups]] = {}

    def clocks(self, params: KernelParams, bounds: Bounds) -> Clocks:
        """The clocks of a node; the same object for equal nodes."""
        key = params, tuple(sorted(bounds.items()))
        if key not in self._clocks:
            self._clocks[key] = clocks_of(params, bounds)
        return self._clocks[key]

    def moves(self, part: KernelSide, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Cycles and clock of some moves of a part. at: indices of the moves. The same arguments give the
        same arrays."""
        if id(part) not in self._parts:
            self._parts[id(part)] = part, part.clock
        _, clock = self._parts[id(part)]
        key = id(part), id(at)
        if key not in self._moves:
            self._moves[key] = at, part.cycles[at], clock[at]
        return self._moves[key][1:]

    def grouped(self, moves: Sequence[Moves]) -> Groups:
        """The groups of events of a part in a phase. Equal moves of other streams give the same arrays."""
        key = tuple((id(cycles), id(clock), event & 1) for cycles, clock, event in moves)
        if key not in self._groups:
            self._groups[key] = moves, _grouped(moves)
        return self._groups[key][1]

    def without(self, groups: Groups, first: int, behind: int) -> Groups:
        """The result of `shortened`. The same groups give the same arrays."""
        key = id(groups), first, behind
        if key not in self._shortened:
            self._shortened[key] = groups, shortened(groups, first, behind)
        return self._shortened[key][1]


class Layout:
    """Parts of nodes, streams and clients by number. FIFOs are the first streams; the client of the table is
    the last client.

    nodes: number of each node. parts: number of each part, by node and name. intakes: for each part, whether
    it begins an execution. fifos: number of FIFOs. used: memory channels in use. tracks: moves by part and
    phase; nodes with the same clocks have the same arrays.
    """

    def __init__(
        self,
        executions: Mapping[str, Mapping[int, Clocks]],
        fifos: Sequence[Fifo],
        channels: Mapping[tuple[str, str], int],
        descriptors: Descriptors | None,
        known: "Known",
    ) -> None:
        self.known = known
        self.nodes = {node: number for number, node in enumerate(executions)}
        self._channels, self.fifos = channels, len(fifos)
        self.used = sorted({*channels.values(), *([] if descriptors is None else [descriptors.channel])})
        self.intakes: list[bool] = []
        self.parts: dict[tuple[str, str], int] = {}
        for node, by_phase in executions.items():
            for name, takes_in in _parts(by_phase.values()).items():
                self.parts[node, name] = len(self.parts)
                self.intakes.append(takes_in)
        self.streams: list[InnerStream] = []
        self.clients: dict[tuple[str, str], Client] = {}
        self._inner: dict[Hashable, int] = {}
        events = defaultdict(list)
        for fifo in fifos:
            ends = [self._part(executions, port) for port in (fifo.source, fifo.target)]
            number = self._stream(ends[0], ends[1], fifo.depth, fifo.latency, fifo.back)
            events[fifo.source].append(2 * number + 1)
            events[fifo.target].append(2 * number)
        self.tracks: dict[tuple[int, int], list[Moves]] = {}
        for node, by_phase in executions.items():
            names = [name for of, name in self.parts if of == node]
            for phase, clocks in by_phase.items():
                self.tracks |= {(self.parts[node, name], phase): [] for name in names}
                for name, moves in self._moves(node, phase, clocks, events):
                    self.tracks[self.parts[node, name], phase].append(moves)
        if descriptors is not None:
            self._add_table(descriptors)

    def _stream(self, source: int, target: int, depth: int, latency: int, back: int = 0) -> int:
        self.streams.append(InnerStream(source, target, depth, latency, back))
        return len(self.streams) - 1

    def _part(self, executions: Mapping[str, Mapping[int, Clocks]], port: tuple[str, str]) -> int:
        """The part that a port belongs to."""
        clocks = next(candidate for candidate in executions[port[0]].values() if port[1] in candidate.ports)
        return self.parts[port[0], clocks.ports[port[1]][0].name]

    def _moves(
        self, node: str, phase: int, clocks: Clocks, events: Mapping[tuple[str, str], list[int]]
    ) -> Iterator[tuple[str, Moves]]:
        """The moves of a node in a phase, with the name of their part."""
        for port, (part, at) in clocks.ports.items():
            for event in events.get((node, port), ()):
                yield part.name, (*self.known.moves(part, at), event)
        count: defaultdict[Hashable, int] = defaultdict(int)
        for inner in clocks.streams:
            source, target = str(inner.source), str(inner.target)
            depth = 0 if inner.depth is None or inner.depth >= ENOUGH else inner.depth
            kind = (node, source, target, depth, inner.latency)
            key, count[kind] = (kind, count[kind]), count[kind] + 1
            if key not in self._inner:
                ends = self.parts[node, source], self.parts[node, target]
                self._inner[key] = self._stream(*ends, depth, inner.latency or 0)
            sends, takes = inner.clocks
            yield source, (inner.produced, sends, 2 * self._inner[key] + 1)
            yield target, (inner.consumed, takes, 2 * self._inner[key])
        for transfers in clocks.transfers:
            client = self._client(node, transfers)
            client.commands[phase] = np.stack([transfers.beats, transfers.offsets], 1)
            several = [(transfers.part, transfers.moves, 2 * client.beats + client.writes)]
            if transfers.asks is not None:
                several.append((*transfers.asks, 2 * client.asks + 1))
            if transfers.done is not None:
                several.append((*transfers.done, 2 * client.done))
            for part, at, event in several:
                yield part.name, (*self.known.moves(part, at), event)

    def _client(self, node: str, transfers: Transfers) -> Client:
        key = node, transfers.port
        if key not in self.clients:
            here, part = -1 - len(self.clients), self.parts[node, transfers.part.name]
            asks = done = -1
            if transfers.asks is not None:
                asks = self._stream(self.parts[node, transfers.asks[0].name], here, 1, 0)
                beats = self._stream(here, part, transfers.depth, transfers.latency)
            else:
                beats = self._stream(part, here, transfers.depth, 0)
            if transfers.done is not None:
                done = self._stream(here, self.parts[node, transfers.done[0].name], 0, transfers.latency)
            self.clients[key] = Client(
                channel=self.used.index(self._channels[key]),
                writes=transfers.asks is None,
                burst=transfers.burst,
                depth=transfers.depth,
                asks=asks,
                beats=beats,
                done=done,
                under_way=transfers.under_way or 0,
            )
        return self.clients[key]

    def _add_table(self, descriptors: Descriptors) -> None:
        """Add the client that reads the table."""
        here = -1 - len(self.clients)
        self.clients["", ""] = Client(
            channel=self.used.index(descriptors.channel),
            writes=False,
            burst=descriptors.burst,
            depth=descriptors.depth,
            asks=self._stream(OUTSIDE, here, 0, 0),
            beats=self._stream(here, OUTSIDE, descriptors.depth, descriptors.latency),
        )


def _grouped(moves: Sequence[Moves]) -> Groups:
    if not moves:
        return np.zeros(1, np.int32), np.zeros(2, np.int32), np.zeros(0, np.uint16)
    sides = [
        StreamEnd(cycles, clock, 2 * place + (event & 1))
        for place, (cycles, clock, event) in enumerate(moves)
    ]
    events = grouped([sorted(sides, key=lambda side: side.code & 1)])
    return events.clock, events.first, events.event.astype(np.uint16)


def shortened(groups: Groups, first: int, behind: int) -> Groups:
    """The groups without those from `first` to `behind` - 1; the groups behind follow without a gap."""
    clock, begins, event = groups
    a, b = begins[first], begins[behind]
    return (
        np.concatenate([clock[:first], clock[behind:] - (clock[behind] - clock[first])]),
        np.concatenate([begins[:first], begins[behind:] - (b - a)]),
        np.concatenate([event[:a], event[b:]]),
    )


def _parts(several: Iterable[Clocks]) -> dict[str, bool]:
    """Names of the parts of a kernel, and whether they begin an execution. Parts with inputs or memory
    commands do; if there are none, all parts do."""
    names: dict[str, bool] = {}
    inputs: set[str] = set()
    for clocks in several:
        names |= {part.name: False for part in clocks.parts if part.name not in names}
        inputs |= {clocks.ports[port][0].name for port in clocks.inputs}
        inputs |= {transfers.asks[0].name for transfers in clocks.transfers if transfers.asks is not None}
    return {name: name in inputs or not inputs for name in names}
