"""How long `streamgen estimate` takes for the published shapes, from a bare config.json.

    python benchmarks/estimate.py [--channels 8] [--multipliers 1024] [NAME ...]

Each is a process of its own, from its start to its end: seconds of the clock, and of all processors together,
beside what is asked. Both need a machine that does nothing else.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.shapes import SHAPES

ASKED = {"gpt2-medium": 10.0}  # seconds of the clock; OTHERS: of the others
OTHERS = 20.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SHAPES)}; all")
    parser.add_argument("--channels", type=int, default=8)
    parser.add_argument("--multipliers", type=int, default=1024)
    options = parser.parse_args()
    if unknown := set(options.names) - SHAPES.keys():
        parser.error(f"no shapes are called {', '.join(sorted(unknown))}")
    made = Table(title=f"streamgen estimate, {options.channels} channels, {options.multipliers} multipliers")
    for heading in ("shape", "seconds", "of asked", "of processors"):
        made.add_column(heading, justify="right")
    chosen = [
        "--goal",
        "small",
        "--channels",
        str(options.channels),
        "--multipliers",
        str(options.multipliers),
    ]
    for name in options.names or SHAPES:
        with tempfile.TemporaryDirectory() as place:
            _config(name).save_pretrained(place)
            clock, processors = _timed(["estimate", str(Path(place, "config.json")), *chosen])
        share = clock / ASKED.get(name, OTHERS)
        made.add_row(name, f"{clock:.1f}", f"{share:.2f}", f"{processors:.1f}")
    Console().print(made)


def _config(name: str) -> Any:
    import transformers

    kind, model, sizes = SHAPES[name]
    return getattr(transformers, kind)(**sizes, architectures=[model])


def _timed(arguments: list[str]) -> tuple[float, float]:
    """Seconds of a command: of the clock, and of all processors."""
    start, before = time.perf_counter(), _children()
    command = [sys.executable, "-c", "from streamgen.cli import run; run()", *arguments]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start, _children() - before


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
