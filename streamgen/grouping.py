"""Which accelerators a module or a graph of kernels becomes: one when its converters fit, else several."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import lcm

from streamgen.config import CompileConfig
from streamgen.explore import explore
from streamgen.explore.estimate import WORD_LANES, converter_budget
from streamgen.explore.fixed import fixed_factors
from streamgen.explore.fusion import FusedGroup, Unit, fuse
from streamgen.graph import Graph
from streamgen.graph.logical import LogicalGraph
from streamgen.graph.plan import Boundary, Plan, agree
from streamgen.lower import (
    GraphParts,
    converter_bits,
    insert_converters,
    insert_forks,
    layer_shapes,
    lower_network,
    sub_network,
    tensor_names,
)
from streamgen.operations import Constant

__all__ = ["NetworkGroup", "group_graph", "group_network"]


@dataclass(frozen=True, kw_only=True, eq=False)
class NetworkGroup:
    """One accelerator of a module; `config` has its name."""

    network: LogicalGraph
    plan: Plan
    config: CompileConfig
    rate: float
    boundary: Boundary

    @property
    def largest(self) -> int:
        """Token tiles of the largest run."""
        return -(-self.config.max_tokens // self.plan.token_lanes)

    @property
    def converter_bits(self) -> int:
        """What its layout converters hold."""
        return converter_bits(insert_converters(insert_forks(self.build(self.largest))))

    def build(self, tiles: int, position: int = 0) -> Graph:
        """The graph of kernels, unfinished, for a run of so many token tiles; positions do not matter."""
        return lower_network(self.network, self.plan, self.config, self.rate, tiles, self.boundary)


def group_network(
    network: LogicalGraph, config: CompileConfig, rate: float
) -> list[tuple[NetworkGroup, FusedGroup]]:
    """The groups of a quantised module, in the order in which they run, and why; budgets are those of each.

    Groups meet in memory and so pad their values alike: when a group needs wider padding than another one,
    all are chosen again with that. BudgetError when an operation fits no accelerator.
    """
    constants = {operation.name for operation in network.operations if isinstance(operation.op, Constant)}
    operations = [operation for operation in network.operations if operation.name not in constants]
    units = [
        Unit(name=o.name, reads=tuple(n for n in o.inputs if n not in constants), writes=(o.name,))
        for o in operations
    ]
    names = [*(value.name for value in network.inputs), *(o.name for o in operations)]
    sizes = {name: config.max_tokens * network.features(name) * 32 for name in names}
    fixed = fixed_factors(layer_shapes(network), config)
    tensors = tensor_names(network, config)

    budget = converter_budget(config)

    def build(members: tuple[str, ...], choices: CompileConfig) -> NetworkGroup:
        part = sub_network(network, members)
        read = {name for o in operations if o.name not in members for name in o.inputs}
        by_rows = read.intersection(members)
        plan = _padded(explore(layer_shapes(part), choices, rate, fixed), by_rows)
        return NetworkGroup(
            network=part,
            plan=agree([plan, *settled])[0],
            config=config,
            rate=rate,
            boundary=Boundary(tensors=tensors, by_rows=frozenset(by_rows)),
        )

    def group(members: tuple[str, ...]) -> NetworkGroup:
        """An operation that is too large on its own is built smaller, down to the least that there is."""
        found = build(members, config)
        if len(members) > 1 or (needed := found.converter_bits) <= budget:
            return found
        least = build(members, replace(config, converter_bits=1, token_lanes=config.token_lanes or 1))
        if least.converter_bits > budget:
            return least
        while (needed := needed * 3 // 4) > 1:
            smaller = build(members, replace(config, converter_bits=needed))
            if smaller.converter_bits <= budget:
                return smaller
        return least

    def measure(members: tuple[str, ...]) -> int:
        return group(members).converter_bits

    settled: list[Plan] = []
    while True:
        fused = fuse(units, sizes, network.outputs, measure, budget)
        groups = [group(one.units) for one in fused]
        plans = [one.plan for one in groups]
        if (agreed := agree(plans)) == plans:
            return list(zip(_placed(groups), fused, strict=True))
        settled += agreed


def _padded(plan: Plan, values: Collection[str]) -> Plan:
    """The plan with these values, and those padded like them, padded to whole beats of memory."""
    wide = {value for members in plan.classes if not members.isdisjoint(values) for value in members}
    pads = {value: lcm(pad, WORD_LANES) if value in wide else pad for value, pad in plan.pads.items()}
    return replace(plan, pads=pads)


def _placed(groups: list[NetworkGroup]) -> list[NetworkGroup]:
    """Each value between groups, and each input of several, on one channel; a name for each group."""
    if len(groups) == 1:
        return groups
    channels: dict[str, int] = {}
    for group in groups:
        for name in (*(value.name for value in group.network.inputs), *group.network.outputs):
            channels.setdefault(name, group.plan.io_channel)
    return [
        replace(
            group,
            config=replace(group.config, name=f"{group.config.name}_{i}"),
            boundary=replace(group.boundary, channels=channels),
        )
        for i, group in enumerate(groups)
    ]


def group_graph(graph: Graph, config: CompileConfig) -> list[tuple[Graph, FusedGroup]]:
    """The groups of an unfinished graph of kernels, in the order in which they run, and why they are."""
    parts = GraphParts(graph, float(config.card.hbm.beats_per_cycle(config.clock_mhz)))
    nodes = {" + ".join(unit): unit for unit in parts.units}
    units = [Unit(name=n, reads=parts.reads(u), writes=parts.writes(u)) for n, u in nodes.items()]

    def part(members: tuple[str, ...], name: str) -> Graph:
        if len(members) == len(units):
            return graph
        return parts.part(name, {node for unit in members for node in nodes[unit]})

    def measure(members: tuple[str, ...]) -> int:
        return converter_bits(insert_converters(insert_forks(part(members, graph.name))))

    fused = fuse(units, parts.sizes(), parts.results(), measure, converter_budget(config))
    names = [config.name] if len(fused) == 1 else [f"{config.name}_{i}" for i in range(len(fused))]
    return [(part(one.units, name), one) for one, name in zip(fused, names, strict=True)]
