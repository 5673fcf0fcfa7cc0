"""The jet-tagging network of hls4ml's papers with weights that stay on the chip: cycles on the Verilog.

    python benchmarks/jet_tagging.py

16 -> 64 -> 32 -> 32 -> 5 with ReLU and softmax (Duarte et al., arXiv 1804.06913), random weights. Latency is
counted from the cycle in which a row leaves the load of the input to the cycle in which the last element of
its result enters the store of the output. The times of memory at both ends are in the cycles of a pass. The
first pass, which reads the weights, is not measured.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

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


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Cycles on the Verilog. latency: from an input to its output. interval: from an output to the next.
    run: of the pass. kernels: shares of the latency, by kernel, each with the FIFO in front of it."""

    latency: int
    interval: int
    run: int
    kernels: Mapping[str, int]


def measured(accelerator: Accelerator, x: torch.Tensor) -> Measured:
    """Run rows in two passes and measure the second one. x: the rows, more than a pass takes. The kernels
    form a chain. Raises ValueError if the results are not those of golden."""
    import pywellen  # a package for tests

    manifest = accelerator.manifests[0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "waves.fst")
        found = accelerator.run(x, waves=streamgen.Waves(path, 0, 1_000_000, run=2))
        pins = {pin.full_name: pin.signal for pin in pywellen.Waveform(str(path)).all_vars()}
    if found.tobytes() != accelerator.golden(x).tobytes():
        raise ValueError("the Verilog computes other results than the golden model")
    cycles, rows = accelerator.report().passes[1], len(x) - manifest.max_tokens

    def ends(instance: str) -> list[int]:
        """The cycles in which the last token of each row enters a FIFO."""
        valid, ready = (pins[f"{manifest.top}.{instance}.i__{name}"] for name in ("valid", "ready"))
        passed = [
            cycle for cycle in range(cycles) if valid.value_at(1000 * cycle) and ready.value_at(1000 * cycle)
        ]
        return passed[len(passed) // rows - 1 :: len(passed) // rows]

    chain = [stream for stream in manifest.streams if not stream.name.endswith(".i_e")]
    passed = sorted((ends(stream.instance), stream.name.partition(".")[0]) for stream in chain)
    kernels = {name: after[0] - before[0] for (before, _), (after, name) in pairwise(passed)}
    last = passed[-1][0]
    interval = max(after - before for before, after in pairwise(last))
    return Measured(latency=last[0] - passed[0][0][0], interval=interval, run=cycles, kernels=kernels)


def main() -> None:
    module = network()
    built = streamgen.compile(module, torch.zeros(TOKENS, 16), CONFIG)
    print(built.plan)
    with tempfile.TemporaryDirectory() as folder:
        accelerator = streamgen.load(built.write(Path(folder, CONFIG.name)))
        found = measured(accelerator, torch.randn(2 * TOKENS, 16))
        used = accelerator.report().groups[0].resources
        accelerator.close()
    print(f"input to output      {found.latency} cycles, {_verdict(found.latency, MOST_LATENCY)}")
    for name, cycles in found.kernels.items():
        print(f"    {name:17}{cycles}")
    print(f"a new input every    {found.interval} cycles, {_verdict(found.interval, MOST_INTERVAL)}")
    print(f"a pass of {TOKENS} inputs {found.run} cycles, with the input and the output in memory")
    board = CONFIG.card
    for name, title in RESOURCES.items():
        need, there = getattr(used.total, name), getattr(board.home.resources, name)
        print(f"{title:20} {need:,.0f}, {need / there:.1%} of {board.home.name}")


def _verdict(found: int, most: int) -> str:
    return f"at most {most} wanted: " + ("reached" if found <= most else f"{found - most} too many")


if __name__ == "__main__":
    main()
