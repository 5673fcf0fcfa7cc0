"""From a torch module, or a graph built by hand, to an accelerator that can be written and run.

compile: frontend -> quantise weights -> groups, and of each:
    explore -> lower -> forks -> converters -> FIFO depths -> emit
assemble: the same from a graph of kernels on
"""

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from streamgen import golden
from streamgen.config import CompileConfig
from streamgen.debugging import Debugging
from streamgen.emit import Design, emit, place_program
from streamgen.errors import GraphError
from streamgen.explore import predict
from streamgen.explore.fusion import FusedGroup
from streamgen.folders import new_folder
from streamgen.graph import Graph, Program
from streamgen.graph.storage import load_program, save_program
from streamgen.grouping import group_graph, group_network
from streamgen.lower import finish, quantise_network
from streamgen.manifest import Buffer, Manifest
from streamgen.probe import ProbeReport
from streamgen.progress import Progress, terminal_progress
from streamgen.report import Notes, Report
from streamgen.runtime.chain import CHAIN_FILE, Chain, ChainExecution
from streamgen.runtime.execution import Compute
from streamgen.runtime.instruments import Instruments
from streamgen.runtime.memory import MemoryModel
from streamgen.summary import group_report, intermediate_memory, notes_of
from streamgen.waves import Waves

if TYPE_CHECKING:
    import torch

__all__ = ["Accelerator", "Group", "assemble", "compile", "load"]


def compile(
    module: "torch.nn.Module",
    example_inputs: "torch.Tensor | Sequence[torch.Tensor]",
    config: CompileConfig | None = None,
    progress: Progress | None = None,
) -> "Accelerator":
    """An accelerator that computes what a torch module computes.

    module: Linear, ReLU, Sigmoid, SiLU, Tanh, GELU; +, - and * of equal shapes or with constants, / by
    constants, negation and squares.
    example_inputs: one tensor for each input; all dimensions but the last are tokens. config: budgets and
    formats. progress: told each step; by default that goes to standard error when it is a terminal.

    Raises UnsupportedOperationError (all operations that cannot be compiled, with module path and source
    line), BudgetError, TypeError and ValueError for bad inputs or weights.
    """
    from streamgen.frontend import import_module  # torch takes seconds to load

    config = config or CompileConfig()
    tell = progress or terminal_progress()
    tell("exporting the module")
    network = import_module(module, example_inputs)
    tell("quantising the weights")
    network = quantise_network(network, config)
    rate = float(config.card.hbm.beats_per_cycle(config.clock_mhz))
    tell("choosing groups, lanes and columns")
    groups = []
    for part, fused in group_network(network, config, rate):
        tell(f"{part.config.name}: kernels, converters, FIFO depths")
        place = partial(place_program, config=part.config)
        program, schedules = finish(
            part.build, part.plan.token_lanes, part.largest, config.sizing, place=place
        )
        tell(f"{part.config.name}: Verilog")
        design = emit(program, part.config, max_tokens=config.max_tokens)
        corners = (part.largest * part.plan.token_lanes, part.plan.token_lanes)
        cycles = {tokens: one.finish for tokens, one in zip(corners, schedules, strict=False)}
        groups.append(Group(program, _notes(fused, design, cycles, part.plan.reasons), design))
        tensors = part.boundary.tensors
    tell("")
    inputs = (tensors[value.name] for value in network.inputs)
    return Accelerator(
        groups, _chain(config.name, groups, inputs, (tensors[name] for name in network.outputs))
    )


def assemble(graph: Graph, config: CompileConfig | None = None) -> "Accelerator":
    """An accelerator from a graph of kernels, built by hand with `GraphBuilder`; forks, converters and FIFO
    depths are added. Of `config` name, board, converter_bits, clock_mhz and sizing matter. GraphError names
    what breaks a law, BudgetError kernels whose own converters are too large."""
    config = config or CompileConfig(name=graph.name)
    groups = []
    for part, fused in group_graph(graph, config):
        named = replace(config, name=part.name)
        place = partial(place_program, config=named)
        program, schedules = finish(partial(_whole, part), 1, 1, config.sizing, place=place)
        fixed = Program(program.graph, slrs=program.slrs)
        design = emit(fixed, named, max_tokens=1)
        groups.append(Group(fixed, _notes(fused, design, {1: schedules[0].finish}), design))
    inputs, outputs = ([t.name for t in graph.tensors if t.role == role] for role in ("input", "output"))
    return Accelerator(groups, _chain(config.name, groups, inputs, outputs))


