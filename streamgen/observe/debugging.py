"""Probes, waves and profiles of a run, and the simulator that they need."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from streamgen.artifact.manifest import Manifest
from streamgen.base.progress import Progress, terminal_progress
from streamgen.model.graph import Program
from streamgen.observe.probe import Probe, ProbeReport
from streamgen.observe.profile import Profiler
from streamgen.observe.waves import Recorder, Waves
from streamgen.runtime.device import Device
from streamgen.runtime.execution import Execution, Launch, Observer, OpenDevice
from streamgen.runtime.instruments import Instruments
from streamgen.runtime.memory import MemoryModel
from streamgen.runtime.simulator import OnSimulator, SimulatedDevice


class Debugging:
    """Observation of one call of `Accelerator.run` or `Accelerator.profile`, of the designs with these
    manifests.

    device: opens the device; the simulator by default. profiler: profiles the runs. quiet: report the build
    of a simulator to `progress`, but not the runs. Raises ValueError for an edge that no design has, and for
    probes, waves or profiles on another device than the simulator.
    """

    def __init__(
        self,
        manifests: Sequence[Manifest],
        *,
        probe: bool | Sequence[str] = False,
        waves: Waves | None = None,
        profiler: Profiler | None = None,
        progress: Progress | None = None,
        device: OpenDevice | None = None,
        quiet: bool = False,
    ) -> None:
        if device is not None and (probe or waves or profiler):
            raise ValueError("probes, waves and profiles need the simulator; leave out the device")
        for name, value, kinds, wanted in (
            ("waves", waves, Waves, "a streamgen.Waves"),
            ("probe", probe, (bool, list, tuple), "True, False or a list of names of edges"),
        ):
            if value is not None and not isinstance(value, kinds):
                raise TypeError(f"{name} is {value!r}; {wanted} is needed")
        self.device = device
        self._probe = Probe(None if probe is True else tuple(probe), manifests) if probe else None
        self._recorder = None if waves is None else Recorder(waves)
        self._profiler = profiler
        self.progress = progress or terminal_progress()
        """Called with each long step."""
        self._of_runs: Progress = (lambda message: None) if quiet else self.progress
        self.needed = bool(self._probe or self._recorder or self._profiler)
        """Whether the runs need a simulator with instruments."""

    @property
    def report(self) -> ProbeReport | None:
        """The report of the probes; None without probes."""
        return None if self._probe is None else self._probe.report

    def opener(self, memory: MemoryModel | None) -> OpenDevice:
        """The function with which an `Execution` opens its device. Raises ValueError for a memory model on a
        card."""
        if memory is not None and not isinstance(memory, MemoryModel):
            raise TypeError(f"memory is {memory!r}; a streamgen.runtime.MemoryModel is needed")
        if self.device is not None:
            if memory is not None:
                raise ValueError("a card has its own memory; leave out the memory model or the device")
            return self.device
        opener = OnSimulator(memory, self.progress, self._instruments)
        return opener if self._profiler is None else partial(self._profiler.opened, opener)

    def observer(
        self, program: Callable[[], Program], names: Callable[[str], Sequence[str]], execution: Execution
    ) -> Observer:
        """The observer that an `Execution` of a design calls in each run. Observed runs do not overlap.

        program: returns the golden model of the design; called only if needed. names: returns the names
        of its phases; called with the name of the design, only if needed.
        """
        watches: list[Observer] = []
        if self._recorder is not None:
            watches.append(self._recorder.observe)
        if self._profiler is not None:
            phases = names(execution.manifest.top)
            watches.append(self._profiler.observer(program(), phases, execution))
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
        """Call this after all runs. Raises ValueError if the run whose waves are wanted did not happen."""
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
