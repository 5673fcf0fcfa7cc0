"""Choose the memory channel of everything that a graph keeps in memory, so that every channel has room.

Everything lies on the channel that `bind` or `steer` chose, if all channels have room. Otherwise caches and
the weights of columns stay there, because the rate of all their channels together sets the pace. Tables,
other constants, spills, inputs and outputs for which a channel has no room move to the channel with the most
room. A table that fits on none is cut at beats: each row lies in parts on as few channels as have room, a
load for each part reads the same rows, and a `JoinRows` joins the parts:

    ids -> table -> rows        becomes        ids -> table_part_0, table_part_1 -> table -> rows

Channels that the design uses anyway come before others that it may use.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from streamgen.artifact.manifest import Buffer
from streamgen.artifact.packing import BEAT_BYTES, MemoryLayout
from streamgen.contract import is_of_column, row_units
from streamgen.model.graph import Edge, Graph, Node, Port, Tensor
from streamgen.model.graph.late import LateArray
from streamgen.platform.boards import Board
from streamgen.platform.capacity import bytes_by_channel, in_pages, require_room

Key = tuple[str, str]
"""Of contents that move as one: the role and the buffer, or "constant" and the node that reads it."""
Parts = tuple[tuple[int, int], ...]
"""The channel of each part, and its units."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """The memory that a design may use: the first `channels` channels of a board."""

    board: Board
    channels: int


@dataclass(frozen=True, kw_only=True)
class Content:
    """What moves as one. channel: its first choice. bytes: in memory. units: equal pieces that may lie on
    different channels. moves: whether it may lie elsewhere. early: whether it is placed before other tables,
    because its units are few and large."""

    key: Key
    channel: int
    bytes: int
    units: int = 1
    moves: bool = True
    early: bool = False

    @property
    def unit_bytes(self) -> int:
        """Bytes that a unit takes from a channel. Constants of a channel share a buffer."""
        return (self.bytes if self.key[0] == "constant" else in_pages(self.bytes)) // self.units


def contents(graph: Graph, *, host_moves: bool = True) -> list[Content]:
    """All that a graph keeps in memory. host_moves: whether inputs and outputs may move."""
    found: dict[Key, Content] = {}
    columns = {e.source.node for e in graph.edges if is_of_column(graph.node(e.target.node).params)}
    for tensor in graph.tensors:
        key, itensor = _key(tensor), graph.tensor_itensor(tensor)
        size = MemoryLayout.of(itensor).beats(itensor.token_count) * BEAT_BYTES
        own = Content(key=key, channel=tensor.channel, bytes=size)
        if tensor.role == "constant":
            size *= tensor.walks(itensor)
            size += found[key].bytes if key in found else 0
            units = row_units(graph.node(tensor.node).params)
            early = len(itensor.element_shape) > 2  # cosines and sines
            own = replace(own, bytes=size, units=units, moves=tensor.node not in columns, early=early)
        elif tensor.role != "spill":
            own = replace(own, moves=host_moves and tensor.role != "state")
        found[key] = own
    return list(found.values())


def buffers(contents: Sequence[Content], places: Mapping[Key, Parts]) -> list[Buffer]:
    """The buffers that hold the contents: one for the constants of each channel. places: of those that do not
    lie on the channel of their first choice."""
    constants: Counter[int] = Counter()
    others = []
    for content in contents:
        role, name = content.key
        for channel, count in places.get(content.key, ((content.channel, content.units),)):
            if role == "constant":
                constants[channel] += count * content.unit_bytes
            else:
                others.append(Buffer(name=name, role=role, channel=channel, bytes=content.bytes))  # type: ignore[arg-type]
    weights = [
        Buffer(name=f"weights_{channel}", role="weights", channel=channel, bytes=size)
        for channel, size in sorted(constants.items())
    ]
    return [*others, *weights]


def find_places(name: str, contents: Sequence[Content], room: Room) -> dict[Key, Parts]:
    """The places of all contents that have no room on the channel of their first choice. name: of the design.

    Raises BudgetError if some have no room on any channel.
    """
    most = room.board.hbm.channel_bytes
    if max(bytes_by_channel(buffers(contents, {})).values(), default=0) <= most:
        return {}
    used = {content.channel for content in contents}
    left = dict.fromkeys(used.union(range(room.channels)), most)
    places: dict[Key, Parts] = {}
    # What cannot move comes first, then what is in few pieces, the largest first; tables fill the rest.
    for content in sorted(contents, key=lambda c: (c.moves, c.units > 1 and not c.early, -c.bytes)):
        where: Parts = ((content.channel, content.units),)
        if content.moves and content.units * content.unit_bytes > left[content.channel]:
            found = _most_room(content, left, used) or _most_room(content, left, left)
            where = found or _evenly(content, used)
            places[content.key] = where
        for channel, count in where:
            left[channel] -= count * content.unit_bytes
    require_room(name, buffers(contents, places), room.board, room.channels)
    return places


def beside_caches(name: str, contents: Sequence[Content], room: Room) -> dict[int, int]:
    """The bytes of each channel that everything but caches takes; caches may have the rest. Tables lie as if
    there were no caches: with large caches they may move to other channels (`find_places`).

    Raises BudgetError if the contents have no room even without caches.
    """
    others = [content for content in contents if content.key[0] != "state"]
    taken = bytes_by_channel(buffers(others, find_places(name, others, room)))
    return {channel: taken.get(channel, 0) for channel in range(room.channels)}


def on_channels(graph: Graph, places: Mapping[Key, Parts]) -> Graph:
    """The graph with its contents at these places (`find_places`); others stay where they are."""
    tensors = []
    for tensor in graph.tensors:
        parts = places.get(_key(tensor), ())
        if len(parts) > 1:
            graph, some = _in_parts(graph, tensor, parts)
            tensors += some
        else:
            tensors.append(replace(tensor, channel=parts[0][0]) if parts else tensor)
    return replace(graph, tensors=tuple(tensors))


def _key(tensor: Tensor) -> Key:
    return tensor.role, tensor.node if tensor.role == "constant" else tensor.place


def _most_room(content: Content, left: Mapping[int, int], pool: Collection[int]) -> Parts | None:
    """The fewest channels of a pool that hold a content together, with about equally many units each; None if
    all of them do not. left: free bytes by channel."""
    room = sorted(((left[channel] // content.unit_bytes, channel) for channel in pool), reverse=True)
    enough = (k for k, all_ in enumerate(accumulate(units for units, _ in room), 1) if all_ >= content.units)
    if (count := next(enough, None)) is None:
        return None
    parts, rest = [], content.units
    for number, (most, channel) in enumerate(reversed(room[:count])):
        parts.append((channel, min(most, rest // (count - number))))
        rest -= parts[-1][1]
    return tuple(parts)


def _evenly(content: Content, pool: Collection[int]) -> Parts:
    """As many channels as possible, also without room, for an error."""
    channels = [content.channel, *sorted(set(pool) - {content.channel})][: content.units]
    each, more = divmod(content.units, len(channels))
    return tuple((channel, each + (k < more)) for k, channel in enumerate(channels))


def _part(data: Any, held: slice) -> Any:
    """The part of a constant that lies in some elements of the last axis."""
    if isinstance(data, LateArray):
        return data.part(*held.indices(data.shape[-1])[:2])
    return np.asarray(data)[..., held]


def _in_parts(graph: Graph, table: Tensor, parts: Parts) -> tuple[Graph, list[Tensor]]:
    """The graph with a load for each part of a table and a node, with the name of the first load, that joins
    rows; and the tensors of the parts."""
    node = graph.node(table.node)
    whole: Any = node.params
    loads, slices = zip(*whole.parts([count for _, count in parts]), strict=True)
    names = [f"{node.name}_part_{number}" for number in range(len(loads))]
    bounds = tuple(None if some is None else whole.joined_bounds(loads, some) for some in node.bounds)
    own = [replace(node, name=name, params=load) for name, load in zip(names, loads, strict=True)]
    own.append(Node(node.name, whole.joined(loads), bounds))
    edges = []
    for edge in graph.edges:
        if edge.target.node == node.name:
            assert not edge.back  # ids come from the host
            edges += [replace(edge, target=Port(name, edge.target.name)) for name in names]
        else:
            edges.append(edge)
    edges += [Edge(Port(name, "o"), Port(node.name, f"i_{way}")) for way, name in enumerate(names)]
    tensors = [
        replace(
            table,
            name=f"{table.name}_part_{number}",
            node=name,
            channel=channel,
            data=(part := _part(table.data, held)),
            shape=part.shape,
            itensor=load.table,
        )
        for number, (name, load, held, (channel, _)) in enumerate(
            zip(names, loads, slices, parts, strict=True)
        )
    ]
    nodes = [new for old in graph.nodes for new in (own if old is node else [old])]
    return replace(graph, nodes=tuple(nodes), edges=tuple(edges)), tensors
