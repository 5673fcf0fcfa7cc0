"""Build the optimised simulator of a design in the background, while a quickly built simulator does the runs.

A separate process builds the simulator into the cache, where later processes find it. The build is stopped
when the `BackgroundBuild` object is deleted.
"""

import json
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from streamgen.base.warn import warn
from streamgen.runtime.verilator import build, is_built

NICE = 5  # runs have a higher priority


class BackgroundBuild:
    """A build of module `top` of the Verilog `sources` with these AXI `masters`; `begin` starts it."""

    def __init__(self, sources: Sequence[Path], top: str, masters: Sequence[str]) -> None:
        self._arguments = [Path(file).resolve() for file in sources], top, list(masters)
        self._process: subprocess.Popen[str] | None = None
        self._over = False

    def begin(self) -> None:
        """Start the build, unless it has started already."""
        if self._process is None and not self._over:
            sources, top, masters = self._arguments
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
        """The library when it is ready, once; None before and after. A failed build gives one warning."""
        if self._process is None or self._over or self._process.poll() is None:
            return None
        _, errors = self._process.communicate()
        if self._process.returncode:
            self._give_up(errors.strip().rpartition("\n")[2])
        elif not is_built(*self._arguments):
            self._give_up("the built simulator is no longer in the cache")
        else:
            self._over = True
            return build(*self._arguments)
        return None

    def _give_up(self, why: str) -> None:
        self._over = True
        warn(
            f"the optimised simulator of {self._arguments[1]!r} could not be built, so runs go on with the "
            f"slower one: {why}"
        )


def _stop(process: subprocess.Popen[str]) -> None:
    """Stop a build and the compilers that it started. The interrupt lets it delete its unfinished files."""
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
