"""GPT-2 Medium beside what others have published: time to the first token, tokens a second, latency.

    python benchmarks/paper.py                 predicted (minutes)
    python benchmarks/paper.py --simulate 2    and so many tokens of the whole model simulated (hours)

Figures of others are those of their papers. Ours are cycles of the whole model, every layer, the head and the
choice of the next token in the loop, at 300 MHz and at 250. They are predicted, by the engine that tests and
`benchmarks/predict.py` hold to simulation; what is simulated says so. Nothing here has run on a card.
"""

import argparse
import dataclasses
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import streamgen
from benchmarks import u55c
from streamgen.base.errors import BudgetError
from streamgen.base.progress import terminal_progress
from streamgen.base.tables import rendered, table
from streamgen.compiler.config import CompileConfig
from streamgen.observe.estimate import Estimate

LENGTHS = (32, 64, 128, 256)  # tokens of the prompt, and as many behind it
DESIGN = CompileConfig(name="gpt2_medium", context=u55c.CONTEXT)

NOT_COMPARABLE = (
    "theirs are measured on cards; ours are cycles of the Verilog at an assumed clock, no bitstream was made",
    "the clock is a count of LUT levels (at most 8 between registers), no timing closure: so 250 beside 300",
    "memory is a model: 13.3 GB/s a channel (425 GB/s of 460 over 32), 100 cycles of latency",
    "the host is left out: ours begins with ids in memory and ends with the id of the next token",
    "no paper shows the head and a real KV cache inside the timed loop; in ours both are",
    "DFX computes in FP16, the A100 in W8A8; ours has 4-bit weights in groups of 32 with 8-bit scales,",
    "  an 8-bit head, 8-bit keys and values; what texts lose in quality by each differs",
    "our weights are random: time does not depend on them, quality does (`make quality`)",
)


@dataclass(frozen=True)
class Speed:
    """Of one length: latency and first token in ms, tokens a second behind it."""

    latency: float
    first: float
    rate: float


