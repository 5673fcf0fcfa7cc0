"""Devices on an Alveo board, driven by `pyxrt`. This module comes with AMD's runtime XRT and is not on PyPI.
If it is missing, the C interface of XRT takes its place (`xrt_c.py`).

The code here avoids three traps of `pyxrt`: it passes only buffers and C ints and silently skips all other
arguments; a buffer must lie in the memory group of its argument; and a wait of 0 ms waits for ever. An
emulated card waits for the full time even if the run ends earlier, so waits are short and many.
"""

import importlib
import os
import weakref
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamgen.artifact.manifest import Buffer as BufferInfo
from streamgen.artifact.manifest import Manifest
from streamgen.artifact.packing import ADDRESS_BITS
from streamgen.base.errors import DeviceError, MissingToolError
from streamgen.runtime import xrt_c
from streamgen.runtime.card import card_of
from streamgen.runtime.device import Device, DeviceBuffer
from streamgen.runtime.xclbin import require_design

BUILD, EMULATION = "build", "emulation"
"""Folders of a package: one for the vendor's tools, and one for the binary of emulated cards."""
_SLICE = 1  # milliseconds of one wait
_PATIENCE = 5.0  # seconds for each waiting run to end after another run failed


def board(xclbin: str | Path, manifest: Manifest, index: int = 0) -> "BoardDevice":
    """Open the kernel of a manifest, in a linked file, on the board with this index. All open kernels of a
    file share the board's memory, and the file is loaded once.

    Raises MissingToolError without XRT, and DeviceError if the file holds another design or the board rejects
    it.
    """
    require_design(xclbin, manifest)
    pyxrt, path = _pyxrt(), str(Path(xclbin).resolve())
    card = _cards.get((pyxrt, path, index))
    if card is None or card.lost:
        card = _cards[pyxrt, path, index] = _Card(pyxrt, path, index)
    return BoardDevice(card, manifest)


@dataclass(frozen=True)
class OnBoard:
    """Opens a board for `Execution` and `ChainExecution`. index: index of the board in XRT. xclbin: the file
    to load; by default the file that was built in the package. Under XRT's hardware emulation, the default is
    the emulated file of the package.

    A call raises ValueError for a folder outside of a package, FileNotFoundError if the file is missing, and
    all errors of `board`.
    """

    index: int = 0
    xclbin: Path | None = None

    def __call__(self, folder: Path, manifest: Manifest) -> "BoardDevice":
        if self.xclbin is not None:
            return board(self.xclbin, manifest, self.index)
        emulated = os.environ.get("XCL_EMULATION_MODE") == "hw_emu"
        place, card = card_of(folder)
        binary = place / (EMULATION if emulated else BUILD) / f"{card.name}.xclbin"
        if not binary.is_file():
            how = "`streamgen emulate` writes it" if emulated else f"`make` in {place} builds it"
            raise FileNotFoundError(f"{binary} is missing: {how}")
        return board(binary, manifest, self.index)


def on_board(index: int = 0, xclbin: str | Path | None = None) -> OnBoard:
    """A device for `Accelerator.run` and `LanguageModel.generate`; see `OnBoard` for the arguments.

    Raises ValueError for a negative index.
    """
    if index < 0:
        raise ValueError(f"the index of a board is {index}; it must be 0 or more")
    return OnBoard(index, None if xclbin is None else Path(xclbin))


def require_xrt() -> None:
    """Raise MissingToolError without XRT."""
    _pyxrt()


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


