"""The search over designs: points a second, and how its best compares with the plan.

    python benchmarks/search.py [--points 20] [--trials 40] [--seed 0]

Points of the feed-forward block (576 -> 1536 -> 576, real weights) and of GPT-2 Medium's shape are drawn at
random and evaluated as a search does, by bounds; seconds are of the processor. The compiler's own choice has
been evaluated before, with the space. Then a search of GPT-2 Medium over the whole U55C ends in exact
estimates, beside that of the plan.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import torch
from rich.console import Console
from rich.table import Table

import streamgen
from benchmarks import u55c
from streamgen.api.search import Point, Space, Value, space
from streamgen.api.search.study import Study
from streamgen.model.frontend import default_checkpoint, load_feed_forward

POSITION, TOKENS = 512, 16  # of the step and of the prompt that a search compares
ASKED = {"feed-forward block": 10.0, "GPT-2 Medium": 1.0}  # points a second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--points", type=int, default=20, help="drawn at random from each space")
    parser.add_argument("--trials", type=int, default=40, help="of the search; 0: none")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    console, random = Console(), Random(options.seed)
    with tempfile.TemporaryDirectory() as place:
        source = Path(place, "config.json")
        source.write_text(json.dumps(u55c.config_json(u55c.SHAPE)))
        block = streamgen.CompileConfig(goal="small", max_tokens=16, multipliers=768, channels=4)
        card = streamgen.CompileConfig(name="gpt2_medium", max_tokens=TOKENS, context=u55c.CONTEXT)
        module = load_feed_forward(default_checkpoint(), 0)
        spaces = {
            "feed-forward block": space(module, torch.zeros(16, 576), block),
            "GPT-2 Medium": space(source, None, card),
        }
        console.print(rates(spaces, options.points, random))
        if options.trials:
            found = Study(spaces["GPT-2 Medium"], ("decode", "first-token"), seed=options.seed)
            found.run(options.trials, tell=console.log)
            front = found.front()
            planned = streamgen.estimate(source, None, card, positions=[POSITION], prompts=[TOKENS])
            speed = planned.tokens_per_second(planned.headline[0])
            wait = planned.milliseconds(planned.first_tokens[TOKENS])
            ratio = max(one.tokens_per_second for one in front) / speed
            first = min(one.first_token_ms for one in front) / wait
            console.print(f"best found / planned: {ratio:.3f} of tokens/s, {first:.3f} of ms to first token")


def drawn(space: Space, random: Random) -> Iterator[Point]:
    """Legal points without end."""
    while True:
        point: dict[str, Value] = {}
        for factor in space.factors:
            if space.applies(factor, point):
                point[factor.name] = random.choice(factor.values)
        yield point


def rates(spaces: dict[str, Space], points: int, random: Random) -> Table:
    """Points a second of each space."""
    made = Table(title="evaluations by bounds, seconds of the processor")
    for heading in ("model", "points", "can be built", "points/s", "asked"):
        made.add_column(heading, justify="right")
    for name, one in spaces.items():
        several = drawn(one, random)
        start = time.process_time()
        feasible = sum(one.evaluate(next(several)).feasible for _ in range(points))
        rate = points / (time.process_time() - start)
        made.add_row(name, f"{points}", f"{feasible}", f"{rate:.1f}", f"{ASKED[name]:.0f}")
    return made


if __name__ == "__main__":
    main()
