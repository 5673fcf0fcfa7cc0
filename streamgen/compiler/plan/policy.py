"""Choose the hardware of operations under the budgets, and finish the program.

    spatial   every matmul has columns of its own; a section is one phase
    shared    all matmuls take turns on one engine, which has one column for each memory channel
    mixed     some matmuls have columns of their own and the rest take turns, whichever saves cycles
    resident  all matmuls have kernels of their own, which keep their weights on the chip (`plan.resident`)

All other equal operations share a kernel, if they are in different phases and sharing is cheaper
(`schedule.instances`).
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from streamgen.artifact.packing import BEAT_BITS
from streamgen.artifact.roles import BEST, KEEP
from streamgen.base.errors import BudgetError, GraphError
from streamgen.base.progress import After, Counted
from streamgen.base.wording import counted
from streamgen.compiler.budget import Budget, budget_of
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.explore import Fixed, attention_width, explore, fixed_factors
from streamgen.compiler.explore.estimate import GAP
from streamgen.compiler.lower import finish
from streamgen.compiler.plan.resident import resident_plan
from streamgen.compiler.schedule import (
    Derivation,
    HardwarePlan,
    Room,
    Schedule,
    Value,
    layer_shapes,
    schedule,
)
from streamgen.fifo.sizing import Strategy
from streamgen.model.golden_text import is_language_model
from streamgen.model.graph import Graph, Program, Regions
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.graph.plan import Boundary, LinearShape, Plan, Shape
from streamgen.model.operations.balance import balanced
from streamgen.numbers.formats import MX_GROUP

PREFETCH = 1024  # beats of codes prefetched by a column of an engine: covers the longest gap between phases
LEAST_PREFETCH = 64  # a burst
PREFETCHED = 5  # the FIFOs of all columns may take 1 / PREFETCHED of the block RAM
OWN_PREFETCH = 512  # beats for columns that belong to one matmul
MOST_LANES = 16  # elements per cycle between matmuls, unless the user asks for more


def limited(graph: LogicalGraph, config: CompileConfig) -> tuple[CompileConfig, LogicalGraph]:
    """The configuration with the tokens of a pass, and the graph, both with the smaller context. Raises
    GraphError if a graph that is not a language model keeps state, and ValueError if a pass has fewer tokens
    than a sequence of a graph that holds for one number of them."""
    if not is_language_model(graph):
        if graph.context:
            raise GraphError(
                "a graph that keeps state from pass to pass must be a language model: its input is ids, and "
                "its outputs are the logits (on request), the greatest logit and its id, all for the last "
                "row only (`LastRow`). This graph has the outputs "
                f"{', '.join(f'{name!r} {graph.shapes[name]}' for name in graph.outputs)}"
            )
        if graph.tokens and graph.tokens > (config.max_tokens or graph.tokens):
            raise ValueError(
                f"CompileConfig.max_tokens is {config.max_tokens}; the sequences of the module have "
                f"{graph.tokens} tokens, and a pass computes whole sequences. Leave max_tokens out"
            )
        return replace(config, max_tokens=graph.tokens or config.size("max_tokens")), graph
    context = min(config.size("context"), graph.context)
    config = replace(config, context=context, max_tokens=min(config.size("max_tokens"), context))
    return config, replace(graph, context=context)


def quantised(graph: LogicalGraph, config: CompileConfig) -> LogicalGraph:
    """The graph for which hardware is built: balanced, with integer weights in the formats of `config`."""
    return balanced(graph).quantised(config.numbers(is_language_model(graph)))


def hardware(model: LogicalGraph, budget: Budget) -> HardwarePlan:
    """The hardware of a quantised model, as one accelerator.

    Raises BudgetError if even the smallest design exceeds the budgets, and ValueError for factors that cannot
    be built.
    """
    plan = _hardware(model, budget)
    lanes, asked = attention_width(model, budget, plan.kv_channels), budget.cache_channels
    if asked is not None and not lanes <= asked <= plan.kv_channels:
        raise ValueError(
            f"CompileConfig.cache_channels is {asked}; it must be {lanes} to {plan.kv_channels}. Attention "
            f"reads {counted(lanes, 'position')} per cycle (CompileConfig.attention_lanes), each from "
            f"another channel, and all caches lie on {counted(plan.kv_channels, 'channel')}"
        )
    return replace(plan, attention_lanes=lanes, cache_channels=asked, source=model.source)


def _hardware(model: LogicalGraph, budget: Budget) -> HardwarePlan:
    if budget.policy == "shared":
        if budget.fixed:
            raise ValueError(
                f"CompileConfig.fixed names {', '.join(map(repr, budget.fixed))}, but in a design with the "
                "policy 'shared' no matmul has factors of its own. Use the policy 'mixed' or 'spatial'"
            )
        return _engine(budget)
    if budget.policy == "resident":
        return resident_plan(model, budget)
    scheduled = schedule(model, None)
    if budget.policy == "mixed":
        return _Mixed(model, scheduled, budget).plan()
    shapes = layer_shapes(scheduled)
    if model.mixes_tokens:
        return spatial_plan(model, _one_lane(shapes, budget, "tokens depend on one another"), budget)
    return spatial_plan(model, explore(shapes, budget), budget)


def whole(model: LogicalGraph, config: CompileConfig) -> Derivation:
    """The graphs of kernels of a quantised model, as one accelerator. Raises the errors of `hardware` and of
    `Derivation`."""
    budget = budget_of(config, model)
    return derivation(model, hardware(model, budget), budget)


def derivation(model: LogicalGraph, plan: HardwarePlan, budget: Budget) -> Derivation:
    """The graphs of kernels of a quantised model with this hardware, in the memory that the budget allows."""
    room = Room(board=budget.board, channels=budget.channels)
    return Derivation(model, plan, budget.memory, budget.name, room)


def spatial_plan(
    model: LogicalGraph, own: Plan, budget: Budget, boundary: Boundary | None = None
) -> HardwarePlan:
    """The hardware of a model whose matmuls all have columns of their own. own: their factors."""
    return HardwarePlan(
        max_tokens=budget.max_tokens,
        context=budget.context,
        lanes=budget.lanes or _lanes(model, own),
        kv_channels=1 << (budget.channels.bit_length() - 1),
        fabric=budget.board.fabric,
        hold_bits=budget.hold_bits,
        own=own,
        own_prefetch=budget.prefetch_beats or OWN_PREFETCH,
        boundary=boundary or Boundary(tensors={}),
    )


def _one_lane(shapes: Sequence[Shape], budget: Budget, why: str, fixed: Fixed | None = None) -> Plan:
    """Columns that compute one token at a time. why: the reason. Raises ValueError if the user asks for more
    token lanes."""
    if budget.token_lanes not in (None, 1):
        raise ValueError(f"CompileConfig.token_lanes is {budget.token_lanes}; it must be 1, because {why}")
    plan = explore(shapes, replace(budget, token_lanes=1), fixed)
    return replace(plan, reasons=(f"1 token lane: {why}", *plan.reasons[1:]))


def _lanes(model: LogicalGraph, own: Plan) -> int:
    """Elements per cycle of the kernels between matmuls: they pass the widest row in the time of the slowest
    matmul."""
    widest, slowest = 1, 1
    for path, matmul in model.matmuls():
        n, k = matmul.extents
        widest = max(widest, n, k)
        if path in own.linears:
            slowest = max(slowest, n * k // (own.linears[path].tile * own.token_lanes * MX_GROUP))
    return next(lanes for lanes in (1, 2, 4, 8, 16) if lanes == MOST_LANES or lanes * slowest >= widest)


def _engine(budget: Budget, rows: int | None = None) -> HardwarePlan:
    """The engine that the budgets allow, with an even number of columns. rows: rows that each column computes
    side by side; None for as many as the budgets allow.

    Raises BudgetError if the budgets allow no engine, or fewer rows than the user asks for.
    """
    rows = budget.n_lanes if rows is None else rows
    columns = min(budget.channels, budget.multipliers // MX_GROUP if rows is None else budget.channels)
    columns -= columns % 2
    if not columns:
        raise BudgetError(
            f"a shared engine needs 2 channels and {2 * MX_GROUP} multipliers, but CompileConfig.channels is "
            f"{budget.channels} and CompileConfig.multipliers is {budget.multipliers}"
        )
    if budget.n_lanes is not None and budget.capped:
        needed = columns * budget.n_lanes * MX_GROUP
        if needed > budget.multipliers:
            raise BudgetError(
                f"CompileConfig.n_lanes is {budget.n_lanes}; {budget.n_lanes} rows in each of {columns} "
                f"columns need {needed} multipliers ({MX_GROUP} per row), but CompileConfig.multipliers is "
                f"{budget.multipliers}, {needed - budget.multipliers} too few. Raise it, or lower n_lanes or "
                "channels"
            )
    if rows is None:
        rows = 1 << ((budget.multipliers // (columns * MX_GROUP)).bit_length() - 1)
    lanes = min(MOST_LANES, 1 << (rows.bit_length() - 1)) if budget.lanes is None else budget.lanes
    return HardwarePlan(
        max_tokens=budget.max_tokens,
        context=budget.context,
        columns=columns,
        n_lanes=rows,
        lanes=lanes,
        kv_channels=1 << (columns.bit_length() - 1),
        prefetch=budget.prefetch_beats or _prefetch(budget, columns),
        fabric=budget.board.fabric,
        hold_bits=budget.hold_bits,
        own_prefetch=budget.prefetch_beats or OWN_PREFETCH,
    )


def _prefetch(budget: Budget, columns: int) -> int:
    """Beats of codes that each column prefetches: PREFETCH, halved until all columns together take at most
    their share of the block RAM."""
    board, beats = budget.board, PREFETCH
    most = board.resources.bram * board.fabric.bram_bits / PREFETCHED
    while columns * beats * BEAT_BITS > most and beats > LEAST_PREFETCH:
        beats //= 2
    return beats


class _Mixed:
    """Choose the matmuls that get columns of their own.

    The search dissolves one phase of the engine after the other: the matmuls of the phase get their own
    columns. It goes on as long as this saves cycles, in closed form, of one token plus the largest number of
    tokens. It tries engines with every power of two of rows, and no engine.
    """

    def __init__(self, model: LogicalGraph, whole: Schedule, budget: Budget) -> None:
        self._model, self._budget = model, budget
        shapes = layer_shapes(whole)
        self._fixed = fixed_factors(shapes, budget.fixed)
        self._shapes = {shape.name: shape for shape in shapes if isinstance(shape, LinearShape)}
        self._held = frozenset(self._fixed).intersection(self._shapes)

    def plan(self) -> HardwarePlan:
        """The plan with the fewest cycles. Among equal plans, the one with the larger engine."""
        plans = list(self._plans())
        if not plans:
            raise BudgetError(
                f"the budgets allow {len(self._shapes)} matmuls neither an engine nor columns of their own: "
                f"CompileConfig.channels is {self._budget.channels} and CompileConfig.multipliers is "
                f"{self._budget.multipliers}"
            )
        best = min(plans, key=self._cycles)
        known = {*best.alone, *(best.own.widths if best.own else ())}
        if lost := [name for name in self._fixed if name not in known]:
            raise ValueError(
                f"CompileConfig.fixed names {', '.join(map(repr, lost))}. With the policy 'mixed', an "
                "elementwise operation has factors only if it follows a matmul with columns of its own"
            )
        return best

    def _plans(self) -> Iterator[HardwarePlan]:
        budget = self._budget
        try:
            engine = _engine(budget)
        except BudgetError:
            if budget.n_lanes is not None:  # the user asks for an engine
                raise
            engine = None
        while engine is not None:
            plan = self._with(engine, self._held)
            while plan is not None:
                yield plan
                plan = self._dissolved(engine, plan)
            if budget.n_lanes is not None or engine.n_lanes == 1:
                break
            engine = _engine(budget, engine.n_lanes // 2)
        own = None if budget.n_lanes else self._explored(self._shapes, budget.multipliers)
        if own is not None:
            yield spatial_plan(self._model, own, budget)

    def _dissolved(self, engine: HardwarePlan, plan: HardwarePlan) -> HardwarePlan | None:
        """The best plan with one phase of the engine less; None if no such plan saves cycles."""
        phases = [p for p in schedule(self._model, plan.alone).phases if p.matmuls]
        if len(phases) == 1:
            return None
        several = ({*plan.alone, *(step.path for step in phase.matmuls)} for phase in phases)
        candidates = [candidate for paths in several if (candidate := self._with(engine, paths)) is not None]
        best = min(candidates, key=self._cycles, default=None)
        return best if best is not None and self._cycles(best) < self._cycles(plan) else None

    def _with(self, engine: HardwarePlan, alone: Collection[str]) -> HardwarePlan | None:
        """The engine, and columns for the matmuls `alone` from the multipliers that the engine leaves; None
        if that is not possible."""
        if not alone:
            return engine
        if len(alone) == len(self._shapes):
            return None
        own = self._explored(alone, self._budget.multipliers - engine.unit * MX_GROUP)
        return None if own is None else replace(engine, own=own)

    def _explored(self, alone: Collection[str], multipliers: int) -> Plan | None:
        share = replace(self._budget, multipliers=max(MX_GROUP, multipliers))
        scheduled = schedule(self._model, alone)
        shapes = layer_shapes(scheduled, alone)
        known = {shape.name for shape in shapes}
        fixed = {name: factors for name, factors in self._fixed.items() if name in known}
        if multipliers < MX_GROUP:
            return None
        try:
            return _one_lane(shapes, share, "an engine computes one token at a time", fixed)
        except BudgetError:
            return None

    def _cycles(self, plan: HardwarePlan) -> float:
        """Cycles of a pass of one token plus a pass of the largest number of tokens."""
        return sum(self.cycles(plan, tokens) for tokens in (1, self._budget.max_tokens))

    def cycles(self, plan: HardwarePlan, tokens: int) -> float:
        """Cycles of a pass of `tokens` tokens: the sum over all phases, and in a phase over the matmuls that
        depend on one another."""
        scheduled, total = schedule(self._model, plan.alone), 0.0
        for phase in scheduled.phases:
            levels: dict[int, list[LinearShape]] = {}
            depth: dict[Value, int] = {}
            for step in phase.steps:
                at = max((depth.get(value, 0) for value in step.inputs), default=0)
                if step.op.matmul is not None:
                    levels.setdefault(at, []).append(self._shapes[step.path])
                    at += 1
                depth.update(dict.fromkeys(step.outputs, at))
            walks = scheduled.sections[phase.section].walks
            total += walks * sum(self._level(plan, shapes, tokens) + GAP for shapes in levels.values())
        return total

    def _level(self, plan: HardwarePlan, shapes: Sequence[LinearShape], tokens: int) -> float:
        """Cycles that memory and multipliers need for matmuls that work side by side."""
        engine, bits = 0, Counter[int]()  # by channel
        work = 0.0
        for shape in shapes:
            own = plan.alone.get(shape.name)
            channels = own.channels if own is not None else range(plan.columns)
            for channel in channels:
                bits[channel] += shape.n * shape.k * shape.form.code_bits // len(channels)
            rows = own.tile if own is not None else plan.unit
            cycles = -(-shape.n // rows) * -(-shape.k // MX_GROUP)
            engine += cycles if own is None else 0
            work = max(work, cycles)
        memory = max(bits.values()) / (BEAT_BITS * self._budget.memory.rate)
        return max(memory, tokens * max(work, engine))


def finished(
    binding: Derivation,
    model: LogicalGraph,
    sizing: Strategy,
    place: Callable[[Program, float], Regions] | None = None,
    after: After | None = None,
    counted: Counted | None = None,
) -> tuple[Program, dict[int, int]]:
    """The program of a model, and the scheduled cycles by number of tokens. The latter are empty if cycles
    depend on the position or on the order of phases. place, after, counted: see `lower.finish`."""
    asked = {BEST: binding.requested, KEEP: binding.last if model.context else {}}
    variants = {name: bounds for name, bounds in asked.items() if bounds}
    lanes, context = binding.plan.token_lanes, model.context
    tiles = binding.plan.largest // lanes

    def build(tiles: int, position: int, *source: int) -> Graph:
        return binding.graph(tiles * lanes, position, *source)

    program, cycles = finish(
        build, lanes, tiles, sizing, context, variants, place, after, counted, source=model.source
    )
    program = replace(program, whole=model.mixes_tokens and not context)
    if context or len(binding.phases) > 1:
        return program, {}
    corners = (binding.plan.largest, lanes)
    return program, dict(zip(corners, cycles, strict=False))


def choices(binding: Derivation, model: LogicalGraph) -> tuple[str, ...]:
    """The choices of the compiler, as sentences for a report."""
    plan = binding.plan
    lines: list[str] = []
    if plan.columns:
        rows = counted(plan.n_lanes, "row")
        lines.append(f"one engine of {counted(plan.columns, 'column')} with {rows} side by side in each")
    for section in binding.schedule.sections:
        if section.walks > 1:
            count = f"{len(section.phases)} of {len(binding.phases)} phases"
            lines.append(f"{count} are walked {section.walks} times")
    if model.context:
        lanes = counted(plan.attention_lanes, "position")
        where = counted(plan.kv_channels, "channel")
        if plan.cache_channels not in (None, plan.kv_channels):
            where = f"{plan.cache_channels} channels each"
        lines.append(f"keys and values lie on {where}; attention reads {lanes} per cycle")
    elif plan.attention_lanes > 1:
        lines.append(f"attention reads {plan.attention_lanes} positions per cycle")
    lines += [f"{name} waits in memory on channel {channel}" for name, channel in binding.spilled.items()]
    return (*lines, *(plan.own.reasons if plan.own else ()))
