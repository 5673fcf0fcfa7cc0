"""From a torch module, or a graph built by hand, to an accelerator that can be written and run.

compile: frontend -> quantise weights -> explore -> lower -> forks -> converters -> FIFO depths -> emit
assemble: the same from a graph of kernels on
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from streamgen import golden
from streamgen.config import CompileConfig
from streamgen.converters import PingPongParams
from streamgen.emit import Design, emit
from streamgen.explore import explore
from streamgen.fifo.queue import QueueParams
from streamgen.graph import Graph, Program
from streamgen.graph.plan import Plan
from streamgen.graph.storage import load_program, save_program
from streamgen.itensor import infer_converter
from streamgen.kernels.matmul import ColumnParams
from streamgen.lower import finish, linear_shapes, lower_network, quantise_weights
from streamgen.manifest import Manifest, StatusBlock
from streamgen.platform.u55c import U55C
from streamgen.report import FifoReport, KernelReport, Report, ResourceReport
from streamgen.runtime.execution import Execution
from streamgen.runtime.memory import MemoryModel

if TYPE_CHECKING:
    import torch

__all__ = ["Accelerator", "assemble", "compile", "load"]


def compile(
    module: "torch.nn.Module",
    example_inputs: "torch.Tensor | Sequence[torch.Tensor]",
    config: CompileConfig | None = None,
) -> "Accelerator":
    """An accelerator that computes what a torch module computes.

    module: Linear, ReLU, Sigmoid, SiLU, + and * of equal shapes or with constants. example_inputs: one
    tensor for each input; all dimensions but the last are tokens. config: budgets and formats.

    Raises UnsupportedOperationError (all operations that cannot be compiled, with module path and source
    line), BudgetError, TypeError and ValueError for bad inputs or weights.
    """
    from streamgen.frontend import import_module  # torch takes seconds to load

    config = config or CompileConfig()
    network = import_module(module, example_inputs)
    weights = quantise_weights(network, config)
    rate = float(U55C.hbm.beats_per_cycle(config.clock_mhz))
    plan = explore(linear_shapes(network, weights), config, rate)
    largest = -(-config.max_tokens // plan.token_lanes)

    def build(tiles: int) -> Graph:
        return lower_network(network, weights, plan, config, rate, tiles)

    program, schedules = finish(build, plan.token_lanes, largest, config.sizing)
    design = emit(program, config, max_tokens=config.max_tokens)
    cycles = dict(
        zip((largest * plan.token_lanes, plan.token_lanes), (s.finish for s in schedules), strict=False)
    )
    return Accelerator(design, program, notes=_Notes(plan=plan, scheduled=cycles))


def assemble(graph: Graph, config: CompileConfig | None = None) -> "Accelerator":
    """An accelerator from a graph of kernels, built by hand with `GraphBuilder`; forks, converters and FIFO
    depths are added. GraphError names what breaks a law."""
    config = config or CompileConfig(name=graph.name)
    program, schedules = finish(lambda _: graph, 1, 1, config.sizing)
    fixed = Program(program.graph)
    design = emit(fixed, config, max_tokens=1)
    return Accelerator(design, fixed, notes=_Notes(scheduled={1: schedules[0].finish}))


def load(folder: str | Path) -> "Accelerator":
    """The accelerator that `Accelerator.write` wrote. ValueError or GraphError for a folder that is none."""
    place = Path(folder)
    program = load_program(place)
    return Accelerator(None, program, folder=place)


@dataclass(frozen=True)
class _Notes:
    """What the compiler knows beside the program, for the report."""

    plan: Plan | None = None
    scheduled: Mapping[int, int] = field(default_factory=dict)


class Accelerator:
    """A design with its golden model; runs on the simulated device, or on what `open_device` opens.

    `graph` is the finished graph of the largest run.
    """

    def __init__(
        self,
        design: Design | None,
        program: Program,
        *,
        folder: Path | None = None,
        notes: "_Notes | None" = None,
    ) -> None:
        self._design, self._program, self._folder = design, program, folder
        self._notes = notes or _Notes()
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._execution: Execution | None = None
        self._memory: MemoryModel | None = None

    @property
    def graph(self) -> Graph:
        """The finished graph of the largest run."""
        return self._program.graph

    @property
    def manifest(self) -> Manifest:
        """What the host knows of the design."""
        return self._design.manifest if self._design is not None else self._running().manifest

    def write(self, folder: str | Path) -> Path:
        """Write Verilog, manifest, packed weights and golden model into a new folder; returns it.

        FileExistsError when the folder exists and is not empty; OSError when it cannot be written. Either
        everything is written or nothing is left.
        """
        target = Path(folder)
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise FileExistsError(f"{target} exists and is not an empty folder; give a new name or remove it")
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            if self._design is None:
                assert self._folder is not None
                shutil.copytree(self._folder, partial, dirs_exist_ok=True)
            else:
                for name, content in self._design.files().items():
                    (partial / name).write_bytes(content)
                save_program(self._program, partial)
            partial.chmod(0o755)
            partial.replace(target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        self._close()
        self._folder = target
        return target

    def run(self, *inputs: Any, memory: MemoryModel | None = None, timeout: float = 600.0) -> Any:
        """What the written RTL with the written weights computes, in a cycle-accurate simulation.

        inputs: arrays (or torch tensors) [..., features]; leading dimensions are tokens, more than
        `max_tokens` of them are several passes. Returns an array for one output, a tuple for several.
        memory: another model of the memory (delays, rate) than the manifest's. timeout: seconds a pass.

        Raises TypeError and ValueError for wrong inputs, MissingToolError without a C++ compiler,
        DeviceError and DeviceTimeoutError when the run fails; the next run starts from a reset.
        """
        outputs = self._running(memory).run(*map(np.asarray, inputs), timeout=timeout)
        return outputs[0] if len(outputs) == 1 else outputs

    def golden(self, *inputs: Any) -> Any:
        """What `run` must return, bit for bit, computed in numpy from the program, not from the RTL."""
        execution = self._running()

        def compute(arrays: Mapping[str, np.ndarray], tiles: int) -> Mapping[str, np.ndarray]:
            outputs, _ = golden.run(self._program.at(tiles), arrays)
            return outputs

        outputs = execution.evaluate(compute, *map(np.asarray, inputs))
        return outputs[0] if len(outputs) == 1 else outputs

    def report(self) -> Report:
        """Resources, FIFOs and choices; after a run also its cycles, kernel by kernel."""
        statuses = [] if self._execution is None else self._execution.statuses
        manifest, graph, plan = self.manifest, self.graph, self._notes.plan
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
            choices=() if plan is None else plan.reasons,
            resources=_resources(graph, self._design),
            fifos=fifos,
            passes=tuple(status.cycles for status in statuses),
            kernels=kernels,
            converter_bits=_converter_bits(graph),
            scheduled_cycles=self._notes.scheduled,
        )

    def _running(self, memory: MemoryModel | None = None) -> Execution:
        if self._folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="streamgen-")
            self.write(Path(self._temporary.name, "accelerator"))
        assert self._folder is not None
        if self._execution is None or self._memory != memory:
            self._close()
            self._memory = memory
            self._execution = Execution(self._folder, memory=memory)
        return self._execution

    def _close(self) -> None:
        if self._execution is not None:
            self._execution.close()
        self._execution = None


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


def _resources(graph: Graph, design: Design | None) -> ResourceReport:
    """Promised resources, summed by kind of node; FIFOs, and what stands around the graph."""
    parts: dict[str, Any] = {}

    def add(kind: str, resources: Any) -> None:
        parts[kind] = parts[kind] + resources if kind in parts else resources

    for node in graph.nodes:
        bounds = next(b for b in node.bounds if b is not None)
        add(type(node.params).__name__.removesuffix("Params"), node.params.cost(bounds).resources)
    for edge in graph.edges:
        add("FIFOs", QueueParams(bits=_bits(graph, edge), depth=edge.depth or 1).resources)
    if design is not None:
        add("control and masters", design.shell)
    return ResourceReport(parts=parts, available=U55C.resources)


def _converter_bits(graph: Graph) -> int:
    total = 0
    for node in graph.nodes:
        if isinstance(node.params, PingPongParams):
            converter = infer_converter(node.params.source, node.params.target)
            total += 0 if converter is None else converter.bits
    return total
