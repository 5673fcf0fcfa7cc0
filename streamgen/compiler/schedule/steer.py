"""Steer: turn the links of all phases into the streams of one graph.

In different phases a source sends to different sinks, and a sink gets tokens from different sources:

    route    stands behind a source whose sinks differ, with a way for each set of sinks
    select   stands in front of a sink whose sources differ, with a way for each source
    back     a hold on the chip: a FIFO with room for a whole value, from a phase to a later phase or to the
             next walk
    spill    a hold that may not stay on the chip: a store that writes its values to memory, and a load that
             reads them again. Between the two, a word is held for each value that is in memory.

Holds that end at the same sinks share a FIFO if the value written first is also read first. A value that
several sinks read in one phase is forked. Behind a hold, where a back edge or a spill ends, the fork is a
node that this pass adds; all other forks come from the pass that inserts forks. A route, a select or such a
fork passes tokens in the order that all its sinks want, so that one converter before it is enough. If its
sinks want several orders, it passes tokens in the order of the source.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from math import prod

from streamgen.base.errors import GraphError
from streamgen.compiler.schedule.bind import Binding
from streamgen.compiler.schedule.holds import Hold
from streamgen.compiler.schedule.phases import Schedule
from streamgen.compiler.schedule.plan import HardwarePlan
from streamgen.compiler.schedule.spill import Places, chosen, places
from streamgen.contract import Bounds
from streamgen.itensor import ITensor, same_stream
from streamgen.kernels.memory import STORED, SpillLayout, SpillLoadParams, SpillStoreParams
from streamgen.kernels.moves.fork import ForkParams
from streamgen.kernels.moves.route import RouteParams
from streamgen.kernels.moves.select import SelectParams
from streamgen.model.graph import Edge, Graph, Node, Port, Tensor
from streamgen.platform.boards import Channel

Links = dict[Port, dict[int, list[Port]]]
"""Sinks by source and phase."""


@dataclass(frozen=True, eq=False)
class Steered:
    """A graph before forks and converters. asked: sources whose tokens pass in the order of their sinks.
    spilled: buffer of each hold that goes through memory. layouts: layout of each of these holds in
    memory."""

    graph: Graph
    asked: frozenset[Port]
    spilled: Mapping[str, str]
    layouts: Mapping[str, SpillLayout]


def steer(
    name: str,
    schedule: Schedule,
    binding: Binding,
    plan: HardwarePlan,
    memory: Channel,
    like: Steered | None = None,
) -> Steered:
    """The graph of a binding. memory: a memory channel of the board. like: the steered graph of the largest
    run, which decides where orders change and which holds go through memory; None for the largest run itself.

    Raises GraphError if the streams of all phases form a cycle."""
    steering = _Steering(name, schedule, binding, plan, memory, like)
    graph = steering.graph()
    return Steered(graph, frozenset(steering.asked), steering.spilled, steering.layouts)


class _Steering:
    def __init__(
        self,
        name: str,
        schedule: Schedule,
        binding: Binding,
        plan: HardwarePlan,
        memory: Channel,
        like: Steered | None,
    ) -> None:
        self._name, self._schedule, self._binding, self._like = name, schedule, binding, like
        self._plan, self._memory = plan, memory
        self.asked: set[Port] = set()
        self.spilled: dict[str, str] = {}
        self.layouts: dict[str, SpillLayout] = {}
        self._count = len(schedule.phases)
        self._holds = dict(binding.holds)
        self._links: Links = {}
        for phase, source, sink in binding.links:
            self._links.setdefault(source, {}).setdefault(phase, []).append(sink)
        self._nodes: dict[str, Node] = {}
        self._edges: list[Edge] = []
        self._spills: list[Tensor] = []
        self._reloads: set[Port] = set()

    def graph(self) -> Graph:
        self._merge()
        for instance in self._binding.instances.values():
            self._add(instance.name, instance.params, instance.bounds, instance.steps)
        for number, hold in enumerate(self._too_large()):
            self._spill(hold, (-1 - number) % (self._plan.columns or self._plan.kv_channels))
        sources = self._routed()
        self._selected(sources)
        tensors = (*self._tensors(), *self._spills)
        nodes = tuple(self._nodes[name] for name in self._sorted())
        sections = tuple((len(s.phases), s.walks) for s in self._schedule.sections)
        return Graph(self._name, nodes, tuple(self._edges), tensors, sections)

    # Holds.

    def _merge(self) -> None:
        """Merge holds that end at the same sinks, if they can share a FIFO.

        Example: hold a is written in phase 0 and read in phase 1, hold b is written in phase 1 and read in
        phase 2, both by the sink s. Then b becomes part of a: `_holds` loses b, its writes and reads move to
        a, and links to the sink of b go to the sink of a.
        """
        merged: dict[tuple[Port, ...], Hold] = {}
        joined: dict[
            Port, Port
        ] = {}  # for the sink of each merged hold, the sink of the hold that contains it

        def now(sinks: Sequence[Port]) -> list[Port]:
            return [joined.get(sink, sink) for sink in sinks]

        for hold in list(self._holds.values()):
            sets = {tuple(now(sinks)) for sinks in self._links[hold.source].values()}
            if hold.carried or len(sets) > 1:
                continue
            (sinks,) = sets
            if sinks in merged and self._in_turn(merged[sinks], hold):
                self._join(merged[sinks], hold)
                joined[hold.sink] = merged[sinks].sink
            else:
                merged[sinks] = hold
        self._links = {
            source: {phase: now(sinks) for phase, sinks in phases.items()}
            for source, phases in self._links.items()
        }

    def _in_turn(self, a: Hold, b: Hold) -> bool:
        """Whether two holds can share a FIFO: the value written first is read first."""
        if {*a.writes} & {*b.writes} or {*a.reads} & {*b.reads}:
            return False
        if _bits(a.writes) != _bits(b.writes):
            return False
        pairs = [*zip(sorted(a.writes), sorted(a.reads), strict=True)]
        pairs += zip(sorted(b.writes), sorted(b.reads), strict=True)
        pairs.sort()
        return [read for _, read in pairs] == sorted(read for _, read in pairs)

    def _join(self, into: Hold, hold: Hold) -> None:
        into.writes |= hold.writes
        into.reads |= hold.reads
        self._links[into.source] |= self._links.pop(hold.source)
        del self._holds[hold.name]

    def _too_large(self) -> list[Hold]:
        """The holds that go through memory."""
        if self._like is not None:
            return [self._holds[name] for name in self._like.spilled]
        if self._plan.hold_bits is None:
            return []
        bits = {name: self._most(hold) * _bits(hold.writes) for name, hold in self._holds.items()}
        able = {name: bits[name] for name, hold in self._holds.items() if self._places(hold)}
        allowed = self._plan.hold_bits - (sum(bits.values()) - sum(able.values()))
        return [self._holds[name] for name in chosen(able, allowed)]

    def _places(self, hold: Hold) -> tuple[Places, Places] | None:
        """The places of the values that are written and of the values that are read; None if the hold cannot
        go through memory."""
        written, read = (places(self._schedule, phases) for phases in (hold.writes, hold.reads))
        return None if written is None or read is None else (written, read)

    def _spill(self, hold: Hold, channel: int) -> None:
        """Replace a hold by a store, a load, and a hold of words that say which values are in memory."""
        pair = self._places(hold)
        assert pair is not None and pair[0].count == pair[1].count
        store, load = Port(f"spill_{hold.name}", "i"), Port(f"reload_{hold.name}", "o")
        layout = SpillLayout(
            token_bits=_bits(hold.writes), max_tokens=_longest(hold.writes), values=pair[0].count
        )
        if self._like is not None:
            layout = self._like.layouts[hold.name]
        for port, kind, orders, where in (
            (store, SpillStoreParams, hold.writes, pair[0]),
            (load, SpillLoadParams, hold.reads, pair[1]),
        ):
            params = kind(layout=layout, **self._memory._asdict())
            bounds = {p: {"itensor": order, "place": where.first[p]} for p, order in orders.items()}
            self._add(port.node, params, bounds, {"place": where.step} if where.step else {})
            order, shape = layout.order, layout.order.shape
            self._spills.append(
                Tensor(port.node, "spill", port.node, shape, channel, itensor=order, buffer=store.node)
            )
        self._tell(hold, store, load)
        self._reloads.add(load)
        self.spilled[hold.name] = store.node
        self.layouts[hold.name] = layout

    def _tell(self, hold: Hold, store: Port, load: Port) -> None:
        """Redirect the links of a spilled hold: its writers send to the store, its readers get from the load,
        and words between the two are held.

        Example: links w -> h and h -> r of a hold h become w -> spill_h and reload_h -> r. The new hold
        h_stored takes the place of h in `_holds`, with links spill_h -> h_stored and h_stored -> reload_h.
        """
        word = Hold(f"{hold.name}_stored", carried=hold.carried)
        word.writes |= dict.fromkeys(hold.writes, STORED)
        word.reads |= dict.fromkeys(hold.reads, STORED)
        for phases in self._links.values():
            for phase, sinks in phases.items():
                phases[phase] = [store if sink == hold.sink else sink for sink in sinks]
        self._links[load] = self._links.pop(hold.source)
        self._links[Port(store.node, "o_stored")] = {phase: [word.sink] for phase in hold.writes}
        self._links[word.source] = {phase: [Port(load.node, "i_stored")] for phase in hold.reads}
        del self._holds[hold.name]
        self._holds[word.name] = word

    def _depth(self, hold: Hold, source: Port) -> int:
        """Most tokens that a hold has, counted in tokens of its source."""
        phase, order = next(iter(hold.writes.items()))
        sent = self._nodes[source.node].outputs(phase)[source.name]
        return -(-self._most(hold) * sent.token_count // order.token_count)

    def _most(self, hold: Hold) -> int:
        """Most tokens that a hold has: tokens that are written and not yet read, phase after phase.

        A phase that computes the next value from the value it reads takes a token before it gives one.
        """
        live, most = 0, 0
        for section in self._schedule.sections:
            for _ in range(min(section.walks, 2)):
                for phase in (phase.number for phase in section.phases):
                    written = hold.writes[phase].token_count if phase in hold.writes else 0
                    read = min(live, hold.reads[phase].token_count) if phase in hold.reads else 0
                    follows = bool(read and written) and self._follows(hold, phase)
                    most = max(most, live + (0 if follows else written), live - read + written)
                    live += written - read
        return most

    def _follows(self, hold: Hold, phase: int) -> bool:
        """Whether the tokens that a phase writes to a hold depend on the tokens that it reads from the
        hold."""
        reached: set[str] = set()
        ahead = [sink.node for sink in self._links[hold.source].get(phase, [])]
        while ahead:
            node = ahead.pop()
            if node not in reached:
                reached.add(node)
                for source, phases in self._links.items():
                    if source.node == node:
                        ahead += [sink.node for sink in phases.get(phase, [])]
        return hold.name in reached

    # Streams.

    def _routed(self) -> list[tuple[Port, Mapping[int, list[Port]]]]:
        """Add routes, and forks behind holds. Returns the sources that sinks then see, with their sinks by
        phase."""
        routed: list[tuple[Port, Mapping[int, list[Port]]]] = []
        for source, phases in self._links.items():
            sets: dict[tuple[Port, ...], dict[int, list[Port]]] = {}
            for phase, sinks in sorted(phases.items()):
                sets.setdefault(tuple(sinks), {})[phase] = sinks
            held = source.node in self._holds
            if len(sets) > 1:
                orders = self._orders(source, phases)
                ways = {phase: way for way, some in enumerate(sets.values()) for phase in some}
                bounds = {p: {"itensor": orders[p], "way": way} for p, way in ways.items()}
                node = f"route_{source.node}" + ("" if held or source.name == "o" else f"_{source.name}")
                params = RouteParams(token_bits=_bits(orders), ways=len(sets), max_tokens=_longest(orders))
                asked = source in self.asked
                self._add(node, *self._by_rows(params, bounds, next(iter(sets))[0] if asked else source))
                self._connect(source, Port(node, "i"))
                routed += [(Port(node, f"o_{way}"), some) for way, some in enumerate(sets.values())]
            elif (held or source in self._reloads) and len(shared := next(iter(sets))) > 1:
                orders = self._orders(source, phases)
                node = f"fork_{source.node}"
                fork = ForkParams(token_bits=_bits(orders), ways=len(shared), max_tokens=_longest(orders))
                self._add(node, fork, {phase: {"itensor": order} for phase, order in orders.items()})
                self._connect(source, Port(node, "i"))
                for way, sink in enumerate(shared):
                    routed.append((Port(node, f"o_{way}"), {phase: [sink] for phase in phases}))
            else:
                routed.append((source, phases))
        return routed

    def _selected(self, sources: Sequence[tuple[Port, Mapping[int, list[Port]]]]) -> None:
        """Add the edges, and selects in front of sinks. sources: see `_routed`."""
        into: dict[Port, dict[Port, list[int]]] = {}
        for source, phases in sources:
            for phase, sinks in phases.items():
                for sink in sinks:
                    into.setdefault(sink, {}).setdefault(source, []).append(phase)
        for sink, ways in into.items():
            if len(ways) == 1:
                self._connect(next(iter(ways)), sink)
                continue
            ordered = sorted(ways, key=lambda source: min(ways[source]))
            way_of = {phase: way for way, source in enumerate(ordered) for phase in ways[source]}
            orders = {phase: self._wanted(sink, phase) for phase in sorted(way_of)}
            bounds = {p: {"itensor": order, "way": way_of[p]} for p, order in orders.items()}
            node = f"select_{sink.node}" + ("" if sink.name == "i" else f"_{sink.name.removeprefix('i_')}")
            params = SelectParams(token_bits=_bits(orders), ways=len(ways), max_tokens=_longest(orders))
            self._add(node, *self._by_rows(params, bounds, sink))
            for way, source in enumerate(ordered):
                self._connect(source, Port(node, f"i_{way}"))
            self._connect(Port(node, "o"), sink)

    def _connect(self, source: Port, sink: Port) -> None:
        """Add an edge. An edge into or out of a hold is joined with its other end in `_sorted`."""
        self._edges.append(Edge(source, sink))

    def _orders(self, source: Port, phases: Mapping[int, Sequence[Port]]) -> dict[int, ITensor]:
        """The order, by phase, in which tokens pass behind a source: the order that its sinks want, or the
        order of the source."""
        own = {phase: self._own(source, phase) for phase in phases}
        wanted = {p: [self._wanted(sink, p) for sink in sinks] for p, sinks in phases.items()}
        first_wanted = {p: orders[0] for p, orders in wanted.items()}
        if self._like is not None:
            asked = source in self._like.asked
        elif all(same_stream(own[p], order) for p, orders in wanted.items() for order in orders):
            asked = False
        else:
            agree = all(
                same_stream(first_wanted[p], order) for p, orders in wanted.items() for order in orders
            )
            forms = {
                (order.token_bits, order.element_shape, order.iter_map) for order in first_wanted.values()
            }
            asked = agree and len(forms) == 1
        if asked:
            self.asked.add(source)
        return first_wanted if asked else own

    def _own(self, source: Port, phase: int) -> ITensor:
        if source.node in self._holds:
            return self._holds[source.node].reads[phase]
        return self._nodes[source.node].outputs(phase)[source.name]

    def _wanted(self, sink: Port, phase: int) -> ITensor:
        if sink.node in self._holds:
            return self._holds[sink.node].writes[phase]
        return self._nodes[sink.node].inputs(phase)[sink.name]

    def _by_rows(
        self, params: RouteParams | SelectParams, bounds: Mapping[int, Bounds], port: Port
    ) -> tuple[RouteParams | SelectParams, Mapping[int, Bounds]]:
        """The parameters and bounds of a steering kernel in the order of a port. Descriptors need numbers
        that are linear in the tokens of a pass: where that of tokens is not, rows are counted, too, and a row
        whose tokens have several elements has its length."""
        node = self._nodes.get(port.node)  # None: a hold
        if node is None or port.name not in getattr(node.params, "squares", ()):
            return params, bounds
        rows = {phase: prod(given["itensor"].tripcounts[:-1]) for phase, given in bounds.items()}
        tokens = [given["itensor"].tripcounts[-1] for given in bounds.values()]
        params = replace(params, max_tokens=max(tokens), max_rows=max(2, *rows.values()))
        by_rows: dict[int, Bounds] = {p: {**given, "rows": rows[p]} for p, given in bounds.items()}
        lengths = {phase: (node.bounds[phase] or {}).get("length") for phase in bounds}
        if node.params.lanes > 1 and None not in lengths.values():  # type: ignore[attr-defined]
            params = replace(params, width=node.params.lanes)  # type: ignore[attr-defined]
            by_rows = {phase: {**given, "length": lengths[phase]} for phase, given in by_rows.items()}
        return params, by_rows

    # The graph.

    def _add(
        self, name: str, params: object, bounds: Mapping[int, Bounds], steps: Mapping[str, int] | None = None
    ) -> None:
        if name in self._nodes:
            raise GraphError(f"two nodes have the name {name!r}")
        by_phase = tuple(bounds.get(phase) for phase in range(self._count))
        self._nodes[name] = Node(name, params, by_phase, dict(steps or {}))  # type: ignore[arg-type]

    def _sorted(self) -> list[str]:
        """Names of the nodes in topological order. Replaces holds by back edges."""
        writes = {edge.target.node: edge.source for edge in self._edges if edge.target.node in self._holds}
        edges = []
        for edge in self._edges:
            if edge.target.node in self._holds:
                continue
            if edge.source.node in self._holds:
                hold = self._holds[edge.source.node]
                source = writes[hold.name]
                edge = Edge(source, edge.target, self._depth(hold, source), True)
            edges.append(edge)
        self._edges = edges
        before: dict[str, list[str]] = {name: [] for name in self._nodes}
        for edge in self._edges:
            if not edge.back:
                before[edge.target.node].append(edge.source.node)
        try:
            sorter = TopologicalSorter(before)
            return list(sorter.static_order())
        except CycleError as error:
            raise GraphError(
                f"the streams of all phases form a cycle: {' -> '.join(error.args[1])}"
            ) from error

    def _tensors(self) -> Iterator[Tensor]:
        for instance in self._binding.instances.values():
            for behind, role, phase, shape in instance.behind:
                yield Tensor(
                    behind.name,
                    role,
                    instance.name,
                    shape,
                    behind.channel,
                    behind.data,
                    behind.port,
                    None if phase is not None or role in ("input", "output") else behind.itensor,
                    behind.buffer,
                    phase,
                )


def _bits(orders: Mapping[int, ITensor]) -> int:
    return next(iter(orders.values())).token_bits


def _longest(orders: Mapping[int, ITensor]) -> int:
    return max(order.token_count for order in orders.values())
