"""Runs of a written accelerator on any device, from numpy arrays to numpy arrays.

A run packs the inputs as the token streams of the manifest, writes them to the device, runs the phase table,
checks the status block and unpacks the outputs. The leading dimensions of inputs and outputs are tokens. If
there are more tokens than the design takes at once, they are divided among several runs. When the weights or
the Verilog in the folder change, the next run uses the new files.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from streamgen.artifact.manifest import COMMAND_RUN, DEFAULT_TIMEOUT, Buffer, Manifest, RunError, StatusBlock
from streamgen.artifact.written import MANIFEST, WrittenFolder
from streamgen.base.errors import DeviceError, DeviceTimeoutError
from streamgen.base.files import Digest
from streamgen.runtime.arrays import Parts, cropped, image_bytes, in_passes, padded
from streamgen.runtime.device import Device
from streamgen.runtime.line import through
from streamgen.runtime.memory import MemoryModel
from streamgen.runtime.simulator import OnSimulator
from streamgen.runtime.verilog_text import require_harmless


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The arguments of a run. tiles: number of token tiles. position: position of the first token. variant:
    name of a variant of the manifest. source: rows of the source of the text; 0 for none."""

    tiles: int
    position: int = 0
    variant: str | None = None
    source: int = 0


@dataclass(frozen=True)
class _Flight:
    """A started run. watched: the context of the observer."""

    slot: int
    launch: Launch
    outputs: tuple[str, ...]
    watched: ExitStack


_PIECE = 1 << 24  # bytes of weights that are read back at a time
OpenDevice = Callable[[Path, Manifest], Device]
Stamp = tuple[int, int, int]
Compute = Callable[[Mapping[str, np.ndarray], int], Mapping[str, np.ndarray]]
Observer = Callable[[Device, Mapping[str, bytes], Launch], AbstractContextManager[None]]


