"""The optimised simulator of a design, built beside the runs of the one that was built quickly.

A process of its own builds it into the cache, where later processes find it, too. It ends with whoever waits
for it.
"""

import json
import os
import signal
import subprocess
import sys
import warnings
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from streamgen.runtime.verilator import build

__all__ = ["BackgroundBuild"]

NICE = 5  # runs come first


class BackgroundBuild:
    """Of module `top` of the Verilog `sources` with the AXI masters named, when it is begun."""

    def __init__(self, sources: Sequence[Path], top: str, masters: Sequence[str]) -> None:
        self._what = [Path(file).resolve() for file in sources], top, list(masters)
        self._process: subprocess.Popen[str] | None = None
        self._over = False

    def begin(self) -> None:
        """Build, unless that has begun already."""
        if self._process is None and not self._over:
            sources, top, masters = self._what
            package = str(Path(__file__).parents[2])
            paths = os.pathsep.join((package, *filter(None, [os.environ.get("PYTHONPATH")])))
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, json.dumps([[*map(str, sources)], top, masters])],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | {"PYTHONPATH": paths},
                start_new_session=True,
            )
            weakref.finalize(self, _stop, self._process)

    def library(self) -> Path | None:
        """The library, once: when it is ready. A build that has failed is a warning, once."""
        if self._process is None or self._over or self._process.poll() is None:
            return None
        self._over = True
        _, said = self._process.communicate()
        sources, top, masters = self._what
        if self._process.returncode == 0:
            return build(sources, top, masters)
        last = said.strip().rpartition("\n")[2]
        warnings.warn(
            f"no optimised simulator of {top!r} beside its runs, which go on with the slower one: {last}",
            stacklevel=2,
        )
        return None


def _stop(process: subprocess.Popen[str]) -> None:
    """With the compilers that it has started, and so that it takes away what is half made."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGINT)
    if process.stderr is not None:
        process.stderr.close()
    process.wait()


def _main() -> None:
    os.nice(NICE)
    sources, top, masters = json.loads(sys.argv[1])
    build([Path(file) for file in sources], top, masters)


if __name__ == "__main__":
    _main()
