"""When a node moves the tokens of each port, given when tokens arrive and when there is room for results.

Each kind of hardware has its recurrences here, over whole arrays: a token moves in the first cycle in which
it may, and never sooner behind the token before than its pace allows. What a kernel holds inside (a pipe, a
ring, the halves of a ping-pong buffer) bounds how far its inputs run ahead of its outputs.

A kernel that is not known here, a user's own say, has one clock that stands while a token is missing at an
input; its ports move as its curves say.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, singledispatch
from math import prod
from typing import Any

import numpy as np

from streamgen.contract import Bounds
from streamgen.converters import InPlaceParams, PingPongParams
from streamgen.converters.layout import QUEUE_DEPTH
from streamgen.formats import MX_GROUP
from streamgen.kernels.concat import ConcatParams
from streamgen.kernels.elementwise import BinaryParams, UnaryParams
from streamgen.kernels.fork import ForkParams
from streamgen.kernels.matmul import ColumnParams
from streamgen.kernels.quantise import ROWS_WAITING, QuantiseParams

__all__ = ["Ports", "lagged", "node_times", "paced"]

Times = Mapping[str, np.ndarray]
NONE = -(1 << 40)  # a cycle before every run


@dataclass(frozen=True, eq=False)
class Ports:
    """start: cycle of the descriptor. arrived: for each input the cycle from which each token is offered.
    room: for each output the cycle from which there is a place for each token. before: what the node did in
    the round before, by port; empty in the first round.
    """

    start: int
    arrived: Times
    room: Times
    before: Times

    def held(self, port: str, tokens: int, distance: int) -> np.ndarray:
        """When the token `distance` before each one has left at `port`, for `tokens` tokens."""
        return lagged(self.before.get(port), tokens, distance)


def paced(ready: np.ndarray, own: np.ndarray) -> np.ndarray:
    """The earliest cycles that keep to `ready` and, from token to token, to the distances of `own`."""
    return own + np.maximum.accumulate(ready - own)


def lagged(times: np.ndarray | None, tokens: int, distance: int) -> np.ndarray:
    """times[k - distance], NONE before the first."""
    result = np.full(tokens, NONE, np.int64)
    if times is not None and tokens > distance:
        result[distance:] = times[: tokens - distance]
    return result


@singledispatch
def node_times(params: Any, bounds: Bounds, ports: Ports) -> dict[str, np.ndarray]:
    """The cycle in which each token of each port moves."""
    own = {name: curve.cycles() for name, curve in params.curves(bounds).items()}
    names = [*ports.arrived, *ports.room]
    waits = [*ports.arrived.values(), *ports.room.values()]
    merged = np.concatenate([own[name] for name in names])
    late = np.concatenate(waits) - merged
    order = np.argsort(merged, kind="stable")
    clock = merged[order]
    lateness = np.maximum.accumulate(np.maximum(late[order], ports.start))
    result = {}
    for name in names:
        place = np.searchsorted(clock, own[name], side="right") - 1
        result[name] = own[name] + lateness[place]
    return result


def _pipe(
    ports: Ports, inputs: tuple[str, ...], outputs: tuple[str, ...], latency: int, holds: int
) -> dict[str, np.ndarray]:
    """A token of each input makes one of each output, `latency` cycles later; `holds` tokens inside."""
    tokens = len(ports.arrived[inputs[0]])
    own = np.arange(tokens, dtype=np.int64)
    ready = np.full(tokens, ports.start + 1, np.int64)
    for name in inputs:
        ready = np.maximum(ready, ports.arrived[name])
    for name in outputs:
        ready = np.maximum(ready, ports.held(name, tokens, holds) + 1)
    taken = paced(ready, own)
    result = dict.fromkeys(inputs, taken)
    for name in outputs:
        result[name] = paced(np.maximum(taken + latency, ports.room[name]), own)
    return result


@node_times.register
def _unary(params: UnaryParams, bounds: Bounds, ports: Ports) -> dict[str, np.ndarray]:
    return _pipe(ports, params.operands, ("o",), params.latency, params.latency + 1)


@node_times.register
def _binary(params: BinaryParams, bounds: Bounds, ports: Ports) -> dict[str, np.ndarray]:
    return _pipe(ports, params.operands, ("o",), params.latency, params.latency + 1)


@node_times.register
def _concat(params: ConcatParams, bounds: Bounds, ports: Ports) -> dict[str, np.ndarray]:
    return _pipe(ports, tuple(f"i_{way}" for way in range(params.ways)), ("o",), 1, 2)


@node_times.register
def _fork(params: ForkParams, bounds: Bounds, ports: Ports) -> dict[str, np.ndarray]:
    latency = params.tree.latency
    return _pipe(ports, ("i",), tuple(f"o_{way}" for way in range(params.ways)), latency, 2 * latency)


@node_times.register
def _quantise(params: QuantiseParams, bounds: Bounds, ports: Ports) -> dict[str, np.ndarray]:
    """Rows come in; a complete row goes to a ring, from which its groups leave."""
    rows, groups = bounds["t"], bounds["k"] // MX_GROUP
    group = MX_GROUP // params.lanes  # tokens of a group
    ready = np.maximum(ports.arrived["i"], ports.start + 1).reshape(rows, groups, group)
    ready[:, :, 0] = np.maximum(
        ready[:, :, 0], ports.held("o_x", rows * groups, params.ring_depth - 1).reshape(rows, groups)
    )
    for name, each in (("o_x", groups), ("o_e", 1)):
        left = ports.before.get(name)
        last = None if left is None else left[each - 1 :: each]
        ready[:, 0, 0] = np.maximum(ready[:, 0, 0], lagged(last, rows, ROWS_WAITING - 1))
    taken = paced(ready.reshape(-1), np.arange(rows * groups * group, dtype=np.int64))
    complete = taken[groups * group - 1 :: groups * group] + params.codes.latency
    o_e = paced(np.maximum(complete + 2, ports.room["o_e"]), np.arange(rows, dtype=np.int64))
    o_x = np.maximum(np.repeat(complete + 3, groups), ports.room["o_x"])
    return {"i": taken, "o_e": o_e, "o_x": paced(o_x, np.arange(rows * groups, dtype=np.int64))}


@node_times.register
def _column(params: ColumnParams, bounds: Bounds, ports: Ports) -> dict[str, np.ndarray]:
    """Steps are issued when their operands are there and their results will have room; results follow."""
    steps = bounds["k"] // MX_GROUP
    each = params.tile_results
    tiles = len(ports.arrived["i_x"]) // steps
    halves = len(ports.arrived["i_w"]) // (tiles * steps)
    busy = steps * halves
    gap = max(0, each - busy)
    ready = ports.arrived["i_w"].copy().reshape(-1, halves)
    for name in ("i_x", "i_s") if bounds["grouped"] else ("i_x",):
        ready[:, -1] = np.maximum(ready[:, -1], ports.arrived[name])
    ready[0, 0] = max(int(ready[0, 0]), ports.start + 1 + gap)
    room = lagged(ports.before.get("i_r"), (tiles + 1) * each, params.results.depth + 1)[each::each]
    last = ready[steps - 1 :: steps, -1]
    np.maximum(last, room + 1, out=last)
    own = (np.arange(tiles)[:, None] * (busy + gap) + np.arange(busy)).reshape(-1)
    weights = paced(ready.reshape(-1), own)
    issued = weights[halves - 1 :: halves]

    loaded = issued[steps - 1 :: steps] + params.results.ahead + params.results.taken_after
    results = np.arange(tiles * each, dtype=np.int64)
    ready = np.repeat(loaded, each) + np.tile(np.arange(each), tiles)
    latency = params.results.latency
    for wait in (
        ports.arrived["i_r"],
        ports.arrived["i_e"],
        ports.held("o_y", tiles * each, latency + 1) + 1,
    ):
        ready = np.maximum(ready, wait)
    taken = paced(ready, results)
    times = {"i_w": weights, "i_x": issued, "i_r": taken, "i_e": taken}
    if bounds["grouped"]:
        times["i_s"] = issued
    return {**times, "o_y": paced(np.maximum(taken + latency, ports.room["o_y"]), results)}


@node_times.register
def _ping_pong(params: PingPongParams, bounds: Bounds, ports: Ports) -> dict[str, np.ndarray]:
    """A window fills while the one before drains."""
    converter = params.converter.at(bounds["source"], bounds["target"])
    windows, fills, reads = converter.windows, converter.fills, converter.reads
    write, read = (int(np.prod(side.pieces)) for side in (params.banking.source, params.banking.target))
    ready = np.maximum(ports.arrived["i"], ports.start + 1) + write - 1
    ready = ready.reshape(windows, fills)
    drained = ports.before.get("asked")
    free = lagged(None if drained is None else drained[reads - 1 :: reads], windows, 2) + write
    ready[:, 0] = np.maximum(ready[:, 0], free)
    taken = paced(ready.reshape(-1), np.arange(windows * fills, dtype=np.int64) * write)
    asked = ports.held("o", windows * reads, 8).reshape(windows, reads) + 1
    asked[:, 0] = np.maximum(asked[:, 0], taken[fills - 1 :: fills] + read)
    asked = paced(asked.reshape(-1), np.arange(windows * reads, dtype=np.int64) * read)
    o = np.maximum(asked + params.latency, ports.room["o"])
    return {"i": taken, "o": paced(o, np.arange(len(o), dtype=np.int64)), "asked": asked}


@node_times.register
def _in_place(params: InPlaceParams, bounds: Bounds, ports: Ports) -> dict[str, np.ndarray]:
    """A window fills the places that the one before leaves; the rules are those of `converters.timing`."""
    accesses = _accesses(params, tuple(params.trips(bounds).items()))
    write, read = (prod(side.pieces) for side in (params.banking.source, params.banking.target))
    offered = np.maximum(np.repeat(ports.arrived["i"], write), ports.start + 1)
    reads = len(accesses.completes)
    room = np.maximum(np.repeat(ports.held("o", reads // read, QUEUE_DEPTH) + 1, read), ports.start + 2)
    went = ports.before.get("reads", np.full(reads, NONE, np.int64))
    while True:
        # the last entry is for accesses that wait for none
        waits = np.append(went, NONE)
        ready = np.maximum(offered + 1, waits[accesses.frees] + accesses.delay)
        ready[:: accesses.writes] = np.maximum(ready[:: accesses.writes], waits[accesses.drained] + 1)
        writes = paced(ready, np.arange(len(ready), dtype=np.int64))
        later = paced(np.maximum(room, writes[accesses.completes]) + 1, np.arange(reads, dtype=np.int64))
        if np.array_equal(later, went):
            break
        went = later
    steps = np.maximum(offered, np.append(NONE, writes[:-1]))
    o = np.maximum(went[read - 1 :: read] + params.latency, ports.room["o"])
    return {
        "i": steps[write - 1 :: write],
        "o": paced(o, np.arange(len(o), dtype=np.int64)),
        "reads": went,
    }


@dataclass(frozen=True, eq=False)
class _Accesses:
    """What the accesses of all windows wait for, by number of the access.

    writes: of a window. frees: by write, the read that frees its place, -1 for none; delay: cycles between.
    drained: by window, the last read of the window before the one before. completes: by read, the write.
    """

    writes: int
    frees: np.ndarray
    delay: int
    drained: np.ndarray
    completes: np.ndarray


@lru_cache(maxsize=256)
def _accesses(params: InPlaceParams, trips: tuple[tuple[str, int], ...]) -> _Accesses:
    rules = params.rules(dict(trips))
    window = np.arange(prod(trip for name, trip in trips if name.startswith("shared")))[:, None]
    writes, reads = len(rules.wants), len(rules.completes)
    back, place = np.divmod(rules.wants - rules.slots, rules.places)
    frees = (window + back) * reads + rules.frees[place]
    frees[(window + back < 0) | (rules.wants < 0)] = -1
    drained = (window[:, 0] - 1) * reads - 1
    return _Accesses(
        writes=writes,
        frees=frees.reshape(-1),
        delay=rules.delay,
        drained=np.maximum(drained, -1),
        completes=(window * writes + rules.completes).reshape(-1),
    )
