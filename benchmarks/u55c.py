"""Whole language models on all of a U55C: tokens a second, time to the first token, resources, beside bounds.

    python benchmarks/u55c.py [NAME ...] [--clock 300] [--channels 32] [--context 1024] [--simulate]
        [--json FILE]

The shapes are those of benchmarks/zoo.json. The compiler plans every design. Cycles are predicted token by
token, as tests hold to a few percent of simulation; --simulate also runs prompts and steps of all layers
with random weights on the emitted Verilog, compares the logits with golden's bit for bit, prints simulated
beside predicted cycles, and cycles simulated in a processor second (minutes). The bound is the larger of
what channels need for the bytes (13.3 GB/s each, 100 cycles latency) and what multipliers need for the
products, phase by phase; weights read ahead while attention works make a long step quicker than that. End to
end is the sum of the passes of a prompt and of every step behind it, of which every 32nd is predicted. What
a context is worth: the first token behind half of it, the step at its last position.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import streamgen
from benchmarks.zoo import SHAPES
from streamgen.api.estimation import imported
from streamgen.base.errors import BudgetError
from streamgen.compiler.lower import unfused_bits
from streamgen.compiler.plan.grouping import parts_of
from streamgen.compiler.plan.policy import limited
from streamgen.observe.estimate import Estimate, PassEstimate

EVERY = 32  # positions from one predicted step to the next

PEER = "StreamTensor, U55C 250 MHz, W4A8"  # the same card
SHAPE = "gpt2-medium"  # of the published figures
CONTEXT = 1024
# Latency in ms, time to the first token in ms, tokens a second behind it; by the length of prompt and answer.
# StreamTensor, arXiv 2509.13694, which also gives those of Allo, DFX and the A100; CODO, ISCA 2026.
PUBLISHED: dict[str, dict[int, tuple[float | None, float, float | None]]] = {
    PEER: {
        32: (194.99, 34.59, 199.51),
        64: (358.24, 61.27, 215.51),
        128: (696.65, 125.35, 224.05),
        256: (1387.76, 272.85, 229.61),
    },
    "Allo, U280 250 MHz, W4A8": {
        32: (238.32, 81.50, 204.05),
        64: (476.64, 162.99, 204.05),
        128: (953.28, 325.98, 204.05),
        256: (1906.56, 651.96, 204.05),
    },
    "DFX, U280 200 MHz, FP16": {
        32: (350.0, 177.2, 185.19),
        64: (694.7, 349.1, 185.19),
        128: (1384.0, 692.8, 185.19),
        256: (2800.0, 1417.6, 185.19),
    },
    "CODO": {32: (None, 20.4, 231.48), 64: (None, 32.6, 231.48), 128: (None, 110.4, 231.48)},
    "A100, W8A8": {
        32: (291.16, 8.72, 113.30),
        64: (567.41, 8.76, 114.56),
        128: (1118.28, 8.65, 115.35),
        256: (2227.79, 8.53, 115.35),
    },
}


UNFUSED = 64  # tokens of a prompt whose tensors are summed
RUNS = ((32, 32), (64, 64), (128, 128), (256, 256))  # tokens in, tokens out
LAST = max(tokens + out for tokens, out in RUNS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SHAPES)}; {SHAPE}")
    parser.add_argument("--clock", type=float, default=300.0, help="MHz")
    parser.add_argument("--channels", type=int, default=None, help="fewer than all")
    parser.add_argument("--context", type=int, default=CONTEXT, help=f"tokens, {LAST} or more; {CONTEXT}")
    parser.add_argument("--layers", type=int, default=None, help="the first so many, for a quicker look")
    parser.add_argument("--fill", type=float, default=None, help="share of each SLR that may be filled")
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=(32, 1, 128, 1, 1), help="of the simulated passes, in order"
    )
    parser.add_argument("--json", type=Path, default=None, help="where the estimates go besides")
    options = parser.parse_args()
    if unknown := set(options.names) - SHAPES.keys():
        parser.error(f"no shapes are called {', '.join(sorted(unknown))}")
    if options.context < LAST:
        parser.error(f"a context of {options.context} is too short for runs of {LAST} tokens")
    console, found = Console(), {}
    for name in options.names or [SHAPE]:
        with tempfile.TemporaryDirectory() as place:
            source = Path(place, "config.json")
            source.write_text(json.dumps(config_json(name, options.layers)))
            try:
                config = streamgen.CompileConfig(
                    name=name.replace("-", "_").replace(".", "_"),
                    clock_mhz=options.clock,
                    fill=options.fill,
                    channels=options.channels,
                    context=options.context,
                )
                estimate = estimated(source, config)
                config = streamgen.CompileConfig(**estimate.plan.config)
            except BudgetError as error:
                console.print(f"{name}: {error}\n", markup=False, highlight=False)
                continue
            except ValueError as error:
                parser.error(f"{name}: {error}")
            unfused = whole_tensors(source, config)
        console.print(table(name, estimate, name == SHAPE and options.layers is None))
        console.print(at_length(estimate, options.context), highlight=False)
        console.print(str(estimate), markup=False, highlight=False)
        console.print(against_whole(estimate, unfused), highlight=False)
        found[name] = json.loads(estimate.to_json())
        if options.simulate:
            console.print(simulated(name, options.layers, config, options.tokens))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def config_json(name: str, layers: int | None = None) -> dict[str, Any]:
    """What config.json says of a shape, or of its first layers."""
    sizes = dict(SHAPES[name])
    if layers is not None:
        sizes["n_layer" if "n_layer" in sizes else "num_hidden_layers"] = layers
    return sizes


def estimated(source: Path, config: streamgen.CompileConfig) -> Estimate:
    """Steps at every `EVERY`th position and at the last one, prompts of all runs and of half the context."""
    context = config.size("context")
    positions = {*range(0, min(LAST + EVERY, context), EVERY), context - 1}
    prompts = {*(tokens for tokens, _ in RUNS), context // 2}
    return streamgen.estimate(source, None, config, positions=sorted(positions), prompts=sorted(prompts))


def whole_tensors(source: Path, config: streamgen.CompileConfig, tokens: int = UNFUSED) -> int:
    """Bits of all intermediate tensors of a prompt of so many tokens that is one pass, each whole."""
    config, graph = limited(imported(source, None, config), replace(config, max_tokens=tokens))
    (part,) = parts_of(graph.quantised(config.numbers(True)), config)
    return unfused_bits(part.derivation.largest)


def against_whole(estimate: Estimate, unfused: int, tokens: int = UNFUSED) -> str:
    """What is on the chip beside the tensors of a prompt, and its share."""
    fused = estimate.memory.fused
    return (
        f"intermediate memory: {fused:,} bits; {tokens} tokens with all tensors stored, in one pass, take "
        f"{unfused:,}: {100 * fused / unfused:.1f} %"
    )


def at_length(estimate: Estimate, context: int) -> str:
    """The step at the last position, and the first token behind half the context, beside their bounds."""
    step = next(one for one in estimate.passes if (one.tokens, one.position) == (1, context - 1))
    tokens = context // 2
    first, least = estimate.first_tokens[tokens], estimate.first_bounds[tokens]
    took = estimate.milliseconds(first)
    return (
        f"step at {step.position:,}: {step.cycles:,} cycles, {step.cycles / _bound(step):.2f} of its bound\n"
        f"first token behind {tokens:,}: {took:.1f} ms, {first / least:.2f} of its bound"
    )


def table(name: str, estimate: Estimate, published: bool) -> Table:
    """The published runs: milliseconds in all and to the first token, tokens a second behind it. Beside them
    what memory and multipliers allow, below them what others have published for the same card and shape."""
    steps = {one.position: one for one in estimate.passes if one.tokens == 1}
    found = Table(title=f"{name} on all of a {estimate.board} at {estimate.clock_mhz:g} MHz, predicted")
    for column in ("in:out", "ms", "first, ms", "bound", "ratio", "tokens/s", "bound", "share"):
        found.add_column(column)
    for tokens, out in RUNS:
        cycles = [_at(steps, tokens + k).cycles for k in range(out)]
        bounds = [_bound(_at(steps, tokens + k)) for k in range(out)]
        first, least = estimate.first_tokens[tokens], estimate.first_bounds[tokens]
        found.add_row(
            f"{tokens}:{out}",
            f"{estimate.milliseconds(first + sum(cycles[1:])):.1f}",
            f"{estimate.milliseconds(first):.2f}",
            f"{estimate.milliseconds(least):.2f}",
            f"{first / least:.2f}",
            f"{out * estimate.clock_mhz * 1e6 / sum(cycles):.0f}",
            f"{out * estimate.clock_mhz * 1e6 / sum(bounds):.0f}",
            f"{sum(bounds) / sum(cycles):.2f}",
        )
        if published:
            latency, theirs, speed = (f"{value:g}" for value in PUBLISHED[PEER][tokens])
            found.add_row("theirs", latency, theirs, "", "", speed)
    if published:
        found.caption = f"theirs: {PEER}, published"
    return found


def _at(steps: Mapping[int, PassEstimate], position: int) -> PassEstimate:
    """The next predicted step behind a position: never a quicker one."""
    return steps[min(max(steps), -(-position // EVERY) * EVERY)]


def _bound(one: PassEstimate) -> float:
    return sum(max(phase.memory_cycles, phase.product_cycles) for phase in one.phases)


def simulated(name: str, layers: int | None, config: streamgen.CompileConfig, passes: Sequence[int]) -> Table:
    """Passes of so many tokens of the whole model, with random weights, on its Verilog."""
    import torch
    import transformers

    torch.manual_seed(0)
    made = transformers.AutoConfig.for_model(**config_json(name, layers))
    model = transformers.AutoModelForCausalLM.from_config(made).eval()
    accelerator = streamgen.compile(model, None, config)
    ids = np.random.default_rng(0).integers(0, made.vocab_size, sum(passes)).tolist()
    found = Table("pass", "cycles", "predicted", "ratio", "logits", "cycles/s", title="simulated")
    session, done, seen = accelerator.session(), 0, 0
    for tokens in passes:
        start, busy = time.perf_counter(), time.process_time()
        given = session.last_logits(ids[done : done + tokens])
        busy = time.process_time() - busy
        done += tokens
        right = np.array_equal(given, accelerator.golden.logits(ids[:done])[-1])
        run = accelerator.device().passes[seen:]
        rate = sum(one.cycles for one in run) / busy  # with the host's part of the work
        for one in run:
            predicted = accelerator.predict(one.tokens, one.position, one.variant)
            found.add_row(
                f"{one.tokens} at {one.position}",
                f"{one.cycles:,}",
                f"{predicted:,}",
                f"{predicted / one.cycles:.3f}",
                "equal golden's" if right else "DIFFER",
                f"{rate:,.0f}",
            )
        seen += len(run)
        print(f"{done} tokens, {time.perf_counter() - start:.0f} s", flush=True)
    return found


if __name__ == "__main__":
    main()
