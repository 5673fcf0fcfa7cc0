"""The feed-forward block of SmolLM2-135M-Instruct, layer 0, from PyTorch to a cycle-accurate run.

    y = down(silu(gate(x)) * up(x))        576 -> 1536 -> 576, real 4-bit weights

The script compiles the torch module, writes Verilog, packed weights and manifest, builds the simulator,
runs 1 and 16 tokens with the weights in simulated HBM, and compares every output bit with the golden
model.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import streamgen
from streamgen.model.frontend import default_checkpoint, load_feed_forward


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--layer", type=int, default=0, help="decoder layer whose block is compiled (default 0)"
    )
    parser.add_argument(
        "--folder", type=Path, help="where to write the accelerator (default: a temporary folder)"
    )
    arguments = parser.parse_args()

    module = load_feed_forward(default_checkpoint(), layer=arguments.layer)
    config = streamgen.CompileConfig(
        name="feed_forward", goal="small", max_tokens=16, multipliers=768, channels=4
    )

    start = time.monotonic()
    accelerator = streamgen.compile(module, (torch.zeros(16, 576),), config=config)
    with tempfile.TemporaryDirectory() as temporary:
        folder = accelerator.write(arguments.folder or Path(temporary, "feed_forward"))
        size = (folder / "design.v").stat().st_size / 1e6
        print(f"torch -> Verilog ({size:.1f} MB) in {time.monotonic() - start:.1f} s: {folder}")

        rng = np.random.default_rng(0)
        for tokens in (1, 16):
            x = rng.normal(size=(tokens, 576)).astype(np.float32)
            start = time.monotonic()
            y = accelerator.run(x)
            seconds = time.monotonic() - start
            golden = accelerator.golden(x)
            if y.tobytes() != golden.tobytes():
                raise SystemExit(
                    f"{tokens} tokens: {np.sum(y != golden)} of {y.size} outputs differ from golden"
                )
            report = accelerator.report()
            reference = module(torch.from_numpy(x)).detach().numpy()
            error = np.linalg.norm(y - reference) / np.linalg.norm(reference)
            print(
                f"{tokens:2} tokens: {report.cycles} cycles, {y.size} outputs equal golden bit for bit; "
                f"relative error against torch float32 {error:.4f}; {seconds:.1f} s with start-up"
            )
    print(report)


if __name__ == "__main__":
    main()
