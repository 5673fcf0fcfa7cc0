"""A run of a graph, token by token: phases, walks, back edges, FIFOs, memory channels, descriptors.

    table read -> descriptors at the nodes -> parts of kernels, FIFOs, clients, channels -> last response

Every part of a kernel has a clock that stands while a token is missing or a FIFO has no room (`fifo.clocks`;
the equations are those of `fifo.events`). A token is looked at once: times are settled in an order in which
what they rest on is known, and the memory is asked for its next event when nothing else can go on. An
execution begins when its descriptor is there and what takes in tokens is through with the one before.

The laws of memory are those of the clients, the channel master and the memory model:

* A read client cuts a command into bursts that end at multiples of its burst length. A burst is asked for
  when the prefetch FIFO has room for all of it. A write client asks when the last beat of a burst is there.
* The master grants one address a cycle of each kind, round-robin; the memory takes up to 32 of a kind.
* A read burst is served in order, its first beat a latency after its address; beats of writes in the order of
  their addresses. Reads and writes share the beats of the channel and take turns.

Where rows of tables lie between bursts depends on ids, and is left out. The loops are in tokens.c and
channels.c.
"""

import ctypes
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np

from streamgen.fifo.clocks import Clocks, Transfers
from streamgen.fifo.curves import ENOUGH
from streamgen.manifest import MemoryTiming

__all__ = ["Descriptors", "Fifo", "TokenRun"]

_OUTSIDE = -(1 << 31)


@dataclass(frozen=True)
class Fifo:
    """An edge: node and port at its ends, cycles through it, depth (0: no limit).

    back: cycles that a place is on its way back once it is free.
    """

    source: tuple[str, str]
    target: tuple[str, str]
    latency: int
    depth: int
    back: int = 0


