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

from streamgen.runtime.verilator import build, is_built

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
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", __name__, json.dumps([[*map(str, sources)], top, masters])],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                    env=os.environ | {"PYTHONPATH": paths},
                    start_new_session=True,
                )
            except OSError as error:
                self._give_up(str(error))
            else:
                weakref.finalize(self, _stop, self._process)

    def library(self) -> Path | None:
        """The library, once: when it is ready. A build that has failed is a warning, once."""
        if self._process is None or self._over or self._process.poll() is None:
            return None
        _, said = self._process.communicate()
        if self._process.returncode:
            self._give_up(said.strip().rpartition("\n")[2])
        elif not is_built(*self._what):
            self._give_up("it is not in the cache any more")
        else:
            self._over = True
            return build(*self._what)
        return None

    def _give_up(self, why: str) -> None:
        self._over = True
        warnings.warn(
            f"no optimised simulator of {self._what[1]!r} beside its runs, which go on with the slower one: "
            f"{why}",
            stacklevel=3,
        )


def _stop(process: subprocess.Popen[str]) -> None:
    """With the compilers that it has started, and so that it takes away what is half made."""
    if process.poll() is None:
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
