"""A host program of a user: `python module_host.py FOLDER XCLBIN`, on whatever card XRT has.

FOLDER is the written accelerator; x.npy and golden.npy lie beside it.
"""

import os
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

import streamgen
from streamgen import cli
from streamgen.artifact.manifest import Manifest
from streamgen.base.errors import DeviceError, DeviceTimeoutError
from streamgen.runtime import on_board
from streamgen.runtime.execution import Execution
from streamgen.runtime.xrt import board


def refused(kind, text, call) -> None:
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"nothing is said of {text!r}")


def device_process() -> int:
    """The process that XRT has started."""
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            mine = os.environ["SDACCEL_EM_RUN_DIR"].encode() in (place / "environ").read_bytes()
            line = (place / "cmdline").read_bytes().split(b"\0")
            if mine and b"streamgen.package.emulation.process" in line:
                return int(place.name)
    raise AssertionError("no device process")


def hangs(group: Execution, x: np.ndarray) -> None:
    """The first descriptor of the phase table is missing: the watchdog ends the run, the status block says
    who waits."""
    manifest, patience = group.manifest, group.patience
    (section,) = manifest.program.sections
    spoilt = replace(section, descriptors=section.descriptors[1:])
    group.manifest = replace(manifest, program=replace(manifest.program, sections=(spoilt,)))
    group.patience = 5_000
    refused(
        DeviceTimeoutError,
        "no token and no beat moved any more; memory ports at work: ",
        lambda: group.run(x),
    )
    refused(DeviceTimeoutError, " tokens", lambda: group.run(x))
    group.manifest, group.patience = manifest, patience


def main(folder: Path, xclbin: Path) -> None:
    accelerator = streamgen.load(folder)
    x, golden = (np.load(folder.parent / f"{name}.npy") for name in ("x", "golden"))
    card = on_board(0, xclbin)

    def right() -> bool:
        return accelerator.run(x, device=card).tobytes() == golden.tobytes()

    assert right(), "the first run"
    opened = accelerator._running().groups[0].device
    assert right() and accelerator._running().groups[0].device is opened, "the card stays open"
    assert accelerator.report().cycles > 0, "counters are read back"

    refused(ValueError, "input 'x' must have shape", lambda: accelerator.run(x[:, 1:], device=card))
    refused(ValueError, "lie outside a buffer of", lambda: opened.allocate("x").write(b"0" * (1 << 20)))
    hangs(accelerator._running().groups[0], x)
    assert right(), "after the watchdog and the reset"
    files = [str(folder.parent / f"{name}.npy") for name in ("x", "y")]
    told = ["simulate", str(folder), "-i", files[0], "-o", files[1], "--xclbin", str(xclbin), "--device", "0"]
    assert cli.main(told) == 0 and np.load(files[1]).tobytes() == golden.tobytes(), "on the command line"
    accelerator.close()

    written = Manifest.from_json((folder / "manifest.json").read_text())
    last = replace(written.buffers[-1], bytes=600 << 20)
    large = replace(written, buffers=(*written.buffers[:-1], last))
    with board(xclbin, large) as device:
        refused(DeviceError, f"buffer {last.name!r} of {600 << 20} bytes", lambda: device.allocate(last.name))
    assert right(), "on the card again"
    print("all is right", flush=True)
    os.kill(device_process(), signal.SIGKILL)
    accelerator.run(x, device=card, timeout=5)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