@dataclass(frozen=True, eq=False)
class Descriptors:
    """How descriptors come to the nodes.

    walks: of the table, the descriptors of each as (node, slots). beats: of the table asked for first, then
    for each walk. dropped: beats behind the first walk that are not its own. channel: where the table lies.
    burst, depth, latency: of the client that reads it, and of its FIFO with what follows. waiting: how many
    wait at a node. way: cycles to it.
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
class _Stream:
    """source, target: part, or -1 - client."""

    source: int
    target: int
    depth: int
    latency: int
    back: int


@dataclass(frozen=True, eq=False)
class _Client:
    """asks, beats, done: streams, or -1. commands: by phase, rows of (beats, offset)."""

    channel: int
    writes: bool
    burst: int
    depth: int
    asks: int
    beats: int
    done: int = -1
    commands: dict[int, np.ndarray] = field(default_factory=dict)


_Moves = tuple[np.ndarray, np.ndarray, int]  # cycles and clock of some moves of a part, and their event
_NONE = np.zeros(0, np.int64)
_STREAM = ("source", "target", "depth", "latency", "back")
_CLIENT = ("channel", "writes", "burst", "depth", "asks", "beats", "done")


class TokenRun:
    """A run; the results are there at once.

    steps: the phase of each step. executions: by node and phase, how it moves; nothing where it rests.
    channels: of the memory ports, by node and port. descriptors: None when all of them are there in cycle 0.
    times: whether to keep those of the FIFOs, `sent` and `taken`.

    cycles: until the last response, or token. RuntimeError when nodes wait for one another for ever.
    """

    def __init__(
        self,
        steps: Sequence[int],
        executions: Mapping[str, Mapping[int, Clocks]],
        fifos: Sequence[Fifo],
        memory: MemoryTiming,
        channels: Mapping[tuple[str, str], int],
        descriptors: Descriptors | None = None,
        *,
        times: bool = False,
    ) -> None:
        layout = _Layout(executions, fifos, channels, descriptors)
        arrays = [np.ascontiguousarray(a, np.int32) for a in (steps, *layout.arrays(1 + max(steps)))]
        counts = (len(layout.parts), len(layout.streams), len(executions), 1 + max(steps), len(steps))
        counts_behind = (
            len(layout.clients),
            len(layout.used),
            len(arrays[-4]),
            len(arrays[-2]) - 1,
            len(fifos),
        )
        sequencer = (-1, 0, 0, 0)
        if descriptors is not None:
            waits = descriptors.waiting, descriptors.way, descriptors.dropped
            sequencer = len(layout.clients) - 1, *waits
        model = _Model(
            *counts,
            *counts_behind,
            *(array.ctypes.data for array in arrays),
            *sequencer,
            *(memory.beats, memory.cycles, memory.latency),
        )
        if times:
            self._first = np.ascontiguousarray(layout.tokens(steps), np.int32)
            self._times = np.full((2, self._first[-1]), -1, np.int64)
            model.first_token, model.sent = self._first.ctypes.data, self._times[0].ctypes.data
            model.taken = self._times[1].ctypes.data
        self.cycles = int(_library.tokens_run(ctypes.byref(model)))
        if self.cycles < 0:
            raise RuntimeError(f"{-1 - self.cycles} parts of nodes wait for ever")

    def sent(self, fifo: int) -> np.ndarray:
        """The cycle in which each token of a FIFO leaves its source."""
        return self._times[0, self._first[fifo] : self._first[fifo + 1]]

    def taken(self, fifo: int) -> np.ndarray:
        """The cycle in which each token of a FIFO enters its target."""
        return self._times[1, self._first[fifo] : self._first[fifo + 1]]


class _Layout:
    """Everything by number: parts of nodes, streams (the FIFOs first), clients (that of the table last).

    used: memory channels. tracks: by part and phase, what moves.
    """

    def __init__(
        self,
        executions: Mapping[str, Mapping[int, Clocks]],
        fifos: Sequence[Fifo],
        channels: Mapping[tuple[str, str], int],
        descriptors: Descriptors | None,
    ) -> None:
        self._nodes = {node: number for number, node in enumerate(executions)}
        self._channels, self._descriptors, self._fifos = channels, descriptors, len(fifos)
        self.used = sorted({*channels.values(), *([] if descriptors is None else [descriptors.channel])})
        self._intakes: list[bool] = []
        self.parts: dict[tuple[str, str], int] = {}
        for node, by_phase in executions.items():
            for name, takes_in in _parts(by_phase.values()).items():
                self.parts[node, name] = len(self.parts)
                self._intakes.append(takes_in)
        self.streams: list[_Stream] = []
        self.clients: dict[tuple[str, str], _Client] = {}
        self._inner: dict[Hashable, int] = {}
        events = defaultdict(list)
        for fifo in fifos:
            ends = [self._part(executions, port) for port in (fifo.source, fifo.target)]
            number = self._stream(ends[0], ends[1], fifo.depth, fifo.latency, fifo.back)
            events[fifo.source].append(2 * number + 1)
            events[fifo.target].append(2 * number)
        self.tracks: dict[tuple[int, int], list[_Moves]] = {}
        for node, by_phase in executions.items():
            names = [name for of, name in self.parts if of == node]
            for phase, clocks in by_phase.items():
                self.tracks |= {(self.parts[node, name], phase): [] for name in names}
                for name, moves in self._moves(node, phase, clocks, events):
                    self.tracks[self.parts[node, name], phase].append(moves)
        if descriptors is not None:
            self._add_table(descriptors)

    def arrays(self, phases: int) -> list[Any]:
        """Those of `struct model`, behind the steps, in their order."""
        part_nodes = [self._nodes[node] for node, _ in self.parts]
        clients = [*self.clients.values()]
        walks = [] if self._descriptors is None else self._descriptors.walks
        items = [item for walk in walks for item in walk]
        return [
            np.searchsorted(part_nodes, np.arange(len(self._nodes) + 1)),
            part_nodes,
            self._intakes,
            *_packed(self.tracks, len(self.parts), phases),
            *([getattr(one, name) for one in self.streams] for name in _STREAM),
            *([getattr(one, name) for one in clients] for name in _CLIENT),
            *_commands(clients, phases),
            [self._nodes[node] for node, _ in items],
            [slots for _, slots in items],
            np.cumsum([0, *map(len, walks)]),
            [0] if self._descriptors is None else self._descriptors.beats,
        ]

    def tokens(self, steps: Sequence[int]) -> np.ndarray:
        """Number of the first token of each FIFO in a run; behind it, of all."""
        counts = np.zeros((2, self._fifos), np.int64)
        for (_, phase), several in self.tracks.items():
            for cycles, _, event in several:
                if event >> 1 < self._fifos:
                    counts[event & 1, event >> 1] += steps.count(phase) * len(cycles)
        return np.concatenate([[0], np.cumsum(counts.max(axis=0))])

    def _stream(self, source: int, target: int, depth: int, latency: int, back: int = 0) -> int:
        self.streams.append(_Stream(source, target, depth, latency, back))
        return len(self.streams) - 1

    def _part(self, executions: Mapping[str, Mapping[int, Clocks]], port: tuple[str, str]) -> int:
        """The part that a port belongs to."""
        clocks = next(one for one in executions[port[0]].values() if port[1] in one.ports)
        return self.parts[port[0], clocks.ports[port[1]][0].name]

    def _moves(
        self, node: str, phase: int, clocks: Clocks, events: Mapping[tuple[str, str], list[int]]
    ) -> Iterator[tuple[str, _Moves]]:
        """What the parts of a node do in a phase, by name of the part."""
        for port, (part, at) in clocks.ports.items():
            for event in events.get((node, port), ()):
                yield part.name, (part.cycles[at], part.clock[at], event)
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
                yield part.name, (part.cycles[at], part.clock[at], event)

    def _client(self, node: str, transfers: Transfers) -> _Client:
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
            self.clients[key] = _Client(
                channel=self.used.index(self._channels[key]),
                writes=transfers.asks is None,
                burst=transfers.burst,
                depth=transfers.depth,
                asks=asks,
                beats=beats,
                done=done,
            )
        return self.clients[key]

    def _add_table(self, descriptors: Descriptors) -> None:
        """The client that reads the table."""
        here = -1 - len(self.clients)
        self.clients["", ""] = _Client(
            channel=self.used.index(descriptors.channel),
            writes=False,
            burst=descriptors.burst,
            depth=descriptors.depth,
            asks=self._stream(_OUTSIDE, here, 0, 0),
            beats=self._stream(here, _OUTSIDE, descriptors.depth, descriptors.latency),
        )


def _parts(several: Iterable[Clocks]) -> dict[str, bool]:
    """Names of the parts of a kernel, and whether they begin an execution: inputs or commands do."""
    names: dict[str, bool] = {}
    inputs: set[str] = set()
    for clocks in several:
        names |= {part.name: False for part in clocks.parts if part.name not in names}
        inputs |= {clocks.ports[port][0].name for port in clocks.inputs}
        inputs |= {one.asks[0].name for one in clocks.transfers if one.asks is not None}
    return {name: name in inputs or not inputs for name in names}


def _packed(tracks: Mapping[tuple[int, int], list[_Moves]], parts: int, phases: int) -> list[np.ndarray]:
    """By part and phase the number of its track; where groups of tracks begin, their clocks, where their
    events begin, the events. A group is all that is due in a cycle, inputs first; one that has no events
    stands for a part that does nothing."""
    track = np.full((parts, phases), -1)
    groups, clocks, counts, events = [0], [_NONE], [np.zeros(1, np.int64)], [_NONE]
    for number, ((part, phase), moves) in enumerate(tracks.items()):
        track[part, phase] = number
        cycle, clock = (np.concatenate([_NONE, *(move[k] for move in moves)]) for k in (0, 1))
        event = np.concatenate([_NONE, *(np.full(len(cycles), event) for cycles, _, event in moves)])
        order = np.lexsort((event & 1, cycle))
        begins = np.flatnonzero(np.diff(cycle[order], prepend=-1))
        clocks.append(clock[order][begins] if len(order) else np.zeros(1, np.int64))
        counts.append(np.diff(begins, append=len(order)) if len(order) else np.zeros(1, np.int64))
        events.append(event[order])
        groups.append(groups[-1] + len(clocks[-1]))
    joined = [np.concatenate(several) for several in (clocks, counts, events)]
    return [track, np.array(groups), joined[0], np.cumsum(joined[1]), joined[2]]


def _commands(clients: Sequence[_Client], phases: int) -> list[np.ndarray]:
    """By client and phase its first command; beats and offset of each, and whether it is the last one."""
    track = np.full((len(clients), phases), -1)
    rows = [np.zeros((0, 3), np.int64)]
    for number, client in enumerate(clients):
        for phase, commands in client.commands.items():
            track[number, phase] = sum(map(len, rows))
            rows.append(np.column_stack([commands, np.arange(len(commands)) == len(commands) - 1]))
    return [track, *np.concatenate(rows).T]


class _Model(ctypes.Structure):
    """`struct model` of tokens.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("parts", "streams", "nodes", "phases", "steps", "clients")),
        *((name, ctypes.c_int32) for name in ("channels", "items", "walks", "fifos")),
        *((f"array{i}", ctypes.c_void_p) for i in range(29)),
        *((name, ctypes.c_int32) for name in ("table", "deepest", "way", "dropped")),
        *((name, ctypes.c_int32) for name in ("rate_beats", "rate_cycles", "rate_latency")),
        *((name, ctypes.c_void_p) for name in ("first_token", "sent", "taken")),
    ]


def _load() -> ctypes.CDLL:
    spec = find_spec("streamgen.explore._tokens")
    assert spec is not None and spec.origin is not None, "the package is installed without its C code"
    library = ctypes.CDLL(spec.origin)
    library.tokens_run.restype = ctypes.c_int64
    library.tokens_run.argtypes = (ctypes.c_void_p,)
    return library


_library = _load()
