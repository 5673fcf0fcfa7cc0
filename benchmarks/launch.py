"""What a launch costs the host: XRT's hardware emulation, and the simulated device without XRT.

    python benchmarks/launch.py

A module of 40 x 5 weights runs one token. Printed are milliseconds a launch by what they are spent on: the
cycles of the hardware are simulated, so they are given apart from what host, runtime and socket take. On a
card the simulation falls away; what stays is the host's part, and XRT's own of some ten microseconds.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import streamgen
from streamgen.compiler.config import CompileConfig
from streamgen.package.emulation import emulate
from streamgen.runtime.execution import Execution
from streamgen.runtime.xrt import on_board

LAUNCHES = 50


def main() -> None:
    """Measure in a process of its own on the emulated card, then here on the simulated device."""
    if len(sys.argv) == 3:
        _measured(Path(sys.argv[1]), sys.argv[2], on_board())
        return
    torch.manual_seed(1)
    config = CompileConfig(
        name="tiny", max_tokens=1, multipliers=32, channels=1, weights="w8", prefetch_beats=64
    )
    module = torch.nn.Linear(40, 5, bias=False)
    accelerator = streamgen.compile(module, torch.zeros(1, 40), config)
    with tempfile.TemporaryDirectory() as place:
        package = accelerator.package(Path(place, "card"))
        _measured(package, "simulated device", None)
        code = emulate(package, [__file__, str(package), "XRT 2.13, hardware emulation"])
        if code:
            raise subprocess.CalledProcessError(code, "the host program")


def _measured(package: Path, what: str, card: object) -> None:
    x = np.zeros((1, 40), np.float32)
    with Execution(package, card) as execution:  # type: ignore[arg-type]
        execution.run(x)  # opens the device, writes weights
        device = execution.device
        spent: dict[str, list[float]] = {"run": [], "start": [], "done": []}
        calls: dict[str, list[float]] = {"start": [], "done": []}  # several a run
        for name, into in calls.items():
            setattr(device, name, _timed(getattr(device, name), into))
        for _ in range(LAUNCHES):
            began = time.perf_counter()
            execution.run(x)
            spent["run"].append(time.perf_counter() - began)
            for name, into in calls.items():
                spent[name].append(sum(into))
                into.clear()
        cycles = execution.statuses[-1].cycles
        began = time.perf_counter()
        execution.run(np.zeros((LAUNCHES, 40), np.float32))  # a launch a token, as many in flight as may be
        line = 1e3 * (time.perf_counter() - began) / LAUNCHES
    run, start, wait = (1e3 * statistics.median(spent[name]) for name in ("run", "start", "done"))
    print(
        f"{what}: {run:.2f} ms a launch of {cycles} cycles: {start:.2f} start, {wait:.2f} wait with the "
        f"simulation, {run - start - wait:.2f} arguments, buffers, status; median of "
        f"{LAUNCHES}; {line:.2f} ms with {execution.slots} in flight",
        flush=True,
    )


def _timed(call, into: list[float]):
    def timed(*arguments: object, **options: object) -> object:
        began = time.perf_counter()
        try:
            return call(*arguments, **options)
        finally:
            into.append(time.perf_counter() - began)

    return timed


if __name__ == "__main__":
    main()
