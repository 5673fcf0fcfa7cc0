"""The cycles of one pass of a finished graph, predicted token by token.

    table read -> descriptors delivered -> loads, kernels, FIFOs, stores -> last response -> end of the run

Every FIFO passes a token on after its latency and takes one only when it has a place; every node moves as
`kernel_times` says, every memory channel as `channel_times` says. The least times that satisfy all of this
are found by relaxation: in each round every node is evaluated in topological order with the rooms of the
round before. A wait crosses a FIFO in every round, and every crossing takes time, so the rounds end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from streamgen.contract import only_loads, only_stores, traffic
from streamgen.control.descriptor_bus import DescriptorBusParams, Target
from streamgen.explore.channel_times import Command, Reader, Writer, serve
from streamgen.explore.kernel_times import NONE, Ports, lagged, node_times, paced
from streamgen.fifo.queue import QueueParams
from streamgen.graph import Graph, Node
from streamgen.manifest import TABLE_CHUNK, MemoryTiming, PhaseTable
from streamgen.packing import BEAT_BYTES
from streamgen.platform.dma import LoadParams, StoreParams

__all__ = ["predict"]

_CHUNK = TABLE_CHUNK // BEAT_BYTES
_SLOTS = 4  # of a beat of the table
_TABLE_DEPTH, _TABLE_BURST = 64, 16
_TABLE_READ = 2  # cycles from a beat of the table in its FIFO to the sequencer: FIFO, register slice
_WALK = 2  # cycles from the directory to the first walk
_SLOT = 2  # cycles from a beat taken to its first slot
_WORD = 7  # cycles from a slot to the node's collector and out of it, beside the levels of the bus
_END = 5  # cycles from a store's response to the end of the run


def predict(graph: Graph, table: PhaseTable, memory: MemoryTiming, control_channel: int) -> int:
    """Cycles of a pass, as the status block counts them.

    graph: finished, of one phase, with the bounds of the pass. table: what the sequencer walks.
    control_channel: where the table lies. ValueError for several phases or sections.
    """
    if graph.phases != 1 or len(table.sections) != 1 or table.sections[0].repeats != 1:
        raise ValueError(
            f"graph {graph.name!r} has {graph.phases} phases and {len(table.sections)} sections of "
            "descriptors; cycles are predicted for one of each, walked once"
        )
    return _Pass(graph, table, memory, control_channel).cycles()


@dataclass(frozen=True, eq=False)
class _Fifo:
    """An edge: its ends, latency and depth."""

    source: tuple[str, str]
    target: tuple[str, str]
    latency: int
    depth: int


class _Pass:
    """One relaxation; what the rounds find out is kept by node and by channel."""

    def __init__(self, graph: Graph, table: PhaseTable, memory: MemoryTiming, control_channel: int) -> None:
        self._graph, self._table, self._memory, self._control = graph, table, memory, control_channel
        self._into: dict[str, list[_Fifo]] = {node.name: [] for node in graph.nodes}
        self._out_of: dict[str, list[_Fifo]] = {node.name: [] for node in graph.nodes}
        for edge in graph.edges:
            itensor = graph.itensor(edge, 0)
            assert itensor is not None and edge.depth is not None
            latency = QueueParams(bits=itensor.token_bits, depth=edge.depth).latency
            ends = (edge.source.node, edge.source.name), (edge.target.node, edge.target.name)
            fifo = _Fifo(*ends, latency, edge.depth)
            self._out_of[edge.source.node].append(fifo)
            self._into[edge.target.node].append(fifo)
        tensors = {tensor.node: tensor for tensor in graph.tensors}
        self._channels: dict[int, list[Node]] = {control_channel: []}
        for node in graph.nodes:
            if node.name in tensors:
                self._channels.setdefault(tensors[node.name].channel, []).append(node)
        self._times: dict[str, Mapping[str, np.ndarray]] = {node.name: {} for node in graph.nodes}
        self._beats: dict[str, np.ndarray] = {}  # of loads, when they enter the prefetch FIFO
        self._done: dict[int, int] = {}  # by channel, when its last response has come
        self._taken = np.zeros(0, np.int64)  # when the beats of the table are taken
        self._starts: dict[str, int] = {}

    def cycles(self) -> int:
        """Memory and nodes in turns until nothing changes."""
        while self._serve(self._control, []):
            pass  # the rest of the table is asked for when its first chunk is there
        self._serve_alone()
        self._settle()
        while any([self._serve(channel, nodes) for channel, nodes in self._channels.items()]):
            self._settle()
        return max(self._done.values()) + _END

    def _serve_alone(self) -> None:
        """A first guess of all beats: every load as if it had its channel for itself.

        Memory can only be slower, and streams that are read together come in step from the first round on.
        """
        for node in self._graph.nodes:
            (bounds,) = node.bounds
            if only_loads(node.params):
                assert bounds is not None
                count = traffic(node.params, bounds)["memory"]
                first = self._starts[node.name] + self._memory.latency
                beats = np.arange(count, dtype=np.int64)
                self._beats[node.name] = first + beats * self._memory.cycles // self._memory.beats

    def _settle(self) -> None:
        """Times of all nodes for the beats that the memory gives.

        They start without any wait for a place: waits are then added until they hold, so that what comes
        out is the least. (From late times, a wait of two neighbours for one another would keep itself late.)
        """
        self._times = {node.name: {} for node in self._graph.nodes}
        stale = {node.name for node in self._graph.nodes}
        while stale:
            for node in self._graph.nodes:
                if node.name not in stale:
                    continue
                stale.discard(node.name)
                times, before = self._node(node), self._times[node.name]
                self._times[node.name] = times
                for fifo in self._out_of[node.name]:
                    if not _same(times, before, fifo.source[1]):
                        stale.add(fifo.target[0])
                for fifo in self._into[node.name]:
                    if not _same(times, before, fifo.target[1]):
                        stale.add(fifo.source[0])
                if before.keys() != times.keys() or any(not _same(times, before, p) for p in times):
                    stale.add(node.name)  # what it holds inside counts in its own next turn

    def _serve(self, channel: int, nodes: Sequence[Node]) -> bool:
        """Beats of the channel, as its clients ask after the last round; whether anything has changed."""
        readers: dict[str, Reader] = {}
        writers: list[Writer] = []
        for node in nodes:
            (bounds,) = node.bounds
            assert bounds is not None
            times = self._times[node.name]
            if only_loads(node.params):
                beats = traffic(node.params, bounds)["memory"]
                command = Command(self._starts[node.name] + 1, bounds["offset"], beats)
                client = cast(LoadParams, node.params).client
                popped = times.get("popped", np.zeros(0, np.int64))
                readers[node.name] = Reader([command], client.burst, client.depth, popped)
            elif only_stores(node.params) and times:
                burst = cast(StoreParams, node.params).burst
                cuts = np.arange(burst - bounds["offset"] % burst, len(times["pushed"]), burst)
                writers.append(Writer(np.split(times["pushed"], cuts)))
        table = self._table_reader()
        serve(self._memory, [*readers.values(), *([table] if channel == self._control else [])], writers)
        changed = False
        for name, reader in readers.items():
            arrived = np.array(reader.arrived, np.int64)
            changed |= name not in self._beats or not np.array_equal(arrived, self._beats[name])
            self._beats[name] = arrived
        if channel == self._control:
            starts = self._walk(np.array(table.arrived, np.int64) + _TABLE_READ)
            changed |= starts != self._starts
            self._starts = starts
        done = max((writer.done for writer in writers), default=0)
        changed |= done != self._done.get(channel)
        self._done[channel] = done
        return changed

    def _table_reader(self) -> Reader:
        """The client that reads the table: a chunk, then, with the directory there, what is left."""
        commands = [Command(0, 0, _CHUNK)]
        left = len(self._table.sections[0].pack()) // _SLOTS + 1 - _CHUNK
        if left > 0 and len(self._taken):
            commands.append(Command(int(self._taken[0]) + _WALK, _CHUNK, left))
        return Reader(commands, _TABLE_BURST, _TABLE_DEPTH, self._taken - 1)

    def _walk(self, offered: np.ndarray) -> dict[str, int]:
        """When each node takes its descriptor. offered: beats of the table at the sequencer."""
        walk = int(offered[0]) + _WALK
        self._taken = offered.copy()
        cycle = walk  # in which the next slot may be stepped over
        starts: dict[str, int] = {}
        slots = [
            (descriptor.target, place == len(descriptor.words))
            for descriptor in self._table.sections[0].descriptors
            for place in range(len(descriptor.words) + 1)
        ]
        nodes = self._graph.nodes
        levels = DescriptorBusParams(
            targets=tuple(Target(fields=node.params.descriptor_fields()) for node in nodes)
        ).levels
        for number, (target, last) in enumerate(slots):
            beat, place = divmod(number, _SLOTS)
            if beat + 1 == len(offered):
                break  # not asked for yet
            if not place:
                self._taken[beat + 1] = max(int(offered[beat + 1]), walk, cycle - _SLOT)
                cycle = max(cycle, int(self._taken[beat + 1]) + _SLOT)
            if last:
                starts[nodes[target].name] = cycle + _WORD + levels
            cycle += 1
        return starts

    def _node(self, node: Node) -> Mapping[str, np.ndarray]:
        """Times of a node's ports, with its neighbours as they are now."""
        (bounds,) = node.bounds
        assert bounds is not None
        start = self._starts[node.name]
        if only_loads(node.params):
            (itensor,) = node.outputs(0).values()
            room = self._room(node.name, {"o": itensor.token_count})["o"]
            return _load(cast(LoadParams, node.params), self._beats[node.name], room)
        arrived = {
            fifo.target[1]: self._times[fifo.source[0]][fifo.source[1]] + fifo.latency
            for fifo in self._into[node.name]
        }
        if only_stores(node.params):
            return _store(cast(StoreParams, node.params), arrived["i"], start)
        tokens = {name: itensor.token_count for name, itensor in node.outputs(0).items()}
        return node_times(
            node.params, bounds, Ports(start, arrived, self._room(node.name, tokens), self._times[node.name])
        )

    def _room(self, name: str, tokens: Mapping[str, int]) -> dict[str, np.ndarray]:
        """When there is a place for each token behind each output of a node."""
        room = {port: np.full(count, NONE, np.int64) for port, count in tokens.items()}
        for fifo in self._out_of[name]:
            port = fifo.source[1]
            left = self._times[fifo.target[0]].get(fifo.target[1])
            # a single register takes a token in the cycle in which the one before leaves
            room[port] = lagged(left, tokens[port], fifo.depth) + (fifo.depth > 1)
        return room


