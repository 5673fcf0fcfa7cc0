"""Resources of candidates: what the kernels of one design promise, with the factors of another design.

A design is bound once, up to its converters. For a candidate with the same channels and lanes, the kernels
that depend on its other factors get new params: columns and their weights, loads of weights, attention, and
loads and stores of caches. The sum of what all kernels promise takes milliseconds, and the relaxed placement
of their blocks some tens of them. Converters, FIFOs and everything around the graph stay those of the bound
design.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import add
from typing import Any

from streamgen.artifact.kv_layout import KvLayout
from streamgen.compiler.emit.outline import outline
from streamgen.compiler.emit.placement import place, shortage
from streamgen.compiler.emit.resources import blocks, links
from streamgen.compiler.lower import place_constants, unsized
from streamgen.compiler.plan.closed import ClosedForm
from streamgen.compiler.plan.grouping import GroupPlan
from streamgen.compiler.schedule import HardwarePlan
from streamgen.contract.cost import Resources
from streamgen.kernels.attention.scores import AttentionScoresParams
from streamgen.kernels.attention.softmax import AttentionSoftmaxParams
from streamgen.kernels.attention.values import AttentionValuesParams
from streamgen.kernels.matmul.matmul import ColumnParams
from streamgen.kernels.matmul.weights import UnevenWeightsParams, WeightsParams
from streamgen.kernels.memory.kv_load import KvLoadParams
from streamgen.kernels.memory.kv_store import KvStoreParams
from streamgen.model.graph import Program
from streamgen.platform.boards import Board
from streamgen.platform.dma import LoadParams

SPARE = 0.02  # share of an SLR and of its wires that promises leave for sized FIFOs and whole blocks
SPARE_BRAM = 0.04  # the same of block RAM, of which single blocks take up to a twentieth of an SLR


@dataclass(frozen=True)
class Needs:
    """Resources of a design. all: of the whole design. fixed: of the blocks that must lie at the memory."""

    all: Resources
    fixed: Resources


class Blueprint:
    """A design of one accelerator, up to its converters: its resources and whether it has a placement.

    Raises the errors of binding, and BudgetError if a memory channel has too little room.
    """

    def __init__(self, part: GroupPlan) -> None:
        self.part, self._plan = part, part.derivation.plan
        graph = unsized(place_constants(part.converted))
        self.outline = outline(Program(graph, 1, self._plan.largest), part.budget, ends=True)
        top = self.outline.top
        self._blocks, self._links = blocks(top), links(top)
        self._params = {node.name: node.params for node in graph.nodes}
        self._nodes: dict[Any, Any] = {}
        self._costs: dict[Any, Resources] = {}
        self._kinds = Counter[tuple[Any, bool]]()
        fixed = {block.name: block.fixed for block in self._blocks}
        for node in graph.nodes:
            if type(node.params) not in _CHANGES:
                continue
            bounds = next(bounds for bounds in node.bounds if bounds is not None)
            self._nodes.setdefault(node.params, bounds)
            self._kinds[node.params, fixed[node.name]] += 1

    @property
    def shortage(self) -> str:
        """What is most short in the best placement on the board; empty if the design fits."""
        board = self.part.budget.board
        if short := shortage(self._blocks, self._links, board):
            return short
        over = place(self._blocks, self._links, board).shortage(board)
        return over and f"needs {over}"

    @cached_property
    def needs(self) -> Needs:
        """Resources of the design itself."""
        total = reduce(add, (block.resources for block in self._blocks))
        return Needs(total, reduce(add, (block.resources for block in self._blocks if block.fixed)))

    def needs_of(self, plan: HardwarePlan, form: ClosedForm) -> Needs:
        """Resources of a candidate with the same channels and lanes. form: its closed form."""
        total, at_memory = self.needs.all, self.needs.fixed
        for (params, fixed), count in self._kinds.items():
            if (more := self._more(params, plan, form)) is not None:
                total += more * count
                at_memory += more * count if fixed else Resources(lut=0, ff=0)
        return Needs(total, at_memory)

    def shortage_of(self, plan: HardwarePlan, form: ClosedForm) -> str:
        """What every placement of a candidate lacks, as far as its promises and the links of this design
        tell (`emit.placement.shortage`); empty if there may be a placement. The candidate has the same
        channels, lanes, rows of a column and lanes of attention."""
        more = {params: self._more(params, plan, form) for params, _ in self._kinds}
        changed = [
            block
            if (extra := more.get(self._params.get(block.name))) is None
            else replace(block, resources=block.resources + extra)
            for block in self._blocks
        ]
        return shortage(changed, self._links, self._roomy)

    @cached_property
    def _roomy(self) -> Board:
        """The board with the room that promises may take."""
        board = self.part.budget.board
        slrs = tuple(
            replace(
                slr,
                resources=replace(slr.resources * (1 - SPARE), bram=slr.resources.bram * (1 - SPARE_BRAM)),
            )
            for slr in board.slrs
        )
        return replace(board, slrs=slrs, wires_fill=board.wires_fill * (1 - SPARE))

    def _more(self, params: Any, plan: HardwarePlan, form: ClosedForm) -> Resources | None:
        """Resources that a candidate needs for a kernel more than this design does; None for none."""
        other = _CHANGES[type(params)](params, self._plan, plan, form)
        if other is params or other == params:
            return None
        return self._cost(other, params) + self._cost(params, params) * -1

    def _cost(self, params: Any, like: Any) -> Resources:
        """Promised resources of a kernel in place of another one."""
        if params not in self._costs:
            resources = getattr(params, "resources", None)  # of columns, whose bounds depend on their rows
            if not isinstance(resources, Resources):
                resources = params.cost(self._nodes[like]).resources
            self._costs[params] = resources
        return self._costs[params]


def _column(params: Any, old: HardwarePlan, new: HardwarePlan, form: ClosedForm) -> Any:
    return form.engine.params


def _weights(params: Any, old: HardwarePlan, new: HardwarePlan, form: ClosedForm) -> Any:
    return form.weights


def _load(params: Any, old: HardwarePlan, new: HardwarePlan, form: ClosedForm) -> Any:
    return replace(params, prefetch=new.prefetch) if params.prefetch == old.prefetch else params


def _attention(params: Any, old: HardwarePlan, new: HardwarePlan, form: ClosedForm) -> Any:
    if params.lanes != old.attention_lanes:  # attention without a cache
        return params
    length = params.max_length if params.max_length != old.context else new.context
    return replace(params, lanes=new.attention_lanes, max_length=length)


def _cache_load(params: Any, old: HardwarePlan, new: HardwarePlan, form: ClosedForm) -> Any:
    layout = _layout(params.layout, old, new)
    if not params.max_new:  # of a source, which has as many rows in any context
        layout = replace(layout, positions=params.layout.positions)
    return replace(params, layout=layout, lanes=new.attention_lanes)


def _cache_store(params: Any, old: HardwarePlan, new: HardwarePlan, form: ClosedForm) -> Any:
    return replace(params, layout=_layout(params.layout, old, new))


def _layout(layout: KvLayout, old: HardwarePlan, new: HardwarePlan) -> KvLayout:
    before, after = (plan.cache_channels or plan.kv_channels for plan in (old, new))
    channels = after if layout.channels == before else max(new.attention_lanes, layout.channels)
    return replace(layout, channels=channels, positions=new.context)


_CHANGES: Mapping[type, Callable[[Any, HardwarePlan, HardwarePlan, ClosedForm], Any]] = {
    ColumnParams: _column,
    WeightsParams: _weights,
    UnevenWeightsParams: _weights,
    LoadParams: _load,
    AttentionScoresParams: _attention,
    AttentionValuesParams: _attention,
    AttentionSoftmaxParams: _attention,
    KvLoadParams: _cache_load,
    KvStoreParams: _cache_store,
}
"""For kernels that depend on factors of a candidate: the params in a design with other factors, from the
params, the plans of both designs and the closed form of the other."""
