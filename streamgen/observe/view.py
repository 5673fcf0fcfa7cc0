"""Data for the page of a report: the graph, the SLRs of the blocks, the passes and the memory of a group.

A page needs the graph of kernels, which a written language model has to derive again. The data is therefore
made only for a page, and is not part of the report.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streamgen.artifact.manifest import Buffer, Manifest
from streamgen.artifact.packing import BEAT_BYTES
from streamgen.contract.cost import Resources
from streamgen.fifo.queue import QueueParams
from streamgen.model.graph import Graph
from streamgen.observe.estimate import PassEstimate
from streamgen.observe.profile import PassProfile
from streamgen.observe.report import Notes
from streamgen.platform.boards import Board


@dataclass(frozen=True, kw_only=True)
class RunPass:
    """A pass of the last run, of `tokens` tokens from `position` on."""

    tokens: int
    position: int
    cycles: int


@dataclass(frozen=True, kw_only=True)
class GroupView:
    """One accelerator.

    graph: graph of the largest run. slrs: SLR of each node. resources: resources of each node and the FIFOs
    before it. rate: bytes per cycle of a memory channel. predicted: passes that did not run. measured: passes
    of the last profile. runs: passes of the last run, whose phases are known only if they are `measured`.
    """

    name: str
    graph: Graph
    phase_names: Sequence[str]
    board: Board
    slrs: Mapping[str, str]
    resources: Mapping[str, Resources]
    buffers: Sequence[Buffer]
    rate: float
    multipliers: int
    predicted: Sequence[PassEstimate]
    measured: Sequence[PassProfile]
    runs: Sequence[RunPass]


def node_resources(graph: Graph) -> dict[str, Resources]:
    """Promised resources of each node and the FIFOs before it."""
    resources = {}
    for node in graph.nodes:
        bounds = next(b for b in node.bounds if b is not None)
        total = node.params.cost(bounds).resources
        for edge in graph.inputs_of(node.name):
            bits = [it.token_bits for p in range(graph.phases) if (it := graph.itensor(edge, p)) is not None]
            total += QueueParams(bits=bits[0], depth=edge.depth or 1).resources
        resources[node.name] = total
    return resources


def group_view(
    graph: Graph,
    manifest: Manifest,
    phase_names: Sequence[str],
    notes: Notes,
    *,
    predicted: Sequence[PassEstimate],
    measured: Sequence[PassProfile],
    runs: Sequence[RunPass],
) -> GroupView:
    """The view of one group."""
    memory = manifest.memory
    return GroupView(
        name=manifest.top,
        graph=graph,
        phase_names=phase_names,
        board=notes.board,
        slrs={node.name: notes.instances[node.name] for node in graph.nodes},
        resources=node_resources(graph),
        buffers=manifest.buffers,
        rate=BEAT_BYTES * memory.beats / memory.cycles,
        multipliers=graph.multipliers,
        predicted=predicted,
        measured=measured,
        runs=runs,
    )