class _Card:
    """A board with a loaded file, the open kernels of the file, and their buffers."""

    def __init__(self, pyxrt: Any, xclbin: str, index: int) -> None:
        self.pyxrt = pyxrt
        self.kernels: weakref.WeakSet[BoardDevice] = weakref.WeakSet()
        self.buffers: weakref.WeakSet[_BoardBuffer] = weakref.WeakSet()
        self._source = xclbin, index
        self.device: Any = None
        self.lost = False
        """Whether the board has stopped answering. The next kernel that is opened loads the file again."""
        self._load()

    def kernel(self, name: str) -> Any:
        """A kernel of the file, by name."""
        with self._taking():
            return self.pyxrt.kernel(self.device, self._uuid, name)

    def reload(self) -> None:
        """Load the file again. Runs are lost; the contents of the buffers are kept. Raises DeviceError if the
        board does not answer; then all objects of the board are released."""
        try:
            self._carry_over()
        except DeviceError:
            self.lost = True
            for buffer in self.buffers:
                buffer.object = None
            for kernel in self.kernels:
                kernel.drop()
            self.device = None
            raise

    def _carry_over(self) -> None:
        contents = [(buffer, buffer.read()) for buffer in self.buffers]
        for buffer, _ in contents:
            buffer.object = None
        for kernel in self.kernels:
            kernel.drop()
        self.device = None
        self._load()
        for kernel in self.kernels:
            kernel.take()
        for buffer, content in contents:
            buffer.allocate()
            buffer.write(content)

    def _load(self) -> None:
        xclbin, index = self._source
        with self._taking():
            self.device = self.pyxrt.device(index)
            self._uuid: Any = self.device.load_xclbin(xclbin)

    def _taking(self) -> AbstractContextManager[None]:
        xclbin, index = self._source
        return _asked(f"board {index} cannot load {xclbin}")


@contextmanager
def _asked(what: str) -> Iterator[None]:
    """Turn errors of XRT into DeviceErrors. what: the failure, for the message."""
    try:
        yield
    except RuntimeError as error:
        raise DeviceError(f"{what}: {error}") from error


_cards: weakref.WeakValueDictionary[tuple[Any, str, int], _Card] = weakref.WeakValueDictionary()