def load(folder: str | Path) -> "Accelerator":
    """The accelerator that `Accelerator.write` wrote. ValueError or GraphError for a folder that is none."""
    place = Path(folder).resolve()
    chain = Chain.read(place) if (place / CHAIN_FILE).exists() else None
    groups = []
    for part in [place] if chain is None else [place / name for name in chain.folders]:
        program = load_program(part)
        groups.append(Group(program, Notes.read(part)))
    accelerator = Accelerator(groups, chain, folder=place)
    accelerator._running()  # reads the manifests
    return accelerator


def _whole(graph: Graph, tiles: int, position: int) -> Graph:
    """The only graph of a family."""
    return graph


@dataclass(frozen=True, eq=False)
class Group:
    """One accelerator of those that run one after the other. design: None when it is written already."""

    program: Program
    notes: Notes
    design: Design | None = None

    @property
    def graph(self) -> Graph:
        """The finished graph of the largest run."""
        return self.program.graph

    def write(self, folder: Path, written: Path | None) -> None:
        """Write all files into an existing folder, or copy them from where they are written."""
        if self.design is None:
            assert written is not None
            for file in written.iterdir():
                if file.is_file():
                    shutil.copyfile(file, folder / file.name)
            return
        for name, content in self.design.files().items():
            (folder / name).write_bytes(content)
        save_program(self.program, folder)
        self.notes.write(folder)

    def golden(self, arrays: Mapping[str, np.ndarray], tiles: int) -> Mapping[str, np.ndarray]:
        """Outputs by name of a run of so many token tiles, in numpy."""
        outputs, _ = golden.run(self.program.at(tiles), arrays)
        return outputs


