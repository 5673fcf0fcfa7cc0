"""Planned designs against single changes of their factors: whether a change by hand is better than the plan.

    python benchmarks/single_changes.py [NAME ...] [--board u55c ...] [--count 200] [--seed 0]

The shapes are those of benchmarks/zoo.json. Each change takes a shape, a board, a factor and another value of
this factor at random. All other factors keep their planned values. The time is that of the default goal, a
prompt of 256 tokens and an answer of 256, predicted of the whole design. A changed design that does not fit
the card is not better. If the proved bound of the closed form is not better, the design is not built. The
last line counts the changes that take more than 2 % less time; with any, the command ends with status 1.
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import streamgen
from benchmarks.zoo import SHAPES
from streamgen.api.estimation import imported
from streamgen.base.errors import BudgetError
from streamgen.compiler.budget import budget_of
from streamgen.compiler.plan.choosing import ATTENTION, LANES, ROWS
from streamgen.compiler.plan.closed import ClosedForm
from streamgen.compiler.plan.goals import GOALS, TURN
from streamgen.compiler.plan.policy import hardware, limited, quantised
from streamgen.observe.estimate import Estimate

VALUES: Mapping[str, tuple[int, ...]] = {
    "channels": (8, 16, 20, 24, 28, 30, 32),
    "n_lanes": ROWS,
    "lanes": LANES,
    "attention_lanes": ATTENTION,
    "cache_channels": ATTENTION,
    "prefetch_beats": (64, 128, 256, 512, 1024),
    "max_tokens": (4, 8, 12, 24, 32, 64),
}
TOLERANCE = 0.02  # share of the planned time
POSITIONS = (TURN, TURN + TURN // 2, 2 * TURN - 1)  # Simpson's rule over the answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all by default: {', '.join(SHAPES)}")
    parser.add_argument("--board", action="append", help="may be repeated; u55c and u280 by default")
    parser.add_argument("--count", type=int, default=200, help="changes (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers (default: 0)")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    designs = [
        (name, board) for name in options.names or SHAPES for board in options.board or ("u55c", "u280")
    ]
    changes = []
    while len(changes) < options.count:
        factor = chance.choice([*VALUES])
        changes.append((*chance.choice(designs), factor, chance.choice(VALUES[factor])))
    shown = Table("model", "board", "factor", "planned", "changed", "time", title="single changes")
    better = 0
    for name, board, factor, value in sorted(changes):  # by design, so that each is planned once
        ratio, text, planned = result(name, board, factor, value)
        better += ratio < 1 - TOLERANCE
        line = (name, board, factor, f"{planned}", f"{value}", text)
        print(*line, file=sys.stderr, flush=True)
        shown.add_row(*line)
    Console().print(shown)
    print(f"{better} of {options.count} changes take more than {TOLERANCE:.0%} less time than the plan")
    sys.exit(bool(better))


def result(name: str, board: str, factor: str, value: int) -> tuple[float, str, int]:
    """The time of a changed design as a share of the planned time, as a number and as a text, and the planned
    value of the factor. The number is infinite for a design that cannot be built."""
    design = planned(name, board)
    if design is None:
        return float("inf"), "the model does not fit", 0
    config, cycles = design
    old = getattr(config, factor)
    if value == old:
        return 1.0, "the planned value", old
    changed = {factor: value, "multipliers": None}
    try:
        config = replace(config, **changed)
        if (bound := least(name, config)) >= (1 - TOLERANCE) * cycles:
            return bound / cycles, f"at least {bound / cycles:.3f}", old
        other = conversation(estimate(name, config))
    except (BudgetError, ValueError) as error:
        return float("inf"), str(error).partition("\n")[0], old
    return other / cycles, f"{other / cycles:.3f}", old


@cache
def planned(name: str, board: str) -> tuple[streamgen.CompileConfig, float] | None:
    """The planned configuration of a shape and the cycles of its goal; None if no design fits the board."""
    try:
        made = estimate(name, streamgen.CompileConfig(board=board))
    except BudgetError:
        return None
    return streamgen.CompileConfig(**made.plan.config), conversation(made)


def estimate(name: str, config: streamgen.CompileConfig) -> Estimate:
    with tempfile.TemporaryDirectory() as place:
        return streamgen.estimate(source(name, place), None, config, positions=POSITIONS, prompts=[TURN])


def source(name: str, place: str) -> Path:
    """A config.json of a shape in a folder."""
    path = Path(place, "config.json")
    path.write_text(json.dumps(SHAPES[name]))
    return path


def conversation(made: Estimate) -> float:
    """Cycles of a prompt and an answer of 256 tokens each."""
    first, middle, last = (run.cycles for run in made.steps)
    return made.first_tokens[TURN] + TURN * (first + 4 * middle + last) / 6


def least(name: str, config: streamgen.CompileConfig) -> float:
    """Cycles that the goal takes at least."""
    with tempfile.TemporaryDirectory() as place:
        config, graph = limited(imported(source(name, place), None, config), config)
    graph = quantised(graph, config)
    budget = budget_of(config, graph)
    plan = hardware(graph, budget)
    form = ClosedForm(graph, plan, budget.memory)
    passes: Any = GOALS["conversation"].passes(graph.context, config.size("max_tokens"))
    return sum(run.count * form.bound(run.tokens, run.position) for run in passes)


if __name__ == "__main__":
    main()
