"""What a run does besides running: probes and waves, and the simulator that they need."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from streamgen.graph import Program
from streamgen.manifest import Manifest
from streamgen.probe import Probe, ProbeReport
from streamgen.progress import Progress, terminal_progress
from streamgen.runtime.device import Device
from streamgen.runtime.execution import Observer
from streamgen.runtime.instruments import Instruments
from streamgen.runtime.memory import MemoryModel
from streamgen.runtime.simulator import SimulatedDevice, simulated
from streamgen.waves import Recorder, Waves

__all__ = ["Debugging"]


class Debugging:
    """The arguments `probe` and `waves` of one call of `Accelerator.run` on designs with these manifests.

    ValueError for an edge that none of them has.
    """

    def __init__(
        self,
        probe: bool | Sequence[str],
        waves: Waves | None,
        manifests: Sequence[Manifest],
        progress: Progress | None = None,
    ) -> None:
        self._probe = Probe(None if probe is True else tuple(probe), manifests) if probe else None
        self._progress = progress or terminal_progress()
        self._recorder = None if waves is None else Recorder(waves)
        self.instruments = tuple(self._instruments(manifest) for manifest in manifests)
        """What the simulator of each design is built with."""

    @property
    def report(self) -> ProbeReport | None:
        """What the probes have seen; None without any."""
        return None if self._probe is None else self._probe.report

    def opener(self, memory: MemoryModel | None) -> Callable[[Path, Manifest], Device]:
        """How an `Execution` opens its device."""

        def open_device(folder: Path, manifest: Manifest) -> Device:
            return simulated(folder, manifest, memory, self._progress, self._instruments(manifest))

        return open_device

    def observer(self, program: Program, manifest: Manifest) -> Observer:
        """What an `Execution` of a design calls in each run; `program` is the golden model of the design."""
        watch = None if self._probe is None else self._probe.observer(program, manifest)

        @contextmanager
        def observe(device: Device, images: Mapping[str, bytes], tiles: int) -> Iterator[None]:
            assert isinstance(device, SimulatedDevice)
            device.progress = self._progress
            with ExitStack() as stack:
                if self._recorder is not None:
                    stack.enter_context(self._recorder.observe(device, images, tiles))
                if watch is not None:
                    stack.enter_context(watch(device, images, tiles))
                yield

        return observe

    def check(self) -> None:
        """After all runs: ValueError when the one whose waves are wanted has not come."""
        if self._recorder is not None:
            self._recorder.check()

    def _instruments(self, manifest: Manifest) -> Instruments:
        streams = () if self._probe is None else self._probe.streams(manifest)
        return Instruments(
            streams=tuple(stream.instance for stream in streams), waves=self._recorder is not None
        )