class Accelerator:
    """Designs with their golden models; runs on the simulated device.

    `groups` run one after the other; one, unless their converters are over the budget. chain: how they
    follow one another, for several.
    """

    def __init__(self, groups: Sequence[Group], chain: Chain | None, *, folder: Path | None = None) -> None:
        self.groups = tuple(groups)
        self._chain, self._folder = chain, folder
        self._execution: ChainExecution | None = None
        self._opened: tuple[MemoryModel | None, tuple[Instruments, ...]] | None = None
        self.probed: ProbeReport | None = None
        """What the last call of `run` has compared with golden; None when it was not asked to."""

    @property
    def graph(self) -> Graph:
        """The finished graph of the largest run. GraphError when there are several groups."""
        return self._only().graph

    @property
    def manifest(self) -> Manifest:
        """What the host knows of the design. GraphError when there are several groups."""
        self._only()
        return self.manifests[0]

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """What the host knows of each group."""
        designs = [group.design for group in self.groups if group.design is not None]
        if len(designs) == len(self.groups):
            return tuple(design.manifest for design in designs)
        return tuple(group.manifest for group in self._running().groups)

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        """What `run` takes, in order: name, shape, itensor."""
        return self._running().inputs

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        """What `run` returns, in order."""
        return self._running().outputs

    def write(self, folder: str | Path) -> Path:
        """Write Verilog, manifest, packed weights and golden model into a new folder; returns it. Several
        groups have a folder each, and `chain.json` says in which order they run.

        FileExistsError when the folder exists and is not empty; OSError when it cannot be written. Either
        everything is written or nothing is left.
        """
        target = Path(folder).resolve()
        with new_folder(target) as partial:
            self._fill(partial)
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
        execution = self._running()
        manifests = [group.manifest for group in execution.groups]
        debugging = Debugging(probe, waves, manifests, progress)
        if (memory, debugging.instruments) != self._opened:
            execution.close()
            self._opened = memory, debugging.instruments
        for group, running in zip(self.groups, execution.groups, strict=True):
            running.open_device = debugging.opener(memory)
            running.observer = debugging.observer(group.program, running.manifest)
        try:
            outputs = execution.run(*map(_array, inputs), timeout=timeout)
            debugging.check()
        finally:
            self.probed = debugging.report
        return outputs[0] if len(outputs) == 1 else outputs

    def golden(self, *inputs: Any) -> Any:
        """What `run` must return, bit for bit, computed in numpy from the program, not from the RTL."""
        computes: list[Compute] = [group.golden for group in self.groups]
        outputs = self._running().evaluate(computes, *map(_array, inputs))
        return outputs[0] if len(outputs) == 1 else outputs

    def predict(self, tokens: int) -> int:
        """Cycles that `run` takes for so many tokens, over all its passes, without running anything.

        The memory is the manifest's. ValueError unless `tokens` is at least 1.
        """
        if tokens < 1:
            raise ValueError(f"tokens is {tokens}; at least 1 is needed")
        total = 0
        for group, manifest in zip(self.groups, self.manifests, strict=True):
            control = next(buffer.channel for buffer in manifest.buffers if buffer.role == "table")
            full, rest = divmod(tokens, manifest.max_tokens)
            for passes, count in ((full, manifest.max_tokens), (1, rest)):
                if passes and count:
                    graph = group.program.at(-(-count // manifest.tokens_per_tile))
                    total += passes * predict(graph, manifest.program, manifest.memory, control)
        return total

    def report(self) -> Report:
        """Groups, resources, FIFOs and choices; after a run also its cycles, kernel by kernel."""
        manifests = self.manifests
        running = None if self._execution is None else self._execution.groups
        return Report(
            name=manifests[0].top if self._chain is None else self._chain.name,
            clock_mhz=manifests[0].clock_mhz,
            groups=tuple(
                group_report(group.graph, manifest, group.notes, running[i].statuses if running else ())
                for i, (group, manifest) in enumerate(zip(self.groups, manifests, strict=True))
            ),
            memory=intermediate_memory([group.graph for group in self.groups]),
        )

    def _fill(self, folder: Path) -> None:
        """Write all files of the groups, or copy them from where they are."""
        if self._chain is None:
            self.groups[0].write(folder, self._folder)
            return
        for group, name in zip(self.groups, self._chain.folders, strict=True):
            (folder / name).mkdir()
            group.write(folder / name, None if self._folder is None else self._folder / name)
        (folder / CHAIN_FILE).write_text(self._chain.to_json())

    def _only(self) -> Group:
        if len(self.groups) > 1:
            raise GraphError(
                f"there are {len(self.groups)} groups; take the graph or the manifest of one of them"
            )
        return self.groups[0]

    def _running(self) -> ChainExecution:
        """The written design, ready to run; written to a folder that lives as long as this object if the
        user gave none."""
        if self._folder is None:
            place = Path(tempfile.mkdtemp(prefix="streamgen-"))
            weakref.finalize(self, shutil.rmtree, place, ignore_errors=True)
            self.write(place)
        assert self._folder is not None
        if self._execution is None:
            self._execution = ChainExecution(self._folder)
        return self._execution

    def _close(self) -> None:
        if self._execution is not None:
            self._execution.close()
        self._execution = None


def _array(value: Any) -> np.ndarray:
    """An array of what may be a torch tensor that wants gradients."""
    if hasattr(value, "detach"):
        value = value.detach()
        if str(value.dtype) == "torch.bfloat16":  # numpy has none; float32 holds all of its values
            value = value.float()
    return np.asarray(value)


def _notes(
    fused: FusedGroup, design: Design, cycles: Mapping[int, int], choices: tuple[str, ...] = ()
) -> Notes:
    return notes_of(
        design,
        units=fused.units,
        ended=fused.ended,
        converter_budget=fused.budget,
        choices=choices,
        scheduled_cycles=cycles,
    )


def _chain(name: str, groups: Sequence[Group], inputs: Iterable[str], outputs: Iterable[str]) -> Chain | None:
    """How several groups follow one another."""
    if len(groups) == 1:
        return None
    folders = tuple(f"group_{i}" for i in range(len(groups)))
    return Chain(name=name, folders=folders, inputs=tuple(inputs), outputs=tuple(outputs))
