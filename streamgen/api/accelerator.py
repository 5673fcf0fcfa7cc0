"""Accelerators: designs with their golden models, which can be written, run and inspected."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from streamgen.api.arguments import Arguments
from streamgen.api.groups import Group
from streamgen.artifact.manifest import Buffer, Manifest, StatusBlock
from streamgen.artifact.written import CHAIN_FILE, MANIFEST, WRITTEN, sealed
from streamgen.base.errors import GraphError
from streamgen.base.folders import folder_of, new_folder, require_place
from streamgen.base.progress import Progress
from streamgen.base.turns import Turn, in_turn
from streamgen.compiler.plan.record import DesignPlan
from streamgen.model.graph import Graph
from streamgen.model.graph.storage import save_program
from streamgen.model.nests import Interface, write_interface
from streamgen.observe.debugging import Debugging
from streamgen.observe.probe import ProbeReport
from streamgen.observe.profile import PassProfile, Profile, Profiler
from streamgen.observe.report import PassTiming, Report
from streamgen.observe.summary import group_report, hardware_line, interface_line, intermediate_memory
from streamgen.observe.timeline import write_trace
from streamgen.observe.view import RunPass
from streamgen.observe.waves import Waves
from streamgen.package import package
from streamgen.runtime.arrays import require_count, require_seconds
from streamgen.runtime.chain import Chain, ChainExecution
from streamgen.runtime.execution import Compute, Launch, OpenDevice
from streamgen.runtime.memory import MemoryModel


class Accelerator:
    """Designs with their golden models, which run on the simulated device or on a card.

    groups: designs that run one after the other. There is one group unless the converters exceed their
    budget. chain: order and buffers of several groups. interface: nesting of arguments and results in torch;
    without one, they are arrays in order. folder: folder of the written accelerator. changed_files: run the
    files of that folder even if they have changed.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        chain: Chain | None,
        interface: Interface | None = None,
        *,
        plan: DesignPlan | None = None,
        folder: Path | None = None,
        changed_files: bool = False,
    ) -> None:
        self.turn = Turn()
        """Lets threads use this accelerator one after the other."""
        self._changed_files = changed_files
        self.plan = plan
        """The plan of the design; None for a graph of kernels, and for a loaded folder."""
        self.groups = tuple(groups)
        self._chain, self._interface, self._folder = chain, interface, folder
        self._execution: ChainExecution | None = None
        self._memory: MemoryModel | None = None
        self._card: OpenDevice | None = None
        self._statuses: list[tuple[StatusBlock, ...]] = [() for _ in self.groups]
        self._launches: list[tuple[Launch, ...]] = [() for _ in self.groups]
        self._profiled: tuple[PassProfile, ...] = ()
        self.probed: ProbeReport | None = None
        """The report of the probes of the last call of `run`; None without probes."""

    def __repr__(self) -> str:
        graphs = [group.graph for group in self.groups if group.at_hand]
        hardware = hardware_line(self.manifests, graphs if len(graphs) == len(self.groups) else None)
        return f"<{type(self).__name__} {self._name!r}: {self._interface_line()}; {hardware}>"

    def __reduce__(self) -> NoReturn:
        """Raise TypeError, because the device and the folder belong to one process."""
        raise TypeError(
            f"{type(self).__name__} cannot be pickled or copied, because its device and its folder belong to "
            "one process. Write it with `write(folder)`; `streamgen.load(folder)` reads it in any process"
        )

    @property
    def graph(self) -> Graph:
        """The finished graph of the largest run. Raises GraphError if there are several groups."""
        return self._only().graph

    @property
    def manifest(self) -> Manifest:
        """The manifest of the design. Raises GraphError if there are several groups."""
        self._only()
        return self.manifests[0]

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """The manifest of each group."""
        designs = [group.design for group in self.groups if group.design is not None]
        if len(designs) == len(self.groups):
            return tuple(design.manifest for design in designs)
        return tuple(group.manifest for group in self._running().groups)

    @property
    def written(self) -> Path:
        """Folder of the written design. Without a folder of the user, it is temporary and lives as long as
        this object."""
        if self._folder is None:
            self.write(folder_of(self))
        assert self._folder is not None
        return self._folder

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        """The inputs of `run` in order, with name, shape and itensor."""
        return self._running().inputs

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        """The outputs of `run` in order."""
        return self._running().outputs

    @in_turn
    def write(self, folder: str | Path) -> Path:
        """Write Verilog, manifest, packed weights and golden model to a new folder, and return its path.
        Several groups have a folder each, and `chain.json` holds their order. A folder that already holds the
        same accelerator stays as it is.

        Raises FileExistsError if the folder holds anything else, and OSError if it cannot be written or if
        its disk has too little room, which is found before anything is written. If writing fails, no files
        are left.
        """
        target = Path(folder).resolve()
        with new_folder(target, WRITTEN, sum(map(_stored_bytes, self.manifests))) as place:
            self.fill(place)
        self.close()
        self._folder = target
        return target

    @in_turn
    def package(self, folder: str | Path) -> Path:
        """Write all files that a card and the vendor's tools need to a new folder, and return its path.
        Raises the errors of `streamgen.package.package`. `streamgen.package.build` runs the tools."""
        return package(self, folder)

    def run(
        self,
        *inputs: Any,
        memory: MemoryModel | None = None,
        timeout: float = 600.0,
        probe: bool | Sequence[str] = False,
        waves: Waves | None = None,
        progress: Progress | None = None,
        device: OpenDevice | None = None,
        trace: str | Path | None = None,
    ) -> Any:
        """Run the written Verilog with the written weights, in a cycle-accurate simulation or on a card.

        inputs: arrays or torch tensors of shape [..., features], nested like the arguments of the module. The
        leading dimensions are tokens; more than `max_tokens` tokens take several passes. Returns arrays
        nested like the results of the module. A graph built by hand returns an array, or a tuple for several
        outputs. memory: model of the memory (delays, rate); by default that of the manifest. timeout: limit
        of a pass in seconds. probe: compare the tokens of all edges (True), or of the edges with these names,
        with the golden model; `probed` holds the result. waves: window of cycles whose waves are written to a
        file. progress: called with each long step; by default steps go to standard error if it is a terminal.
        device: a card of `streamgen.runtime.on_board` instead of the simulator. The card stays open and keeps
        its weights. trace: file for the timeline of the run, as `profile` writes it.

        Raises TypeError and ValueError for wrong inputs, MissingToolError without a C++ compiler or XRT,
        DeviceError and DeviceTimeoutError if the run fails, and ProbeError if a token differs. The next run
        starts from a reset. Raises OSError before the run if the folder of the trace is missing.
        """
        require_seconds("timeout", timeout)
        place = None if trace is None else require_place(trace)
        profiler = None if place is None else Profiler()
        given: Any = {"profiler": profiler, "progress": progress, "device": device}
        result = self._run(
            inputs, memory, timeout, Debugging(self.manifests, probe=probe, waves=waves, **given)
        )
        if profiler is not None:
            self._measured(profiler, place)
        return result

    def profile(
        self,
        *inputs: Any,
        memory: MemoryModel | None = None,
        timeout: float = 3600.0,
        progress: Progress | None = None,
        trace: str | Path | None = None,
    ) -> Profile:
        """Run and measure the cycles by phase and by kernel, and the bytes by memory stream.

        The simulator for profiles is built once per design. trace: file for the timeline, which Perfetto and
        chrome://tracing show (`streamgen.observe.timeline`). The other arguments and errors are those of
        `run`. Raises OSError before the run if the folder of the trace is missing.
        """
        require_seconds("timeout", timeout)
        place = None if trace is None else require_place(trace)
        profiler = Profiler()
        self._run(inputs, memory, timeout, Debugging(self.manifests, profiler=profiler, progress=progress))
        return self._measured(profiler, place)

    def random_inputs(self, tokens: int, seed: int) -> list[Any]:
        """Random arguments of `run` for `tokens` tokens (`Arguments.random`)."""
        return self.arguments.random(tokens, seed)

    @property
    def arguments(self) -> Arguments:
        """How arrays are nested in the arguments and results of `run`."""
        return Arguments(self._interface, self.inputs, self.outputs)

    @property
    def golden(self) -> Callable[..., Any]:
        """The golden model: a function that takes the inputs of `run` and returns the same results, bit for
        bit. It computes the program in numpy and does not use the Verilog."""
        return self._golden_run

    def predict(self, tokens: int) -> int:
        """Predicted cycles of `run` for `tokens` tokens, summed over all passes, with the memory of the
        manifest. Nothing runs. Raises ValueError if `tokens` is below 1.
        """
        require_count("tokens", tokens)
        total = 0
        for group, manifest in zip(self.groups, self.manifests, strict=True):
            full, rest = divmod(tokens, manifest.max_tokens)
            for passes, count in ((full, manifest.max_tokens), (1, rest)):
                if passes and count:
                    total += passes * group.predict(manifest, -(-count // manifest.tokens_per_tile))
        return total

    @in_turn
    def report(self) -> Report:
        """The report: groups, resources, FIFOs and choices, and after a run the cycles of each kernel."""
        manifests = self.manifests
        return Report(
            name=self._name,
            clock_mhz=manifests[0].clock_mhz,
            groups=tuple(
                group_report(group.graph, manifest, group.notes, statuses, self._timings())
                for group, manifest, statuses in zip(self.groups, manifests, self._statuses, strict=True)
            ),
            memory=intermediate_memory([group.graph for group in self.groups]),
            page=self._page,
        )

    def require_whole(self) -> None:
        """Raise ValueError or GraphError unless the manifests, the programs and the nesting of arguments and
        results of a folder have the same names."""
        if self._interface is not None:
            inputs, outputs = ([info.name for info in infos] for infos in (self.inputs, self.outputs))
            self._interface.require_names(inputs, outputs)
            for group, manifest in zip(self.groups, self.manifests, strict=True):
                tensors = {t.name for t in group.graph.tensors if t.role in ("input", "output")}
                buffers = {b.name for b in manifest.buffers if b.role in ("input", "output")}
                if tensors != buffers:
                    raise GraphError(
                        f"graph.json has the inputs and outputs {', '.join(sorted(tensors))}; the manifest "
                        f"has {', '.join(sorted(buffers))}"
                    )

    @in_turn
    def close(self) -> None:
        """Close the device. The next run opens it again."""
        if self._execution is not None:
            self._execution.close()
        self._execution = None
        self._statuses = [() for _ in self.groups]
        self._launches = [() for _ in self.groups]

    @in_turn
    def check_weights(self) -> None:
        """Read the weights of the last run back from the device, and compare them with the digests of the
        written files.

        Raises DeviceError if weights differ, with their buffers and memory channels; the next run writes
        these weights again. Raises ValueError if no weights are on a device: before the first run, after a
        run with probes or waves, and after `close`. Raises RuntimeError in the middle of a text.
        """
        if self._execution is None:
            raise ValueError("the weights are not on a device yet: the next run writes them there")
        for execution in self._execution.groups:
            execution.check_weights()

    @in_turn
    def _run(
        self, inputs: Sequence[Any], memory: MemoryModel | None, timeout: float, debugging: Debugging
    ) -> Any:
        with self._watched(memory, debugging) as execution:
            return self.arguments.through(partial(execution.run, timeout=timeout), inputs)

    @in_turn
    def _golden_run(self, *inputs: Any) -> Any:
        computes: list[Compute] = [group.golden for group in self.groups]
        return self.arguments.through(partial(self._running().evaluate, computes), inputs)

    def _measured(self, profiler: Profiler, trace: Path | None) -> Profile:
        """The profile of the runs so far, which the next page shows. trace: file for its timeline."""
        measured = profiler.result(self._name, self.manifests[0].clock_mhz)
        self._profiled = measured.passes
        if trace is not None:
            write_trace(measured, trace)
        return measured

    def _page(self, report: Report) -> str:
        """The report as an HTML page."""
        from streamgen.observe.page import page  # most reports are tables

        views = [
            group.view(manifest, self._profiled, runs, self._passes(group))
            for group, manifest, runs in zip(self.groups, self.manifests, self._runs(), strict=True)
        ]
        return page(report, views)

    def _runs(self) -> Sequence[Sequence[RunPass]]:
        """The passes of the last run, by group."""
        return [
            [
                RunPass(
                    tokens=launch.tiles * group.program.token_lanes,
                    tiles=launch.tiles,
                    position=launch.position,
                    variant=launch.variant,
                    cycles=status.cycles,
                )
                for launch, status in zip(launches, statuses, strict=True)
            ]
            for group, launches, statuses in zip(self.groups, self._launches, self._statuses, strict=True)
        ]

    def _passes(self, group: Group) -> Sequence[tuple[int, int, str | None]]:
        """Tiles, position and variant of the passes that a page predicts: the smallest and the largest."""
        return [(tiles, 0, None) for tiles in dict.fromkeys((1, group.program.max_tiles))]

    def _timings(self) -> Sequence[PassTiming]:
        """The passes of a report whose bounds are known."""
        return ()

    def _prepared(self, memory: MemoryModel | None, debugging: Debugging, *, kept: bool) -> ChainExecution:
        """The written groups with observers attached. Their devices open in the first run. kept: whether they
        stay open for later runs."""
        opener = debugging.opener(memory)
        self._profiled, self.probed = (), None
        if not kept:
            execution = ChainExecution(self.written, changed_files=self._changed_files)
        else:
            if (memory, debugging.device) != (self._memory, self._card):
                self.close()
                self._memory, self._card = memory, debugging.device
            execution = self._running()
        execution.open_with(opener)
        for group, running in zip(self.groups, execution.groups, strict=True):
            running.least_cycles = partial(group.known_bound, running.manifest.memory)
            running.observer = debugging.observer(
                partial(getattr, group, "program"), group.phase_names, running
            )
        return execution

    @contextmanager
    def _watched(self, memory: MemoryModel | None, debugging: Debugging) -> Iterator[ChainExecution]:
        """Yield the written groups for one run. After the run, check the probes, keep the counters of the
        hardware, and close a simulator that was built only for this run."""
        execution = self._prepared(memory, debugging, kept=not debugging.needed)
        try:
            yield execution
            debugging.check()
        finally:
            self.probed = debugging.report
            self._statuses = [tuple(group.statuses) for group in execution.groups]
            self._launches = [tuple(group.launches) for group in execution.groups]
            if debugging.needed:
                execution.close()

    def fill(self, folder: Path) -> None:
        """Write all files into an existing folder. Raises OSError if that fails; files may then be left."""
        if any(group.design is None for group in self.groups):
            self._copy(folder)
        else:
            self._fill(folder)

    def _copy(self, folder: Path) -> None:
        """Copy the files of the written accelerator."""
        assert self._folder is not None
        for part in ("", *(() if self._chain is None else self._chain.folders)):
            (folder / part).mkdir(exist_ok=True)
            for file in (self._folder / part).iterdir():
                if file.is_file():
                    shutil.copyfile(file, folder / part / file.name)

    def _fill(self, folder: Path) -> None:
        """Write all files of the groups."""
        places = [folder] if self._chain is None else [folder / name for name in self._chain.folders]
        for group, place in zip(self.groups, places, strict=True):
            place.mkdir(exist_ok=True)
            group.write(place)
            self._fill_program(group, place)
        if self._chain is not None:
            (folder / CHAIN_FILE).write_text(self._chain.to_json())
        self._fill_interface(folder)
        for group, place in zip(self.groups, places, strict=True):
            assert group.design is not None
            (place / MANIFEST).write_text(sealed(group.design.manifest, place).to_json())
        if self.plan is not None:  # not sealed, because it says who chose a factor, which changes no byte
            self.plan.write(folder)

    def _fill_interface(self, folder: Path) -> None:
        """Write the nesting of arguments and results."""
        write_interface(self._interface, folder)

    def _fill_program(self, group: Group, folder: Path) -> None:
        """Write the file from which the program of a group is read."""
        save_program(group.program, folder)

    def _interface_line(self) -> str:
        """A short text about the inputs and outputs of a run."""
        return interface_line(self.manifests, self._chain)

    def _only(self) -> Group:
        if len(self.groups) > 1:
            raise GraphError(f"there are {len(self.groups)} groups; use `groups[k].graph` or `manifests[k]`")
        return self.groups[0]

    @property
    def _name(self) -> str:
        return self.manifests[0].top if self._chain is None else self._chain.name

    def _running(self) -> ChainExecution:
        """The written design, ready to run."""
        folder = self.written
        if self._execution is None:
            self._execution = ChainExecution(folder, changed_files=self._changed_files)
        return self._execution


def _stored_bytes(manifest: Manifest) -> int:
    """Bytes of the weight files of a design, which are most of its folder."""
    return sum(buffer.bytes for buffer in manifest.buffers if buffer.file is not None)
