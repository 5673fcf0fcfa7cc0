"""SmolLM2-135M-Instruct, whole, on its simulated accelerator: cycles beside their bound, and text.

    python benchmarks/decoder.py [tokens]

A prompt of 16 tokens in one pass, then so many new ones (16 by default), a pass each. Cycles are exact and
repeat. The bound of a pass is, summed over its phases as often as they are walked, the larger of what the
channels in use need for the bytes of the phase and what the multipliers need for its products
(`streamgen.explore.bound`).
"""

import sys
import time

import streamgen
from streamgen.frontend import default_checkpoint

PROMPT = "The sea is a large body of salt water that covers most of the planet and"
CONFIG = streamgen.DecoderConfig(name="smollm2", max_tokens=16, context=256, channels=4)
ALLOWANCE = 1.25


def main() -> None:
    """Print every figure."""
    new = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    start = time.perf_counter()
    accelerator = streamgen.compile_decoder(default_checkpoint(), CONFIG)
    print(f"checkpoint -> Verilog: {time.perf_counter() - start:.1f} s (to be under 60)")
    assert accelerator.tokenizer is not None
    ids = accelerator.tokenizer.encode(PROMPT)[:16]
    device = accelerator.device()
    start = time.perf_counter()
    device.open()
    print(f"simulator: {time.perf_counter() - start:.1f} s")
    start = time.perf_counter()
    found = list(device.session().generate(ids, new))
    seconds = time.perf_counter() - start
    for one in accelerator.report().groups[0].timings:
        print(
            f"{one.tokens} tokens at {one.position}: {one.cycles} cycles, bound {one.bound:.0f}, "
            f"ratio {one.ratio:.3f} (at most {ALLOWANCE} for one token)"
        )
    cycles = sum(one.cycles for one in device.passes)
    print(f"{cycles / seconds:,.0f} cycles simulated a second")
    expected = list(accelerator.golden.generate(ids, new))
    verdict = "equals golden" if found == expected else "DIFFERS FROM GOLDEN"
    print(f"{verdict}: {accelerator.tokenizer.decode(found)!r}")


if __name__ == "__main__":
    main()
