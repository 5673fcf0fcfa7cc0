"""Groups: the designs of an accelerator, each with its program."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path

import numpy as np

from streamgen.artifact.manifest import Manifest, MemoryTiming
from streamgen.artifact.phase_table import PhaseTable
from streamgen.compiler.emit import Design
from streamgen.compiler.explore import phase_cycles, predict
from streamgen.compiler.explore.bound import pass_cycles
from streamgen.model import golden
from streamgen.model.graph import Graph, Program
from streamgen.observe.estimate import PassEstimate
from streamgen.observe.profile import PassProfile
from streamgen.observe.report import Notes
from streamgen.observe.timing import predicted_pass
from streamgen.observe.view import GroupView, RunPass, group_view, shown
from streamgen.runtime.execution import Launch


@dataclass(frozen=True, eq=False)
class Group:
    """A group: one of the designs of an accelerator, which run one after the other. source: returns the
    program; called on first use. design: None if the design is already written."""

    source: Callable[[], Program]
    notes: Notes
    design: Design | None = None

    @cached_property
    def program(self) -> Program:
        """The graph of every run."""
        return self.source()

    @property
    def graph(self) -> Graph:
        """The finished graph of the largest run."""
        return self.program.graph

    def phase_names(self, top: str) -> tuple[str, ...]:
        """A name for each phase: its matmuls, "start" without one, or `top`, the name of the design, for a
        single phase."""
        phases, units = self.graph.phases, self.notes.units
        if phases == 1:
            return (top,)
        if len(units) == phases:
            return tuple(unit or "start" for unit in units)
        return tuple(f"phase {k}" for k in range(phases))

    def write(self, folder: Path) -> None:
        """Write the design and its notes into an existing folder."""
        assert self.design is not None
        self.design.write(folder)
        self.notes.write(folder)

    def golden(self, arrays: Mapping[str, np.ndarray], tiles: int) -> Mapping[str, np.ndarray]:
        """Outputs by name of a run of `tiles` token tiles, computed in numpy."""
        outputs, _ = golden.run(self.program.at(tiles), arrays)
        return outputs

    def predict(
        self,
        manifest: Manifest,
        tiles: int,
        position: int = 0,
        variant: str | None = None,
        source: int | None = None,
    ) -> int:
        """Predicted cycles of a pass of `tiles` token tiles. manifest: manifest of the design. source: rows
        of the source of a text; None for the most."""
        return predict(*self._pass(manifest, tiles, position, variant, source))

    def bound(self, memory: MemoryTiming, launch: Launch) -> float:
        """Fewest cycles that memory and multipliers need for a run."""
        graph = self.program.at(launch.tiles, launch.position, launch.variant, launch.source or None)
        return pass_cycles(graph, Fraction(memory.beats, memory.cycles))

    def known_bound(self, memory: MemoryTiming, launch: Launch) -> float:
        """`bound`, or 0 if the program has not been read from its folder yet."""
        return self.bound(memory, launch) if self.at_hand else 0

    @property
    def at_hand(self) -> bool:
        """Whether the program is in memory."""
        return self.design is not None or "program" in vars(self)

    def view(
        self,
        manifest: Manifest,
        measured: Sequence[PassProfile],
        runs: Sequence[RunPass],
        passes: Sequence[tuple[int, int, str | None]],
    ) -> GroupView:
        """Data of the group for a page. measured: passes of the last profile. runs: passes of the last run.
        passes: tiles, position and variant of the passes to predict."""
        names = self.phase_names(manifest.top)
        own = [profile for profile in measured if profile.design == manifest.top]
        expected = [
            (run, self._timed(manifest, names, run.tiles, run.position, run.variant))
            for run in ([] if own else shown(runs))
        ]
        return group_view(
            self.graph,
            manifest,
            names,
            self.notes,
            measured=own,
            runs=runs,
            expected=expected,
            predicted=[self._timed(manifest, names, *arguments) for arguments in passes],
        )

    def _timed(
        self, manifest: Manifest, names: Sequence[str], tiles: int, position: int, variant: str | None
    ) -> PassEstimate:
        run = self._pass(manifest, tiles, position, variant)
        return predicted_pass(
            manifest.top,
            names,
            run[0],
            phase_cycles(*run),
            manifest.memory,
            tokens=tiles * self.program.token_lanes,
            position=position,
        )

    def _pass(
        self,
        manifest: Manifest,
        tiles: int,
        position: int,
        variant: str | None,
        source: int | None = None,
    ) -> tuple[Graph, PhaseTable, MemoryTiming, int]:
        """The arguments of a prediction of a pass."""
        programs = {None: manifest.program} | {variant.name: variant.program for variant in manifest.variants}
        control = next(buffer.channel for buffer in manifest.buffers if buffer.role == "table")
        graph = self.program.at(tiles, position, variant, source)
        return graph, programs[variant], manifest.memory, control
