"""What a model would do on a board, before any Verilog: cycles, what bounds them, resources, memory.

    estimate: import -> quantise -> policy, schedule, bind, steer, forks, converters, place, FIFO depths
              -> outline: descriptors, buffers -> predicted passes

These are the passes of `compile` up to the emission, so resources are those of `compile`; cycles are those of
`predict`. Weights without values stay views of one number (`frontend.shapes`).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import partial
from typing import Any

from streamgen.artifact.manifest import MemoryTiming
from streamgen.artifact.roles import BEST, KEEP
from streamgen.base.collector import collector_at_rest
from streamgen.base.extras import needed
from streamgen.base.progress import Progress, step, told
from streamgen.base.threads import side_by_side
from streamgen.base.turns import one_at_a_time
from streamgen.compiler.config import CompileConfig, checked_config
from streamgen.compiler.emit import Outline, outline, place_program, promised, require_fit
from streamgen.compiler.explore import Known, phase_cycles
from streamgen.compiler.explore.bound import pass_cycles
from streamgen.compiler.plan.grouping import GroupPlan, parts_of
from streamgen.compiler.plan.policy import choices, finished, limited, quantised
from streamgen.contract.cost import Resources
from streamgen.model.golden_text import is_language_model
from streamgen.model.graph import Graph
from streamgen.model.graph.logical import LogicalGraph
from streamgen.observe.estimate import Estimate, PassEstimate
from streamgen.observe.report import GroupFacts
from streamgen.observe.summary import group_facts, intermediate_memory
from streamgen.observe.timing import predicted_pass

EVEN = 0.02  # of a pass of a prompt, by which the one in the middle may differ from the mean of others
_STEPS = 5  # as progress tells them


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
    which the time to the first token is estimated; by default one pass, and half of the context.

    Raises the errors of `compile`, CheckpointError for a config.json of an unknown language model, and
    ValueError for positions or prompts outside the context.
    """
    config = checked_config(config)
    seconds: dict[str, float] = {}
    with told(progress) as tell, collector_at_rest():
        with _timed("import", seconds):
            tell(step(1, _STEPS, "reading the model"))
            graph = imported(model, example_inputs, config)
        text = is_language_model(graph)
        config, graph = limited(graph, config)
        steps, firsts = _asked(positions, prompts, config, text)
        with _timed("quantise", seconds):
            graph = quantised(graph, config)
        with _timed("explore", seconds):
            tell(step(2, _STEPS, "choosing groups, lanes and columns"))
            parts = parts_of(graph, config)
        built = [_Built(part, tell, seconds) for part in parts]
        tell(step(5, _STEPS, "predicting passes"))
        with _timed("predict", seconds):
            if text:
                built[0].predict(_wanted(steps, firsts, config.max_tokens))
            passes = _steps(built[0], steps, config) if text else _passes(built, config.max_tokens)
            first, least = (
                {tokens: _prompt(of, tokens, config.max_tokens) for tokens in firsts}
                for of in (built[0].cycles, built[0].bound)
            )
    return Estimate(
        name=graph.name,
        board=config.card.name,
        clock_mhz=config.clock_mhz,
        groups=tuple(one.estimate() for one in built),
        memory=intermediate_memory([one.program.graph for one in built]),
        passes=passes,
        first_tokens=first,
        first_bounds=least,
        seconds=seconds,
    )


def imported(model: Any, example_inputs: Any, config: CompileConfig) -> LogicalGraph:
    """The logical graph of what `estimate` takes."""
    if isinstance(model, LogicalGraph):
        return model
    with needed("estimating a model"):
        from streamgen.model.frontend import checking, shapes_of  # torch takes seconds to load

        with checking(config.check_import):
            return shapes_of(model, example_inputs, config.max_tokens, config.context)


