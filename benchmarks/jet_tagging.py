"""The jet-tagging network of hls4ml's papers with weights that stay on the chip: cycles on the Verilog.

    python benchmarks/jet_tagging.py

16 -> 64 -> 32 -> 32 -> 5 with ReLU and softmax (Duarte et al., arXiv 1804.06913), random weights. Latency is
counted from the cycle in which a row leaves the load of the input to the cycle in which the last element of
its result enters the store of the output. The times of memory at both ends are in the cycles of a pass. The
first pass, which reads the weights, is not measured.
"""

import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import nn

import streamgen
from streamgen.api.accelerator import Accelerator
from streamgen.platform.capacity import RESOURCES

MOST_LATENCY, MOST_INTERVAL = 150, 32
TOKENS = 16
CONFIG = streamgen.CompileConfig(name="jet_tagging", goal="latency", weights="w8", max_tokens=TOKENS)


def network() -> nn.Sequential:
    """The network, with the same random weights each time."""
    torch.manual_seed(0)
    sizes = (16, 64, 32, 32, 5)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1], nn.Softmax(-1)).eval()


def measured(accelerator: Accelerator, x: torch.Tensor) -> tuple[int, float, int]:
    """Latency of a row, cycles from a row to the next and cycles of the pass, of the second of two passes on
    the Verilog. x: rows for two passes. Raises ValueError if the results are not those of golden."""
    import pywellen  # a package for tests

    top = accelerator.manifests[0].top
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "waves.fst")
        found = accelerator.run(x, waves=streamgen.Waves(path, 0, 1_000_000, run=2))
        pins = {pin.full_name: pin.signal for pin in pywellen.Waveform(str(path)).all_vars()}
    if found.tobytes() != accelerator.golden(x).tobytes():
        raise ValueError("the Verilog computes other results than the golden model")
    cycles = accelerator.report().passes[1]

    def tokens(edge: str, side: str) -> list[int]:
        """The cycles in which tokens pass a side of the FIFO of an edge."""
        at = f"{top}.{edge}.{side}__"
        valid, ready = pins[at + "valid"], pins[at + "ready"]
        return [
            cycle for cycle in range(cycles) if valid.value_at(1000 * cycle) and ready.value_at(1000 * cycle)
        ]

    streams = accelerator.manifests[0].streams
    first = next(stream.instance for stream in streams if stream.name.startswith("load_"))
    last = next(stream.instance for stream in streams if ".i" in stream.name and "-> store_" in stream.name)
    rows = len(x) - accelerator.manifests[0].max_tokens
    inputs, outputs = (np.array(part).reshape(rows, -1) for part in (tokens(first, "i"), tokens(last, "i")))
    ends = outputs[:, -1]
    return int(ends[0] - inputs[0, 0]), float(np.diff(ends).max()), cycles


def main() -> None:
    module = network()
    built = streamgen.compile(module, torch.zeros(TOKENS, 16), CONFIG)
    print(built.plan)
    with tempfile.TemporaryDirectory() as folder:
        accelerator = streamgen.load(built.write(Path(folder, CONFIG.name)))
        latency, interval, cycles = measured(accelerator, torch.randn(2 * TOKENS, 16))
        used = accelerator.report().groups[0].resources
        accelerator.close()
    print(f"input to output      {latency} cycles, {_verdict(latency, MOST_LATENCY)}")
    print(f"a new input every    {interval:g} cycles, {_verdict(interval, MOST_INTERVAL)}")
    print(f"a pass of {TOKENS} inputs {cycles} cycles, with the input and the output in memory")
    board = CONFIG.card
    for name, title in RESOURCES.items():
        need, there = getattr(used.total, name), getattr(board.home.resources, name)
        print(f"{title:20} {need:,.0f}, {need / there:.1%} of {board.home.name}")


def _verdict(found: float, most: float) -> str:
    return f"at most {most} wanted: " + ("reached" if found <= most else f"{found - most:g} too many")


if __name__ == "__main__":
    main()
