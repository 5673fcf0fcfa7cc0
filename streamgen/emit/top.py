"""The top: nodes of a graph, a FIFO on every edge, a master for every memory channel, and the control.

The pins are those of a Vitis RTL kernel: ap_clk, ap_rst_n, interrupt, s_axi_control_*, m_axi_gmem<n>_*.
All blocks but the control are also reset by the control (`emit.resets`).
"""

from dataclasses import dataclass
from functools import reduce
from operator import add, or_
from typing import Any, Literal

from amaranth import Cat, DomainRenamer, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from streamgen.contract import memory_ports
from streamgen.control.control import ControlParams
from streamgen.control.counters import CountersParams
from streamgen.control.descriptor_bus import DescriptorBusParams, Target
from streamgen.control.registers import AxiLiteSignature
from streamgen.cost import Resources
from streamgen.emit.descriptors import Encoding
from streamgen.emit.images import weights_name
from streamgen.emit.resets import PIN, Resets, registers
from streamgen.fifo.queue import QueueParams
from streamgen.graph import Graph, Port
from streamgen.platform.axi import AxiSignature
from streamgen.platform.master import ChannelMasterParams
from streamgen.platform.read_client import ReadClientParams
from streamgen.platform.write_client import WriteClientParams
from streamgen.rtl import Shared

__all__ = ["AROUND", "Top", "TopParams", "channel_name", "fifo_name", "stores"]

AROUND = ("control", "bus", "counters", "table_reader", "status_writer")
"""Instances that stand around the graph, but for the masters."""

_TABLE_READER = ReadClientParams(depth=64, burst=16)
_STATUS_WRITER = WriteClientParams(depth=16, burst=8)


def channel_name(channel: int) -> str:
    """Name of the AXI master of a memory channel."""
    return f"m_axi_gmem{channel}"


def stores(graph: Graph) -> tuple[str, ...]:
    """Nodes that write memory, in the order of the graph: a run waits for them."""
    return tuple(n.name for n in graph.nodes if "write" in memory_ports(n.params).values())


def fifo_name(edge: int) -> str:
    """Name of the instance of the FIFO of an edge."""
    return f"fifo_{edge}"


@dataclass(frozen=True, kw_only=True)
class TopParams:
    """graph: finished. encoding: its descriptors. pointers: names of the buffers, in the order of the
    registers. design_hash: 64 bits. control_channel: where the phase table and the status block lie.
    """

    graph: Graph
    encoding: Encoding
    pointers: tuple[str, ...]
    design_hash: int
    control_channel: int

    @property
    def channels(self) -> tuple[int, ...]:
        """Memory channels in use, ascending."""
        return tuple(sorted({self.control_channel, *(t.channel for t in self.graph.tensors)}))

    @property
    def stores(self) -> tuple[str, ...]:
        """Nodes that write memory, in the order of the graph."""
        return stores(self.graph)

    @property
    def bus(self) -> DescriptorBusParams:
        """The descriptor bus: one target a node, in the order of the graph. A node of a graph of one phase
        has one descriptor a run, so that no more of them ever wait."""
        constants = self.encoding.constants
        depth = 1 if self.graph.phases == 1 else 4
        return DescriptorBusParams(
            targets=tuple(
                Target(
                    fields=node.params.descriptor_fields(),
                    constants=tuple(sorted(constants[node.name].items())),
                    depth=depth,
                )
                for node in self.graph.nodes
            )
        )

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
            stores=len(self.stores),
            counters=self.counters.words,
            channels=len(self.channels),
            design_hash=self.design_hash,
        )

    def queue(self, index: int) -> QueueParams:
        """The FIFO of an edge."""
        edge = self.graph.edges[index]
        bits = next(
            it.token_bits for p in range(self.graph.phases) if (it := self.graph.itensor(edge, p)) is not None
        )
        return QueueParams(bits=bits, depth=edge.depth or 1)

    def clients(self, channel: int, way: Literal["read", "write"]) -> list[Port]:
        """Memory ports that read from a channel, or write to it, in the order of the graph."""
        tensors = {(t.node, t.port): t for t in self.graph.tensors}
        return [
            Port(node.name, port)
            for node in self.graph.nodes
            for port, does in memory_ports(node.params).items()
            if does == way and tensors[node.name, port].channel == channel
        ]

    def master(self, channel: int) -> ChannelMasterParams:
        """The master of a channel: clients of the graph first, the control's last."""
        extra = channel == self.control_channel
        readers = len(self.clients(channel, "read")) + extra
        writers = len(self.clients(channel, "write")) + extra
        return ChannelMasterParams(
            readers=readers, writers=writers, id_bits=max(4, (max(readers, writers) - 1).bit_length())
        )

    @property
    def blocks(self) -> int:
        """Blocks beside the control: nodes, FIFOs, masters, bus, counters, table reader, status writer."""
        return len(self.graph.nodes) + len(self.graph.edges) + len(self.channels) + 4

    @property
    def shell(self) -> Resources:
        """What stands around the graph: control, bus, counters, masters, resets."""
        parts = [self.control.resources, self.bus.resources, self.counters.resources]
        parts += [_TABLE_READER.resources, _STATUS_WRITER.resources]
        parts += [self.master(channel).resources for channel in self.channels]
        parts.append(Resources(lut=1, ff=registers(self.blocks)))
        return reduce(add, parts)

    def build(self) -> "Top":
        return Top(self)


