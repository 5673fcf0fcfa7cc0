"""Network: Verilog of the kernels of a graph and the FIFOs between them, with plain stream ports.

Every port of a kernel without an edge becomes the port `<node>_<port>` of the network, the descriptor of
a kernel `<node>_i_descriptor`. Kernels that touch memory have no place here. What the FIFOs do can be seen
from outside: bit k of `i_valid`, `i_ready` (of what enters) and `o_valid`, `o_ready` (of what leaves) belongs
to edge k of the graph. With `adjustable`, 16 bits of `limits` set how many tokens of its depth each FIFO may
hold, from 1 on; it behaves in every cycle as a queue of that depth.

Kernels and FIFOs are converted as for an accelerator, each kind once. The module `top` that joins them is
written as text, so that thousands of kernels take a second.

An `Edge` without depth is a GraphError here. Nodes need not have all their ports joined, so such graphs are
built as values and not with GraphBuilder.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from amaranth import Value
from amaranth.lib.wiring import In, Out

from streamgen.base.errors import GraphError
from streamgen.fifo.queue import QueueParams
from streamgen.gateware.rtl import Buildable, Library, rtlil_to_verilog
from streamgen.model.graph import Graph, Port
from streamgen.testing.bench import stream_ports

__all__ = ["LIMIT_BITS", "Link", "Network"]

LIMIT_BITS = 16
_PROBES = ("i_valid", "i_ready", "o_valid", "o_ready")


@dataclass(frozen=True)
class Link:
    """An edge for who watches it: its name, the nodes at its ends, its depth."""

    name: str
    source: str
    target: str
    depth: int


@dataclass(frozen=True)
class _Block:
    """A kind of kernel or FIFO: module, its clock and reset, its streams (inward, bits)."""

    module: str
    clocking: tuple[str, ...]
    streams: Mapping[str, tuple[bool, int]]


class Network:
    """links: the edges of the graph, in order. ports: (name, inward, bits) of every stream at the boundary.

    verilog: the text, its module called `top`. sources: files of Verilog that it needs, by name.
    """

    def __init__(self, graph: Graph, *, adjustable: bool = False) -> None:
        self._adjustable = adjustable
        self._library = Library()
        self._blocks: dict[Buildable, _Block] = {}
        self.links: list[Link] = []
        self.ports: list[tuple[str, bool, int]] = []
        body = [*self._kernels(graph), *self._queues(graph)]
        self.verilog = rtlil_to_verilog(self._library.text()) + "\n".join(
            [*self._pins(), *body, "endmodule\n"]
        )
        self.sources = self._library.sources

    def _block(self, params: Buildable) -> _Block:
        if params not in self._blocks:
            component = params.build()
            streams = {
                name: (inward, len(Value.cast(getattr(component, name).payload)))
                for inward in (True, False)
                for name in stream_ports(component, In if inward else Out)
            }
            self._blocks[params] = _Block(*self._library.require(params, component), streams)
        return self._blocks[params]

    def _kernels(self, graph: Graph) -> Iterator[str]:
        joined = {port for edge in graph.edges for port in (edge.source, edge.target)}
        for node in graph.nodes:
            block = self._block(node.params)
            pins = {}
            for name, (inward, bits) in block.streams.items():
                wire = f"{node.name}_{name}"
                if Port(node.name, name) in joined:
                    yield from _wires(wire, bits)
                else:
                    self.ports.append((wire, inward, bits))
                pins[name] = wire
            yield from _instance(block, node.name, pins)

    def _queues(self, graph: Graph) -> Iterator[str]:
        for k, edge in enumerate(graph.edges):
            if edge.depth is None:
                raise GraphError(f"edge {edge.name} of graph {graph.name!r} has no depth")
            source, target = (f"{port.node}_{port.name}" for port in (edge.source, edge.target))
            _, bits = self._block(graph.node(edge.source.node).params).streams[edge.source.name]
            params = QueueParams(bits=bits, depth=edge.depth)
            self.links.append(Link(edge.name, edge.source.node, edge.target.node, edge.depth))
            wire = f"queue_{k}_i"
            yield from _wires(wire, bits)
            allowed = "1'h1"
            levels = {}
            if self._adjustable:
                allowed, levels["level"] = f"queue_{k}_allowed", f"queue_{k}_level"
                limit = f"limits[{LIMIT_BITS * k} +: {LIMIT_BITS}]"
                yield f"  wire [{edge.depth.bit_length() - 1}:0] queue_{k}_level;"
                yield (
                    f"  wire {allowed} = queue_{k}_level < {limit} "
                    f"|| ({limit} == 1 && {target}__valid && {target}__ready);"
                )
            yield f"  assign {wire}__payload = {source}__payload;"
            yield f"  assign {wire}__valid = {source}__valid && {allowed};"
            yield f"  assign {source}__ready = {wire}__ready && {allowed};"
            yield from _instance(self._block(params), f"queue_{k}", {"i": wire, "o": target}, levels)
            for probe in _PROBES:
                side, pin = probe.split("_")
                yield f"  assign {probe}[{k}] = {source if side == 'i' else target}__{pin};"

    def _pins(self) -> Iterator[str]:
        """The head of `top`."""
        pins = {"clk": "input", "rst": "input"}
        for name, inward, bits in self.ports:
            forth, back = ("input", "output") if inward else ("output", "input")
            pins |= {f"{name}__payload": f"{forth} [{bits - 1}:0]", f"{name}__valid": forth}
            pins[f"{name}__ready"] = back
        edges = len(self.links)
        if edges:
            pins |= {probe: f"output [{edges - 1}:0]" for probe in _PROBES}
        if edges and self._adjustable:
            pins["limits"] = f"input [{LIMIT_BITS * edges - 1}:0]"
        yield f"module top({', '.join(pins)});"
        for name, kind in pins.items():
            yield f"  {kind} {name};"


def _wires(name: str, bits: int) -> Iterator[str]:
    yield f"  wire [{bits - 1}:0] {name}__payload;"
    yield f"  wire {name}__valid, {name}__ready;"


def _instance(
    block: _Block, name: str, streams: Mapping[str, str], others: Mapping[str, str] | None = None
) -> Iterator[str]:
    pins = {pin: pin for pin in block.clocking} | dict(others or {})
    for stream, wire in streams.items():
        pins |= {f"{stream}__{part}": f"{wire}__{part}" for part in ("payload", "valid", "ready")}
    yield f"  {block.module} {name} ("
    yield ",\n".join(f"    .{pin}({wire})" for pin, wire in pins.items())
    yield "  );"
