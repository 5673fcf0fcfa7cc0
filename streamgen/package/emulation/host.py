"""Run host programs on an emulated card."""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from streamgen.base.errors import DeviceError
from streamgen.base.progress import Progress
from streamgen.package.emulation.binary import emulated
from streamgen.package.emulation.environment import DEVICE_LOG, Xrt, find_xrt
from streamgen.platform.boards import DEFAULT_BOARD, shell_of


def emulate(
    folder: str | Path, script: Sequence[str], xrt: Xrt | None = None, progress: Progress | None = None
) -> int:
    """Run a host program in Python on the real XRT, with the simulator of a package as its card, and return
    the exit code. script: the file of the program and its arguments. xrt: by default the result of
    `find_xrt`.

    Raises MissingToolError without XRT, all errors of `emulated`, and DeviceError if the device process ends
    early, which also ends the program.
    """
    xrt = xrt or find_xrt()
    emulated(folder, progress)
    with tempfile.TemporaryDirectory(prefix="streamgen-xrt-") as place:
        environment = xrt.environment(Path(place), shell_of(DEFAULT_BOARD).platform)
        # XRT signals its whole process group when it crashes, so it gets its own group.
        code = subprocess.run(
            [sys.executable, *script], env=environment, start_new_session=True, check=False
        ).returncode
        if code == -signal.SIGTERM:
            log = Path(place, DEVICE_LOG)
            lines = log.read_text().strip().splitlines() if log.exists() else []
            raise DeviceError(
                f"the emulated card was lost in a run: {lines[-1] if lines else 'its process was ended'}"
            )
        return code