class Top(wiring.Component):
    """See the module's docstring."""

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
        self._resets = Resets(m, self.ap_clk, self.ap_rst_n, core_reset, p.blocks)
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
        self._counters(m, control, busy, stalled)
        masters_active = self._memory(m, nodes, control)
        m.d.comb += control.activity.eq(busy.any() | masters_active)
        return m

    def _add(self, m: Module, name: str, params: Any) -> Any:
        """A block of the core, which has a reset of its own."""
        block = Shared(params, apart=True, reset=self._resets.next())
        m.submodules[name] = DomainRenamer(PIN)(block)
        return block

    def _edges(self, m: Module, nodes: dict[str, Any]) -> tuple[dict[Port, Any], dict[Port, Any]]:
        """A FIFO on every edge; returns, by port, whether a token moves and whether an output waits."""
        moved: dict[Port, Any] = {}
        waiting: dict[Port, Any] = {}
        self._levels = []
        for k, edge in enumerate(self._params.graph.edges):
            queue = self._add(m, fifo_name(k), self._params.queue(k))
            source = getattr(nodes[edge.source.node], edge.source.name)
            target = getattr(nodes[edge.target.node], edge.target.name)
            wiring.connect(m, source, queue.i)
            wiring.connect(m, queue.o, target)
            self._levels.append(queue.level)
            moved[edge.source] = source.valid & source.ready
            waiting[edge.source] = source.valid & ~source.ready
            moved[edge.target] = target.valid & target.ready
        return moved, waiting

    def _activity(
        self, m: Module, nodes: dict[str, Any], moved: dict[Port, Any], waiting: dict[Port, Any]
    ) -> tuple[Signal, Signal]:
        """A bit for each node: some token moves; none moves and an output waits."""
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
        bus = self._add(m, "bus", self._params.bus)
        wiring.connect(m, control.o_words, bus.i)
        for k, node in enumerate(self._params.graph.nodes):
            wiring.connect(m, getattr(bus, f"o_{k}"), nodes[node.name].i_descriptor)

    def _counters(self, m: Module, control: Any, busy: Signal, stalled: Signal) -> None:
        counters = self._add(m, "counters", self._params.counters)
        wiring.connect(m, control.counters, counters.control)
        m.d.comb += [counters.busy.eq(busy), counters.stalled.eq(stalled)]
        for k, level in enumerate(self._levels):
            m.d.comb += getattr(counters, f"level_{k}").eq(level)

    def _memory(self, m: Module, nodes: dict[str, Any], control: Any) -> Any:
        """Masters and what hangs on them; returns whether any of them moves something."""
        p = self._params
        reader = self._add(m, "table_reader", _TABLE_READER)
        writer = self._add(m, "status_writer", _STATUS_WRITER)
        wiring.connect(m, control.o_read, reader.i_command)
        wiring.connect(m, reader.o, control.i_read)
        wiring.connect(m, control.o_write, writer.i_command)
        wiring.connect(m, control.o_data, writer.i)
        m.d.comb += control.write_done.eq(writer.done)
        m.d.comb += control.stores_done.eq(Cat(nodes[name].done for name in p.stores))
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