def _asked(
    positions: Sequence[int] | None, prompts: Sequence[int] | None, config: CompileConfig, text: bool
) -> tuple[Sequence[int], Sequence[int]]:
    """Positions and prompts, checked; ValueError."""
    if not text:
        if positions or prompts:
            raise ValueError("positions and prompts are for language models; this model is none")
        return (), ()
    last = config.context - 1
    if positions is None:
        positions = tuple(dict.fromkeys((0, config.context // 2, last)))
    if prompts is None:
        prompts = tuple(dict.fromkeys((config.max_tokens, max(1, config.context // 2))))
    for what, values, least, most in (
        ("positions", positions, 0, last),
        ("prompts", prompts, 1, config.context),
    ):
        for value in values:
            if not least <= value <= most:
                raise ValueError(f"{what} has {value}; {least} to {most} are allowed")
    return tuple(positions), tuple(prompts)


class _Built:
    """A group up to its outline."""

    def __init__(self, part: GroupPlan, tell: Progress, seconds: dict[str, float]) -> None:
        self.budget, binding = part.budget, part.derivation
        self._part = part
        with _timed("schedule, bind, steer", seconds):
            tell(step(3, _STEPS, f"{self.budget.name}: phases, kernels"))
            self.choices = choices(binding, part.model)
            _ = binding.largest
            self.names = tuple(binding.phases)

        def counted(what: str, done: int, goal: int) -> None:
            tell(step(4, _STEPS, f"{self.budget.name}: {what}, {done} of {goal}"))

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
        """Of a pass, as `Accelerator.predict` has them."""
        return sum(self._by_phase(tokens, position, variant))

    def bound(self, tokens: int, position: int = 0, variant: str | None = None) -> float:
        """Cycles that channels and multipliers need at least for a pass."""
        rate = Fraction(self.memory.beats, self.memory.cycles)
        return pass_cycles(self._run(tokens, position, variant)[0], rate)

    def timed(self, tokens: int, position: int = 0, variant: str | None = None) -> PassEstimate:
        """A pass, phase by phase."""
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
        """Tokens, position and variant of each: side by side, since the run of a pass is C code."""
        side_by_side(lambda one: self._by_phase(*one), passes)

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


def _steps(built: _Built, positions: Sequence[int], config: CompileConfig) -> tuple[PassEstimate, ...]:
    """A token at each position, and the largest pass at the first."""
    found = [built.timed(1, position, BEST) for position in positions]
    if config.max_tokens > 1:
        found.append(built.timed(config.max_tokens, 0, BEST))
    return tuple(found)


def _wanted(positions: Sequence[int], prompts: Sequence[int], most: int) -> list[tuple[int, int, str]]:
    """The passes that `_steps` and `_prompt` begin with, the longest first."""
    found = {(1, position, BEST) for position in positions} | {(most, 0, BEST)}
    for tokens in prompts:
        kept, rest = _split(tokens, most)
        found |= {(most, number * most, KEEP) for number in {0, (kept - 1) // 2, kept - 1} if kept}
        found.add((rest, kept * most, BEST))
    return sorted(found, reverse=True)


def _split(tokens: int, most: int) -> tuple[int, int]:
    """Whole passes of a prompt before its last one, and the tokens of that."""
    kept = (tokens - 1) // most
    return kept, tokens - kept * most


def _passes(built: Sequence[_Built], most: int) -> tuple[PassEstimate, ...]:
    """The least and the largest pass of every group."""
    return tuple(one.timed(tokens) for one in built for tokens in dict.fromkeys((1, most)))


def _prompt(of: Callable[[int, int, str], float], tokens: int, most: int) -> int:
    """The sum over all passes of a prompt of what `of` says of tokens, position and variant. Of many whole
    passes some are asked for: between two of them it grows evenly, where the one in the middle says so."""

    def one(number: int) -> float:
        return of(most, number * most, KEEP)

    def between(first: int, last: int) -> float:
        """Of the passes behind `first` and before `last`."""
        if last - first < 2:
            return 0.0
        middle = (first + last) // 2
        evenly = one(first) + (one(last) - one(first)) * (middle - first) / (last - first)
        if abs(one(middle) - evenly) <= EVEN * one(middle):
            ways = (middle - first - 1, one(first)), (last - middle - 1, one(last))
            return one(middle) + sum(count * (one(middle) + end) / 2 for count, end in ways)
        return between(first, middle) + one(middle) + between(middle, last)

    kept, rest = _split(tokens, most)
    total = of(rest, kept * most, BEST)
    if kept:
        total += one(0) + (one(kept - 1) if kept > 1 else 0) + between(0, kept - 1)
    return round(total)


@contextmanager
def _timed(stage: str, seconds: dict[str, float]) -> Iterator[None]:
    """Adds the processor time of what is done in it."""
    start = time.process_time()
    yield
    seconds[stage] = seconds.get(stage, 0.0) + time.process_time() - start
