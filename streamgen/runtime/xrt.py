"""A device on an Alveo board, driven by `pyxrt`, which comes with AMD's runtime XRT and not from PyPI; where
the module is missing, by the C interface of the same runtime.

`pyxrt` passes a buffer or a C int and silently skips anything else, a buffer must lie in the memory group
of its argument, and a wait of 0 ms is a wait for ever; nothing here gives it a chance. An emulated card waits
as long as it is told, whatever the run does, so waits are short and many.
"""

import importlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamgen.errors import DeviceError, DeviceTimeoutError, MissingToolError
from streamgen.manifest import Buffer as BufferInfo
from streamgen.manifest import Manifest
from streamgen.runtime import xrt_c
from streamgen.runtime.device import Device, DeviceBuffer
from streamgen.runtime.xclbin import require_design

__all__ = ["BUILD", "EMULATION", "BoardDevice", "OnBoard", "board", "on_board"]

BUILD, EMULATION = "build", "emulation"
"""The folders of a package where the vendor's tools work, and where the binary for emulated cards lies."""
_SLICE = 1  # milliseconds of a wait
_PATIENCE = 5.0  # seconds for a run in line to end, when another has failed


def board(xclbin: str | Path, manifest: Manifest, index: int = 0) -> "BoardDevice":
    """Load the linked design on the board with this index.

    Raises MissingToolError without XRT, DeviceError when the file is not of this design or the board does not
    take it.
    """
    require_design(xclbin, manifest)
    return BoardDevice(_pyxrt(), str(xclbin), manifest, index)


@dataclass(frozen=True)
class OnBoard:
    """Opens the board with this index for `Execution` and `ChainExecution`, with an xclbin, or with what is
    built in the folder of a package (under XRT's hardware emulation with what emulates it).

    It raises FileNotFoundError when nothing is built there, and what `board` raises.
    """

    index: int = 0
    xclbin: Path | None = None

    def __call__(self, folder: Path, manifest: Manifest) -> "BoardDevice":
        if self.xclbin is not None:
            return board(self.xclbin, manifest, self.index)
        emulated = os.environ.get("XCL_EMULATION_MODE") == "hw_emu"
        binary = folder / (EMULATION if emulated else BUILD) / f"{manifest.top}.xclbin"
        if not binary.is_file():
            how = "`streamgen emulate` makes it" if emulated else f"`make` in {folder} builds it"
            raise FileNotFoundError(f"{binary} is missing: {how}")
        return board(binary, manifest, self.index)


def on_board(index: int = 0, xclbin: str | Path | None = None) -> OnBoard:
    """What `Accelerator.run` and `LanguageModel.generate` take as their device, see `OnBoard`.

    ValueError for a negative index.
    """
    if index < 0:
        raise ValueError(f"the index of a board is {index}; 0 is the first")
    return OnBoard(index, None if xclbin is None else Path(xclbin))


def _pyxrt() -> Any:
    try:
        return importlib.import_module("pyxrt")
    except ImportError:
        pass
    try:
        xrt_c.require()
    except OSError as error:
        raise MissingToolError(
            f"a board needs pyxrt or {xrt_c.LIBRARY}: install XRT, then source /opt/xilinx/xrt/setup.sh"
        ) from error
    return xrt_c


class BoardDevice(Device):
    """The kernel `manifest.top` of an xclbin on one board. Runs wait in line in XRT."""

    slots = 2

    def __init__(self, pyxrt: Any, xclbin: str, manifest: Manifest, index: int) -> None:
        super().__init__(manifest)
        self._pyxrt = pyxrt
        self._indices = {argument.name: i for i, argument in enumerate(manifest.arguments)}
        self._source = xclbin, index
        self._scalars: list[dict[str, int]] = [{} for _ in range(self.slots)]
        self._load()

    def start(self, slot: int = 0) -> None:
        run = self._runs[slot]
        for name, value in self._scalars[slot].items():
            run.set_arg(self._indices[name], value)
        for (name, place), buffer in self._buffers.items():
            assert isinstance(buffer, _BoardBuffer)
            if (name, place) == self._key(name, slot):
                run.set_arg(self._indices[name], buffer.object)
        try:
            run.start()
        except RuntimeError as error:  # the run before has not ended
            raise DeviceError(f"XRT does not start a run: {error}") from error
        self._line.append(slot)

    def wait(self, timeout: float = 600.0, slot: int = 0) -> None:
        states = self._pyxrt.ert_cmd_state
        deadline = time.monotonic() + timeout
        while (state := self._runs[slot].wait(_SLICE)) != states.ERT_CMD_STATE_COMPLETED:
            if state in (
                states.ERT_CMD_STATE_ERROR,
                states.ERT_CMD_STATE_ABORT,
                states.ERT_CMD_STATE_NORESPONSE,
            ):
                raise DeviceError(f"XRT ended the run in state {state}")
            if time.monotonic() > deadline:
                raise DeviceTimeoutError(f"not done after {timeout:g} s")
        if slot in self._line:
            self._line.remove(slot)

    def reset(self) -> None:
        """XRT cannot stop a run: those in line are waited for, a little, or the design is loaded anew."""
        try:
            for slot in tuple(self._line):
                self.wait(_PATIENCE, slot)
        except DeviceError:
            self._reset_hard()
        else:
            super().reset()

    def close(self) -> None:
        self._buffers.clear()
        del self._runs, self._kernel, self._device

    def _load(self) -> None:
        self._line: list[int] = []
        xclbin, index = self._source
        try:
            self._device: Any = self._pyxrt.device(index)
            uuid = self._device.load_xclbin(xclbin)
            self._kernel: Any = self._pyxrt.kernel(self._device, uuid, self.manifest.top)
            self._runs: list[Any] = [self._pyxrt.run(self._kernel) for _ in range(self.slots)]
        except RuntimeError as error:
            raise DeviceError(f"board {index} does not take {xclbin}: {error}") from error

    def _allocate(self, info: BufferInfo) -> DeviceBuffer:
        group = self._kernel.group_id(self._indices[info.name])
        try:
            memory = self._pyxrt.bo(self._device, info.bytes, self._pyxrt.bo.normal, group)
        except RuntimeError as error:
            raise DeviceError(f"buffer {info.name!r} of {info.bytes} bytes: {error}") from error
        return _BoardBuffer(self._pyxrt, memory, info.bytes)

    def _set_scalar(self, name: str, value: int, slot: int) -> None:
        self._scalars[slot][name] = value

    def _reset_hard(self) -> None:
        """Load the design anew; the content of the buffers is carried over."""
        contents = {key: buffer.read() for key, buffer in self._buffers.items()}
        self.close()
        self._load()
        for key, content in contents.items():
            self.allocate(*key).write(content)


class _BoardBuffer(DeviceBuffer):
    def __init__(self, pyxrt: Any, memory: Any, size: int) -> None:
        self._direction = pyxrt.xclBOSyncDirection
        self.object, self.size = memory, size

    def _write(self, data: bytes, offset: int) -> None:
        self.object.write(data, offset)
        self.object.sync(self._direction.XCL_BO_SYNC_BO_TO_DEVICE, len(data), offset)

    def _read(self, size: int, offset: int) -> bytes:
        self.object.sync(self._direction.XCL_BO_SYNC_BO_FROM_DEVICE, size, offset)
        return bytes(self.object.read(size, offset).tobytes())
