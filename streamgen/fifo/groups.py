"""Events of nodes in the order of their cycles: all that is due in a cycle of a node is a group.

The merge of rising sequences is in groups.c.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streamgen.fifo.library import loaded


@dataclass(frozen=True, eq=False)
class StreamEnd:
    """An end of a stream at a node. cycles, clock: int64, of its events, rising, and what the clock of the
    node shows then. code: what its events are called. token: number of the first one. group: int32, where to
    write the group of each; None: nowhere."""

    cycles: np.ndarray
    clock: np.ndarray
    code: int
    token: int = 0
    group: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Grouped:
    """int32 arrays. node: nodes + 1: the first group of each. first: groups + 1: the first event of each.
    clock, cycle: groups. event, token: events."""

    node: np.ndarray
    first: np.ndarray
    clock: np.ndarray
    cycle: np.ndarray
    event: np.ndarray
    token: np.ndarray


_SIDE = np.dtype([(name, np.int64) for name in ("cycle", "clock", "length", "code", "token", "group")])


def grouped(nodes: Sequence[Sequence[StreamEnd]]) -> Grouped:
    """The groups of all nodes, one node after the other. The sides of a node stand in the order that their
    events have in a group."""
    sides = [side for node in nodes for side in node]
    held = [[np.ascontiguousarray(part, np.int64) for part in (side.cycles, side.clock)] for side in sides]
    rows = [
        (*(part.ctypes.data for part in arrays), len(arrays[0]), side.code, side.token, _address(side.group))
        for side, arrays in zip(sides, held, strict=True)
    ]
    events = sum(len(side.cycles) for side in sides)
    of_node = np.cumsum([0, *map(len, nodes)], dtype=np.int32)
    table, begun = np.array(rows, _SIDE), np.zeros(len(sides), np.int64)
    node, first = np.empty(len(nodes) + 1, np.int32), np.empty(events + 1, np.int32)
    clock, cycle, event, token = (np.empty(events, np.int32) for _ in range(4))
    arrays = (of_node, table, begun, node, first, clock, cycle, event, token)
    groups = _library.groups_of(len(nodes), *(array.ctypes.data for array in arrays))
    return Grouped(node, first[: groups + 1], clock[:groups], cycle[:groups], event, token)


def _address(array: np.ndarray | None) -> int:
    return 0 if array is None else array.ctypes.data


_library = loaded("streamgen.fifo._events")
_library.groups_of.restype = ctypes.c_int64
_library.groups_of.argtypes = (ctypes.c_int32, *[ctypes.c_void_p] * 9)
