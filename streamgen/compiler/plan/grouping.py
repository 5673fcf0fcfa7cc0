"""Split a model or a graph of kernels into accelerators: one accelerator if its converters fit the budget,
otherwise several."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from math import lcm

from streamgen.compiler.budget import Budget, budget_of, is_network
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.explore import explore
from streamgen.compiler.explore.estimate import WORD_LANES
from streamgen.compiler.explore.fixed import fixed_factors
from streamgen.compiler.explore.fusion import FusedGroup, Unit, fuse
from streamgen.compiler.lower import GraphParts, converter_bits, insert_converters, insert_forks, sub_network
from streamgen.compiler.plan.policy import derivation, hardware, spatial_plan
from streamgen.compiler.schedule import Derivation, HardwarePlan, layer_shapes, schedule, tensor_names
from streamgen.model.graph import Graph
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.graph.plan import Boundary, Plan, Shape, agree


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupPlan:
    """One accelerator of a model. budget: its budget, with its name. fused: the reason for the cut; None if
    the model cannot be split."""

    model: LogicalGraph
    plan: HardwarePlan
    budget: Budget
    fused: FusedGroup | None = None

    @cached_property
    def derivation(self) -> Derivation:
        """The unfinished graphs of kernels."""
        return derivation(self.model, self.plan, self.budget)

    @cached_property
    def converted(self) -> Graph:
        """The graph of kernels of the largest run, with forks and converters."""
        return insert_converters(insert_forks(self.derivation.largest))

    @cached_property
    def converter_bits(self) -> int:
        """Bits that the layout converters hold."""
        return converter_bits(self.converted)


def parts_of(model: LogicalGraph, config: CompileConfig) -> list[GroupPlan]:
    """The accelerators of a quantised model, in the order in which they run. Each has the full budgets.

    A spatial network becomes several accelerators if its converters are too large for one. Raises BudgetError
    if an operation fits no accelerator, and ValueError for factors that cannot be built.
    """
    budget = budget_of(config, model)
    if budget.policy != "spatial" or not is_network(model):
        return [GroupPlan(model=model, plan=hardware(model, budget), budget=budget)]
    return _groups(model, budget)


def _groups(network: LogicalGraph, budget: Budget) -> list[GroupPlan]:
    """The groups of a network.

    Groups exchange values through memory, so they must pad these values alike. If a group needs wider padding
    than another group, all groups are chosen again with the wider padding.
    """
    constants = {operation.name for operation in network.operations if operation.op.is_constant}
    operations = [operation for operation in network.operations if operation.name not in constants]
    units = [
        Unit(name=o.name, reads=tuple(n for n in o.inputs if n not in constants), writes=(o.name,))
        for o in operations
    ]
    names = [*(value.name for value in network.inputs), *(o.name for o in operations)]
    sizes = {name: budget.max_tokens * network.features(name) * 32 for name in names}
    fixed = fixed_factors(_shapes(network), budget.fixed)
    tensors = tensor_names(network)
    most = budget.converter_bits

    def build(members: tuple[str, ...], share: Budget) -> GroupPlan:
        part = sub_network(network, members)
        read = {name for o in operations if o.name not in members for name in o.inputs}
        by_rows = read.intersection(members)
        own = agree([_padded(explore(_shapes(part), share, fixed), by_rows), *settled])[0]
        boundary = Boundary(tensors=tensors, by_rows=frozenset(by_rows))
        return GroupPlan(model=part, plan=spatial_plan(part, own, budget, boundary), budget=budget)

    def group(members: tuple[str, ...]) -> GroupPlan:
        """The plan of a group. If a single operation is too large, it is built with smaller factors, down to
        the smallest."""
        built = build(members, budget)
        if len(members) > 1 or (needed := built.converter_bits) <= most:
            return built
        least = build(members, replace(budget, converter_bits=1, token_lanes=budget.token_lanes or 1))
        if least.converter_bits > most:
            return least
        while (needed := needed * 3 // 4) > 1:
            smaller = build(members, replace(budget, converter_bits=needed))
            if smaller.converter_bits <= most:
                return smaller
        return least

    def measure(members: tuple[str, ...]) -> int:
        return group(members).converter_bits

    settled: list[Plan] = []
    while True:
        fused = fuse(units, sizes, network.outputs, measure, most)
        groups = [group(cut.units) for cut in fused]
        plans = [part.plan.own for part in groups if part.plan.own is not None]
        if (agreed := agree(plans)) == plans:
            return [replace(part, fused=cut) for part, cut in zip(_placed(groups), fused, strict=True)]
        settled += agreed


def _shapes(network: LogicalGraph) -> list[Shape]:
    return layer_shapes(schedule(network, None))


def _padded(plan: Plan, values: Collection[str]) -> Plan:
    """The plan with whole beats of memory as the padding of these values, and of all values that are padded
    like them."""
    wide = {value for members in plan.classes if not members.isdisjoint(values) for value in members}
    pads = {value: lcm(pad, WORD_LANES) if value in wide else pad for value, pad in plan.pads.items()}
    return replace(plan, pads=pads)


def _placed(groups: list[GroupPlan]) -> list[GroupPlan]:
    """The groups with a name each, and with one channel for each value that several groups use."""
    if len(groups) == 1:
        return groups
    channels: dict[str, int] = {}
    for group in groups:
        for name in (*(value.name for value in group.model.inputs), *group.model.outputs):
            channels.setdefault(name, group.plan.io_channel)
    return [
        replace(
            group,
            budget=replace(group.budget, name=f"{group.budget.name}_{i}"),
            plan=replace(group.plan, boundary=replace(group.plan.boundary, channels=channels)),
        )
        for i, group in enumerate(groups)
    ]


def group_graph(graph: Graph, budget: Budget) -> list[tuple[Graph, FusedGroup]]:
    """The groups of an unfinished graph of kernels in the order in which they run, with the reason for each
    cut."""
    parts = GraphParts(graph, budget.memory)
    nodes = {" + ".join(unit): unit for unit in parts.units}
    units = [Unit(name=n, reads=parts.reads(u), writes=parts.writes(u)) for n, u in nodes.items()]

    def part(members: tuple[str, ...], name: str) -> Graph:
        if len(members) == len(units):
            return graph
        return parts.part(name, {node for unit in members for node in nodes[unit]})

    def measure(members: tuple[str, ...]) -> int:
        return converter_bits(insert_converters(insert_forks(part(members, graph.name))))

    fused = fuse(units, parts.sizes(), parts.results(), measure, budget.converter_bits)
    names = [budget.name] if len(fused) == 1 else [f"{budget.name}_{i}" for i in range(len(fused))]
    return [(part(group.units, name), group) for group, name in zip(fused, names, strict=True)]