class Execution:
    """The accelerator that is written in `folder`, on the device that `open_device` opens for its manifest.

    open_device: by default, a simulated device with `memory` as its memory model. changed_files: also use
    Verilog and weights that differ from the digests in the manifest.

    Raises all errors of `open_device`; ValueError for a folder without a valid manifest; CheckpointError for
    files that do not match the manifest, and for Verilog that may do more than describe hardware.
    """

    def __init__(
        self,
        folder: str | Path,
        open_device: OpenDevice | None = None,
        memory: MemoryModel | None = None,
        *,
        changed_files: bool = False,
    ) -> None:
        self.folder, self._changed = Path(folder), changed_files
        self.open_device = open_device or OnSimulator(memory)
        """Opens `device`."""
        self._device: Device | None = None
        self._stamps: dict[str, Stamp] = {}
        self._in_flight: deque[_Flight] = deque()
        self.label = ""
        """Prefix of the errors of its runs if it is one of several groups; empty otherwise."""
        self.alone = False
        """Whether only one run is in flight at a time. Observers may need this."""
        self.observer: Observer = lambda device, images, launch: nullcontext()
        """Called for each run of the hardware with the device, the memory images of the inputs, and the
        launch. The run happens inside the context that it returns."""
        self.least_cycles: Callable[[Launch], float] = lambda launch: 0
        """The least number of cycles of a run, for its progress; 0 if this number is not known."""
        self.statuses: list[StatusBlock] = []
        """The status blocks of the last call of `run`, one for each run of the hardware."""
        self.launches: list[Launch] = []
        """The arguments of the runs with these status blocks."""
        self.patience = DEFAULT_TIMEOUT
        """Cycles without any movement after which the hardware ends a run."""
        self._read_manifest()

    @property
    def device(self) -> Device:
        """The device. It is opened on first use, and opened again if the written design has changed or the
        device was lost."""
        names = (MANIFEST, *self.manifest.verilog_files)
        stamps = {name: _stamp(self.folder / name) for name in names}
        changed = any(self._stamps.get(name) != stamp for name, stamp in stamps.items())
        if self._device is None or self._device.lost or changed:
            self.close()
            self._read_manifest()
            self._require_verilog()
            self._device = self.open_device(self.folder, self.manifest)
            self._stamps = stamps
            self.forget()
        return self._device

    @property
    def is_open(self) -> bool:
        """Whether the device is open."""
        return self._device is not None

    def run(self, *inputs: np.ndarray, timeout: float = 600.0) -> tuple[np.ndarray, ...]:
        """Run the accelerator and return the outputs for these inputs, in the order of the manifest's
        buffers. timeout: seconds for each run of the hardware.

        Raises TypeError for a wrong number of inputs or a wrong dtype, ValueError for a wrong shape or a
        value that is not finite, and DeviceTimeoutError or DeviceError if a run fails. After a failed run the
        device is reset and takes the next run.
        """
        self.statuses = []
        infos, outputs, manifest = self.buffers("input"), self.buffers("output"), self.manifest
        names = [info.name for info in outputs]

        def each(parts: Parts) -> Iterator[Mapping[str, np.ndarray]]:
            return through([self], parts, names, timeout)

        return in_passes(infos, outputs, manifest.max_tokens, manifest.whole, each, inputs)

    def evaluate(self, compute: Compute, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        """Like `run`, with a function in place of the device.

        compute: function from the inputs by name, rounded and padded to their itensors, and the number of
        token tiles to the outputs by name. It is called once for each run that the hardware would do.
        """

        def once(parts: Parts) -> Iterator[Mapping[str, np.ndarray]]:
            for arrays, count in parts:
                tiles = self.tiles(count)
                given = {info.name: padded(info, arrays[info.name], tiles) for info in infos}
                results = compute(given, tiles)
                yield {info.name: cropped(info, results[info.name], count) for info in outputs}

        infos, outputs = self.buffers("input"), self.buffers("output")
        manifest = self.manifest
        return in_passes(infos, outputs, manifest.max_tokens, manifest.whole, once, inputs)

    def tiles(self, tokens: int) -> int:
        """Number of token tiles of a run of `tokens` tokens."""
        return -(-tokens // self.manifest.tokens_per_tile)

    def buffers(self, role: str) -> list[Buffer]:
        """The buffers with a role, in the order of the manifest."""
        return [buffer for buffer in self.manifest.buffers if buffer.role == role]

    @property
    def slots(self) -> int:
        """Number of runs that may be in flight."""
        return 1 if self.alone else self.device.slots

    def transfer(
        self,
        images: Mapping[str, bytes],
        tiles: int,
        timeout: float,
        position: int = 0,
        variant: str | None = None,
        source: int = 0,
    ) -> dict[str, bytes]:
        """Do one run of the hardware: from the memory images of its inputs, by name, to the images of its
        outputs.

        position: position of the first token. variant: name of a variant of the manifest, a run that computes
        only some of the outputs. source: rows of the source of the text. timeout: seconds. Raises
        DeviceTimeoutError or DeviceError if the run fails.
        """
        self.submit(images, tiles, position, variant, source=source)
        return self.collect(timeout)

    def submit(
        self,
        images: Mapping[str, bytes],
        tiles: int,
        position: int = 0,
        variant: str | None = None,
        slot: int | None = None,
        source: int = 0,
    ) -> None:
        """Start a run behind the runs in flight. Arguments are those of `transfer`. slot: a slot without a
        run; by default any free slot. An input without an image must already lie in its buffer."""
        device = self.device
        if slot is None:
            slot = next(k for k in range(self.slots) if k not in {flight.slot for flight in self._in_flight})
        chosen = self.manifest.variant(variant)
        if chosen.program.reads_source and not source:
            raise ValueError(
                f"design {self.manifest.top!r} writes texts about a source; a run needs its rows"
            )
        stale = self._load(device, chosen.program.pack(source), slot)
        for info in self.buffers("input"):
            buffer = device.allocate(info.name, slot)
            if info.name in images:
                buffer.write(images[info.name])
            elif self.alone:  # an observer sees all inputs
                images = {**images, info.name: buffer.read(image_bytes(info, tiles))}
        for info in self.buffers("output"):
            device.allocate(info.name, slot)
        status = device.allocate(self.buffers("status")[0].name, slot)
        status.write(bytes(self.manifest.status_bytes))  # so that an old block is not mistaken for a new one
        if stale:
            device.reset()
        scalars = {"command": COMMAND_RUN, "tiles": tiles, "position": position, "timeout": self.patience}
        for name, value in scalars.items():
            device.set_scalar(name, value, slot)
        launch = Launch(tiles=tiles, position=position, variant=variant, source=source)
        device.least_cycles[slot] = partial(self.least_cycles, launch)
        watched = ExitStack()
        watched.enter_context(self.observer(device, images, launch))
        self._in_flight.append(_Flight(slot, launch, chosen.outputs, watched))
        try:
            device.start(slot)
        except BaseException:
            self.give_up()
            raise

    def ready(self, wait: bool = False) -> bool:
        """Whether the oldest run in flight is done, so that `collect` does not wait. wait: if it is not done,
        wait a little."""
        try:
            return self.device.done(self._in_flight[0].slot, wait)
        except DeviceError:
            return True  # `collect` raises the error

    def collect(
        self, timeout: float, since: float | None = None, wanted: Collection[str] | None = None
    ) -> dict[str, bytes]:
        """Wait for the oldest run in flight and return the memory images of its outputs. If it fails, the
        runs behind it are given up and the device is reset. timeout, since: see `Device.wait`. wanted: names
        of the outputs to read; by default all.

        Raises DeviceTimeoutError or DeviceError if the run fails.
        """
        device, flight = self.device, self._in_flight[0]
        try:
            with flight.watched:
                block = device.allocate(self.buffers("status")[0].name, flight.slot)
                try:
                    device.wait(timeout, flight.slot, since)
                except DeviceTimeoutError as error:
                    late = self._late(block.read(self.manifest.status_bytes))
                    raise DeviceTimeoutError(f"{error}: {late}") from error
                status = self._status(device, block.read(self.manifest.status_bytes))
                if status.error is not RunError.NONE:
                    kind = DeviceTimeoutError if status.error is RunError.TIMEOUT else DeviceError
                    raise kind(explain(self.manifest, status))
                self.statuses.append(status)
                self.launches.append(flight.launch)
        except BaseException:
            self.give_up()
            raise
        self._in_flight.popleft()
        return {
            info.name: device.allocate(info.name, flight.slot).read(image_bytes(info, flight.launch.tiles))
            for info in self.buffers("output")
            if info.name in flight.outputs and (wanted is None or info.name in wanted)
        }

    def check_weights(self) -> None:
        """Read the weights back from the device and compare them with the digests of their files.

        Raises DeviceError if weights differ, with their buffers and memory channels; the next run writes
        these weights again. Raises RuntimeError while a run is in flight, and ValueError if the weights are
        not on the device yet.
        """
        if self._in_flight:
            raise RuntimeError("weights cannot be read back while a run is in flight")
        weights = [info for info in self.manifest.buffers if info.file is not None]
        if self._device is None or not self._stamps.keys() >= {info.file for info in weights}:
            raise ValueError("the weights are not on a device yet: the next run writes them there")
        wrong, device = [], self._device
        for info in weights:
            assert info.file is not None
            digest, buffer = Digest(), device.allocate(info.name)
            for offset in range(0, info.bytes, _PIECE):
                digest.update(buffer.read(min(_PIECE, info.bytes - offset), offset))
            if digest.hexdigest() != self._files.held(info.file):
                wrong.append(f"{info.name!r} in memory channel {info.channel}")
                del self._stamps[info.file]
        if wrong:
            raise DeviceError(f"weights on the device are not those of {self.folder}: {', '.join(wrong)}")

    def forget(self) -> None:
        """Fill the state that runs leave for later runs with zeros, as before the first run."""
        for info in self.buffers("state"):
            self.device.allocate(info.name).write(bytes(info.bytes))

    def close(self) -> None:
        """Close the device. The next run opens it again."""
        if self._device is not None:
            self._device.close()
        self._device = None
        self._in_flight.clear()
        self._stamps = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read_manifest(self) -> None:
        self._files = WrittenFolder.read(self.folder, changed=self._changed)
        self.manifest = self._files.manifest
        for info in (*self.buffers("input"), *self.buffers("output")):
            place = f"{self.folder / MANIFEST}: buffer {info.name!r}"
            try:
                needed = image_bytes(info, self.tiles(self.manifest.max_tokens))
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from error
            if needed > info.bytes:
                raise ValueError(f"{place} has {info.bytes} bytes; its itensor takes {needed}")

    def _require_verilog(self) -> None:
        """Raise CheckpointError if the Verilog is not as written, or may do more than describe hardware."""
        texts = {name: self._files.content(name) for name in self.manifest.verilog_files}
        require_harmless({self.folder / name: text for name, text in texts.items()})

    def give_up(self) -> None:
        """Give up all runs in flight. If there are any, the device is reset. If it does not answer, it is
        closed, and the next run opens it again."""
        flights = list(self._in_flight)
        self._in_flight.clear()
        for flight in flights:
            flight.watched.close()
        if flights and self._device is not None:
            try:
                self._device.reset()
            except DeviceError:  # the caller already raises the first error
                self.close()

    def _load(self, device: Device, table: bytes, slot: int) -> bool:
        """Write the phase table of a run, and all weights whose file has changed since they were written.
        Returns whether the hardware may keep other weights, so that it needs a reset. Raises RuntimeError
        if such weights have changed while a run is in flight."""
        stale = False
        for info in self.manifest.buffers:
            buffer = device.allocate(info.name, slot)
            if info.role == "table":
                buffer.write(table)
            elif info.file is not None:
                path = self.folder / info.file
                stamp = _stamp(path)
                if self._stamps.get(info.file) == stamp:
                    continue
                if info.role == "resident":
                    if self._in_flight:
                        raise RuntimeError(f"{path} has changed, but a run with its weights is in flight")
                    stale = True
                offset = 0
                for piece in self._files.pieces(info.file):
                    buffer.write(piece, offset)
                    offset += len(piece)
                self._stamps[info.file] = stamp
        return stale

    def _late(self, image: bytes) -> str:
        """Explain a run that is not done in time with its status block."""
        try:
            status = StatusBlock.unpack(image, len(self.manifest.counters))
        except ValueError:
            cycles, clock = self.patience or DEFAULT_TIMEOUT, self.manifest.clock_mhz
            return (
                "the run has not written a status block yet; the hardware ends a run in which nothing moves "
                f"for {cycles} cycles ({cycles / (1e6 * clock):.2g} s at {clock:g} MHz)"
            )
        if status.error is RunError.NONE:
            return (
                f"its status block says that it ended without an error after {status.cycles} cycles, but the "
                "host never saw it done"
            )
        return f"it has written its status block: {explain(self.manifest, status)}"

    def _status(self, device: Device, image: bytes) -> StatusBlock:
        try:
            status = StatusBlock.unpack(image, len(self.manifest.counters))
        except ValueError as error:
            word = device.error_word()
            device.hung = True
            register = ""
            if word is not None:
                code, detail = word & 0xFF, word >> 8
                register = f" (error register: {code}, detail {detail:#x})"
                if code == RunError.HUNG:
                    register += (
                        f": after an error the memory at {_ports(self.manifest, detail)} did not drain"
                    )
            raise DeviceError(f"the run wrote no status block{register}: {error}") from error
        if status.design_hash != self.manifest.design_hash:
            raise DeviceError(
                f"the device holds design {status.design_hash}, "
                f"the manifest describes {self.manifest.design_hash}"
            )
        return status


def explain(manifest: Manifest, status: StatusBlock) -> str:
    """Explain a status block that reports an error. For a timeout, also list every FIFO that holds tokens."""
    ports = _ports(manifest, status.detail)
    match status.error:
        case RunError.TIMEOUT:
            reason = f"no token and no beat moved any more; memory ports at work: {ports or 'none'}"
        case RunError.AXI:
            reason = f"error response of the memory at {ports}"
        case RunError.TABLE:
            reason = "the design cannot read the phase table in memory"
        case RunError.STOPPED:
            reason = "a reset stopped it"
        case _:
            reason = "after an error the memory did not drain"
    lines = [f"the run ended with an error after {status.cycles} cycles: {reason}"]
    if status.error is RunError.TIMEOUT:
        lines.append(f"  {status.descriptors} descriptors sent, {status.awaited} completions awaited")
        for counter, value in zip(manifest.counters, status.counters, strict=True):
            if counter.kind == "level" and (level := value >> 16):
                state = "full" if level >= counter.depth else "waits"
                lines.append(f"  {counter.name}: {state}, {level} of {counter.depth} tokens")
    return "\n".join(lines)


def _ports(manifest: Manifest, detail: int) -> str:
    """The names of the AXI masters whose bit is set in `detail`."""
    return ", ".join(port.name for i, port in enumerate(manifest.ports) if detail >> i & 1)


def _stamp(path: Path) -> Stamp:
    """A value that changes when the file changes. Raises ValueError for a missing file."""
    try:
        status = path.stat()
    except OSError as error:
        raise ValueError(f"{path} is missing or cannot be read") from error
    return status.st_mtime_ns, status.st_size, status.st_ino
