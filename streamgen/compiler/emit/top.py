"""The top: nodes of a graph, a FIFO on every edge, a master for every memory channel, and the control.

The pins are those of a Vitis RTL kernel: ap_clk, ap_rst_n, interrupt, s_axi_control_*, m_axi_gmem<n>_*.
The control can reset all other blocks (`emit.resets`). A signal between SLRs passes registers on both
(`emit.floorplan`).
"""

from collections import Counter
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import add, or_
from typing import Any, Literal

from amaranth import Cat, DomainRenamer, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from streamgen.compiler.emit.descriptors import Encoding
from streamgen.compiler.emit.floorplan import Floorplan
from streamgen.compiler.emit.images import weights_name
from streamgen.compiler.emit.resets import FAN_OUT, PIN, Resets, levels, registers, tree_name, way_name
from streamgen.contract import completes, memory_ports
from streamgen.contract.cost import Resources
from streamgen.fifo.crossing import CrossingParams, WiresParams, fifo, way_of
from streamgen.fifo.queue import QueueParams
from streamgen.gateware.rtl import Shared
from streamgen.gateware.stream import FanoutParams
from streamgen.model.graph import Graph, Port
from streamgen.platform.axi import ID_BITS, AxiSignature
from streamgen.platform.control.control import ControlParams
from streamgen.platform.control.counters import CountersParams
from streamgen.platform.control.descriptor_bus import BusWord, DescriptorBusParams, Target
from streamgen.platform.control.registers import AxiLiteSignature
from streamgen.platform.master import ChannelMasterParams
from streamgen.platform.read_client import ReadClientParams
from streamgen.platform.write_client import WriteClientParams

WORDS_DEPTH = 16  # depth of a crossing of descriptor words; enough for a word per cycle over two boundaries
_TABLE_READER = ReadClientParams(depth=64, burst=16)
_STATUS_WRITER = WriteClientParams(depth=16, burst=8)


def channel_name(channel: int) -> str:
    """Name of the AXI master of a memory channel."""
    return f"m_axi_gmem{channel}"


def awaited(graph: Graph) -> tuple[str, ...]:
    """Nodes for whose completion a run waits, in the order of the graph."""
    return tuple(node.name for node in graph.nodes if completes(node.params))


def fifo_name(edge: int) -> str:
    """Name of the instance of the FIFO of an edge."""
    return f"fifo_{edge}"


