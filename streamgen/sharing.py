"""Accelerators whose operations take turns on shared hardware: what is chosen, and the program of a model.

The matmuls share one engine with a column a memory channel, other operations that are alike a kernel each
(`streamgen.schedule`).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from streamgen.config import CompileConfig
from streamgen.errors import BudgetError
from streamgen.graph import Program
from streamgen.graph.logical import LogicalGraph
from streamgen.lower import finish
from streamgen.numbers.formats import MX_GROUP
from streamgen.progress import After
from streamgen.runtime.generation import BEST
from streamgen.schedule import Derivation, EnginePlan

__all__ = ["choices", "derived", "engine_plan", "finished"]

PREFETCH = 1024  # beats of a column's codes: what the greatest gaps between phases take
MOST_LANES = 16  # elements a cycle between matmuls


def engine_plan(config: CompileConfig, context: int) -> EnginePlan:
    """The engine that the budgets allow: an even number of columns, and rows side by side as many as may be.

    context: positions of a text, 0 where nothing depends on them. BudgetError when the budgets hold no
    engine.
    """
    rows = config.n_lanes
    columns = min(config.channels, config.multipliers // MX_GROUP if rows is None else config.channels)
    columns -= columns % 2
    if not columns:
        raise BudgetError(
            f"a shared engine needs 2 channels and {2 * MX_GROUP} multipliers; CompileConfig.channels is "
            f"{config.channels}, CompileConfig.multipliers {config.multipliers}"
        )
    if rows is None:
        rows = 1 << ((config.multipliers // (columns * MX_GROUP)).bit_length() - 1)
    lanes = min(MOST_LANES, 1 << (rows.bit_length() - 1)) if config.lanes is None else config.lanes
    return EnginePlan(
        max_tokens=config.max_tokens,
        context=context,
        columns=columns,
        n_lanes=rows,
        lanes=lanes,
        kv_channels=1 << (columns.bit_length() - 1),
        prefetch=config.prefetch_beats or PREFETCH,
        fabric=config.card.fabric,
    )


def derived(model: LogicalGraph, config: CompileConfig) -> Derivation:
    """The binding of a quantised model. Errors: those of `Derivation` and `engine_plan`."""
    rate = float(config.card.hbm.beats_per_cycle(config.clock_mhz))
    return Derivation(model, engine_plan(config, model.context), rate, config.name)


def finished(
    binding: Derivation,
    model: LogicalGraph,
    config: CompileConfig,
    place: Callable[[Program], Mapping[str, str]] | None = None,
    after: After | None = None,
) -> tuple[Program, dict[int, int]]:
    """Its program, and the scheduled cycles of one phase after the other by number of tokens, unless these
    depend on the position."""
    variants = {BEST: binding.requested} if binding.requested else {}
    size, context = config.max_tokens, model.context
    program, schedules = finish(binding.graph, 1, size, config.sizing, context, variants, place, after)
    program = replace(program, whole=model.mixes_tokens and not context)
    if context or len(binding.phases) > 1:
        return program, {}
    return program, {tokens: one.finish for tokens, one in zip((size, 1), schedules, strict=False)}


def choices(binding: Derivation, model: LogicalGraph, config: CompileConfig) -> tuple[str, ...]:
    """What is chosen, in words."""
    plan = engine_plan(config, model.context)
    walked = [section for section in binding.schedule.sections if section.walks > 1]
    return (
        f"one engine of {plan.columns} columns, {plan.n_lanes} rows side by side in each",
        *(
            f"{len(section.phases)} of {len(binding.phases)} phases are walked {section.walks} times"
            for section in walked
        ),
        *([f"keys and values lie on {plan.kv_channels} channels"] if model.context else []),
    )
