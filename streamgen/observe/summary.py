"""Make the report of an accelerator from its graphs, manifests and status blocks."""

from collections.abc import Mapping, Sequence
from typing import Any

from streamgen.artifact.manifest import Buffer, Manifest, StatusBlock
from streamgen.base.wording import counted
from streamgen.compiler.emit import Design
from streamgen.compiler.lower import constant_bits, converter_bits, fifo_bits, unfused_bits
from streamgen.contract.cost import Resources
from streamgen.model.graph import Edge, Graph
from streamgen.numbers import formats
from streamgen.observe.channels import channel_bytes
from streamgen.observe.report import (
    FifoReport,
    GroupFacts,
    GroupReport,
    IntermediateMemory,
    KernelReport,
    Notes,
    PassTiming,
    ResourceReport,
)
from streamgen.platform.boards import Board
from streamgen.runtime.chain import Chain


def notes_of(design: Design, **known: Any) -> Notes:
    """The notes of a group. known: values of the fields that the design does not hold."""
    return Notes(
        board=design.board,
        resources=design.resources,
        slrs=design.placement.used,
        instances=design.instances,
        crossings=design.placement.crossings,
        wires=design.placement.wires,
        **known,
    )


def group_facts(
    graph: Graph,
    *,
    name: str,
    choices: tuple[str, ...],
    board: Board,
    parts: Mapping[str, Resources],
    slrs: Mapping[str, Resources],
    crossings: Mapping[str, int],
    buffers: Sequence[Buffer],
) -> GroupFacts:
    """The facts of one group. parts: promised resources by kind of block. slrs: used of each SLR, by name."""
    return GroupFacts(
        name=name,
        multipliers=graph.multipliers,
        choices=choices,
        resources=ResourceReport(
            parts=parts,
            board=board.name,
            available=board.resources,
            slrs={slr.name: (slrs[slr.name], slr.resources) for slr in board.slrs},
            fill=board.fill,
            crossings=crossings,
        ),
        channels=channel_bytes(buffers),
        channel_bytes=board.hbm.channel_bytes,
    )


def group_report(
    graph: Graph,
    manifest: Manifest,
    notes: Notes,
    statuses: Sequence[StatusBlock],
    timings: Sequence[PassTiming] = (),
) -> GroupReport:
    """The report of one group. statuses: one status block for each pass of the last run."""
    counts = _counted(manifest, statuses)
    total = sum(status.cycles for status in statuses)
    facts = group_facts(
        graph,
        name=manifest.top,
        choices=notes.choices,
        board=notes.board,
        parts=notes.resources,
        slrs=notes.slrs,
        crossings=notes.crossings,
        buffers=manifest.buffers,
    )
    return GroupReport(
        **vars(facts),
        units=notes.units,
        ended=notes.ended,
        converter_bits=converter_bits(graph),
        converter_budget=notes.converter_budget,
        fifos=tuple(
            FifoReport(
                name=edge.name,
                bits=_bits(graph, edge),
                depth=edge.depth or 0,
                greatest=counts.get((edge.name, "level")),
            )
            for edge in graph.edges
        ),
        passes=tuple(status.cycles for status in statuses),
        kernels=tuple(
            KernelReport(
                name=node.name,
                kind=type(node.params).__name__.removesuffix("Params"),
                busy=(busy := counts[node.name, "busy"]),
                stalled=(stalled := counts[node.name, "stalled"]),
                idle=total - busy - stalled,
            )
            for node in graph.nodes
            if (node.name, "busy") in counts
        ),
        scheduled_cycles=notes.scheduled_cycles,
        timings=tuple(timings),
        tried=notes.tried,
    )


def intermediate_memory(graphs: Sequence[Graph]) -> IntermediateMemory:
    """The intermediate memory of all groups together."""
    read = {tensor.name for graph in graphs for tensor in graph.tensors if tensor.role == "input"}
    between = [
        (tensor.name, graph.tensor_itensor(tensor))
        for graph in graphs
        for tensor in graph.tensors
        if tensor.role == "output" and tensor.name in read
    ]
    kept = {name for name, _ in between}
    constants = sum(map(constant_bits, graphs))
    return IntermediateMemory(
        unfused=sum(unfused_bits(graph, kept) for graph in graphs),
        converters=sum(map(converter_bits, graphs)) - constants,
        constants=constants,
        fifos=sum(map(fifo_bits, graphs)),
        stored=sum(formats.token_bits(it.dtype, it.shape) for _, it in between),
    )


def _counted(manifest: Manifest, statuses: Sequence[StatusBlock]) -> dict[tuple[str, str], int]:
    """Counters over all passes: the sum, or the maximum for levels of FIFOs."""
    totals: dict[tuple[str, str], int] = {}
    for status in statuses:
        for counter, value in zip(manifest.counters, status.counters, strict=True):
            key = (counter.name, counter.kind)
            if counter.kind == "level":
                totals[key] = max(totals.get(key, 0), value & 0xFFFF)
            else:
                totals[key] = totals.get(key, 0) + value
    return totals


def _bits(graph: Graph, edge: Edge) -> int:
    return next(it.token_bits for p in range(graph.phases) if (it := graph.itensor(edge, p)) is not None)


def interface_line(manifests: Sequence[Manifest], chain: Chain | None) -> str:
    """Names and shapes of the inputs and outputs of a run: `x [8, 64] to y [8, 10]`."""
    buffers = {buffer.name: buffer for manifest in manifests for buffer in manifest.buffers}
    names = {
        "input": None if chain is None else chain.inputs,
        "output": None if chain is None else chain.outputs,
    }
    sides: list[list[Buffer]] = [
        [buffers[name] for name in known or (b.name for b in buffers.values() if b.role == role)]
        for role, known in names.items()
    ]
    taken, given = (", ".join(f"{b.name} {list(b.shape or ())}" for b in side) for side in sides)
    return f"{taken} to {given}"


def hardware_line(manifests: Sequence[Manifest], graphs: Sequence[Graph] | None) -> str:
    """Board, channels and multipliers of the groups: `BOARD, 2 channels, 1,024 multipliers`. graphs: None if
    they were not read; then the line has no multipliers."""
    groups = [] if len(manifests) == 1 else [counted(len(manifests), "group")]
    channels = len({port.channel for manifest in manifests for port in manifest.ports})
    built = [] if graphs is None else [sum(graph.multipliers for graph in graphs)]
    counts = [counted(channels, "channel"), *(counted(number, "multiplier") for number in built)]
    return ", ".join([manifests[0].board.name, *groups, *counts])
