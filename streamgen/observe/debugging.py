"""What a run does besides running: probes, waves and profiles, and the simulator that they need."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from streamgen.artifact.manifest import Manifest
from streamgen.base.progress import Progress, terminal_progress
from streamgen.model.graph import Program
from streamgen.observe.probe import Probe, ProbeReport
from streamgen.observe.profile import PassProfile, Profiler
from streamgen.observe.waves import Recorder, Waves
from streamgen.runtime.device import Device
from streamgen.runtime.execution import Execution, Launch, Observer, OpenDevice
from streamgen.runtime.instruments import Instruments
from streamgen.runtime.memory import MemoryModel
from streamgen.runtime.simulator import OnSimulator, SimulatedDevice

__all__ = ["Debugging"]


class Debugging:
    """What one call of `Accelerator.run` or `Accelerator.profile` wants of designs with these manifests.

    device: opens another than the simulated one. quiet: of runs nobody is told, of the build of a simulator
    `progress` is. ValueError for an edge that none of them has, and for a look into another device.
    """

    def __init__(
        self,
        manifests: Sequence[Manifest],
        *,
        probe: bool | Sequence[str] = False,
        waves: Waves | None = None,
        profile: bool = False,
        progress: Progress | None = None,
        device: OpenDevice | None = None,
        quiet: bool = False,
    ) -> None:
        if device is not None and (probe or waves or profile):
            raise ValueError("probes, waves and profiles are of the simulator: leave out the device")
        for name, value, kinds, wanted in (
            ("waves", waves, Waves, "a streamgen.Waves"),
            ("probe", probe, (bool, list, tuple), "True, False or a list of names of edges"),
        ):
            if value is not None and not isinstance(value, kinds):
                raise TypeError(f"{name} is {value!r}; {wanted} is needed")
        self.device = device
        self._probe = Probe(None if probe is True else tuple(probe), manifests) if probe else None
        self._recorder = None if waves is None else Recorder(waves)
        self._profiler = Profiler() if profile else None
        self.progress = progress or terminal_progress()
        """Told what takes long."""
        self._of_runs: Progress = (lambda message: None) if quiet else self.progress
        self.needed = bool(self._probe or self._recorder or self._profiler)
        """Whether runs need a simulator that is built for it."""

    @property
    def report(self) -> ProbeReport | None:
        """What the probes have seen; None without any."""
        return None if self._probe is None else self._probe.report

    @property
    def passes(self) -> tuple[PassProfile, ...]:
        """The profiles of the runs."""
        return () if self._profiler is None else tuple(self._profiler.passes)

    def opener(self, memory: MemoryModel | None) -> OpenDevice:
        """How an `Execution` opens its device. ValueError for a model of a card's memory."""
        if memory is not None and not isinstance(memory, MemoryModel):
            raise TypeError(f"memory is {memory!r}; a streamgen.runtime.MemoryModel is needed")
        if self.device is not None:
            if memory is not None:
                raise ValueError("a card has memory of its own: leave out the memory model or the device")
            return self.device
        return OnSimulator(memory, self.progress, self._instruments)

    def observer(
        self, program: Callable[[], Program], units: Sequence[str], execution: Execution
    ) -> Observer:
        """What an `Execution` of a design calls in each run. program: the golden model of the design, asked
        for when something needs it. units: names of its phases, where there are several. What is watched runs
        alone."""
        watches: list[Observer] = []
        if self._recorder is not None:
            watches.append(self._recorder.observe)
        if self._profiler is not None:
            one = program().graph.phases == 1
            names = (execution.manifest.top,) if one else tuple(units)
            watches.append(self._profiler.observer(program(), names, execution))
        if self._probe is not None:
            watches.append(self._probe.observer(program(), execution.manifest))
        execution.alone = bool(watches)

        @contextmanager
        def observe(device: Device, images: Mapping[str, bytes], launch: Launch) -> Iterator[None]:
            if isinstance(device, SimulatedDevice):
                device.progress = self._of_runs
            with ExitStack() as stack:
                for watch in watches:
                    stack.enter_context(watch(device, images, launch))
                yield

        return observe

    def check(self) -> None:
        """After all runs: ValueError when the one whose waves are wanted has not come."""
        if self._recorder is not None:
            self._recorder.check()

    def _instruments(self, manifest: Manifest) -> Instruments:
        streams = () if self._probe is None else self._probe.streams(manifest)
        every = manifest.streams if self._profiler is not None else ()
        return Instruments(
            streams=tuple(stream.sides for stream in streams),
            profile=tuple(stream.sides for stream in every),
            waves=self._recorder is not None,
        )