class BoardDevice(Device):
    """The kernel `manifest.top` of a linked file on a board. XRT queues the runs."""

    slots = 2

    def __init__(self, card: _Card, manifest: Manifest) -> None:
        super().__init__(manifest)
        self._card: _Card | None = card
        self._pyxrt = card.pyxrt
        self._indices = {argument.name: i for i, argument in enumerate(manifest.arguments)}
        self._scalars: defaultdict[int, dict[str, int]] = defaultdict(dict)
        self._line: list[int] = []
        self._lost: set[int] = set()
        self.take()
        card.kernels.add(self)

    def take(self) -> None:
        """Open the kernel in the file that has just been loaded."""
        self._kernel: Any = self._there.kernel(self.manifest.top)
        self._runs: dict[int, Any] = {}

    def drop(self) -> None:
        """Release the kernel, because the file is loaded again. All runs are lost."""
        self._kernel = None
        self._runs.clear()
        self._lost.update(self._line)
        self._line.clear()

    @property
    def lost(self) -> bool:
        return self._there.lost

    def start(self, slot: int = 0) -> None:
        with _asked("XRT cannot start a run"):
            if slot not in self._runs:
                self._runs[slot] = self._pyxrt.run(self._kernel)
            run = self._runs[slot]
            for name, value in self._scalars[slot].items():
                run.set_arg(self._indices[name], value)
            for (name, place), buffer in self._buffers.items():
                assert isinstance(buffer, _BoardBuffer)
                if (name, place) == self._key(name, slot):
                    run.set_arg(self._indices[name], buffer.object)
            run.start()  # fails if the previous run in this slot has not ended
        self._line.append(slot)

    def done(self, slot: int = 0, wait: bool = False) -> bool:
        if slot in self._lost:
            self._lost.discard(slot)
            raise DeviceError(
                "the board was loaded again during this run, because a run of another kernel hung"
            )
        if slot not in self._line:
            return True
        states, run = self._pyxrt.ert_cmd_state, self._runs[slot]
        with _asked("the board stopped answering during a run"):
            state = run.wait(_SLICE) if wait else run.state()
        if state in (
            states.ERT_CMD_STATE_ERROR,
            states.ERT_CMD_STATE_ABORT,
            states.ERT_CMD_STATE_NORESPONSE,
        ):
            raise DeviceError(f"XRT ended the run in state {state}")
        if state == states.ERT_CMD_STATE_COMPLETED:
            self._line.remove(slot)
        return slot not in self._line

    def reset(self) -> None:
        """Reset the kernel. XRT cannot stop a run, so the runs under way get a little time to end. If they do
        not, the file is loaded again, for all kernels of the board."""
        try:
            for slot in tuple(self._line):
                self.wait(_PATIENCE, slot)
        except DeviceError:
            self._reset_hard()
        else:
            super().reset()

    def close(self) -> None:
        self._buffers.clear()
        self._runs.clear()
        self._kernel = None
        if self._card is not None:
            self._card.kernels.discard(self)
        self._card = None

    @property
    def _there(self) -> _Card:
        assert self._card is not None, "the device is closed"
        return self._card

    def _group(self, info: BufferInfo) -> int:
        with _asked(f"XRT has no memory for argument {info.name!r}"):
            return int(self._kernel.group_id(self._indices[info.name]))

    def _allocate(self, info: BufferInfo, size: int) -> DeviceBuffer:
        return _BoardBuffer(self._there, info.name, size, self._group(info))

    def _adopt(self, info: BufferInfo, buffer: DeviceBuffer) -> DeviceBuffer:
        if not isinstance(buffer, _BoardBuffer) or buffer.card is not self._card:
            raise DeviceError(f"buffer {info.name!r} is not on the board of kernel {self.manifest.top!r}")
        if (own := self._group(info)) != buffer.group:
            raise DeviceError(
                f"buffer {info.name!r} lies in memory {buffer.group} of the board, but kernel "
                f"{self.manifest.top!r} reads it from memory {own}: link with the link.cfg of the package"
            )
        return buffer

    def _set_scalar(self, name: str, value: int, slot: int) -> None:
        self._scalars[slot][name] = value

    def _reset_hard(self) -> None:
        self._there.reload()
        self._lost.clear()  # the caller knows that its runs are lost


class _BoardBuffer(DeviceBuffer):
    """A buffer on a board. group: the memory group in which it lies."""

    def __init__(self, card: _Card, name: str, size: int, group: int) -> None:
        self._direction = card.pyxrt.xclBOSyncDirection
        self.card, self._name, self.size, self.group = card, name, size, group
        self.object: Any = None
        self.allocate()
        card.buffers.add(self)

    def allocate(self) -> None:
        """Allocate the buffer, again after each load of the board."""
        pyxrt = self.card.pyxrt
        with self._asked(f"of {self.size} bytes cannot be allocated"):
            self.object = pyxrt.bo(self.card.device, self.size, pyxrt.bo.normal, self.group)
            address = int(self.object.address())
        if address + self.size > 1 << ADDRESS_BITS:
            self.object = None
            raise DeviceError(
                f"buffer {self._name!r} of {self.size} bytes lies at {address:#x} on the board, but kernels "
                f"only reach addresses below {1 << ADDRESS_BITS:#x}"
            )

    def _write(self, data: bytes, offset: int) -> None:
        with self._asked("cannot be written"):
            self.object.write(data, offset)
            self.object.sync(self._direction.XCL_BO_SYNC_BO_TO_DEVICE, len(data), offset)

    def _read(self, size: int, offset: int) -> bytes:
        with self._asked("cannot be read"):
            self.object.sync(self._direction.XCL_BO_SYNC_BO_FROM_DEVICE, size, offset)
            return bytes(self.object.read(size, offset).tobytes())

    def _asked(self, what: str) -> AbstractContextManager[None]:
        return _asked(f"buffer {self._name!r} {what}")
