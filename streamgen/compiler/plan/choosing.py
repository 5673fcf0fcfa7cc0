"""Choose the design of a model: every factor that the configuration leaves open, for the goal, on the board.

The closed form ranks candidates by the time of the goal, and the promises of kernels tell which of them fit
the card. The best candidates are bound and placed, one after the other, until one fits. A candidate that does
not fit although it was promised to is a defect of the promise: the record of the plan counts these.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from typing import Any, TypeVar

from streamgen.base.errors import BudgetError
from streamgen.base.wording import counted
from streamgen.compiler.budget import attentions_of, budget_of, is_small, multipliers_on, policy_of
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.plan.advising import advised
from streamgen.compiler.plan.candidate import THRIFT, Candidate, differs, why_not
from streamgen.compiler.plan.closed import ClosedForm
from streamgen.compiler.plan.goals import GOALS, Goal
from streamgen.compiler.plan.grouping import GroupPlan, parts_of
from streamgen.compiler.plan.policy import hardware, limited, quantised
from streamgen.compiler.plan.promise import Blueprint, Needs
from streamgen.compiler.plan.record import By, DesignPlan, PlannedFactor
from streamgen.compiler.plan.resident import fit, over_one_slr, unfit
from streamgen.compiler.plan.rules import completed
from streamgen.compiler.plan.sketch import Sketch
from streamgen.compiler.schedule import HardwarePlan
from streamgen.model.golden_text import is_language_model
from streamgen.model.graph.logical import LogicalGraph
from streamgen.numbers.formats import MX_GROUP
from streamgen.platform.boards import Board
from streamgen.platform.capacity import RESOURCES, number

_T = TypeVar("_T")

ROWS = (*range(1, 13), 14, 16, 20, 24, 28, 32)
LANES = (16, 32, 8)
ATTENTION = (1, 2, 4, 8, 16, 32)
PREFETCH = (64, 512, 1024)  # depths between them take the same block RAM as the next
FEWER = (7 / 8, 3 / 4, 1 / 2)  # of the channels of the board

ALIKE = 0.985  # a candidate that needs this share of everything that a refused one needs is not tried
ROOM = 0.995  # share of the room on a board that promises may take
PATIENCE = 0.015  # share of the time that a longer context may cost
CROWDED = "needs more than its channels of memory have"
SLOWER = 1.2  # times the cycles of the largest network at which smaller ones are not tried any more
NEAR = 1.01  # a smaller design of a network is chosen if it takes at most so much longer


@dataclass(frozen=True, kw_only=True)
class PlannedDesign:
    """A planned design. graph: the quantised graph, with the planned context. config: every planned factor
    has a value. parts: its accelerators."""

    graph: LogicalGraph
    config: CompileConfig
    plan: DesignPlan
    parts: Sequence[GroupPlan]


def planned(
    plain: LogicalGraph,
    graph: LogicalGraph,
    asked: CompileConfig,
    config: CompileConfig,
    longest: int,
    build: Callable[[PlannedDesign], _T],
) -> tuple[PlannedDesign, _T]:
    """The best design for which `build` raises no BudgetError, and the result of `build`.

    plain, graph: before and after quantisation, with the context of `config`. asked: the configuration of the
    user. config: the same, with the context and the tokens of a pass of the graph. longest: the model's own
    context.

    Raises the first BudgetError if no candidate can be built, with what would help, and ValueError for
    factors that contradict one another.
    """
    refused: list[str] = []
    first: BudgetError | None = None
    designs = _designs(graph, asked, config, longest)
    while True:
        try:
            if (design := next(designs, None)) is None:
                break
            result = build(design)
        except BudgetError as error:
            refused.append(_line(error))
            first = first or error
            continue
        plan = replace(design.plan, refused=(*design.plan.refused, *refused))
        return replace(design, plan=completed(plan, design.graph, asked, design.config)), result
    nothing = BudgetError(f"no design of {graph.name!r} fits {config.card.name!r}")
    first = first or nothing

    def plans(other: CompileConfig) -> CompileConfig:
        sizes, short = limited(plain, other)
        design = next(_designs(quantised(short, sizes), other, sizes, longest), None)
        if design is None:
            raise nothing
        for part in design.parts if is_small(graph, asked) else ():  # others are placed already
            if over := Blueprint(part).shortage:
                raise BudgetError(over)
        return design.config

    raise advised(first, plain, asked, plans) from first


def _line(error: BudgetError) -> str:
    return str(error).partition("\n")[0]


def _designs(
    graph: LogicalGraph, asked: CompileConfig, config: CompileConfig, longest: int
) -> Iterator[PlannedDesign]:
    """Designs that fit the card as far as it is known before FIFOs have depths; the best first. For the goal
    "latency", designs whose weights stay on the chip come before all others."""
    why = ""
    if asked.goal == "latency" and asked.policy is None and not graph.context:
        why = unfit(graph, config.card)
        try:
            yield from () if why else _networks(graph, asked, replace(config, policy="resident"))
        except BudgetError as error:
            why = _line(error)
    for design in _by_policy(graph, asked, config, longest):
        factors = [replace(f, why=f.why or why) if f.name == "policy" else f for f in design.plan.factors]
        yield replace(design, plan=replace(design.plan, factors=tuple(factors)))


def _by_policy(
    graph: LogicalGraph, asked: CompileConfig, config: CompileConfig, longest: int
) -> Iterator[PlannedDesign]:
    """The designs with the configured policy, or with the default one."""
    if is_small(graph, asked):
        yield _small(graph, asked, config)
    elif policy_of(graph, config) == "shared":
        yield from _Engines(graph, asked, config, longest).designs()
    else:
        yield from _networks(graph, asked, config)


def _goal(graph: LogicalGraph, asked: CompileConfig) -> Goal:
    return GOALS[asked.goal or ("conversation" if is_language_model(graph) else "latency")]


def _small(graph: LogicalGraph, asked: CompileConfig, config: CompileConfig) -> PlannedDesign:
    """The design of a small model, or of a model that shall be small: every factor follows a rule."""
    config = replace(config, channels=config.size("channels"))
    names = ["channels", "max_tokens", *(["context"] if graph.context else [])]
    factors = [
        PlannedFactor(name, getattr(config, name), "rule", "the size of a small design")
        if getattr(asked, name) is None
        else PlannedFactor(name, getattr(config, name), "user")
        for name in names
    ]
    plan = DesignPlan(goal="small", factors=tuple(factors))
    return PlannedDesign(graph=graph, config=config, plan=plan, parts=parts_of(graph, config))


class _Engines:
    """The search for a design whose matmuls take turns on one engine. longest: the model's own context."""

    def __init__(
        self, graph: LogicalGraph, asked: CompileConfig, config: CompileConfig, longest: int
    ) -> None:
        self._graph, self._asked, self._config, self._own = graph, asked, config, longest
        self._board = config.card
        self._goal = _goal(graph, asked)
        self._passes = self._goal.passes(graph.context, config.size("max_tokens"))
        attentions = [cached for _, cached in attentions_of(graph)]
        self._attends, self._cached = bool(attentions), any(attentions)
        has = {"attention_lanes": self._attends, "cache_channels": self._cached}
        self._without = [name for name, there in has.items() if not there]
        self._blueprints: dict[tuple[int, ...], Blueprint] = {}
        self._known: list[tuple[Needs, str]] = []  # needs that have no placement, and the reason
        self._spread: dict[Needs, str] = {}  # needs whose relaxed placement was found, and its shortage
        self._refused: list[str] = []
        self._crowded: BudgetError | None = None  # of the first candidate without room in memory
        self._rooms: dict[tuple[int, ...], bool] = {}  # whether candidates have room in memory

    def designs(self) -> Iterator[PlannedDesign]:
        """Designs that have a placement, the best first."""
        ranked = self._ranked()
        if all(map(self._over, ranked)):
            others = [candidate for candidate in ranked if self._over(candidate) != CROWDED]
            if self._crowded is not None and not others:
                raise self._crowded
            raise BudgetError(self._nothing(others))
        left = [*ranked]
        while left := self._from_best(left):
            candidate, context, why = self._longest(left)
            left.remove(candidate)
            graph = replace(self._graph, context=context)
            parts = self._placed(candidate, graph)
            if isinstance(parts, str):
                self._refused.append(parts)
                self._known.append((self._needs(candidate, context), parts))
                continue
            plan = self._recorded(candidate, context, why, ranked)
            config = self._configured(candidate, context)
            yield PlannedDesign(graph=graph, config=config, plan=plan, parts=parts)

    def _nothing(self, ranked: Sequence[Candidate]) -> str:
        """Why no candidate fits: what the smallest one needs."""
        name, board = self._config.name, self._board.name
        least = min(ranked, key=lambda c: (c.plan.unit, *c.factors.values()))
        return f"{name!r} does not fit board {board!r}: the smallest design {self._over(least)}"

    def _from_best(self, left: Sequence[Candidate]) -> list[Candidate]:
        """The candidates from the first one on that is expected to fit the card."""
        first = next((k for k, candidate in enumerate(left) if not self._over(candidate)), len(left))
        return [*left[first:]]

    def _ranked(self) -> list[Candidate]:
        """All candidates, the best first. Fewer channels and other lanes are candidates with the rows that
        are best with all channels and 16 lanes, and with a few rows more or less."""
        most = self._asked.channels or self._board.hbm.channels
        if (multipliers := self._asked.multipliers) is not None:
            n = self._asked.n_lanes or 1
            if (needed := 2 * n * MX_GROUP) > multipliers:
                given = f" and CompileConfig.n_lanes is {n}" if self._asked.n_lanes else ""
                raise BudgetError(
                    f"CompileConfig.multipliers is {multipliers:,}{given}, but an engine of 2 columns with "
                    f"{counted(n, 'row')} in each needs {needed:,} multipliers"
                )
            most = min(most, multipliers // (MX_GROUP * n))
        most = max(1, most - most % 2)
        least = self._asked.attention_lanes or (1 if self._attends else None)
        asked = replace(self._config, channels=most, attention_lanes=least)
        # raises errors of factors that contradict one another
        hardware(self._graph, budget_of(asked, self._graph))
        rows = (self._asked.n_lanes,) if self._asked.n_lanes else ROWS
        lanes = (self._asked.lanes,) if self._asked.lanes else LANES
        ranked = sorted(self._candidates(most, lanes[0], rows), key=lambda c: c.score)
        best = next((c.plan.n_lanes for c in ranked if not self._over(c)), rows[0])
        near = [n for n in rows if abs(rows.index(n) - rows.index(best)) <= 2]
        fewer = () if self._asked.channels else [int(most * share) // 2 * 2 for share in FEWER]
        for channels, width in (
            *((most, width) for width in lanes[1:]),
            *((count, lanes[0]) for count in fewer if count),
        ):
            ranked += self._candidates(channels, width, near)
        return sorted(ranked, key=lambda c: c.score)

    def _candidates(self, channels: int, lanes: int, rows: Sequence[int]) -> Iterator[Candidate]:
        """The candidates with some channels and lanes. rows: of a column, ascending; the first number of rows
        for which the columns alone do not fit the board is the last."""
        asked = self._asked
        for n in rows:
            if asked.multipliers is not None and channels * n * MX_GROUP > asked.multipliers:
                continue
            config = replace(
                self._config,
                channels=channels,
                n_lanes=n,
                lanes=lanes,
                multipliers=channels * n * MX_GROUP,
                attention_lanes=1 if self._attends else None,
                cache_channels=None,
            )
            base = hardware(self._graph, budget_of(config, self._graph))
            form = ClosedForm(self._graph, base, config.memory)
            for plan in self._variants(base):
                cycles = sum(
                    form.cycles(run.tokens, run.position, plan, logits=run.logits) * run.count
                    for run in self._passes
                )
                factors = (plan.lanes, plan.attention_lanes, plan.cache_channels or 1, plan.prefetch)
                doublings = sum(value.bit_length() for value in factors) + plan.n_lanes / 8
                yield Candidate(cycles * (1 + THRIFT * doublings), cycles, plan, form)
            columns = form.engine.params.resources * channels
            if self._short(Needs(columns, columns * 0)):
                break

    def _variants(self, base: HardwarePlan) -> Iterator[HardwarePlan]:
        """The plans with all choices for attention, caches and prefetch."""
        asked = self._asked
        depths = (asked.prefetch_beats,) if asked.prefetch_beats else PREFETCH
        positions = (
            (asked.attention_lanes,) if asked.attention_lanes else ATTENTION if self._attends else (1,)
        )
        channels = (asked.cache_channels,) if asked.cache_channels else ATTENTION
        for lanes, count, depth in product(positions, channels if self._cached else (None,), depths):
            if count is None or lanes <= count <= base.kv_channels:
                yield replace(base, attention_lanes=lanes, cache_channels=count, prefetch=depth)

    def _configured(self, candidate: Candidate, context: int) -> CompileConfig:
        """The configuration of a candidate."""
        plan = candidate.plan
        factors: dict[str, Any] = candidate.factors | dict.fromkeys(self._without)
        multipliers = self._asked.multipliers or plan.unit * MX_GROUP
        return replace(self._config, **factors, multipliers=multipliers, context=context or None)

    def _placed(self, candidate: Candidate, graph: LogicalGraph) -> Sequence[GroupPlan] | str:
        """The accelerator of a candidate, or the reason why it does not fit the card."""
        try:
            parts = parts_of(graph, self._configured(candidate, graph.context))
            return next((why for part in parts if (why := Blueprint(part).shortage)), parts)
        except BudgetError as error:
            return _line(error)

    def _blueprint(self, candidate: Candidate, *more: int) -> Blueprint:
        """The bound design with the channels and lanes of a candidate. more: other factors of the candidate
        that the design shares."""
        plan = candidate.plan
        key = plan.columns, plan.lanes, *more
        if key not in self._blueprints:
            config = self._configured(candidate, self._graph.context)
            (part,) = parts_of(self._graph, config)
            self._blueprints[key] = Blueprint(part)
        return self._blueprints[key]

    def _needs(self, candidate: Candidate, context: int | None = None) -> Needs:
        plan = candidate.plan if context is None else replace(candidate.plan, context=context)
        return self._blueprint(candidate).needs_of(plan, candidate.form)

    def _over(self, candidate: Candidate, context: int | None = None) -> str:
        """The reason why a candidate is not expected to fit the card; empty if it is."""
        if self._crowded is not None and not self._has_room(candidate, context):
            return CROWDED
        try:
            return self._shortage(candidate, context)
        except BudgetError as error:
            hbm = self._board.hbm
            if not 0 < error.needed_bytes <= hbm.channels * hbm.channel_bytes:
                raise
            self._crowded = self._crowded or error
            return CROWDED

    def _shortage(self, candidate: Candidate, context: int | None) -> str:
        """The same for a candidate with room in memory. Raises BudgetError if it has none."""
        needs = self._needs(candidate, context)
        if short := self._short(needs):
            return short
        for other, why in self._known:
            pairs = [(getattr(needs.all, name), getattr(other.all, name)) for name in RESOURCES]
            if all(mine >= ALIKE * theirs for mine, theirs in pairs):
                return why
        if needs not in self._spread:
            plan = candidate.plan if context is None else replace(candidate.plan, context=context)
            bound = self._blueprint(candidate, plan.n_lanes, plan.attention_lanes)
            self._spread[needs] = bound.shortage_of(plan, candidate.form)
            if self._spread[needs]:
                self._known.append((needs, self._spread[needs]))
        return self._spread[needs]

    def _has_room(self, candidate: Candidate, context: int | None) -> bool:
        """Whether the contents of memory of a candidate have a place."""
        plan = candidate.plan
        length = self._graph.context if context is None else context
        key = plan.columns, plan.cache_channels or 0, length
        if key not in self._rooms:
            try:
                parts = parts_of(replace(self._graph, context=length), self._configured(candidate, length))
                self._rooms[key] = all(part.derivation.largest for part in parts)
            except BudgetError:
                self._rooms[key] = False
        return self._rooms[key]

    def _short(self, needs: Needs) -> str:
        """The resource that is most short, with the amounts."""
        board = self._board
        home = board.home.resources
        places = ((needs.all, board.resources, ""), (needs.fixed, home, f" at the memory ({board.hbm.slr})"))
        worst, text = 1.0, ""
        for needed, there, where in places:
            for name, title in RESOURCES.items():
                need, room = getattr(needed, name), getattr(there, name) * board.fill
                if need > ROOM * room * worst:
                    worst = need / (ROOM * room) if room else inf
                    text = f"needs {number(round(need))} of {number(int(room))} {title}{where}"
        return text

    def _longest(self, left: Sequence[Candidate]) -> tuple[Candidate, int, str]:
        """Of the candidates that are nearly as good as the first, the first with the longest context; this
        context, and why it is not longer."""
        context, why = self._own, ""
        if not self._graph.context or self._asked.context is not None:
            return left[0], self._graph.context, why
        most = (1 + PATIENCE) * left[0].score
        near = [candidate for candidate in left if candidate.score <= most]
        while context > self._graph.context:
            short = ""
            for candidate in near:
                if not (reason := self._over(candidate, context)):
                    return candidate, context, why
                short = short or reason
            why = f"{context:,} {short}"
            context = max(context // 2, self._graph.context)
        return left[0], self._graph.context, why

    def _recorded(
        self, candidate: Candidate, context: int, why: str, ranked: Sequence[Candidate]
    ) -> DesignPlan:
        """The record of the plan."""
        asked = self._asked
        by_factors = {tuple(c.factors.values()): c for c in ranked}
        chosen = candidate.factors
        factors = [PlannedFactor("policy", "shared", "user" if asked.policy else "rule")]
        for name, value in chosen.items():
            if getattr(asked, name) is not None:
                factors.append(PlannedFactor(name, value, "user"))
            elif name not in self._without:
                factors.append(
                    PlannedFactor(name, value, "search", self._next(candidate, name, context, by_factors))
                )
        given = asked.max_tokens is not None
        factors.append(PlannedFactor("max_tokens", self._config.max_tokens, "user" if given else "rule"))
        if context:
            own = f"the model was read for {self._own:,}"
            by: By = "search" if asked.context is None else "user"
            factors.append(PlannedFactor("context", context, by, f"{own}; {why}" if why else own))
        return DesignPlan(
            goal=self._goal.name,
            factors=tuple(factors),
            ranked=len(ranked),
            refused=tuple(self._refused),
            cycles=candidate.cycles,
        )

    def _next(
        self, candidate: Candidate, name: str, context: int, by_factors: dict[tuple[int, ...], Candidate]
    ) -> str:
        """Why a factor does not have its next larger value. context: the planned one."""
        chosen = candidate.factors
        others = [c for c in by_factors.values() if differs(c.factors, chosen, name)]
        larger = min(
            (c for c in others if c.factors[name] > chosen[name]), key=lambda c: c.factors[name], default=None
        )
        if larger is None:
            return "the most there is"
        if why := self._over(larger):
            return f"{larger.factors[name]:,} {why}"
        short = self._over(larger, context) if larger.score < candidate.score else ""
        return why_not(larger, candidate, name, context, short)


def _networks(graph: LogicalGraph, asked: CompileConfig, config: CompileConfig) -> Iterator[PlannedDesign]:
    """Designs of a model whose matmuls have hardware of their own, the best first. The multipliers become
    fewer as long as the design does not fit, and then down to a design that is clearly slower."""
    most = asked.channels or config.card.hbm.channels
    policy = policy_of(graph, config)
    resident = policy == "resident"
    budgets = [asked.multipliers] if asked.multipliers else _multipliers(config.card, resident)
    placed: list[tuple[float, PlannedDesign]] = []
    refused: list[str] = []
    first: BudgetError | None = None
    goal = _goal(graph, asked)
    passes = goal.passes(graph.context, config.size("max_tokens"))
    reason = fit(graph, config.card) if resident and not asked.policy else ""
    for multipliers in budgets:
        tried = replace(config, channels=most, multipliers=multipliers)
        try:
            parts = parts_of(graph, tried)
            prints = [Blueprint(part) for part in parts]
            short = next((why for each in prints if (why := each.shortage)), "")
            if resident and not short and not asked.multipliers:
                short = over_one_slr(prints[0].needs.all, config.card)
        except BudgetError as error:
            first, short = first or error, _line(error)
        if short:
            refused.append(f"{multipliers:,} {short}")
            continue
        sketches = [Sketch(part) for part in parts]
        cycles = sum(
            run.count * sketch.cycles(run.tokens, run.position) for run in passes for sketch in sketches
        )
        why = refused[-1] if refused else ""
        factors = (
            PlannedFactor("policy", policy, "user" if asked.policy else "rule", reason),
            PlannedFactor("channels", most, "user" if asked.channels else "rule"),
            PlannedFactor("multipliers", multipliers, "user" if asked.multipliers else "search", why),
            PlannedFactor("max_tokens", config.max_tokens, "user" if asked.max_tokens else "rule"),
        )
        plan = DesignPlan(goal=goal.name, factors=factors, ranked=len(budgets), cycles=cycles)
        placed.append((cycles, PlannedDesign(graph=graph, config=tried, plan=plan, parts=parts)))
        if cycles > SLOWER * placed[0][0]:
            break
    if not placed:
        name, board = config.name, config.card.name
        raise first or BudgetError(
            f"{name!r} does not fit board {board!r}: the design with multipliers={refused[-1]}"
        )
    least = min(cycles for cycles, _ in placed)
    near = [design for cycles, design in placed if cycles <= NEAR * least]
    rest = [design for cycles, design in placed if cycles > NEAR * least]
    yield from (*reversed(near), *rest)


def _multipliers(board: Board, resident: bool) -> list[int]:
    """The numbers of multipliers that are tried, the largest first: powers of two on the whole board or, for
    weights that stay on the chip, eighths of what one SLR has room for. For a board without
    DSPs it is one number."""
    if resident:
        rows = int(2 * board.home.resources.dsp * board.fill) // MX_GROUP
        return sorted({max(1, rows * eighths // 8) * MX_GROUP for eighths in range(8, 0, -1)}, reverse=True)
    top = multipliers_on(board)
    return [top >> k for k in range(8) if top >> k >= MX_GROUP] or [MX_GROUP]
