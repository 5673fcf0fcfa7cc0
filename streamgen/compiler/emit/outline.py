"""What a design is before its Verilog: its top, its buffers, its counters; and where its blocks lie.

The order is lower, place, size, emit: all of this is known of a program whose FIFOs have no depth yet.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from streamgen.artifact.manifest import STATUS_WORDS, Buffer, Counter
from streamgen.artifact.packing import BEAT_BYTES
from streamgen.compiler.budget import Budget
from streamgen.compiler.emit.descriptors import encode
from streamgen.compiler.emit.floorplan import Floorplan
from streamgen.compiler.emit.images import (
    boundary_buffer,
    constant_bytes,
    kept_buffer,
    weights_file,
    weights_name,
)
from streamgen.compiler.emit.resources import find_fit
from streamgen.compiler.emit.top import TopParams, awaited
from streamgen.model.graph import Graph, Program, Regions
from streamgen.platform.capacity import require_room


@dataclass(frozen=True)
class Outline:
    """top: without the hash of the design. buffers, counters: as the manifest has them."""

    top: TopParams
    buffers: tuple[Buffer, ...]
    counters: tuple[Counter, ...]


def place_program(program: Program, spare: float, *, budget: Budget) -> Regions:
    """Where the blocks of a program lie: as it has been placed before, if that fits, else anew; FIFOs that
    have no depth yet are taken for such of one token. spare: of each SLR, to leave free where that can be.

    BudgetError when nothing fits the board; GraphError for descriptors not affine at the ends.
    """
    top = outline(program, budget, ends=True).top
    placement = find_fit(budget.name, top, budget.board, program.regions.slrs, spare)
    return Regions(tuple(slr.name for slr in budget.board.slrs), placement.slrs)


def outline(program: Program, budget: Budget, *, ends: bool = False) -> Outline:
    """BudgetError when a memory channel has too little room; GraphError for descriptors not affine.

    ends: as of `encode`, for what is not emitted.
    """
    graph = program.graph
    constants = {tensor.node for tensor in graph.tensors if tensor.role == "constant"}
    encoding = encode(program, set(awaited(graph)), constants, ends=ends)
    boundary = [boundary_buffer(program, t) for t in graph.tensors if t.role in ("input", "output")]
    kept = {t.place: kept_buffer(t) for t in graph.tensors if t.role in ("state", "spill")}
    control_channel = _control_channel(graph, boundary[0].channel if boundary else 0, kept.values())
    weights = [
        Buffer(name=weights_name(c), role="weights", channel=c, bytes=count, file=weights_file(c))
        for c, count in constant_bytes(graph).items()
    ]
    programs = (encoding.table, *encoding.variants.values())
    table = Buffer(
        name="table", role="table", channel=control_channel, bytes=max(len(one.pack()) for one in programs)
    )
    counters = [
        Counter(name=node.name, kind=kind) for node in graph.nodes for kind in ("busy", "stalled")
    ] + [Counter(name=edge.name, kind="level", depth=edge.depth or 1) for edge in graph.edges]
    words = STATUS_WORDS + len(counters)
    status = Buffer(
        name="status", role="status", channel=control_channel, bytes=-(-words * 4 // BEAT_BYTES) * BEAT_BYTES
    )
    buffers = (table, status, *boundary, *kept.values(), *weights)
    require_room(budget.name, buffers, budget.board)
    top = TopParams(
        graph=graph,
        encoding=encoding,
        pointers=tuple(buffer.name for buffer in buffers),
        design_hash=0,
        control_channel=control_channel,
        floorplan=Floorplan(
            tuple(slr.name for slr in budget.board.slrs), budget.board.hbm.slr, program.regions.slrs
        ),
    )
    return Outline(top, buffers, tuple(counters))


def _control_channel(graph: Graph, host: int, buffers: Iterable[Buffer]) -> int:
    """Where the phase table is read, a part in every walk: on the channel of the host's tensors, or on the
    first that has less of the caches."""
    caches = dict.fromkeys((host, *(tensor.channel for tensor in graph.tensors)), 0)
    for buffer in buffers:
        if buffer.role == "state":
            caches[buffer.channel] += buffer.bytes
    return min(caches, key=lambda channel: (caches[channel], channel != host, channel))