def estimated(config: CompileConfig, model: Path, lengths: Sequence[int] = LENGTHS) -> Estimate:
    """At the first, the middle and the last position of every answer."""
    positions = sorted({place for n in lengths for place in (n, n + n // 2, 2 * n - 1)})
    return streamgen.estimate(model, None, config, terminal_progress(), positions=positions, prompts=lengths)


def speeds(found: Estimate, lengths: Sequence[int] = LENGTHS) -> dict[int, Speed]:
    """Cycles of a step grow nearly evenly with the position: Simpson's rule over an answer."""
    steps = {one.position: one.cycles for one in found.passes if one.tokens == 1}
    result = {}
    for n in lengths:
        first, middle, last = (steps[place] for place in (n, n + n // 2, 2 * n - 1))
        mean = found.milliseconds(round((first + 4 * middle + last) / 6))
        begin = found.milliseconds(found.first_tokens[n])
        result[n] = Speed(latency=begin + (n - 1) * mean, first=begin, rate=1e3 / mean)
    return result


def comparison(ours: dict[str, dict[int, Speed]]) -> str:
    """One table: a line for each design, three figures for each length."""
    made = table("", "figure", *(f"{n}:{n}" for n in LENGTHS), texts=2)
    names = ("first token, ms", "tokens/s", "latency, ms")
    for who, by_length in ours.items():
        for what, pick in zip(names, ("first", "rate", "latency"), strict=True):
            cells = [f"{getattr(by_length[n], pick):,.2f}" for n in LENGTHS]
            made.add_row(f"streamgen, {who}" if what == names[0] else "", what, *cells)
    for who, found in u55c.PUBLISHED.items():
        for what, place in zip(names, (1, 2, 0), strict=True):
            cells = [
                "" if n not in found or (value := found[n][place]) is None else f"{value:,.2f}"
                for n in LENGTHS
            ]
            if any(cells):
                made.add_row(who if what == names[0] else "", what, *cells)
    best = next(iter(ours.values()))
    theirs = u55c.PUBLISHED[u55c.PEER]
    rates = [f"{best[n].rate / (theirs[n][2] or 1):.2f}" for n in LENGTHS]
    firsts = [f"{theirs[n][1] / best[n].first:.2f}" for n in LENGTHS]
    made.add_section()
    made.add_row("ours / StreamTensor", "tokens/s", *rates)
    made.add_row("StreamTensor / ours", "first token", *firsts)
    return rendered([made])


def ablations(model: Path) -> str:
    """One choice off at a time, of a design in which each fits: 128 tokens behind 128, memory, area. The
    compiler plans each design again."""
    config = dataclasses.replace(DESIGN, channels=8, multipliers=2048)
    base = estimated(config, model, [128])
    made = table("off", "what that means", "tokens/s", "first token", "on-chip bits", "LUT %", texts=2)

    def row(name: str, what: str, found: Estimate | BudgetError) -> None:
        if isinstance(found, BudgetError):
            made.add_row(name, f"{what}: does not fit. {str(found).splitlines()[0]}", "", "", "", "")
            return
        (group,) = found.groups
        used = 100 * group.resources.total.lut / group.resources.available.lut
        speed = speeds(found, [128])[128]
        made.add_row(
            name, what, f"{speed.rate:,.1f}", f"{speed.first:,.2f}", f"{found.memory.fused:,}", f"{used:.1f}"
        )

    def of(**changes: object) -> Estimate | BudgetError:
        try:
            return estimated(dataclasses.replace(config, **changes), model, [128])  # type: ignore[arg-type]
        except BudgetError as error:
            return error

    row("nothing", f"{config.channels} channels, {config.multipliers:,} multipliers", base)
    row("fusion between phases", "values that phases leave to one another go through memory", of(hold_bits=0))
    row(
        "sizing by schedule",
        "FIFOs from the linear program of kernels at their own rates",
        of(sizing="normal"),
    )
    row("shared engine", "columns of its own for every matmul, of the same multipliers", of(policy="spatial"))
    made.caption = "128:128; first token in ms"
    whole = (
        f"without any fusion, or without sizing, which leaves FIFOs that hold whole tensors, intermediate "
        f"tensors take {base.memory.unfused:,} bits, "
        f"{base.memory.unfused / base.memory.fused:.1f} times what is built; FIFOs as sized "
        f"take {base.memory.fifos:,}."
    )
    return rendered([made, whole])


def simulated(config: CompileConfig, tokens: int) -> str:
    """Cycles of a prompt of 32 and of so many tokens behind it, beside the predicted ones."""
    import numpy as np
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    shape = AutoConfig.for_model(**u55c.config_json(u55c.SHAPE))
    model = streamgen.compile(AutoModelForCausalLM.from_config(shape).eval(), None, config)
    session = model.session()  # type: ignore[attr-defined]
    for _ in session.generate(np.arange(1, 33), tokens):
        pass
    made = table("tokens", "position", "simulated cycles", "predicted", "ratio", texts=0)
    for one in model.device().passes:  # type: ignore[attr-defined]
        found = model.predict(one.tokens, one.position, one.variant)  # type: ignore[call-arg]
        made.add_row(
            str(one.tokens), str(one.position), f"{one.cycles:,}", f"{found:,}", f"{found / one.cycles:.3f}"
        )
    return rendered([made])


def main() -> None:
    """Print every figure."""
    parser = argparse.ArgumentParser(description="GPT-2 Medium beside published figures")
    parser.add_argument("--simulate", type=int, default=0, metavar="N", help="simulate a prompt and N tokens")
    parser.add_argument("--no-ablations", action="store_true", help="the comparison alone")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        model = Path(place, "config.json")
        model.write_text(json.dumps(u55c.config_json(u55c.SHAPE)))
        base = estimated(DESIGN, model)
        config = CompileConfig(**base.plan.config)
        slower = dataclasses.replace(config, clock_mhz=250.0)
        ours = {"U55C 300 MHz, W4A8, predicted": speeds(base)}
        ours["U55C 250 MHz, W4A8, predicted"] = speeds(estimated(slower, model))
        print("GPT-2 Medium, batch 1, prompt:answer in tokens\n")
        print(comparison(ours))
        (group,) = base.groups
        print(
            f"design: {config.channels} channels, {group.multipliers:,} multipliers, "
            f"all layers, context {config.context}"
        )
        print(f"\nmodel: {base.memory}")
        print(u55c.against_whole(base, u55c.whole_tensors(model, config)))
        print("\nnot comparable:")
        for line in NOT_COMPARABLE:
            print(f"  - {line}")
        if not options.no_ablations:
            print("\nablations of a smaller design, 300 MHz, predicted\n")
            print(ablations(model))
        if options.simulate:
            print("simulated, the whole model with random weights\n")
            print(simulated(config, options.simulate))


if __name__ == "__main__":
    main()
