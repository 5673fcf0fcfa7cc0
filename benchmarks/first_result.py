"""Seconds to the first result, stage by stage, with nothing in the cache: the README's example, and SmolLM2's
first token behind a prompt of 16.

    python benchmarks/first_result.py [readme] [smollm2]

Each runs in a process of its own with a cache folder of its own. Processor time, compilers' included, is what
a machine that does nothing else shares between its processors; the rest is what the clock on the wall says.
"""

import argparse
import multiprocessing
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

SECONDS = {"readme": 30.0, "smollm2": 240.0}  # to be under, on 2 processors
PROMPT = "Once upon a time, in a small village by the sea, there lived a"  # 16 tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all by default: {', '.join(SECONDS)}")
    options = parser.parse_args()
    if unknown := set(options.names) - SECONDS.keys():
        parser.error(f"no examples are called {', '.join(sorted(unknown))}")
    for name in options.names or SECONDS:
        Console().print(measured(name))


def measured(name: str) -> Table:
    """The stages of an example in a process of its own."""
    with tempfile.TemporaryDirectory() as place, multiprocessing.get_context("spawn").Pool(1) as pool:
        stages: list[tuple[str, float, float]] = pool.apply(_run, (name, place))
    elapsed, busy = (sum(stage[i] for stage in stages) for i in (1, 2))
    found = Table("stage", "s", "processor s", title=f"{name}, cold, on {os.cpu_count()} processors")
    for stage, *times in (
        *stages,
        (f"all, {elapsed / SECONDS[name]:.2f} of {SECONDS[name]:g} s", elapsed, busy),
    ):
        found.add_row(stage, *(f"{seconds:.1f}" for seconds in times))
    return found


class _Stages:
    """Seconds between one mark and the next."""

    def __init__(self) -> None:
        self.found: list[tuple[str, float, float]] = []
        self._mark = time.perf_counter(), _busy()

    def done(self, stage: str) -> None:
        """What has passed since the last one was this stage."""
        now = time.perf_counter(), _busy()
        self.found.append((stage, *(after - before for after, before in zip(now, self._mark, strict=True))))
        self._mark = now


def _busy() -> float:
    """Processor seconds of this process and of those that it has started and that have ended."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, who))


def _run(name: str, place: str) -> list[tuple[str, float, float]]:
    os.environ["XDG_CACHE_HOME"] = place
    stages = _Stages()
    (_readme if name == "readme" else _smollm2)(stages, Path(place))
    return stages.found


def _readme(stages: _Stages, place: Path) -> None:
    import numpy as np
    import torch

    import streamgen

    stages.done("import")
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
    config = streamgen.CompileConfig(name="tiny", max_tokens=2, multipliers=64, channels=2)
    accelerator = streamgen.compile(module, torch.zeros(2, 8), config)
    stages.done("compile")
    x = np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)
    y = accelerator.run(x)
    assert y.tobytes() == accelerator.golden(x).tobytes()
    stages.done("simulator, first run")
    _again(accelerator, place / "tiny", x, y)
    stages.done("write, load, run")
    _again(accelerator, place / "tiny", x, y)
    stages.done("the same again")


def _again(accelerator: Any, folder: Path, x: Any, y: Any) -> None:
    import streamgen

    again = streamgen.load(accelerator.write(folder))
    assert again.run(x).tobytes() == y.tobytes()
    again.close()


def _smollm2(stages: _Stages, place: Path) -> None:
    import streamgen
    from streamgen.model.frontend import default_checkpoint

    stages.done("import")
    config = streamgen.CompileConfig(
        name="text", goal="small", max_tokens=16, context=256, channels=4, multipliers=512
    )
    model = streamgen.compile(default_checkpoint(), config=config)
    stages.done("compile")
    model.write(place / "smollm2")
    stages.done("write")
    model.device().open()
    stages.done("simulator")
    assert model.tokenizer is not None
    ids = model.tokenizer.encode(PROMPT)
    (token,) = model.generate(ids, 1)
    stages.done(f"first token behind {len(ids)}")
    assert [token] == list(model.generate(ids, 1, golden=True))
    model.close()


if __name__ == "__main__":
    main()
