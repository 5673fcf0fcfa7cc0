"""Find XRT on this machine, and set the environment in which it emulates a card."""

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from streamgen.base.errors import MissingToolError

DEVICE_LOG = "device.log"
"""File in the folder of a run with the errors of the device process."""
_LIBRARY = "libxrt_hwemu.so.2"
# XRT 2.13 corrupts its heap if a message is larger than the largest message before it.
_PACKET, _PAD = 65_536, 70_000
_MISSING = (
    "XRT's hardware emulation is not installed: `apt-get install libxrt1 unzip`, or `make xrt` in a clone of "
    "streamgen"
)


@dataclass(frozen=True)
class Xrt:
    """XRT on this machine. libraries: the folder of its libraries. programs: a folder with `unzip`, if PATH
    has none."""

    libraries: Path
    programs: Path | None = None

    def environment(self, place: Path, card: str) -> dict[str, str]:
        """The environment of a host program. place: an empty folder for the files of XRT; it must live as
        long as the program. card: name of the platform."""
        root, config = place / "xrt", place / "xrt.ini"
        root.mkdir()
        (root / "lib").symlink_to(self.libraries)
        (root / "lib64").symlink_to(self.libraries)
        config.write_text(f"[Emulation]\npacket_size={_PACKET}\n[Debug]\npad={'x' * _PAD}\n")
        (place / "run").mkdir()
        (place / "emconfig.json").write_text(_EMCONFIG % card)
        paths = [str(self.programs)] if self.programs is not None else []
        return os.environ | {
            "XCL_EMULATION_MODE": "hw_emu",
            "XILINX_XRT": str(root),
            "XRT_INI_PATH": str(config),
            "EMCONFIG_PATH": str(place),
            "SDACCEL_EM_RUN_DIR": str(place / "run"),
            "USER": os.environ.get("USER") or "streamgen",
            "TMPDIR": os.environ.get("TMPDIR", "/tmp"),
            "STREAMGEN_PYTHON": sys.executable,
            "STREAMGEN_DEVICE_LOG": str(place / DEVICE_LOG),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "PATH": os.pathsep.join([*paths, os.environ.get("PATH", os.defpath)]),
            "LD_LIBRARY_PATH": os.pathsep.join(
                filter(None, (str(self.libraries), os.environ.get("LD_LIBRARY_PATH")))
            ),
        }


_EMCONFIG = """{
 "Version": {"FileVersion": "2.0"},
 "Platform": {"Boards": [{
  "Devices": [{
   "Name": "%s", "HwVersion": 2048, "SwVersion": 2048, "HwDevice": 12, "HwVendor": 4334,
   "DdrSize": 17179869184
  }], "NumBoards": 1}], "FeatureRom": {}}
}
"""


def find_xrt() -> Xrt:
    """XRT as installed on the machine or by `make xrt`. Raises MissingToolError if XRT or `unzip`, which it
    runs, is missing."""
    for libraries in _places():
        if (libraries / _LIBRARY).exists():
            break
    else:
        raise MissingToolError(_MISSING)
    if shutil.which("unzip"):
        return Xrt(libraries)
    programs = Path(sys.prefix, "xrt", "usr", "bin")
    if not (programs / "unzip").exists():
        raise MissingToolError(_MISSING)
    return Xrt(libraries, programs)


def _places() -> Iterator[Path]:
    if root := os.environ.get("XILINX_XRT"):
        yield Path(root, "lib")
    for usr in (Path(sys.prefix, "xrt", "usr"), Path("/usr")):
        yield from sorted((usr / "lib").glob("*-linux-gnu"))
        yield usr / "lib"
