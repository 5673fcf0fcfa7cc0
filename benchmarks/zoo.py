"""Published language models on a card, with no option but the model: tokens a second, or why none.

    python benchmarks/zoo.py [NAME ...] [--board u55c ...] [--json FILE]

The shapes are facts of published configurations (benchmarks/zoo.json); weights have no values. Of each model
the table gives tokens a second at position 512, the share of the bound (the bytes that this step must read,
without padding, at the rate of all channels of the board: 425.6 GB/s of a U55C), milliseconds to the first
token behind 128 tokens, the fullest share of an SLR, the planned context, the rows of a column, the
candidates that placement refused, and the processor time of the estimate. A model that does not fit is a row
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
from streamgen.api.estimation import imported
from streamgen.base.errors import BudgetError
from streamgen.compiler.budget import cached_attentions
from streamgen.compiler.plan.policy import limited, quantised
from streamgen.kernels.attention.row_codes import SCALE
from streamgen.numbers.weights import FORMATS
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
        titles = ("tokens/s", "share", "first token, ms", "SLR", "context", "rows", "refused", "s")
        shown = Table("model", *titles, title=board)
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
        needed = needed_bytes(source, streamgen.CompileConfig(board=board))
    return row | figures(estimate, needed) | {"seconds": time.process_time() - began}


def needed_bytes(source: Path, config: streamgen.CompileConfig) -> float:
    """Bytes that a step at `POSITION` must read: codes and scales of all matmuls, keys and values."""
    config, graph = limited(imported(source, None, config), config)
    graph = quantised(graph, config)
    bits = 0.0
    for _, matmul in graph.matmuls():
        (n, k), weight = matmul.extents, matmul.integers
        bits += n * k * FORMATS[weight.format].code_bits + 32 * n
        if weight.grouped:
            bits += n * k / (weight.group or k) * config.scale_bits * (1 + weight.minimums)
    for attention in cached_attentions(graph):
        bits += 2 * POSITION * attention.kv_heads * (8 * attention.head_dim + SCALE.size)
    return bits / 8


def figures(estimate: Estimate, needed: float) -> dict[str, float]:
    """The figures of an estimate. needed: bytes that its step must read."""
    step = estimate.passes[0]
    board = board_of(estimate.board)
    hertz = estimate.clock_mhz * 1e6
    seconds = step.cycles / hertz
    factors = {factor.name: factor.value for factor in estimate.plan.factors}
    return {
        "tokens_per_second": 1 / seconds,
        "share": needed / board.hbm.rate / seconds,
        "first_token_ms": estimate.milliseconds(estimate.first_tokens[PROMPT]),
        "slr": max(fullest(group.resources) for group in estimate.groups),
        "context": estimate.context,
        "rows": factors["n_lanes"],
        "refused": len(estimate.plan.refused),
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
        f"{row['context']:,}",
        f"{row['rows']}",
        f"{row['refused']}",
        f"{row['seconds']:.1f}",
    ]


if __name__ == "__main__":
    main()
