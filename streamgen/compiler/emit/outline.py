"""The outline of a design before its Verilog: top, buffers, counters and the places of its blocks.

The order of the passes is lower, place, size, emit. The outline is known before FIFOs have depths.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from streamgen.artifact.manifest import STATUS_WORDS, Buffer, Counter
from streamgen.artifact.packing import BEAT_BYTES
from streamgen.compiler.budget import Budget
from streamgen.compiler.emit.descriptors import Encoding, encode
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
from streamgen.contract import keeps_weights
from streamgen.model.graph import Graph, Program, Regions
from streamgen.platform.boards import Board
from streamgen.platform.capacity import bytes_by_channel, in_pages, require_room


@dataclass(frozen=True)
class Outline:
    """The outline of a design. top: the top without the hash of the design. buffers, counters: those of the
    manifest."""

    top: TopParams
    buffers: tuple[Buffer, ...]
    counters: tuple[Counter, ...]


def place_program(program: Program, spare: float, *, budget: Budget) -> Regions:
    """The SLR of each block of a program. If the program was placed before and still fits, the blocks stay
    where they are. A FIFO without a depth counts as a FIFO of one token. spare: share of each SLR to leave
    free, if possible.

    Raises BudgetError if no placement fits the board, and GraphError for descriptors that are not affine.
    """
    top = outline(program, budget, ends=True).top
    placement = find_fit(budget.name, top, budget.board, program.regions.slrs, spare)
    return Regions(tuple(slr.name for slr in budget.board.slrs), placement.slrs)


def outline(program: Program, budget: Budget, *, ends: bool = False) -> Outline:
    """The outline of a program. ends: see `encode`; for programs that are not emitted.

    Raises BudgetError if a memory channel has too little room, and GraphError for descriptors that are not
    affine.
    """
    graph = program.graph
    constants = {tensor.node for tensor in graph.tensors if tensor.role == "constant"}
    encoding = encode(program, set(awaited(graph)), constants, ends=ends)
    boundary = [boundary_buffer(program, t) for t in graph.tensors if t.role in ("input", "output")]
    kept = {t.place: kept_buffer(t) for t in graph.tensors if t.role in ("state", "spill")}
    resident = {t.channel for t in graph.tensors if keeps_weights(graph.node(t.node).params)}
    weights = [
        Buffer(
            name=weights_name(c),
            role="resident" if c in resident else "weights",
            channel=c,
            bytes=count,
            file=weights_file(c),
        )
        for c, count in constant_bytes(graph).items()
    ]
    counters = [
        Counter(name=node.name, kind=kind) for node in graph.nodes for kind in ("busy", "stalled")
    ] + [Counter(name=edge.name, kind="level", depth=edge.depth or 1) for edge in graph.edges]
    others = [*boundary, *kept.values(), *weights]
    control = _control(encoding, len(counters))
    host = boundary[0].channel if boundary else 0
    control_channel = _control_channel(graph, host, others, control, budget.board)
    buffers = (*(replace(buffer, channel=control_channel) for buffer in control), *others)
    require_room(budget.name, buffers, budget.board, budget.channels)
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


def _control(encoding: Encoding, counters: int) -> tuple[Buffer, Buffer]:
    """The buffers of the phase table and the status block, on channel 0."""
    programs = (encoding.table, *encoding.variants.values())
    longest = max(len(phase_table.pack()) for phase_table in programs)
    words = STATUS_WORDS + counters
    return (
        Buffer(name="table", role="table", channel=0, bytes=longest),
        Buffer(name="status", role="status", channel=0, bytes=-(-words * 4 // BEAT_BYTES) * BEAT_BYTES),
    )


def _control_channel(
    graph: Graph, host: int, others: Sequence[Buffer], control: Sequence[Buffer], board: Board
) -> int:
    """The channel of the phase table, which is read in every walk. It is the channel with the fewest bytes of
    caches that has room. Among equal channels, the channel of the host's tensors comes first, then the
    lowest."""
    channels = (host, *(tensor.channel for tensor in graph.tensors))
    taken = bytes_by_channel(others)
    caches = dict.fromkeys(channels, 0)
    for buffer in others:
        if buffer.role == "state":
            caches[buffer.channel] += buffer.bytes
    left = board.hbm.channel_bytes - sum(in_pages(buffer.bytes) for buffer in control)

    def order(channel: int) -> tuple[bool, int, bool, int]:
        return taken.get(channel, 0) > left, caches[channel], channel != host, channel

    return min(channels, key=order)
