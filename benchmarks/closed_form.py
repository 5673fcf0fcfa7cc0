"""Errors of the closed form that ranks designs: its cycles beside those predicted of a whole design.

    python benchmarks/closed_form.py [NAME ...]

The shapes are those of benchmarks/zoo.json, the designs the planned one and one with fewer rows. Steps are at
four positions, and the largest pass at the first position. The last line has the root of the mean square of
all errors.
"""

import argparse
import json
import tempfile
from math import sqrt
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import streamgen
from benchmarks.zoo import SHAPES
from streamgen.api.estimation import imported
from streamgen.base.errors import BudgetError
from streamgen.compiler.budget import budget_of
from streamgen.compiler.plan.closed import ClosedForm
from streamgen.compiler.plan.policy import hardware, limited, quantised

POSITIONS = (0, 64, 512, 1000)
NAMES = ("qwen2.5-0.5b", "tinyllama-1.1b", "llama-3.2-1b", "gpt2-medium")
ROWS = (None, 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"by default {', '.join(NAMES)}")
    options = parser.parse_args()
    errors: list[float] = []
    shown = Table("model", "rows", *(f"1 at {position}" for position in POSITIONS), "16 at 0")
    for name in options.names or NAMES:
        for rows in ROWS:
            changes: dict[str, Any] = {"context": 1024, "n_lanes": rows}
            cells = compared(name, streamgen.CompileConfig(**changes))
            errors += cells
            design = "planned" if rows is None else f"{rows}"
            shown.add_row(name, design, *(f"{100 * error:+.1f} %" for error in cells))
    Console().print(shown)
    print(f"root of the mean square: {100 * sqrt(sum(e * e for e in errors) / len(errors)):.1f} %")


def compared(name: str, config: streamgen.CompileConfig) -> list[float]:
    """Errors of the passes of a design, as shares of the predicted cycles; none if no design fits."""
    with tempfile.TemporaryDirectory() as place:
        source = Path(place, "config.json")
        source.write_text(json.dumps(SHAPES[name]))
        try:
            estimate = streamgen.estimate(source, None, config, positions=POSITIONS, prompts=[1])
        except BudgetError:
            return []
        config = streamgen.CompileConfig(**estimate.plan.config)
        config, graph = limited(imported(source, None, config), config)
    graph = quantised(graph, config)
    budget = budget_of(config, graph)
    form = ClosedForm(graph, hardware(graph, budget), budget.memory)
    return [form.cycles(run.tokens, run.position) / run.cycles - 1 for run in estimate.passes]


if __name__ == "__main__":
    main()
