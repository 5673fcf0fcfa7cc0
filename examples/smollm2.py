"""SmolLM2-135M-Instruct writes text on its accelerator: every layer, cache, norm, head and argmax in Verilog.

The script compiles the checkpoint, 135 million weights with their own 4-bit codes. The golden model, which
computes the accelerator's numbers in numpy, writes the text first. Then the script writes Verilog, packed
weights and manifest, builds the simulator, and runs the prompt in one pass and each token in another, cycle
by cycle with the weights and the cache in simulated HBM. Each line shows a pass whose logits equal the golden
model's bit for bit. Other checkpoints do the same: --checkpoint FILE.gguf. The design has four memory
channels and simulates soon. With --whole, the compiler plans a design for the whole card.
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

import streamgen
from streamgen.model.frontend import default_checkpoint
from streamgen.text.tokenizer_files import load_tokenizer

PROMPT = "Once upon a time, in a small village by the sea, there lived a"  # 16 tokens


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, help="GGUF file (default: SmolLM2)")
    parser.add_argument("--prompt", default=PROMPT, help="text to be continued")
    parser.add_argument("--tokens", type=int, default=16, help="how many to write (default 16)")
    parser.add_argument("--whole", action="store_true", help="a design for the whole card")
    parser.add_argument(
        "--folder", type=Path, help="where to write the accelerator (default: a temporary folder)"
    )
    arguments = parser.parse_args()
    checkpoint = arguments.checkpoint or default_checkpoint()
    if not checkpoint.is_file():
        parser.error(f"{checkpoint} is no file; --checkpoint takes a GGUF file")
    prompt = load_tokenizer(checkpoint).encode(arguments.prompt)

    start = time.monotonic()
    config = streamgen.CompileConfig(name="text", context=256)
    if not arguments.whole:
        config = replace(config, goal="small", max_tokens=16, channels=4, multipliers=512)
    accelerator = streamgen.compile(checkpoint, config=config)
    print(f"checkpoint -> Verilog in {time.monotonic() - start:.0f} s\n")
    written = write_golden(accelerator, arguments.prompt, prompt, arguments.tokens)
    with tempfile.TemporaryDirectory() as temporary:
        folder = accelerator.write(arguments.folder or Path(temporary, "smollm2"))
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"\nwritten: {size / 1e6:.0f} MB in {folder}; building the simulator ...", flush=True)
        start = time.monotonic()
        accelerator.device().open()
        print(f"simulator in {time.monotonic() - start:.0f} s; now the Verilog runs:\n")
        simulate(accelerator, prompt, written)
        accelerator.close()


def write_golden(
    accelerator: streamgen.LanguageModel, text: str, prompt: list[int], count: int
) -> list[np.ndarray]:
    """Print the text of the golden model; returns the logits behind the prompt and behind each token of the
    text but the last, float32 [vocabulary]."""
    tokenizer, session = accelerator.tokenizer, accelerator.golden.session()
    assert tokenizer is not None
    session.checked(prompt, count)
    stream, ids, rows = tokenizer.stream(), prompt, []
    print(f"the golden model writes:\n\n  {text}", end="", flush=True)
    for _ in range(count):
        rows.append(session.last_logits(ids))
        ids = [int(rows[-1].argmax())]
        print(stream.push(ids[0]), end="", flush=True)
    print(stream.finish())
    return rows


def simulate(accelerator: streamgen.LanguageModel, prompt: list[int], expected: list[np.ndarray]) -> None:
    """Run the same text on the simulated Verilog, a line a pass; SystemExit when a logit differs."""
    tokenizer, device = accelerator.tokenizer, accelerator.device()
    assert tokenizer is not None
    session, stream = device.session(), tokenizer.stream()
    first, start = len(device.passes), time.monotonic()
    clock = accelerator.manifest.clock_mhz
    total = {"prompt": (0, 0.0), "text": (0, 0.0)}
    ids = prompt
    for step, row in enumerate(expected):
        logits = session.last_logits(ids)
        if logits.tobytes() != row.tobytes():
            raise SystemExit(f"step {step}: {np.sum(logits != row)} logits differ from the golden model's")
        timings = accelerator.report().groups[0].timings[first:]
        first += len(timings)
        cycles, bound = sum(one.cycles for one in timings), sum(one.bound for one in timings)
        kind = "text" if step else "prompt"
        total[kind] = total[kind][0] + cycles, total[kind][1] + bound
        passed = f"prompt of {len(ids)}" if not step else "1 token"
        ids = [int(logits.argmax())]
        print(
            f"  {step + 1:3} {passed:13} {cycles:11,} cycles, {cycles / bound:.3f} x the bound | "
            f"{len(logits):,} logits equal | {stream.push(ids[0])!r}",
            flush=True,
        )
    print()
    for kind, tokens in (("prompt", len(prompt)), ("text", len(expected) - 1)):
        cycles, bound = total[kind]
        if cycles:
            print(
                f"{kind}: {cycles / tokens:,.0f} cycles a token, {cycles / bound:.3f} x the bound of memory "
                f"and multipliers, {clock * 1e6 * tokens / cycles:,.0f} tokens/s at {clock:g} MHz"
            )
    print(
        f"The simulated Verilog and the golden model computed the same {len(expected[0]):,} logits, bit for "
        f"bit, in all {len(expected)} steps ({time.monotonic() - start:.0f} s of simulation)."
    )


if __name__ == "__main__":
    main()
