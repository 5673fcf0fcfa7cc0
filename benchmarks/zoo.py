"""Published language models on a card, with no option but the model: tokens a second, or why none.

    python benchmarks/zoo.py [NAME ...] [--board u55c ...] [--json FILE]

The shapes are facts of published configurations (benchmarks/zoo.json); weights have no values. Of each model
the table gives tokens a second at position 512, the share of the bound (the bytes that this step moves, at
the rate of all channels of the board: 425.6 GB/s of a U55C), milliseconds to the first token behind 128
tokens, the fullest share of an SLR and the processor time of the estimate. A model that does not fit is a row
with its reason.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import streamgen
from streamgen.base.errors import BudgetError
from streamgen.observe.estimate import Estimate
from streamgen.observe.report import ResourceReport
from streamgen.platform.boards import board_of

SHAPES: Mapping[str, Mapping[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text())
POSITION, PROMPT = 512, 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all by default: {', '.join(SHAPES)}")
    parser.add_argument("--board", action="append", help="may be repeated; u55c and u280 by default")
    parser.add_argument("--json", type=Path, default=None, help="file for the rows")
    options = parser.parse_args()
    if unknown := set(options.names) - SHAPES.keys():
        parser.error(f"no shapes are called {', '.join(sorted(unknown))}")
    console, rows = Console(), []
    for board in options.board or ["u55c", "u280"]:
        shown = Table("model", "tokens/s", "share", "first token, ms", "SLR", "estimate, s", title=board)
        for name in options.names or SHAPES:
            row = row_of(name, board)
            rows.append(row)
            shown.add_row(name, *cells(row))
        console.print(shown)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def row_of(name: str, board: str) -> dict[str, Any]:
    """The figures of a shape on a board, or the reason why it does not fit."""
    row: dict[str, Any] = {"name": name, "board": board}
    began = time.process_time()
    with tempfile.TemporaryDirectory() as place:
        source = Path(place, "config.json")
        source.write_text(json.dumps(SHAPES[name]))
        try:
            estimate = streamgen.estimate(
                source, None, streamgen.CompileConfig(board=board), positions=[POSITION], prompts=[PROMPT]
            )
        except BudgetError as error:
            return row | {"reason": str(error)}
    return row | figures(estimate) | {"seconds": time.process_time() - began}


def figures(estimate: Estimate) -> dict[str, float]:
    """The figures of an estimate."""
    step = estimate.passes[0]
    board = board_of(estimate.board)
    hertz = estimate.clock_mhz * 1e6
    seconds = step.cycles / hertz
    moved = sum(phase.bytes for phase in step.phases)
    rate = board.hbm.channels * board.hbm.channel_rate
    return {
        "tokens_per_second": 1 / seconds,
        "share": moved / rate / seconds,
        "first_token_ms": estimate.milliseconds(estimate.first_tokens[PROMPT]),
        "slr": max(fullest(group.resources) for group in estimate.groups),
    }


def fullest(resources: ResourceReport) -> float:
    """The greatest used share of a resource of an SLR."""
    return max(
        getattr(used, kind.name) / getattr(available, kind.name)
        for used, available in resources.slrs.values()
        for kind in fields(used)
        if getattr(available, kind.name)
    )


def cells(row: Mapping[str, Any]) -> list[str]:
    """The cells of a row behind the name."""
    if "reason" in row:
        return [row["reason"].splitlines()[0]]
    return [
        f"{row['tokens_per_second']:,.0f}",
        f"{row['share']:.3f}",
        f"{row['first_token_ms']:,.1f}",
        f"{row['slr']:.2f}",
        f"{row['seconds']:.1f}",
    ]


if __name__ == "__main__":
    main()
