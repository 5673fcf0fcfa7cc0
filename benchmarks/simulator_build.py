"""What building a simulator without optimisation would save, and what it would cost.

    python benchmarks/simulator_build.py [readme] [smollm2]

Each design is built with what all designs share in the cache, as it is built for users and with -O0, and
simulated for a while. Processor seconds; beside them the seconds on two processors until a run of so many
cycles has ended: with the optimised build, the quick one, and the quick one until the optimised one,
compiled beside the run on the other processor, takes over, if that took no time at all.
"""

import argparse
import multiprocessing
import os
import resource
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

DESIGNS = ("readme", "smollm2")
RUNS = (10_000, 100_000, 1_000_000, 4_000_000)  # cycles
BUILDS = ("optimised", "-O0")


CYCLES = 20_000  # simulated to see how many a second


@dataclass(frozen=True)
class Build:
    """Processor seconds of the translation and of the compilers; cycles a second."""

    translation: float
    compilers: float
    rate: float

    @property
    def ready(self) -> float:
        """Seconds until it can run, with two processors."""
        return self.translation + self.compilers / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all by default: {', '.join(DESIGNS)}")
    options = parser.parse_args()
    if unknown := set(options.names) - {*DESIGNS}:
        parser.error(f"no designs are called {', '.join(sorted(unknown))}")
    for name in options.names or DESIGNS:
        with tempfile.TemporaryDirectory() as place:
            _fresh(_written, name, place)
            found = [_fresh(_measured, place, build) for build in BUILDS]
        Console().print(_table(name, *found))


def _fresh(function: Any, *given: Any) -> Any:
    """The result of a call in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, given)


def _written(name: str, place: str) -> None:
    """A design in a folder."""
    import torch

    import streamgen
    from streamgen.model.frontend import default_checkpoint

    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
    config = streamgen.CompileConfig(name=name, max_tokens=2, multipliers=64, channels=2)
    if name == "readme":
        made = streamgen.compile(module, torch.zeros(2, 8), config)
    else:
        config = streamgen.CompileConfig(
            name=name, goal="small", max_tokens=16, context=256, channels=4, multipliers=512
        )
        made = streamgen.compile(default_checkpoint(), config=config)
    made.write(Path(place, "design"))


def _measured(place: str, build: str) -> Build:
    """Of a folder, with a cache that knows what all designs share."""
    os.environ["XDG_CACHE_HOME"] = str(Path(place, "cache"))
    from streamgen.artifact.manifest import Manifest
    from streamgen.runtime import simulator, verilator

    simulator.QUICK_BYTES = 0  # what is built is said here
    if build != BUILDS[0]:
        verilator.FAST = (build,)
    for kind in ((*verilator.FAST, *verilator._processor()), verilator.SLOW):
        verilator.prelude((*verilator.COMMON, *verilator.TRACED[False], *kind))
    verilator.library_objects()
    tool, translation = verilator.run_tool, 0.0

    def timed(*command: str, **given: Any) -> str:
        nonlocal translation
        before = _busy()
        said = tool(*command, **given)
        if command[0] == verilator._verilator():
            translation += _busy() - before
        return said

    verilator.run_tool = timed
    folder = Path(place, "design")
    begun = _busy()
    device = simulator.simulated(folder, Manifest.from_json((folder / "manifest.json").read_text()))
    built = _busy() - begun
    begun = time.process_time()
    device.run(CYCLES)
    return Build(translation, built - translation, CYCLES / (time.process_time() - begun))


def _table(name: str, fast: Build, quick: Build) -> Table:
    found = Table("", *BUILDS, "-O0, optimised beside it", title=name)
    for what, pick in (
        ("translation, s", "translation"),
        ("compilers, s", "compilers"),
        ("cycles/s", "rate"),
    ):
        found.add_row(what, *(f"{getattr(one, pick):,.1f}" for one in (fast, quick)))
    for cycles in RUNS:
        behind = (cycles - fast.compilers * quick.rate) / fast.rate
        both = quick.ready + (cycles / quick.rate if behind < 0 else fast.compilers + behind)
        ends = (fast.ready + cycles / fast.rate, quick.ready + cycles / quick.rate, both)
        found.add_row(f"{cycles:,} cycles end after, s", *(f"{seconds:,.1f}" for seconds in ends))
    return found


def _busy() -> float:
    """Processor seconds of this process and of those that it has started and that have ended."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, who))


if __name__ == "__main__":
    main()