def _load(params: LoadParams, beats: np.ndarray, room: np.ndarray) -> Mapping[str, np.ndarray]:
    """Tokens on `o` and beats out of the prefetch FIFO ("popped")."""
    offered = beats + params.client.queue.latency
    several, parts = params.layout.tokens_per_beat, params.layout.beats_per_token
    if several > 1:
        ready = room.copy()
        ready[::several] = np.maximum(ready[::several], offered + 1)
        o = paced(ready, np.arange(len(ready), dtype=np.int64))
        popped = np.maximum(offered, lagged(o[several - 1 :: several], len(offered), 1))
        return {"o": o, "popped": popped}
    own = np.arange(len(room), dtype=np.int64)
    if parts == 1:
        o = paced(np.maximum(offered, room), own)
        return {"o": o, "popped": o}
    left = np.arange(parts, 0, -1)
    ready = np.max(offered.reshape(-1, parts) + left, axis=1)
    o = paced(np.maximum(ready, room), own * parts)
    popped = offered.reshape(-1, parts).copy()
    popped[:, 0] = np.maximum(popped[:, 0], lagged(o, len(o), 1))
    return {"o": o, "popped": paced(popped.reshape(-1), np.arange(len(offered), dtype=np.int64))}


def _store(params: StoreParams, arrived: np.ndarray, start: int) -> Mapping[str, np.ndarray]:
    """Tokens on `i` and beats into the FIFO of the write client ("pushed")."""
    several, parts = params.layout.tokens_per_beat, params.layout.beats_per_token
    own = np.arange(len(arrived), dtype=np.int64)
    taken = paced(np.maximum(arrived, start + 2), own * parts)
    if several > 1:
        ends = np.append(np.arange(several - 1, len(taken) - 1, several), len(taken) - 1)
        return {"i": taken, "pushed": taken[ends] + 1}
    if parts == 1:
        return {"i": taken, "pushed": taken}
    pushed = taken[:, None] + np.arange(1, parts + 1)
    return {"i": taken, "pushed": pushed.reshape(-1)}


def _same(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray], port: str) -> bool:
    return port in a and port in b and np.array_equal(a[port], b[port])
