"""From a torch module, or a graph built by hand, to an accelerator that can be written and run.

compile: frontend -> quantise weights -> explore -> lower -> forks -> converters -> FIFO depths -> emit
assemble: the same from a graph of kernels on
"""

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from streamgen import golden
from streamgen.config import CompileConfig
from streamgen.converters import PingPongParams
from streamgen.debugging import Debugging
from streamgen.emit import Design, emit
from streamgen.explore import explore, predict
from streamgen.graph import Graph, Program
from streamgen.graph.storage import load_program, save_program
from streamgen.itensor import infer_converter
from streamgen.kernels.matmul import ColumnParams
from streamgen.lower import finish, layer_shapes, lower_network, quantise_weights
from streamgen.manifest import Buffer, Manifest, StatusBlock
from streamgen.platform.u55c import U55C
from streamgen.probe import ProbeReport
from streamgen.progress import Progress, terminal_progress
from streamgen.report import FifoReport, KernelReport, Notes, Report, ResourceReport
from streamgen.runtime.execution import Execution
from streamgen.runtime.instruments import Instruments
from streamgen.runtime.memory import MemoryModel
from streamgen.waves import Waves

if TYPE_CHECKING:
    import torch

__all__ = ["Accelerator", "assemble", "compile", "load"]

_NOTES = "notes.json"


