"""The demo block, 576 -> 1536 -> 576 with real 4-bit weights, each figure beside what it has to reach.

    python benchmarks/feed_forward.py

Cycles, errors and sizes are exact and repeat; seconds depend on the machine and on what else it does.
The first run on a machine builds the simulator, whose time is printed apart.
"""

import subprocess
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch

import streamgen
from streamgen.compiler.explore.bound import least_cycles, stages
from streamgen.compiler.plan.policy import whole
from streamgen.model import golden
from streamgen.model.frontend import default_checkpoint, import_module, load_feed_forward
from streamgen.model.graph.logical import LogicalGraph
from streamgen.runtime.execution import Execution
from streamgen.runtime.simulator import SimulatedDevice

TOKENS = (1, 16)
CONFIG = streamgen.CompileConfig(
    name="feed_forward", goal="small", max_tokens=16, multipliers=768, channels=4
)
ALLOWANCE = 1.15  # of the bound, beside a latency for each stage
LATENCY = 200
MEASURED = 4.0  # seconds of runs, of which the fastest counts
OPEN_DEVICE = """
import sys
from streamgen.runtime.execution import Execution
Execution(sys.argv[1]).device
"""


def main() -> None:
    """Print every figure."""
    module = load_feed_forward(default_checkpoint(), layer=0)
    rng = np.random.default_rng(0)
    inputs = {tokens: rng.normal(size=(tokens, 576)).astype(np.float32) for tokens in TOKENS}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "feed_forward")
        start, busy = time.perf_counter(), time.process_time()
        accelerator = streamgen.compile(module, (torch.zeros(16, 576),), config=CONFIG)
        accelerator.write(folder)
        seconds, busy = time.perf_counter() - start, time.process_time() - busy
        multipliers = accelerator.report().multipliers
        print(
            f"torch -> Verilog: {seconds:.1f} s (to be under 20), {busy:.1f} s of processor time; "
            f"{multipliers} multipliers (at least 512)"
        )
        start = time.perf_counter()
        accelerator.run(inputs[1])
        seconds = time.perf_counter() - start
        print(f"first run of one token, building the simulator if it is new: {seconds:.1f} s")
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", OPEN_DEVICE, folder], check=True)
        print(f"a new process opens the unchanged design: {time.perf_counter() - start:.2f} s (under 3)")
        for tokens, x in inputs.items():
            print_run(accelerator, tokens, x, speed(folder, x))
        print(accelerator.report().memory)
    print_errors(module, inputs[16])


def print_run(accelerator: streamgen.Accelerator, tokens: int, x: np.ndarray, speed: float) -> None:
    """Cycles beside the bound, cycles simulated a second, equality with golden."""
    equal = accelerator.run(x).tobytes() == accelerator.golden(x).tobytes()
    report = accelerator.report()
    assert report.cycles is not None
    timing = accelerator.manifest.memory
    rate = Fraction(timing.beats, timing.cycles)
    found = stages(accelerator.graph, tokens)
    bound = least_cycles(found, rate)
    needed = max(0.0, report.cycles - ALLOWANCE * bound) / len(found)
    print(
        f"T = {tokens}: {report.cycles} cycles, bound {bound:.0f}, ratio {report.cycles / bound:.3f} "
        f"(at most {ALLOWANCE}); latency needed beyond that {needed:.0f} cycles a stage (at most {LATENCY}); "
        f"{'equals golden bit for bit' if equal else 'DIFFERS FROM GOLDEN'}; "
        f"{speed:,.0f} cycles a second (at least 100,000)"
    )
    for stage in found:
        print(
            f"    {', '.join(stage.columns)}: {stage.bytes} bytes over {len(stage.channels)} channels "
            f"{stage.memory_cycles(rate):.0f} cycles, {stage.products} products on {stage.multipliers} "
            f"multipliers {stage.compute_cycles:.0f} cycles"
        )


def speed(folder: Path, x: np.ndarray) -> float:
    """Clock cycles that the device simulates in a second of a run, those of the host's registers among them:
    the best of several runs that take seconds together.
    """
    with Execution(folder) as execution:
        device = execution.device
        assert isinstance(device, SimulatedDevice)
        best, busy = 0.0, 0.0
        while busy < MEASURED:
            cycles, start = device.cycles, time.perf_counter()
            execution.run(x)
            seconds = time.perf_counter() - start
            best, busy = max(best, (device.cycles - cycles) / seconds), busy + seconds
        return best


def print_errors(module: torch.nn.Module, x: np.ndarray) -> None:
    """Golden against torch float32 on the same weights."""
    network = import_module(module, (torch.zeros(16, 576),))
    reference = module(torch.from_numpy(x)).detach().numpy().astype(np.float64)
    formats = {
        "w4, the checkpoint's own codes, 8-bit scales": {"weights": "w4", "scale_bits": 8},
        "w4, the checkpoint's own codes, 16-bit scales": {"weights": "w4", "scale_bits": 16},
        "w8": {"weights": "w8"},
    }
    for name, choice in formats.items():
        config = streamgen.CompileConfig(goal="small", max_tokens=16, multipliers=768, channels=4, **choice)
        y = golden_outputs(network, config, x)
        error = np.linalg.norm(y - reference) / np.linalg.norm(reference)
        print(f"golden against torch float32, {name}: relative error {error:.5f}")


def golden_outputs(network: LogicalGraph, config: streamgen.CompileConfig, x: np.ndarray) -> np.ndarray:
    """What the hardware of that configuration computes, without building it."""
    network = network.quantised(config.numbers(False))
    graph = whole(network, config).largest
    (name,) = (value.name for value in network.inputs)
    (outputs, _) = golden.run(graph, {name: x})
    (y,) = outputs.values()
    return y


if __name__ == "__main__":
    main()
