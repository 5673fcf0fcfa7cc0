"""Turn a finished program into a design: Verilog, images of the constants, manifest."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from streamgen.artifact.manifest import (
    BoardFacts,
    Manifest,
    MemoryPort,
    MemoryTiming,
    StreamFacts,
    VariantFacts,
)
from streamgen.base.progress import Counted
from streamgen.compiler.budget import Budget
from streamgen.compiler.emit.floorplan import sender_name
from streamgen.compiler.emit.images import constant_bytes, weights_file, write_constants
from streamgen.compiler.emit.outline import outline
from streamgen.compiler.emit.placement import Placement
from streamgen.compiler.emit.ports import check_components
from streamgen.compiler.emit.resources import promised, require_fit
from streamgen.compiler.emit.top import channel_name, fifo_name
from streamgen.contract.cost import Resources
from streamgen.gateware.rtl import Library, to_verilog
from streamgen.model.graph import Graph, Program
from streamgen.platform.boards import Board

_VERILOG, _MANIFEST = "design.v", "manifest.json"


@dataclass(frozen=True, eq=False)
class Design:
    """A design as it is written for a device.

    sources: Verilog files of users, by name. graph: graph whose constants fill the weight files; they are
    packed when the files are written. resources: promised resources by kind of block. placement: SLRs of the
    blocks. instances: SLR of each instance in the top, by its name in the Verilog; if the design lies on
    several SLRs, also of the registers of resets.
    """

    manifest: Manifest
    verilog: str
    sources: dict[str, str]
    graph: Graph
    resources: dict[str, Resources]
    board: Board
    placement: Placement
    instances: dict[str, str]

    def __str__(self) -> str:
        sizes = {name: len(content) for name, content in self._texts().items()}
        sizes |= {weights_file(channel): count for channel, count in constant_bytes(self.graph).items()}
        lines = [f"{name}: {count:,} bytes" for name, count in sizes.items()]
        for kind, used in self.resources.items():
            lines.append(
                f"{kind}: {used.lut:,.0f} LUT, {used.ff:,.0f} FF, {used.dsp:g} DSP, {used.bram:g} BRAM"
            )
        return "\n".join(lines)

    def write(self, folder: Path) -> None:
        """Write all files into an existing folder."""
        for name, content in self._texts().items():
            Path(folder, name).write_bytes(content)
        write_constants(self.graph, folder)

    def _texts(self) -> dict[str, bytes]:
        """Contents of all files except the weight files, by name."""
        return {
            _VERILOG: self.verilog.encode(),
            **{name: text.encode() for name, text in self.sources.items()},
            _MANIFEST: self.manifest.to_json().encode(),
        }


def emit(program: Program, budget: Budget, max_tokens: int, counted: Counted | None = None) -> Design:
    """Build the top of a program and everything that the host needs. The same program gives the same bytes.
    counted: called with the number of converted blocks of the top.

    Raises BudgetError if the design does not fit the board, and GraphError for descriptors that are not
    affine and for components that differ from their Params.
    """
    graph, board = program.graph, budget.board
    check_components(graph)
    outlined = outline(program, budget)
    top, encoding = outlined.top, outlined.top.encoding
    placement = require_fit(budget.name, top, board)
    rate = board.hbm.beats_per_cycle(budget.clock_mhz)
    manifest = Manifest(
        board=BoardFacts(name=board.name, channels=board.hbm.channels, channel_bytes=board.hbm.channel_bytes),
        top=budget.name,
        verilog=_VERILOG,
        design_hash="0" * 16,
        clock_mhz=budget.clock_mhz,
        tokens_per_tile=program.token_lanes,
        max_tokens=max_tokens,
        ports=tuple(
            MemoryPort(name=channel_name(c), channel=c, id_bits=top.master(c).id_bits) for c in top.channels
        ),
        buffers=outlined.buffers,
        program=encoding.table,
        counters=outlined.counters,
        memory=MemoryTiming(beats=rate.numerator, cycles=rate.denominator, latency=board.hbm.latency),
        streams=_streams(graph),
        whole=program.whole,
        variants=tuple(
            VariantFacts(name=name, program=table, outputs=_outputs(program.variants[name](graph)))
            for name, table in encoding.variants.items()
        ),
    )
    hardware = [(node.name, node.params, encoding.constants[node.name]) for node in graph.nodes]
    identity = f"{manifest.identity()}{hardware!r}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    top = replace(top, design_hash=int(digest, 16))
    blocks = len(top.instances.keys() - {"control"})  # control is converted with the top
    library = Library(counted and (lambda met: counted("Verilog", met, blocks)))
    library.add_source(_VERILOG, "", ())  # no file of a user may have this name
    verilog = to_verilog(top.build(), budget.name, library)
    sources = {name: text for name, text in library.sources.items() if name != _VERILOG}
    return Design(
        manifest=replace(manifest, design_hash=digest, sources=tuple(sources)),
        verilog=verilog,
        sources=sources,
        graph=graph,
        resources=promised(top),
        board=board,
        placement=placement,
        instances=top.instances | (top.reset_registers if len(top.slrs) > 1 else {}),
    )


def _outputs(graph: Graph) -> tuple[str, ...]:
    """Names of the outputs that a run writes."""
    return tuple(t.name for t in graph.tensors if t.role == "output" and any(graph.node(t.node).bounds))


def _streams(graph: Graph) -> tuple[StreamFacts, ...]:
    """The edges and their instances, in topological order."""
    place = {node.name: i for i, node in enumerate(graph.nodes)}
    order = sorted(range(len(graph.edges)), key=lambda k: place[graph.edges[k].source.node])
    return tuple(
        StreamFacts(
            name=graph.edges[k].name,
            instance=fifo_name(k),
            sender=sender_name(fifo_name(k)) if graph.edges[k].boundaries else None,
        )
        for k in order
    )