@dataclass(frozen=True, kw_only=True)
class TopParams:
    """Parameters of a top.

    graph: a finished graph. encoding: its descriptors. pointers: names of the buffers in the order of the
    registers. design_hash: 64 bits. control_channel: channel of the phase table and the status block.
    floorplan: SLRs of the nodes.
    """

    graph: Graph
    encoding: Encoding
    pointers: tuple[str, ...]
    design_hash: int
    control_channel: int
    floorplan: Floorplan

    @property
    def slrs(self) -> tuple[str, ...]:
        """SLRs in use; the SLR of the memory comes first."""
        return self.floorplan.used(node.name for node in self.graph.nodes)

    @property
    def way(self) -> int:
        """Number of registers between the SLR of the memory and the farthest SLR in use."""
        home = self.floorplan.home
        return max(way_of(self.floorplan.distance(home, slr)) for slr in self.slrs)

    @property
    def channels(self) -> tuple[int, ...]:
        """Memory channels in use, ascending."""
        return tuple(sorted({self.control_channel, *(t.channel for t in self.graph.tensors)}))

    @property
    def awaited(self) -> tuple[str, ...]:
        """Nodes for whose completion a run waits, in the order of the graph."""
        return awaited(self.graph)

    @property
    def targets(self) -> tuple[Target, ...]:
        """The target of each node, in the order of the graph. In a graph of one phase a node gets one
        descriptor per run, so its queue needs a depth of 1."""
        constants = self.encoding.constants
        depth = 1 if self.graph.phases == 1 else 4
        return tuple(
            Target(
                fields=node.params.descriptor_fields(),
                constants=tuple(sorted(constants[node.name].items())),
                depth=depth,
            )
            for node in self.graph.nodes
        )

    def bus(self, slr: str) -> DescriptorBusParams:
        """The descriptor bus of the nodes on an SLR."""
        here = [self.floorplan.of(node.name) == slr for node in self.graph.nodes]
        return DescriptorBusParams(
            targets=tuple(t if own else None for t, own in zip(self.targets, here, strict=True))
        )

    def words(self, slr: str) -> CrossingParams:
        """The crossing of descriptor words to another SLR."""
        boundaries = self.floorplan.distance(self.floorplan.home, slr)
        return CrossingParams(bits=BusWord.size, depth=WORDS_DEPTH, boundaries=boundaries)

    def watched(self, slr: str) -> int:
        """Number of bits from the nodes and FIFOs of an SLR to the counters."""
        nodes = sum(self.floorplan.of(node.name) == slr for node in self.graph.nodes)
        levels = (
            bits_for(edge.depth or 1)
            for edge in self.graph.edges
            if self.floorplan.of(edge.target.node) == slr
        )
        return 2 * nodes + sum(levels)

    @property
    def counters(self) -> CountersParams:
        """Counters of all nodes and FIFOs."""
        return CountersParams(
            nodes=len(self.graph.nodes), depths=tuple(edge.depth or 1 for edge in self.graph.edges)
        )

    @property
    def control(self) -> ControlParams:
        """Registers, sequencer, status, watchdog."""
        return ControlParams(
            pointers=self.pointers,
            targets=len(self.graph.nodes),
            completions=len(self.awaited),
            counters=self.counters.words,
            channels=len(self.channels),
            design_hash=self.design_hash,
        )

    def queue(self, index: int) -> QueueParams | CrossingParams:
        """The FIFO of an edge."""
        edge = self.graph.edges[index]
        bits = next(
            it.token_bits for p in range(self.graph.phases) if (it := self.graph.itensor(edge, p)) is not None
        )
        return fifo(bits, edge.depth or 1, edge.boundaries)

    def clients(self, channel: int, way: Literal["read", "write"]) -> list[Port]:
        """Memory ports that read from a channel or write to it, in the order of the graph."""
        tensors = {(t.node, t.port): t for t in self.graph.tensors}
        return [
            Port(node.name, port)
            for node in self.graph.nodes
            for port, does in memory_ports(node.params).items()
            if does == way and tensors[node.name, port].channel == channel
        ]

    def master(self, channel: int) -> ChannelMasterParams:
        """The master of a channel. Clients of the graph come first, the client of the control last."""
        extra = channel == self.control_channel
        readers = len(self.clients(channel, "read")) + extra
        writers = len(self.clients(channel, "write")) + extra
        id_bits = max(ID_BITS, (max(readers, writers) - 1).bit_length())
        return ChannelMasterParams(readers=readers, writers=writers, id_bits=id_bits)

    @property
    def instances(self) -> dict[str, str]:
        """The SLR of every instance, by its name in the Verilog, without the registers of resets."""
        plan, home = self.floorplan, self.floorplan.home
        around = ("control", "bus", "counters", "table_reader", "status_writer")
        slr_of = dict.fromkeys((*around, *map(channel_name, self.channels)), home)
        slr_of |= {node.name: plan.of(node.name) for node in self.graph.nodes}
        for k, edge in enumerate(self.graph.edges):
            source, target = plan.of(edge.source.node), plan.of(edge.target.node)
            crossing = plan.crossing(fifo_name(k), source, target) if edge.boundaries else {}
            slr_of |= crossing or {fifo_name(k): target}
        _, *others = self.slrs
        if others:
            slr_of["words"] = home
        for slr in others:
            slr_of |= plan.crossing(f"words_{slr}", home, slr) | {f"bus_{slr}": slr}
            slr_of |= {f"watch_{slr}_{at}": at for at in (slr, *plan.between(slr, home), home)}
        return slr_of

    @property
    def reset_registers(self) -> dict[str, str]:
        """The SLR of every reset register, by the name of its cell in the netlist, without the resets of the
        control. Two registers of a way lie on each SLR between its ends. Registers that a shorter way does
        not need lie on the SLR of the memory."""
        plan, home, way = self.floorplan, self.floorplan.home, self.way
        slr_of: dict[str, str] = {}
        for slr, blocks in self.blocks.items():
            between = [at for at in plan.between(home, slr) for _ in range(2)]
            last = [home, *between, slr] if slr != home else []
            places = [home] * (way - len(last)) + last
            slr_of |= {f"{way_name(slr, k)}_reg": place for k, place in enumerate(places)}
            for level in range(levels([*self.blocks.values()], way)):
                copies = range(-(-blocks // FAN_OUT**level))
                slr_of |= {f"{tree_name(slr, level, k)}_reg": slr for k in copies}
        return slr_of

    @property
    def blocks(self) -> dict[str, int]:
        """Number of blocks on each SLR, without the control."""
        counts = Counter(self.instances.values())
        counts[self.floorplan.home] -= 1
        return {slr: counts[slr] for slr in self.slrs}

    @property
    def shell(self) -> Resources:
        """Resources of everything around the graph: control, buses without collectors, counters, masters,
        resets, and the crossings that join these to other SLRs."""
        parts = [self.control.resources, self.counters.resources]
        parts += [_TABLE_READER.resources, _STATUS_WRITER.resources]
        parts += [self.bus(slr).tree for slr in self.slrs]
        parts += [self.master(channel).resources for channel in self.channels]
        parts.append(Resources(lut=1, ff=registers([*self.blocks.values()], self.way)))
        _, *others = self.slrs
        if others:
            parts.append(self.broadcast.resources)
        for slr in others:
            boundaries = self.floorplan.distance(slr, self.floorplan.home)
            parts.append(self.words(slr).resources)
            parts.append(WiresParams(bits=self.watched(slr), stages=way_of(boundaries)).resources)
        return reduce(add, parts)

    @property
    def broadcast(self) -> FanoutParams:
        """The fan-out of descriptor words to the buses of all SLRs."""
        return FanoutParams(bits=BusWord.size, branches=len(self.slrs))

    def build(self) -> "Top":
        return Top(self)


def _join(m: Module, source: Any, target: Any) -> None:
    """Connect two streams whose payloads have equal widths but may have different shapes."""
    m.d.comb += [
        Value.cast(target.payload).eq(source.payload),
        target.valid.eq(source.valid),
        source.ready.eq(target.ready),
    ]


class Top(wiring.Component):
    """The top of a design; see the docstring of the module."""

    def __init__(self, params: TopParams) -> None:
        self._params = params
        pins: dict[str, Any] = {"ap_clk": In(1), "ap_rst_n": In(1), "interrupt": Out(1)}
        for name, member in AxiLiteSignature().members.items():
            pins[f"s_axi_control_{name}"] = member.flip()
        for channel in params.channels:
            id_bits = params.master(channel).id_bits
            for name, member in AxiSignature(id_bits).members.items():
                pins[f"{channel_name(channel)}_{name}"] = member
        super().__init__(pins)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self._params
        core_reset = Signal()
        self._resets = Resets(m, self.ap_clk, self.ap_rst_n, core_reset, p.blocks, p.way)
        self._slr = p.instances
        m.submodules.control = control = p.control.build()
        for name, member in control.s_axi.signature.members.items():
            inner, pin = getattr(control.s_axi, name), getattr(self, f"s_axi_control_{name}")
            m.d.comb += inner.eq(pin) if member.flow == In else pin.eq(inner)
        m.d.comb += [self.interrupt.eq(control.interrupt), core_reset.eq(control.core_reset)]

        nodes = {}
        for node in p.graph.nodes:
            nodes[node.name] = self._add(m, node.name, node.params)
        moved, waiting = self._edges(m, nodes)
        busy, stalled = self._activity(m, nodes, moved, waiting)
        self._descriptors(m, nodes, control)
        busy, stalled = self._watch(m, busy, stalled)
        self._counters(m, control, busy, stalled)
        masters_active = self._memory(m, nodes, control)
        m.d.comb += control.activity.eq(busy.any() | masters_active)
        return m

    def _add(self, m: Module, name: str, params: Any) -> Any:
        """Add a block of the core with its own reset."""
        block = Shared(params, apart=True, reset=self._resets.next(self._slr[name]))
        m.submodules[name] = DomainRenamer(PIN)(block)
        return block

    def _cross(
        self, m: Module, name: str, params: CrossingParams, source: str, target: str
    ) -> tuple[Any, Any]:
        """Add the blocks of a crossing between two SLRs. Returns the first block, which has the port `i` of
        the crossing, and the last block, which has the port `o`."""
        kinds = (params.sender, *params.relays, params.receiver)
        names = self._params.floorplan.crossing(name, source, target)
        blocks = [self._add(m, instance, kind) for instance, kind in zip(names, kinds, strict=True)]
        for before, behind in pairwise(blocks):
            wiring.connect(m, before.o, behind.i)
        return blocks[0], blocks[-1]

    def _edges(self, m: Module, nodes: dict[str, Any]) -> tuple[dict[Port, Any], dict[Port, Any]]:
        """Add a FIFO on every edge. Returns for each port whether a token moves, and for each output port
        whether a token waits."""
        moved: dict[Port, Any] = {}
        waiting: dict[Port, Any] = {}
        self._levels = []
        for k, edge in enumerate(self._params.graph.edges):
            params: Any = self._params.queue(k)
            if edge.boundaries:
                of = self._params.floorplan.of
                ends = of(edge.source.node), of(edge.target.node)
                first, last = self._cross(m, fifo_name(k), params, *ends)
            else:
                first = last = self._add(m, fifo_name(k), params)
            source = getattr(nodes[edge.source.node], edge.source.name)
            target = getattr(nodes[edge.target.node], edge.target.name)
            wiring.connect(m, source, first.i)
            wiring.connect(m, last.o, target)
            self._levels.append(last.level)
            moved[edge.source] = source.valid & source.ready
            waiting[edge.source] = source.valid & ~source.ready
            moved[edge.target] = target.valid & target.ready
        return moved, waiting

    def _activity(
        self, m: Module, nodes: dict[str, Any], moved: dict[Port, Any], waiting: dict[Port, Any]
    ) -> tuple[Signal, Signal]:
        """Two signals with a bit for each node. busy: a token moves at a port. stalled: no token moves, and a
        token waits at an output."""
        busy, stalled = Signal(len(nodes)), Signal(len(nodes))
        for k, node in enumerate(self._params.graph.nodes):
            ports = [Port(node.name, name) for name in (*node.input_ports, *node.output_ports)]
            outputs = [Port(node.name, name) for name in node.output_ports]
            m.d.comb += busy[k].eq(reduce(or_, (moved[port] for port in ports)))
            if outputs:
                waits = reduce(or_, (waiting[port] for port in outputs))
                m.d.comb += stalled[k].eq(waits & ~busy[k])
        return busy, stalled

    def _descriptors(self, m: Module, nodes: dict[str, Any], control: Any) -> None:
        p, words = self._params, control.o_words
        home, *others = p.slrs
        if others:
            fanout = self._add(m, "words", p.broadcast)
            _join(m, words, fanout.i)
            words = fanout.o_0
        buses = {home: self._add(m, "bus", p.bus(home))}
        _join(m, words, buses[home].i)
        for way, slr in enumerate(others, 1):
            first, last = self._cross(m, f"words_{slr}", p.words(slr), home, slr)
            buses[slr] = self._add(m, f"bus_{slr}", p.bus(slr))
            _join(m, getattr(fanout, f"o_{way}"), first.i)
            _join(m, last.o, buses[slr].i)
        for k, node in enumerate(p.graph.nodes):
            bus = buses[p.floorplan.of(node.name)]
            wiring.connect(m, getattr(bus, f"o_{k}"), nodes[node.name].i_descriptor)

    def _watch(self, m: Module, busy: Signal, stalled: Signal) -> tuple[Signal, Signal]:
        """busy and stalled as the counters see them, some cycles later for nodes on other SLRs. Delays the
        levels of FIFOs in the same way."""
        p, graph = self._params, self._params.graph
        home, *others = p.slrs
        seen = Signal(len(busy)), Signal(len(stalled))
        for k, node in enumerate(graph.nodes):
            if p.floorplan.of(node.name) == home:
                m.d.comb += [later[k].eq(now[k]) for later, now in zip(seen, (busy, stalled), strict=True)]
        for slr in others:
            places = [k for k, node in enumerate(graph.nodes) if p.floorplan.of(node.name) == slr]
            fifos = [k for k, edge in enumerate(graph.edges) if p.floorplan.of(edge.target.node) == slr]
            now: Value = Cat(*(flags[k] for flags in (busy, stalled) for k in places))
            now = Cat(now, *(self._levels[k] for k in fifos))
            way = (slr, *p.floorplan.between(slr, home), home)
            for at in way:
                stages = 1 if at in (slr, home) else 2
                wires = self._add(m, f"watch_{slr}_{at}", WiresParams(bits=len(now), stages=stages))
                m.d.comb += wires.i.eq(now)
                now = wires.o
            offset = 0
            for later in seen:
                for k in places:
                    m.d.comb += later[k].eq(now[offset])
                    offset += 1
            for k in fifos:
                level = Signal.like(self._levels[k])
                m.d.comb += level.eq(now[offset : offset + len(level)])
                offset += len(level)
                self._levels[k] = level
        return seen

    def _counters(self, m: Module, control: Any, busy: Signal, stalled: Signal) -> None:
        counters = self._add(m, "counters", self._params.counters)
        wiring.connect(m, control.counters, counters.control)
        m.d.comb += [counters.busy.eq(busy), counters.stalled.eq(stalled)]
        for k, level in enumerate(self._levels):
            m.d.comb += getattr(counters, f"level_{k}").eq(level)

    def _memory(self, m: Module, nodes: dict[str, Any], control: Any) -> Any:
        """Add the masters and connect their clients. Returns whether any master is active."""
        p = self._params
        reader = self._add(m, "table_reader", _TABLE_READER)
        writer = self._add(m, "status_writer", _STATUS_WRITER)
        wiring.connect(m, control.o_read, reader.i_command)
        wiring.connect(m, reader.o, control.i_read)
        wiring.connect(m, control.o_write, writer.i_command)
        wiring.connect(m, control.o_data, writer.i)
        m.d.comb += control.write_done.eq(writer.done)
        m.d.comb += control.completed.eq(Cat(nodes[name].done for name in p.awaited))
        for tensor in p.graph.tensors:
            pointer = weights_name(tensor.channel) if tensor.role == "constant" else tensor.place
            base = getattr(nodes[tensor.node], f"base{tensor.port.removeprefix('memory')}")
            m.d.comb += base.eq(getattr(control, f"pointer_{pointer}"))
        active = []
        for k, channel in enumerate(p.channels):
            master = self._add(m, channel_name(channel), p.master(channel))
            readers = [getattr(nodes[port.node], port.name) for port in p.clients(channel, "read")]
            writers = [getattr(nodes[port.node], port.name) for port in p.clients(channel, "write")]
            if channel == p.control_channel:
                readers.append(reader.memory)
                writers.append(writer.memory)
            for i, client in enumerate(readers):
                wiring.connect(m, client, getattr(master, f"read_{i}"))
            for i, client in enumerate(writers):
                wiring.connect(m, client, getattr(master, f"write_{i}"))
            for name, member in master.m_axi.signature.members.items():
                inner, pin = getattr(master.m_axi, name), getattr(self, f"{channel_name(channel)}_{name}")
                m.d.comb += pin.eq(inner) if member.flow == Out else inner.eq(pin)
            m.d.comb += [
                master.halt.eq(control.halt),
                control.idle[k].eq(master.idle),
                control.axi_error[k].eq(master.error),
            ]
            active.append(master.activity)
        return reduce(or_, active)
