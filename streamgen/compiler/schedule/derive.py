"""Derive the graphs of kernels of a quantised logical graph, for runs of any number of tokens at any
position.

    logical graph -> schedule -> bind -> steer -> channels -> graph before forks and converters

The hardware is that of the largest run: the largest number of tokens, at the last position. The graphs of all
other runs have its params.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from itertools import chain, count

from streamgen.artifact.manifest import SCALARS
from streamgen.base.errors import GraphError
from streamgen.compiler.schedule.bind import Binding, Given, bind
from streamgen.compiler.schedule.channels import (
    Content,
    Key,
    Parts,
    Room,
    beside_caches,
    contents,
    find_places,
    on_channels,
)
from streamgen.compiler.schedule.extents import extents
from streamgen.compiler.schedule.phases import schedule
from streamgen.compiler.schedule.plan import HardwarePlan
from streamgen.compiler.schedule.steer import Steered, steer
from streamgen.contract import Bounds, KernelParams
from streamgen.model.graph import Graph
from streamgen.model.graph.logical import LogicalGraph
from streamgen.platform.boards import Channel

BUFFERS = re.compile("|".join([*SCALARS, "table", "status", r"weights_\d+"]))


def tensor_names(model: LogicalGraph) -> dict[str, str]:
    """Names of the tensors of all values in memory. A value keeps its name, unless it is the name of a buffer
    of the host; then a number is appended."""
    named = {*(value.name for value in model.inputs), *(n for o in model.operations for n in o.values)}

    def free(name: str) -> str:
        names = chain([name], (f"{name}_{i}" for i in count(1)))
        return next(n for n in names if not BUFFERS.fullmatch(n) and (n == name or n not in named))

    return {name: free(name) for name in named}


class Derivation:
    """The graphs of kernels of a model. memory: a memory channel of the board. room: the memory that the
    design may use; None for no limit.

    Raises GraphError for values that do not tile, operations that no kernel computes, and values that cannot
    pass between phases; BudgetError for contents of memory without room.
    """

    def __init__(
        self,
        model: LogicalGraph,
        plan: HardwarePlan,
        memory: Channel,
        name: str = "decoder",
        room: Room | None = None,
    ) -> None:
        self._name, self.plan, self._room = name, plan, room
        self.schedule = schedule(model, plan.alone, early_last_rows=not plan.alone)
        self._given = Given(
            schedule=self.schedule,
            plan=plan,
            extent=extents(self.schedule, plan),
            memory=memory,
            tensors=plan.boundary.tensors or tensor_names(model),
        )

    def graph(self, tokens: int, position: int, source: int | None = None) -> Graph:
        """The graph of a run of `tokens` tokens from `position` on, before forks and converters. source: rows
        of the source of the text; None for the most."""
        source = self.plan.source if source is None else source
        if (tokens, position, source) == self._largest_run:
            return self.largest
        steered, binding = self._largest
        bound = bind(self._given, tokens, position, source, binding)
        graph = steer(self._name, self.schedule, bound, self.plan, self._given.memory, steered).graph
        built = self._params
        if graph.by_name.keys() != built.keys():
            other = sorted(graph.by_name.keys() ^ built.keys())
            raise GraphError(f"these nodes are not in the graphs of all runs: {', '.join(other)}")
        depths = {(edge.source, edge.target): edge.depth for edge in steered.graph.edges}
        same = replace(
            graph.with_depths({ends: depth for ends, depth in depths.items() if depth is not None}),
            nodes=tuple(replace(node, params=built[node.name]) for node in graph.nodes),
        )
        return on_channels(same, self._places)

    @property
    def tensors(self) -> Mapping[str, str]:
        """Names in memory of inputs and outputs."""
        return self._given.tensors

    @property
    def binding(self) -> Binding:
        """The kernels of the largest run."""
        return self._largest[1]

    @cached_property
    def largest(self) -> Graph:
        """The graph of the largest run, before forks and converters."""
        return on_channels(self._largest[0].graph, self._places)

    @cached_property
    def contents(self) -> list[Content]:
        """All that the design keeps in memory, with the channels of first choice."""
        return contents(self._largest[0].graph, host_moves=not self.plan.boundary.channels)

    @property
    def beside_caches(self) -> Mapping[int, int]:
        """The bytes of each channel that everything but caches takes (`channels.beside_caches`); without a
        limit of memory, none."""
        return {} if self._room is None else beside_caches(self._name, self.contents, self._room)

    @property
    def spilled(self) -> Mapping[str, int]:
        """The channel of each value that waits in memory between phases."""
        channels = {tensor.place: tensor.channel for tensor in self.largest.tensors}
        return {name: channels[buffer] for name, buffer in self._largest[0].spilled.items()}

    @property
    def requested(self) -> Mapping[str, Bounds]:
        """By node, the bounds that differ in a run that does not ask for some outputs."""
        return self._largest[1].requested

    @property
    def last(self) -> Mapping[str, Bounds]:
        """By node, the bounds that differ in a run that asks for nothing that follows from the last row."""
        return self._largest[1].last

    @property
    def phases(self) -> tuple[str, ...]:
        """Names of the phases."""
        return tuple(phase.name for phase in self.schedule.phases)

    @property
    def _largest_run(self) -> tuple[int, int, int]:
        plan = self.plan
        return plan.largest, max(0, plan.context - plan.largest), plan.source

    @cached_property
    def _largest(self) -> tuple[Steered, Binding]:
        binding = bind(self._given, *self._largest_run)
        return steer(self._name, self.schedule, binding, self.plan, self._given.memory), binding

    @cached_property
    def _places(self) -> Mapping[Key, Parts]:
        return {} if self._room is None else find_places(self._name, self.contents, self._room)

    @cached_property
    def _params(self) -> dict[str, KernelParams]:
        return {node.name: node.params for node in self._largest[0].graph.nodes}