def compile(
    module: "torch.nn.Module",
    example_inputs: "torch.Tensor | Sequence[torch.Tensor]",
    config: CompileConfig | None = None,
    progress: Progress | None = None,
) -> "Accelerator":
    """An accelerator that computes what a torch module computes.

    module: Linear, ReLU, Sigmoid, SiLU, + and * of equal shapes or with constants. example_inputs: one
    tensor for each input; all dimensions but the last are tokens. config: budgets and formats. progress:
    told each step; by default that goes to standard error when it is a terminal.

    Raises UnsupportedOperationError (all operations that cannot be compiled, with module path and source
    line), BudgetError, TypeError and ValueError for bad inputs or weights.
    """
    from streamgen.frontend import import_module  # torch takes seconds to load

    config = config or CompileConfig()
    tell = progress or terminal_progress()
    tell("exporting the module")
    network = import_module(module, example_inputs)
    tell("quantising the weights")
    weights = quantise_weights(network, config)
    tell("choosing lanes and columns")
    rate = float(U55C.hbm.beats_per_cycle(config.clock_mhz))
    plan = explore(layer_shapes(network, weights), config, rate)
    largest = -(-config.max_tokens // plan.token_lanes)

    def build(tiles: int) -> Graph:
        return lower_network(network, weights, plan, config, rate, tiles)

    tell("kernels, converters, FIFO depths")
    program, schedules = finish(build, plan.token_lanes, largest, config.sizing)
    tell("Verilog")
    design = emit(program, config, max_tokens=config.max_tokens)
    tell("")
    corners = (largest * plan.token_lanes, plan.token_lanes)[: len(schedules)]
    cycles = {tokens: schedule.finish for tokens, schedule in zip(corners, schedules, strict=True)}
    notes = Notes(choices=plan.reasons, scheduled_cycles=cycles, resources=design.resources)
    return Accelerator(design, program, notes)


def assemble(graph: Graph, config: CompileConfig | None = None) -> "Accelerator":
    """An accelerator from a graph of kernels, built by hand with `GraphBuilder`; forks, converters and FIFO
    depths are added. GraphError names what breaks a law."""
    config = config or CompileConfig(name=graph.name)
    program, schedules = finish(lambda _: graph, 1, 1, config.sizing)
    fixed = Program(program.graph)
    design = emit(fixed, config, max_tokens=1)
    notes = Notes(choices=(), scheduled_cycles={1: schedules[0].finish}, resources=design.resources)
    return Accelerator(design, fixed, notes)


def load(folder: str | Path) -> "Accelerator":
    """The accelerator that `Accelerator.write` wrote. ValueError or GraphError for a folder that is none."""
    place = Path(folder).resolve()
    program = load_program(place)
    try:
        notes = Notes.from_json((place / _NOTES).read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{place / _NOTES} cannot be read: {error}") from error
    accelerator = Accelerator(None, program, notes, folder=place)
    accelerator._running()  # reads the manifest
    return accelerator


class Accelerator:
    """A design with its golden model; runs on the simulated device.

    `graph` is the finished graph of the largest run.
    """

    def __init__(
        self, design: Design | None, program: Program, notes: Notes, *, folder: Path | None = None
    ) -> None:
        self._design, self._program, self._notes, self._folder = design, program, notes, folder
        self._execution: Execution | None = None
        self._opened: tuple[MemoryModel | None, tuple[Instruments, ...]] | None = None
        self.probed: ProbeReport | None = None
        """What the last call of `run` has compared with golden; None when it was not asked to."""

    @property
    def graph(self) -> Graph:
        """The finished graph of the largest run."""
        return self._program.graph

    @property
    def manifest(self) -> Manifest:
        """What the host knows of the design."""
        return self._design.manifest if self._design is not None else self._running().manifest

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """What the host knows of each design."""
        return (self.manifest,)

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        """What `run` takes, in order: name, shape, itensor."""
        return tuple(self._running().buffers("input"))

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        """What `run` returns, in order."""
        return tuple(self._running().buffers("output"))

    def write(self, folder: str | Path) -> Path:
        """Write Verilog, manifest, packed weights and golden model into a new folder; returns it.

        FileExistsError when the folder exists and is not empty; OSError when it cannot be written. Either
        everything is written or nothing is left.
        """
        target = Path(folder).resolve()
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise FileExistsError(f"{target} exists and is not an empty folder; give a new name or remove it")
        made = [place for place in target.parents if not place.exists()]
        partial = None
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
            self._fill(partial)
            partial.chmod(0o755)
            partial.replace(target)
        except BaseException:
            if partial is not None:
                shutil.rmtree(partial, ignore_errors=True)
            for place in made:
                with suppress(OSError):
                    place.rmdir()
            raise
        self._close()
        self._folder = target
        return target

    def run(
        self,
        *inputs: Any,
        memory: MemoryModel | None = None,
        timeout: float = 600.0,
        probe: bool | Sequence[str] = False,
        waves: Waves | None = None,
        progress: Progress | None = None,
    ) -> Any:
        """What the written RTL with the written weights computes, in a cycle-accurate simulation.

        inputs: arrays (or torch tensors) [..., features]; leading dimensions are tokens, more than
        `max_tokens` of them are several passes. Returns an array for one output, a tuple for several.
        memory: another model of the memory (delays, rate) than the manifest's. timeout: seconds a pass.
        probe: hold the tokens of every edge (True), or of the edges with these names, against golden;
        `probed` says what was compared. waves: write those of a window of cycles. progress: told what takes
        long; by default that goes to standard error when it is a terminal.

        Raises TypeError and ValueError for wrong inputs, MissingToolError without a C++ compiler,
        DeviceError and DeviceTimeoutError when the run fails, ProbeError when a token differs; the next run
        starts from a reset.
        """
        debugging = Debugging(probe, waves, [self.manifest], progress)
        execution = self._running()
        if (memory, debugging.instruments) != self._opened:
            execution.close()
            self._opened = memory, debugging.instruments
        execution.open_device = debugging.opener(memory)
        execution.observer = debugging.observer(self._program, execution.manifest)
        try:
            outputs = execution.run(*map(_array, inputs), timeout=timeout)
            debugging.check()
        finally:
            self.probed = debugging.report
        return outputs[0] if len(outputs) == 1 else outputs

    def golden(self, *inputs: Any) -> Any:
        """What `run` must return, bit for bit, computed in numpy from the program, not from the RTL."""
        execution = self._running()

        def compute(arrays: Mapping[str, np.ndarray], tiles: int) -> Mapping[str, np.ndarray]:
            outputs, _ = golden.run(self._program.at(tiles), arrays)
            return outputs

        outputs = execution.evaluate(compute, *map(_array, inputs))
        return outputs[0] if len(outputs) == 1 else outputs

    def predict(self, tokens: int) -> int:
        """Cycles that `run` takes for so many tokens, over all its passes, without running anything.

        The memory is the manifest's. ValueError unless `tokens` is at least 1.
        """
        if tokens < 1:
            raise ValueError(f"tokens is {tokens}; at least 1 is needed")
        manifest = self.manifest
        control = next(buffer.channel for buffer in manifest.buffers if buffer.role == "table")
        full, rest = divmod(tokens, manifest.max_tokens)
        total = 0
        for passes, count in ((full, manifest.max_tokens), (1, rest)):
            if passes and count:
                graph = self._program.at(-(-count // manifest.tokens_per_tile))
                total += passes * predict(graph, manifest.program, manifest.memory, control)
        return total

    def report(self) -> Report:
        """Resources, FIFOs and choices; after a run also its cycles, kernel by kernel."""
        statuses = [] if self._execution is None else self._execution.statuses
        manifest, graph, notes = self.manifest, self.graph, self._notes
        counted = _counted(manifest, statuses)
        columns = [n.params for n in graph.nodes if isinstance(n.params, ColumnParams)]
        total = sum(status.cycles for status in statuses)
        fifos = tuple(
            FifoReport(
                name=edge.name,
                bits=_bits(graph, edge),
                depth=edge.depth or 0,
                greatest=counted.get((edge.name, "level")),
            )
            for edge in graph.edges
        )
        kernels = tuple(
            KernelReport(
                name=node.name,
                kind=type(node.params).__name__.removesuffix("Params"),
                busy=(busy := counted[node.name, "busy"]),
                stalled=(stalled := counted[node.name, "stalled"]),
                idle=total - busy - stalled,
            )
            for node in graph.nodes
            if (node.name, "busy") in counted
        )
        return Report(
            name=manifest.top,
            clock_mhz=manifest.clock_mhz,
            multipliers=sum(c.n_lanes * c.t_lanes * 32 for c in columns),
            choices=notes.choices,
            resources=ResourceReport(parts=notes.resources, available=U55C.resources),
            fifos=fifos,
            passes=tuple(status.cycles for status in statuses),
            kernels=kernels,
            converter_bits=_converter_bits(graph),
            scheduled_cycles=notes.scheduled_cycles,
        )

    def _fill(self, folder: Path) -> None:
        """Write all files of the design, or copy them from where they are."""
        if self._design is not None:
            for name, content in self._design.files().items():
                (folder / name).write_bytes(content)
            save_program(self._program, folder)
            (folder / _NOTES).write_text(self._notes.to_json())
            return
        assert self._folder is not None
        for file in self._folder.iterdir():
            if file.is_file():
                shutil.copyfile(file, folder / file.name)

    def _running(self) -> Execution:
        """The written design, ready to run; written to a folder that lives as long as this object if the
        user gave none."""
        if self._folder is None:
            place = Path(tempfile.mkdtemp(prefix="streamgen-"))
            weakref.finalize(self, shutil.rmtree, place, ignore_errors=True)
            self.write(place)
        assert self._folder is not None
        if self._execution is None:
            self._execution = Execution(self._folder)
        return self._execution

    def _close(self) -> None:
        if self._execution is not None:
            self._execution.close()
        self._execution = None


def _array(value: Any) -> np.ndarray:
    """An array of what may be a torch tensor that wants gradients."""
    return np.asarray(value.detach() if hasattr(value, "detach") else value)


def _counted(manifest: Manifest, statuses: Sequence[StatusBlock]) -> dict[tuple[str, str], int]:
    """Counters over all passes: sums, and for levels the greatest."""
    found: dict[tuple[str, str], int] = {}
    for status in statuses:
        for counter, value in zip(manifest.counters, status.counters, strict=True):
            key = (counter.name, counter.kind)
            if counter.kind == "level":
                found[key] = max(found.get(key, 0), value & 0xFFFF)
            else:
                found[key] = found.get(key, 0) + value
    return found


def _bits(graph: Graph, edge: Any) -> int:
    return next(it.token_bits for p in range(graph.phases) if (it := graph.itensor(edge, p)) is not None)


def _converter_bits(graph: Graph) -> int:
    total = 0
    for node in graph.nodes:
        if isinstance(node.params, PingPongParams):
            converter = infer_converter(node.params.source, node.params.target)
            total += 0 if converter is None else converter.bits
    return total
