"""SmolLM2-135M-Instruct writes text on its accelerator: every layer, cache, norm, head and argmax in Verilog.

The script compiles the checkpoint, 135 million weights with their own 4-bit codes, writes Verilog, packed
weights and manifest, builds the simulator, runs the prompt in one pass and then a token a pass, cycle by
cycle with the weights and the cache in simulated HBM, and compares the logits of every step with the golden
model, bit for bit. Other checkpoints do the same: --checkpoint FILE.gguf.
"""

import argparse
import tempfile
import time
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
    parser.add_argument(
        "--folder", type=Path, help="where to write the accelerator (default: a temporary folder)"
    )
    arguments = parser.parse_args()
    checkpoint = arguments.checkpoint or default_checkpoint()
    if not checkpoint.is_file():
        parser.error(f"{checkpoint} is no file; --checkpoint takes a GGUF file")
    prompt = load_tokenizer(checkpoint).encode(arguments.prompt)

    start = time.monotonic()
    config = streamgen.CompileConfig(name="text", max_tokens=16, context=256, channels=4, multipliers=512)
    accelerator = streamgen.compile(checkpoint, config=config)
    print(f"checkpoint -> Verilog in {time.monotonic() - start:.0f} s")
    with tempfile.TemporaryDirectory() as temporary:
        folder = accelerator.write(arguments.folder or Path(temporary, "smollm2"))
        print(f"written: {sum(file.stat().st_size for file in folder.iterdir()) / 1e6:.0f} MB in {folder}")
        start = time.monotonic()
        device = accelerator.device()
        device.open()
        print(f"simulator in {time.monotonic() - start:.0f} s\n")
        run(accelerator, arguments.prompt, prompt, arguments.tokens)
        accelerator.close()


def run(accelerator: streamgen.LanguageModel, text: str, prompt: list[int], count: int) -> None:
    """Print the text as it comes; SystemExit when a logit differs from golden."""
    tokenizer, device = accelerator.tokenizer, accelerator.device()
    assert tokenizer is not None
    session, golden, stream = device.session(), accelerator.golden.session(), tokenizer.stream()
    session.checked(prompt, count)
    before = len(device.passes)
    print(text, end="", flush=True)
    ids, start = prompt, time.monotonic()
    for step in range(count):
        logits, expected = session.last_logits(ids), golden.last_logits(ids)
        if logits.tobytes() != expected.tobytes():
            raise SystemExit(f"\nstep {step}: {np.sum(logits != expected)} logits differ from golden")
        ids = [int(logits.argmax())]
        print(stream.push(ids[0]), end="", flush=True)
    print(stream.finish())
    seconds = time.monotonic() - start
    timings = accelerator.report().groups[0].timings[before:]
    clock = accelerator.manifest.clock_mhz
    print()
    for what, some in (
        ("prompt", [one for one in timings if one.position < len(prompt)]),
        ("text after it", [one for one in timings if one.position >= len(prompt)]),
    ):
        if some:
            tokens, cycles = sum(one.tokens for one in some), sum(one.cycles for one in some)
            ratio, rate = cycles / sum(one.bound for one in some), clock * 1e6 * tokens / cycles
            print(
                f"{what}: {tokens} tokens, {cycles / tokens:,.0f} cycles each, {ratio:.3f} of the bound of "
                f"memory and multipliers, {rate:,.0f} tokens/s at {clock:g} MHz"
            )
    print(f"logits of all {count} steps equal golden's bit for bit; simulated in {seconds:.0f} s")


if __name__ == "__main__":
    main()
