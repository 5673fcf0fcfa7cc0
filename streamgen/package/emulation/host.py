"""Host programs on the emulated card."""

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
    """Run a host program in Python on the real XRT, whose card is the simulator of a package; returns its
    exit code. script: the file and its arguments. xrt: by default that of `find_xrt`.

    MissingToolError without XRT, what `emulated` raises, and DeviceError when the device process ends, which
    ends the program with it.
    """
    found = xrt or find_xrt()
    emulated(folder, progress)
    with tempfile.TemporaryDirectory(prefix="streamgen-xrt-") as place:
        environment = found.environment(Path(place), shell_of(DEFAULT_BOARD).platform)
        # XRT signals its whole process group when it crashes, hence one of its own.
        code = subprocess.run(
            [sys.executable, *script], env=environment, start_new_session=True, check=False
        ).returncode
        if code == -signal.SIGTERM:
            log = Path(place, DEVICE_LOG)
            lines = log.read_text().strip().splitlines() if log.exists() else []
            raise DeviceError(
                f"the emulated card was lost in a run: {lines[-1] if lines else 'it was ended'}"
            )
        return code
