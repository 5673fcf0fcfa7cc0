"""Estimate the design of a model on a board without Verilog: cycles, their bounds, resources, memory.

    estimate: import -> quantise -> policy, schedule, bind, steer, forks, converters, place, FIFO depths
              -> outline: descriptors, buffers -> predicted passes

These are the passes of `compile` before the emission, so the resources are those of `compile`. The cycles are
those of `predict`. Weights without values are views of a single number (`frontend.shapes`).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from functools import partial, reduce
from operator import add
from typing import Any

from streamgen.api.energy import LEAST, LIKELY, MOST, EnergyFigures, energy
from streamgen.artifact.manifest import MemoryTiming
from streamgen.artifact.roles import BEST, KEEP, USES
from streamgen.base.collector import collector_at_rest
from streamgen.base.extras import needed
from streamgen.base.progress import Progress, step, told
from streamgen.base.threads import side_by_side
from streamgen.base.turns import one_at_a_time
from streamgen.compiler.budget import budget_of, is_small
from streamgen.compiler.config import CompileConfig, checked_config
from streamgen.compiler.emit import Outline, outline, place_program, promised, require_fit
from streamgen.compiler.explore import Known, phase_cycles
from streamgen.compiler.explore.bound import pass_cycles
from streamgen.compiler.plan.choosing import PlannedDesign, planned
from streamgen.compiler.plan.closed import ClosedForm
from streamgen.compiler.plan.grouping import GroupPlan
from streamgen.compiler.plan.policy import choices, finished, limited, quantised
from streamgen.compiler.plan.sketch import larger
from streamgen.contract.cost import Resources
from streamgen.model.golden_text import is_language_model
from streamgen.model.graph import Graph
from streamgen.model.graph.logical import LogicalGraph
from streamgen.observe.estimate import Estimate, PassEstimate, headline
from streamgen.observe.report import GroupFacts
from streamgen.observe.summary import group_facts, intermediate_memory
from streamgen.observe.timing import predicted_pass

EVEN = 0.01  # share of a prompt by which passes on a straight line may differ from it
PROMPTS = (128, 1024)  # tokens of the prompts whose first token is estimated by default
WORTH_SAYING = 0.02  # gain in speed from which on a change is advice
_STEPS = 5  # steps of an estimate in progress messages


@one_at_a_time
def estimate(
    model: Any,
    example_inputs: Any = None,
    config: CompileConfig | None = None,
    progress: Progress | None = None,
    *,
    positions: Sequence[int] | None = None,
    prompts: Sequence[int] | None = None,
) -> Estimate:
    """Estimate the design that `compile` would make of a model, without Verilog and without weights.

    model: a model for `compile`, a config.json of transformers, a folder with only a config.json, or a module
    on torch's meta device. positions: positions of a text at which a step of one token is estimated; by
    default the first, the middle and the last position of the context. prompts: numbers of prompt tokens for
    which the time to the first token is estimated; by default 128 and 1,024, or the whole context.

    Raises the errors of `compile`, CheckpointError for a config.json of an unknown language model, and
    ValueError for positions or prompts outside the context.
    """
    asked = checked_config(config)
    seconds: dict[str, float] = {}
    with told(progress) as tell, collector_at_rest():
        with _timed("import", seconds):
            tell(step(1, _STEPS, "reading the model"))
            graph = imported(model, example_inputs, asked)
        text, longest = is_language_model(graph), graph.context
        config, graph = limited(graph, asked)
        planned_context = asked.context is None and not is_small(graph, asked)
        _asked(positions, prompts, longest if planned_context else graph.context, 1, text)
        with _timed("quantise", seconds):
            plain, graph = graph, quantised(graph, config)

        def build(design: PlannedDesign) -> list[_Built]:
            return [_Built(part, tell, seconds) for part in design.parts]

        with _timed("plan", seconds):
            tell(step(2, _STEPS, "planning the design"))
            design, built = planned(plain, graph, asked, config, longest, build)
        for stage in ("schedule, bind, steer", "converters, place, size", "resources"):
            seconds["plan"] -= seconds[stage]  # of the designs that were built
        config = design.config
        steps, firsts = _asked(positions, prompts, design.graph.context, config.size("max_tokens"), text)
        most = config.size("max_tokens")
        tell(step(5, _STEPS, "predicting passes"))
        with _timed("predict", seconds):
            if text:
                built[0].predict(_wanted(steps, firsts, most))
            passes = _steps(built[0], steps, most) if text else _passes(built, most)
            first, least = (
                {tokens: _prompt(cycles, tokens, most) for tokens in firsts}
                for cycles in (built[0].cycles, built[0].bound)
            )
    return Estimate(
        name=graph.name,
        plan=design.plan,
        context=design.graph.context,
        weights=sum(n * k for _, matmul in graph.matmuls() for n, k in (matmul.extents,)),
        weight_bytes=sum(
            b.bytes for group in built for b in group.outline.buffers if b.role in USES["weights"]
        ),
        bandwidth=config.card.hbm.rate,
        data_sheet=config.card.hbm.data_sheet,
        joules=_joules(built, headline(passes, text=text), config, LIKELY),
        joules_range=(
            _joules(built, headline(passes, text=text), config, LEAST),
            _joules(built, headline(passes, text=text), config, MOST),
        ),
        watts=config.card.watts,
        advice=_advice(plain, design, asked, passes) if text else (),
        board=config.card.name,
        clock_mhz=config.clock_mhz,
        groups=tuple(group.estimate() for group in built),
        memory=intermediate_memory([group.program.graph for group in built]),
        passes=passes,
        first_tokens=first,
        first_bounds=least,
        seconds=seconds,
    )


def _joules(
    built: Sequence["_Built"], passes: Sequence[PassEstimate], config: CompileConfig, figures: EnergyFigures
) -> float:
    """Energy of passes in joules, of at most the power of the card."""
    used = reduce(larger, (reduce(add, group.resources.values()) for group in built))
    phases = [phase for run in passes for phase in run.phases]
    cycles = sum(phase.cycles for phase in phases)
    joules = energy(
        config.card,
        config.clock_mhz,
        cycles=cycles,
        products=sum(phase.products for phase in phases),
        bits=8.0 * sum(phase.bytes for phase in phases),
        luts=used.lut,
        figures=figures,
    )
    return min(joules, config.card.watts * cycles / (config.clock_mhz * 1e6))


def _advice(
    plain: LogicalGraph, design: PlannedDesign, asked: CompileConfig, passes: Sequence[PassEstimate]
) -> tuple[str, ...]:
    """Formats that make steps faster, each tried in closed form on the same design. plain: the graph before
    quantisation."""
    if design.config.policy not in (None, "shared") or design.plan.cycles is None:
        return ()
    position = passes[0].position
    budget = budget_of(design.config, design.graph)
    hardware = design.parts[0].derivation.plan
    now = ClosedForm(design.graph, hardware, budget.memory).cycles(1, position)
    speed = design.config.clock_mhz * 1e6 / passes[0].cycles
    advice = []
    for name in ("head", "weights"):
        if getattr(asked, name) == "w4":
            continue
        smaller: dict[str, Any] = {name: "w4"}
        longer = replace(plain, context=design.graph.context)
        other = quantised(longer, replace(design.config, **smaller))
        gain = now / ClosedForm(other, hardware, budget.memory).cycles(1, position) - 1
        if gain > WORTH_SAYING:
            text = f"--{name} w4, which is less accurate: about {speed * (1 + gain):,.0f} tokens/s"
            advice.append(f"{text} at position {position:,}")
    return tuple(advice)


def imported(model: Any, example_inputs: Any, config: CompileConfig) -> LogicalGraph:
    """The logical graph of a model that `estimate` takes."""
    if isinstance(model, LogicalGraph):
        return model
    with needed("estimating a model"):
        from streamgen.model.frontend import checking, shapes_of  # torch takes seconds to load

        with checking(config.check_import):
            return shapes_of(model, example_inputs, config.size("max_tokens"), config.context)


def _asked(
    positions: Sequence[int] | None, prompts: Sequence[int] | None, context: int, most: int, text: bool
) -> tuple[Sequence[int], Sequence[int]]:
    """Check positions and prompts, and fill in the defaults. most: tokens of the largest pass. Raises
    ValueError for values out of range."""
    if not text:
        if positions or prompts:
            raise ValueError(
                "positions and prompts are for language models, and this model is not a language model"
            )
        return (), ()
    last = context - 1
    if positions is None:
        positions = tuple(dict.fromkeys((0, context // 2, last)))
    if prompts is None:
        prompts = tuple(dict.fromkeys(min(tokens, context) for tokens in PROMPTS))
    for name, values, least, most in (
        ("positions", positions, 0, last),
        ("prompts", prompts, 1, context),
    ):
        for value in values:
            if not least <= value <= most:
                raise ValueError(f"{name} has {value}; {least} to {most} are allowed")
    return tuple(positions), tuple(prompts)


class _Built:
    """A group, built up to its outline."""

    def __init__(self, part: GroupPlan, tell: Progress, seconds: dict[str, float]) -> None:
        self.budget, binding = part.budget, part.derivation
        self._part = part
        with _timed("schedule, bind, steer", seconds):
            tell(step(3, _STEPS, f"{self.budget.name}: phases, kernels"))
            self.choices = choices(binding, part.model)
            _ = binding.largest
            self.names = tuple(binding.phases)

        def counted(stage: str, done: int, goal: int) -> None:
            tell(step(4, _STEPS, f"{self.budget.name}: {stage}, {done} of {goal}"))

        with _timed("converters, place, size", seconds):
            place = partial(place_program, budget=self.budget)
            self.program, _ = finished(binding, part.model, self.budget.sizing, place, counted=counted)
        with _timed("resources", seconds):
            self.outline: Outline = outline(self.program, self.budget, ends=True)
            self.placement = require_fit(self.budget.name, self.outline.top, self.budget.board)
            self.resources: dict[str, Resources] = promised(self.outline.top)
        rate = self.budget.board.hbm.beats_per_cycle(self.budget.clock_mhz)
        latency = self.budget.board.hbm.latency
        self.memory = MemoryTiming(beats=rate.numerator, cycles=rate.denominator, latency=latency)
        self._predicted: dict[tuple[int, int, str | None], tuple[int, ...]] = {}
        self._known = Known()

    def cycles(self, tokens: int, position: int = 0, variant: str | None = None) -> int:
        """Predicted cycles of a pass, as in `Accelerator.predict`."""
        return sum(self._by_phase(tokens, position, variant))

    def bound(self, tokens: int, position: int = 0, variant: str | None = None) -> float:
        """The fewest cycles in which memory channels and multipliers can do a pass."""
        rate = Fraction(self.memory.beats, self.memory.cycles)
        return pass_cycles(self._run(tokens, position, variant)[0], rate)

    def timed(self, tokens: int, position: int = 0, variant: str | None = None) -> PassEstimate:
        """Predict a pass, phase by phase."""
        return predicted_pass(
            self.budget.name,
            self.names,
            self._run(tokens, position, variant)[0],
            self._by_phase(tokens, position, variant),
            self.memory,
            tokens=tokens,
            position=position,
            clocks=self._known.clocks,
        )

    def estimate(self) -> GroupFacts:
        """The facts that are known without a run."""
        return group_facts(
            self.program.graph,
            name=self.budget.name,
            choices=self.choices,
            board=self.budget.board,
            parts=self.resources,
            slrs=self.placement.used,
            crossings=self.placement.crossings,
            buffers=self.outline.buffers,
        )

    def predict(self, passes: Sequence[tuple[int, int, str]]) -> None:
        """Predict passes in parallel threads, because C code runs a pass. passes: tokens, position and
        variant of each."""
        side_by_side(lambda arguments: self._by_phase(*arguments), passes)

    def _by_phase(self, tokens: int, position: int, variant: str | None) -> tuple[int, ...]:
        key = tokens, position, variant
        if key not in self._predicted:
            with self._known.turn:
                run = self._run(*key)
            self._predicted[key] = phase_cycles(*run, self._known)
        return self._predicted[key]

    def _run(self, tokens: int, position: int, variant: str | None) -> tuple[Graph, Any, MemoryTiming, int]:
        encoding = self.outline.top.encoding
        table = encoding.table if variant is None else encoding.variants[variant]
        tiles = -(-tokens // self.program.token_lanes)
        return (
            self.program.at(tiles, position, variant),
            table,
            self.memory,
            self.outline.top.control_channel,
        )


def _steps(built: _Built, positions: Sequence[int], most: int) -> tuple[PassEstimate, ...]:
    """A step of one token at each position, and the largest pass, of `most` tokens, at position 0."""
    passes = [built.timed(1, position, BEST) for position in positions]
    if most > 1:
        passes.append(built.timed(most, 0, BEST))
    return tuple(passes)


def _wanted(positions: Sequence[int], prompts: Sequence[int], most: int) -> list[tuple[int, int, str]]:
    """The first passes that `_steps` and `_prompt` ask for, the longest first."""
    passes = {(1, position, BEST) for position in positions} | {(most, 0, BEST)}
    for tokens in prompts:
        kept, rest = _split(tokens, most)
        passes |= {(most, number * most, KEEP) for number in {0, (kept - 1) // 2, kept - 1} if kept}
        passes.add((rest, kept * most, BEST))
    return sorted(passes, reverse=True)


def _split(tokens: int, most: int) -> tuple[int, int]:
    """The number of full passes of a prompt before its last pass, and the tokens of the last pass."""
    kept = (tokens - 1) // most
    return kept, tokens - kept * most


def _passes(built: Sequence[_Built], most: int) -> tuple[PassEstimate, ...]:
    """The smallest and the largest pass of every group."""
    return tuple(group.timed(tokens) for group in built for tokens in dict.fromkeys((1, most)))


def _prompt(cycles: Callable[[int, int, str], float], tokens: int, most: int) -> int:
    """The cycles of all passes of a prompt. cycles: function from tokens, position and variant to the cycles
    of a pass. It is called only for some of many full passes. The passes between two of them are interpolated
    unless this changes the prompt by more than `EVEN`."""

    def full(number: int) -> float:
        return cycles(most, number * most, KEEP)

    def between(first: int, last: int) -> float:
        """Cycles of the full passes after `first` and before `last`."""
        if last - first < 2:
            return 0.0
        middle = (first + last) // 2
        evenly = full(first) + (full(last) - full(first)) * (middle - first) / (last - first)
        if abs(full(middle) - evenly) * (last - first) <= EVEN * kept * full(middle):
            sides = (middle - first - 1, full(first)), (last - middle - 1, full(last))
            return full(middle) + sum(count * (full(middle) + end) / 2 for count, end in sides)
        return between(first, middle) + full(middle) + between(middle, last)

    kept, rest = _split(tokens, most)
    total = cycles(rest, kept * most, BEST)
    if kept:
        total += full(0) + (full(kept - 1) if kept > 1 else 0) + between(0, kept - 1)
    return round(total)


@contextmanager
def _timed(stage: str, seconds: dict[str, float]) -> Iterator[None]:
    """Add the processor time of the context to a stage, in seconds."""
    start = time.process_time()
    yield
    seconds[stage] = seconds.get(stage, 0.0) + time.process_time() - start
