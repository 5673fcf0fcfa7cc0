"""How operations get their hardware: what is chosen under the budgets, and the program that follows.

    spatial   every matmul has columns of its own; a section is one phase
    shared    the matmuls take turns on one engine, a column a memory channel
    mixed     some have columns of their own, the rest takes turns: whichever saves cycles

All other operations that are alike share a kernel where they are in different phases and that is cheaper
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
from streamgen.compiler.schedule import Derivation, HardwarePlan, Schedule, Value, layer_shapes, schedule
from streamgen.fifo.sizing import Strategy
from streamgen.model.golden_text import is_language_model
from streamgen.model.graph import Graph, Program, Regions
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.graph.plan import Boundary, LinearShape, Plan, Shape
from streamgen.model.operations.balance import balanced
from streamgen.numbers.formats import MX_GROUP

PREFETCH = 1024  # beats of a column's codes in an engine: what the greatest gaps between phases take
LEAST_PREFETCH = 64  # a burst
PREFETCHED = 5  # the part of block RAM that the FIFOs of all columns may take: the fifth
OWN_PREFETCH = 512  # of columns that one matmul has alone
MOST_LANES = 16  # elements a cycle between matmuls, where the user does not ask for more


def limited(graph: LogicalGraph, config: CompileConfig) -> tuple[CompileConfig, LogicalGraph]:
    """Both with the smaller of their contexts; GraphError for state in what is no language model."""
    if not is_language_model(graph):
        if graph.context:
            raise GraphError(
                "a graph that keeps state from pass to pass must be a language model's: from ids to logits "
                "on request, the greatest and its id, of the last row (`LastRow`) alone; outputs are "
                f"{', '.join(f'{name!r} {graph.shapes[name]}' for name in graph.outputs)}"
            )
        return config, graph
    context = min(config.context, graph.context)
    config = replace(config, context=context, max_tokens=min(config.max_tokens, context))
    return config, replace(graph, context=context)


def quantised(graph: LogicalGraph, config: CompileConfig) -> LogicalGraph:
    """The graph that hardware is built for: balanced, its weights as integers in the formats of `config`."""
    return balanced(graph).quantised(config.numbers(is_language_model(graph)))


def hardware(model: LogicalGraph, budget: Budget) -> HardwarePlan:
    """The hardware of a quantised model, as one accelerator.

    BudgetError when the budgets hold not even the least, ValueError for factors that cannot be.
    """
    plan = _hardware(model, budget)
    lanes, asked = attention_width(model, budget, plan.kv_channels), budget.cache_channels
    if asked is not None and not lanes <= asked <= plan.kv_channels:
        raise ValueError(
            f"CompileConfig.cache_channels is {asked}; {lanes} to {plan.kv_channels} are allowed: attention "
            f"takes {lanes} a cycle, each of another channel, and all caches lie on {plan.kv_channels}"
        )
    return replace(plan, attention_lanes=lanes, cache_channels=asked)


def _hardware(model: LogicalGraph, budget: Budget) -> HardwarePlan:
    if budget.policy == "shared":
        if budget.fixed:
            raise ValueError(
                f"CompileConfig.fixed names {', '.join(map(repr, budget.fixed))}; a design whose policy is "
                "'shared' has no matmul with factors of its own. Take the policy 'mixed' or 'spatial'"
            )
        return _engine(budget)
    found = schedule(model, None)
    if budget.policy == "mixed":
        return _Mixed(model, found, budget).plan()
    shapes = layer_shapes(found)
    if model.mixes_tokens:
        return spatial_plan(model, _one_lane(shapes, budget, "tokens see one another"), budget)
    return spatial_plan(model, explore(shapes, budget), budget)


def whole(model: LogicalGraph, config: CompileConfig) -> Derivation:
    """The graphs of kernels of a quantised model, as one accelerator. Errors: those of `hardware` and of
    `Derivation`."""
    budget = budget_of(config, model)
    return Derivation(model, hardware(model, budget), budget.memory, budget.name)


def spatial_plan(
    model: LogicalGraph, own: Plan, budget: Budget, boundary: Boundary | None = None
) -> HardwarePlan:
    """What is built of a model whose matmuls have columns of their own."""
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
    """Columns that take token after token. ValueError when the user wants others."""
    if budget.token_lanes not in (None, 1):
        raise ValueError(f"CompileConfig.token_lanes is {budget.token_lanes}; only 1 can be: {why}")
    plan = explore(shapes, replace(budget, token_lanes=1), fixed)
    return replace(plan, reasons=(f"1 token lane: {why}", *plan.reasons[1:]))


def _lanes(model: LogicalGraph, own: Plan) -> int:
    """Elements a cycle of kernels that pass rows: the widest row in the time of the slowest matmul."""
    widest, slowest = 1, 1
    for path, matmul in model.matmuls():
        n, k = matmul.extents
        widest = max(widest, n, k)
        if path in own.linears:
            slowest = max(slowest, n * k // (own.linears[path].tile * own.token_lanes * MX_GROUP))
    return next(lanes for lanes in (1, 2, 4, 8, 16) if lanes == MOST_LANES or lanes * slowest >= widest)


def _engine(budget: Budget, rows: int | None = None) -> HardwarePlan:
    """The engine that the budgets allow: an even number of columns, and rows side by side as many as may be,
    or so many.

    BudgetError when the budgets hold no engine, or not the rows that the user asks for.
    """
    rows = budget.n_lanes if rows is None else rows
    columns = min(budget.channels, budget.multipliers // MX_GROUP if rows is None else budget.channels)
    columns -= columns % 2
    if not columns:
        raise BudgetError(
            f"a shared engine needs 2 channels and {2 * MX_GROUP} multipliers; CompileConfig.channels is "
            f"{budget.channels}, CompileConfig.multipliers {budget.multipliers}"
        )
    if budget.n_lanes is not None and budget.capped:
        needed = columns * budget.n_lanes * MX_GROUP
        if needed > budget.multipliers:
            raise BudgetError(
                f"CompileConfig.n_lanes is {budget.n_lanes}; so many rows in each of {columns} columns need "
                f"{needed} multipliers ({MX_GROUP} a row), CompileConfig.multipliers is "
                f"{budget.multipliers}: "
                f"{needed - budget.multipliers} too few. Raise it, or lower n_lanes or channels"
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
    """Beats of each column's codes: PREFETCH, or a half, a quarter, as long as those of all take too much."""
    board, beats = budget.board, PREFETCH
    most = board.resources.bram * board.fabric.bram_bits / PREFETCHED
    while columns * beats * BEAT_BITS > most and beats > LEAST_PREFETCH:
        beats //= 2
    return beats


