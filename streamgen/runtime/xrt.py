"""A device on an Alveo board, driven by `pyxrt`, which comes with AMD's runtime XRT and not from PyPI; where
the module is missing, by the C interface of the same runtime.

`pyxrt` passes a buffer or a C int and silently skips anything else, a buffer must lie in the memory group
of its argument, and a wait of 0 ms is a wait for ever; nothing here gives it a chance. An emulated card waits
as long as it is told, whatever the run does, so waits are short and many.
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
"""The folders of a package where the vendor's tools work, and where the binary for emulated cards lies."""
_SLICE = 1  # milliseconds of a wait
_PATIENCE = 5.0  # seconds for a run in line to end, when another has failed


def board(xclbin: str | Path, manifest: Manifest, index: int = 0) -> "BoardDevice":
    """The kernel of a manifest, in a linked file on the board with this index. The file is loaded once for
    all its kernels that are open at a time: they share the board's memory.

    Raises MissingToolError without XRT, DeviceError when the file is not of this design or the board does not
    take it.
    """
    require_design(xclbin, manifest)
    pyxrt, path = _pyxrt(), str(Path(xclbin).resolve())
    card = _cards.get((pyxrt, path, index))
    if card is None or card.lost:
        card = _cards[pyxrt, path, index] = _Card(pyxrt, path, index)
    return BoardDevice(card, manifest)


@dataclass(frozen=True)
class OnBoard:
    """Opens the board with this index for `Execution` and `ChainExecution`, with an xclbin, or with what is
    built in the folder of a package (under XRT's hardware emulation with what emulates it).

    It raises ValueError for a folder of no package, FileNotFoundError when nothing is built there, and what
    `board` raises.
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
            how = "`streamgen emulate` makes it" if emulated else f"`make` in {place} builds it"
            raise FileNotFoundError(f"{binary} is missing: {how}")
        return board(binary, manifest, self.index)


def on_board(index: int = 0, xclbin: str | Path | None = None) -> OnBoard:
    """What `Accelerator.run` and `LanguageModel.generate` take as their device, see `OnBoard`.

    ValueError for a negative index.
    """
    if index < 0:
        raise ValueError(f"the index of a board is {index}; 0 is the first")
    return OnBoard(index, None if xclbin is None else Path(xclbin))


def require_xrt() -> None:
    """MissingToolError without XRT."""
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
    """A board with a linked file on it, its kernels that are open, and what these have of its memory."""

    def __init__(self, pyxrt: Any, xclbin: str, index: int) -> None:
        self.pyxrt = pyxrt
        self.kernels: weakref.WeakSet[BoardDevice] = weakref.WeakSet()
        self.buffers: weakref.WeakSet[_BoardBuffer] = weakref.WeakSet()
        self._source = xclbin, index
        self.device: Any = None
        self.lost = False
        """Whether it does not answer any more; a kernel opened now has it loaded anew."""
        self._load()

    def kernel(self, name: str) -> Any:
        """One of its kernels."""
        with self._taking():
            return self.pyxrt.kernel(self.device, self._uuid, name)

    def reload(self) -> None:
        """Load the file anew: runs are lost, the content of the buffers is carried over. DeviceError when the
        board does not answer; then nothing of it is held any more."""
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
        return _asked(f"board {index} does not take {xclbin}")


@contextmanager
def _asked(what: str) -> Iterator[None]:
    """XRT's errors in it are DeviceErrors: what has failed, and what XRT says."""
    try:
        yield
    except RuntimeError as error:
        raise DeviceError(f"{what}: {error}") from error


_cards: weakref.WeakValueDictionary[tuple[Any, str, int], _Card] = weakref.WeakValueDictionary()


class BoardDevice(Device):
    """The kernel `manifest.top` of what is linked on a board. Runs wait in line in XRT."""

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
        """The kernel, of a file that has just been loaded."""
        self._kernel: Any = self._there.kernel(self.manifest.top)
        self._runs: dict[int, Any] = {}

    def drop(self) -> None:
        """The file is loaded anew: no run is under way any more."""
        self._kernel = None
        self._runs.clear()
        self._lost.update(self._line)
        self._line.clear()

    @property
    def lost(self) -> bool:
        return self._there.lost

    def start(self, slot: int = 0) -> None:
        with _asked("XRT does not start a run"):
            if slot not in self._runs:
                self._runs[slot] = self._pyxrt.run(self._kernel)
            run = self._runs[slot]
            for name, value in self._scalars[slot].items():
                run.set_arg(self._indices[name], value)
            for (name, place), buffer in self._buffers.items():
                assert isinstance(buffer, _BoardBuffer)
                if (name, place) == self._key(name, slot):
                    run.set_arg(self._indices[name], buffer.object)
            run.start()  # which fails where the run before has not ended
        self._line.append(slot)

    def done(self, slot: int = 0, wait: bool = False) -> bool:
        if slot in self._lost:
            self._lost.discard(slot)
            raise DeviceError("the board was loaded anew in this run, as a run of another kernel hung")
        if slot not in self._line:
            return True
        states, run = self._pyxrt.ert_cmd_state, self._runs[slot]
        with _asked("the board was lost in a run"):
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
        """XRT cannot stop a run: those in line are waited for, a little, or the design is loaded anew, for
        all kernels of the board."""
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
        assert self._card is not None, "it is closed"
        return self._card

    def _group(self, info: BufferInfo) -> int:
        with _asked(f"XRT knows no memory of argument {info.name!r}"):
            return int(self._kernel.group_id(self._indices[info.name]))

    def _allocate(self, info: BufferInfo, size: int) -> DeviceBuffer:
        return _BoardBuffer(self._there, info.name, size, self._group(info))

    def _adopt(self, info: BufferInfo, buffer: DeviceBuffer) -> DeviceBuffer:
        if not isinstance(buffer, _BoardBuffer) or buffer.card is not self._card:
            raise DeviceError(f"buffer {info.name!r} is not on the board of kernel {self.manifest.top!r}")
        if (own := self._group(info)) != buffer.group:
            raise DeviceError(
                f"buffer {info.name!r} lies in memory {buffer.group} of the board, kernel "
                f"{self.manifest.top!r} reads it from memory {own}: link with the link.cfg of the package"
            )
        return buffer

    def _set_scalar(self, name: str, value: int, slot: int) -> None:
        self._scalars[slot][name] = value

    def _reset_hard(self) -> None:
        self._there.reload()
        self._lost.clear()  # whoever resets knows


class _BoardBuffer(DeviceBuffer):
    """group: the memory of the board in which it lies."""

    def __init__(self, card: _Card, name: str, size: int, group: int) -> None:
        self._direction = card.pyxrt.xclBOSyncDirection
        self.card, self._name, self.size, self.group = card, name, size, group
        self.object: Any = None
        self.allocate()
        card.buffers.add(self)

    def allocate(self) -> None:
        """Anew, when the board has been loaded."""
        pyxrt = self.card.pyxrt
        with self._asked(f"of {self.size} bytes"):
            self.object = pyxrt.bo(self.card.device, self.size, pyxrt.bo.normal, self.group)
            address = int(self.object.address())
        if address + self.size > 1 << ADDRESS_BITS:
            self.object = None
            raise DeviceError(
                f"buffer {self._name!r} of {self.size} bytes lies at {address:#x} on the board; kernels "
                f"reach addresses below {1 << ADDRESS_BITS:#x}"
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
