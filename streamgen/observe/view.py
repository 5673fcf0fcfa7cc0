"""Data for the page of a report: the graph, the SLRs of the blocks, the passes and the memory of a group.

A page needs the graph of kernels, which a written language model has to derive again. The data is therefore
made only for a page, and is not part of the report.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

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
    """A pass of the last run, of `tokens` tokens in `tiles` tiles from `position` on. variant: variant of the
    program; None for the program itself."""

    tokens: int
    tiles: int
    position: int
    variant: str | None
    cycles: int


@dataclass(frozen=True, kw_only=True)
class GroupView:
    """One accelerator.

    graph: graph of the largest run. slrs: SLR of each node. resources: resources of each node and the FIFOs
    before it. rate: bytes per cycle of a memory channel. predicted: passes that did not run. measured: passes
    of the last profile. runs: passes of the last run. expected: some of them with a prediction of the same
    pass, if they are not measured by phase.
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
    expected: Sequence[tuple[RunPass, PassEstimate]]


Ran = TypeVar("Ran", bound=PassProfile | RunPass)
MOST_SHOWN = 4  # passes of a run that are shown one by one


def by_tokens(passes: Sequence[Ran]) -> list[list[Ran]]:
    """Passes with the same number of tokens together, in order."""
    groups: dict[int, list[Ran]] = {}
    for one in passes:
        groups.setdefault(one.tokens, []).append(one)
    return [*groups.values()]


def shown(passes: Sequence[Ran]) -> list[Ran]:
    """The passes that are shown one by one: the first and the last of each number of tokens, up to
    `MOST_SHOWN`."""
    ends = [same[place] for same in by_tokens(passes) for place in dict.fromkeys((0, len(same) - 1))]
    return ends[:MOST_SHOWN]


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
    expected: Sequence[tuple[RunPass, PassEstimate]],
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
        expected=expected,
    )