class _Mixed:
    """Which matmuls get columns of their own: phase after phase of the engine is dissolved, its matmuls with
    it, as long as one token plus the most tokens take fewer cycles in closed form. Engines of all powers of
    two of rows are tried, and none."""

    def __init__(self, model: LogicalGraph, whole: Schedule, budget: Budget) -> None:
        self._model, self._budget = model, budget
        shapes = layer_shapes(whole)
        self._fixed = fixed_factors(shapes, budget.fixed)
        self._shapes = {shape.name: shape for shape in shapes if isinstance(shape, LinearShape)}
        self._held = frozenset(self._fixed).intersection(self._shapes)

    def plan(self) -> HardwarePlan:
        """The plan of the fewest cycles; of equals the one with the larger engine."""
        found = list(self._plans())
        if not found:
            raise BudgetError(
                f"{len(self._shapes)} matmuls have neither an engine nor columns of their own: "
                f"CompileConfig.channels is {self._budget.channels}, CompileConfig.multipliers "
                f"{self._budget.multipliers}"
            )
        best = min(found, key=self._cycles)
        known = {*best.alone, *(best.own.widths if best.own else ())}
        if lost := [name for name in self._fixed if name not in known]:
            raise ValueError(
                f"CompileConfig.fixed names {', '.join(map(repr, lost))}, which no matmul with columns of "
                "its own leads; only behind such a matmul an elementwise operation has factors"
            )
        return best

    def _plans(self) -> Iterator[HardwarePlan]:
        budget = self._budget
        try:
            engine = _engine(budget)
        except BudgetError:
            if budget.n_lanes is not None:  # rows of an engine: it must be one
                raise
            engine = None
        while engine is not None:
            found = self._with(engine, self._held)
            while found is not None:
                yield found
                found = self._dissolved(engine, found)
            if budget.n_lanes is not None or engine.n_lanes == 1:
                break
            engine = _engine(budget, engine.n_lanes // 2)
        own = None if budget.n_lanes else self._explored(self._shapes, budget.multipliers)
        if own is not None:
            yield spatial_plan(self._model, own, budget)

    def _dissolved(self, engine: HardwarePlan, plan: HardwarePlan) -> HardwarePlan | None:
        """The best plan of one phase of the engine less, if any takes fewer cycles."""
        phases = [p for p in schedule(self._model, plan.alone).phases if p.matmuls]
        if len(phases) == 1:
            return None
        several = ({*plan.alone, *(step.path for step in phase.matmuls)} for phase in phases)
        found = [one for paths in several if (one := self._with(engine, paths)) is not None]
        best = min(found, key=self._cycles, default=None)
        return best if best is not None and self._cycles(best) < self._cycles(plan) else None

    def _with(self, engine: HardwarePlan, alone: Collection[str]) -> HardwarePlan | None:
        """An engine, and columns for these matmuls from the multipliers that it leaves."""
        if not alone:
            return engine
        if len(alone) == len(self._shapes):
            return None
        own = self._explored(alone, self._budget.multipliers - engine.unit * MX_GROUP)
        return None if own is None else replace(engine, own=own)

    def _explored(self, alone: Collection[str], multipliers: int) -> Plan | None:
        share = replace(self._budget, multipliers=max(MX_GROUP, multipliers))
        found = schedule(self._model, alone)
        shapes = layer_shapes(found, alone)
        known = {shape.name for shape in shapes}
        fixed = {name: factors for name, factors in self._fixed.items() if name in known}
        if multipliers < MX_GROUP:
            return None
        try:
            return _one_lane(shapes, share, "an engine takes token after token", fixed)
        except BudgetError:
            return None

    def _cycles(self, plan: HardwarePlan) -> float:
        """Of one token and of the most, phase after phase, and in a phase matmul after matmul of a path."""
        return sum(self.cycles(plan, tokens) for tokens in (1, self._budget.max_tokens))

    def cycles(self, plan: HardwarePlan, tokens: int) -> float:
        """Of so many tokens."""
        found, total = schedule(self._model, plan.alone), 0.0
        for phase in found.phases:
            levels: dict[int, list[LinearShape]] = {}
            depth: dict[Value, int] = {}
            for step in phase.steps:
                at = max((depth.get(value, 0) for value in step.inputs), default=0)
                if step.op.matmul is not None:
                    levels.setdefault(at, []).append(self._shapes[step.path])
                    at += 1
                depth.update(dict.fromkeys(step.outputs, at))
            walks = found.sections[phase.section].walks
            total += walks * sum(self._level(plan, shapes, tokens) + GAP for shapes in levels.values())
        return total

    def _level(self, plan: HardwarePlan, shapes: Sequence[LinearShape], tokens: int) -> float:
        """Matmuls side by side: what memory and multipliers need."""
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
    """Its program, and the scheduled cycles by number of tokens, unless these depend on the position or on
    how phases follow one another."""
    asked = {BEST: binding.requested, KEEP: binding.last if model.context else {}}
    variants = {name: bounds for name, bounds in asked.items() if bounds}
    lanes, context = binding.plan.token_lanes, model.context
    tiles = binding.plan.largest // lanes

    def build(tiles: int, position: int) -> Graph:
        return binding.graph(tiles * lanes, position)

    program, cycles = finish(build, lanes, tiles, sizing, context, variants, place, after, counted)
    program = replace(program, whole=model.mixes_tokens and not context)
    if context or len(binding.phases) > 1:
        return program, {}
    corners = (binding.plan.largest, lanes)
    return program, dict(zip(corners, cycles, strict=False))


def choices(binding: Derivation, model: LogicalGraph) -> tuple[str, ...]:
    """What is chosen, in words."""
    plan = binding.plan
    lines: list[str] = []
    if plan.columns:
        rows = counted(plan.n_lanes, "row")
        lines.append(f"one engine of {counted(plan.columns, 'column')}, {rows} side by side in each")
    for section in binding.schedule.sections:
        if section.walks > 1:
            count = f"{len(section.phases)} of {len(binding.phases)} phases"
            lines.append(f"{count} are walked {section.walks} times")
    if model.context:
        lanes = counted(plan.attention_lanes, "position")
        where = counted(plan.kv_channels, "channel")
        if plan.cache_channels not in (None, plan.kv_channels):
            where = f"{plan.cache_channels} channels each"
        lines.append(f"keys and values lie on {where}, attention takes {lanes} a cycle")
    lines += [f"{name} waits in memory on channel {channel}" for name, channel in binding.spilled.items()]
    return (*lines, *(plan.own.reasons if plan.own else ()))
