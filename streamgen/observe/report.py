"""What an accelerator is and how its last run went, as values and as text.

An accelerator is one group or several, which run one after the other; each has a report of its own.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.table import Table

from streamgen.base.files import decode, parsed, read_file
from streamgen.base.folders import new_file, require_place
from streamgen.base.tables import rendered, table
from streamgen.base.wording import counted
from streamgen.contract.cost import Resources
from streamgen.model.graph.plan import Tried
from streamgen.observe.alike import named, rows, spread
from streamgen.observe.channels import channel_table
from streamgen.observe.study import StudyReport
from streamgen.platform.boards import Board

__all__ = [
    "FifoReport",
    "GroupReport",
    "IntermediateMemory",
    "KernelReport",
    "Notes",
    "PassTiming",
    "Report",
    "ResourceReport",
]

NOTES = "notes.json"


@dataclass(frozen=True, kw_only=True)
class Notes:
    """What only the compiler knows of a group: its units and why it holds no more of them, the budget of
    converter bits (None: there is none), the choices in words, the scheduled cycles by number of tokens, the
    board, the promised resources by kind of block and by SLR, the SLR of each instance in the top of the
    Verilog, the boundaries of SLRs that streams cross, the wires at each boundary, the designs that the
    search went through."""

    units: tuple[str, ...]
    ended: str
    converter_budget: int | None
    choices: tuple[str, ...]
    scheduled_cycles: Mapping[int, int]
    board: Board
    resources: Mapping[str, Resources]
    slrs: Mapping[str, Resources]
    instances: Mapping[str, str]
    crossings: Mapping[str, int]
    wires: tuple[int, ...]
    tried: tuple[Tried, ...]

    def to_json(self) -> str:
        """Text that `from_json` turns back into equal notes."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> "Notes":
        """ValueError for a text that `to_json` did not make."""
        found: Notes = decode(cls, parsed(text), "notes")
        if unknown := set(found.slrs) ^ {slr.name for slr in found.board.slrs}:
            raise ValueError(f"notes.slrs: {', '.join(sorted(unknown))} are not those of the board")
        if len(found.wires) != len(found.board.slrs) - 1:
            raise ValueError(f"notes.wires: {len(found.wires)} numbers for {len(found.board.slrs)} SLRs")
        return found

    def write(self, folder: Path) -> None:
        """Write them into an existing folder."""
        (folder / NOTES).write_text(self.to_json())

    @classmethod
    def read(cls, folder: Path, read: Callable[[str], bytes] | None = None) -> "Notes":
        """Those that `write` wrote into a folder; ValueError when they cannot be read. read: gives the
        content of a file by its name."""
        try:
            return cls.from_json((read or partial(read_file, folder))(NOTES))
        except ValueError as error:
            raise ValueError(f"{folder / NOTES} cannot be read: {error}") from error


@dataclass(frozen=True, kw_only=True)
class PassTiming:
    """Cycles of a pass of a language model, `tokens` of them from `position` on, beside the least in which
    memory and multipliers can do its work (`explore.bound`)."""

    position: int
    tokens: int
    cycles: int
    bound: float

    @property
    def ratio(self) -> float:
        """Cycles against the bound."""
        return self.cycles / self.bound


@dataclass(frozen=True, kw_only=True)
class KernelReport:
    """Cycles of one node in the last run: busy (a token moved), stalled (output waits), idle (the rest)."""

    name: str
    kind: str
    busy: int
    stalled: int
    idle: int


@dataclass(frozen=True, kw_only=True)
class FifoReport:
    """A FIFO of `depth` tokens, and the most it held in the last run (None: there was none)."""

    name: str
    bits: int
    depth: int
    greatest: int | None


@dataclass(frozen=True, kw_only=True)
class ResourceReport:
    """Promised resources by kind of block, and what the shell of the board leaves to a kernel.

    slrs: of each SLR what is used and what there is; fill: the share that may be used. crossings: by stream,
    the boundaries of SLRs that it crosses, where it crosses any.
    """

    board: str
    parts: Mapping[str, Resources]
    available: Resources
    slrs: Mapping[str, tuple[Resources, Resources]]
    fill: float
    crossings: Mapping[str, int]

    @property
    def total(self) -> Resources:
        """Sum over all parts."""
        return sum(self.parts.values(), Resources(lut=0, ff=0))

    def table(self) -> Table:
        """Blocks, sums and what the board leaves; of each SLR the share that is used."""
        names = ("lut", "ff", "dsp", "bram", "uram")
        made = table("block", *(name.upper() for name in names))
        rows = {**self.parts, "total": self.total, f"{self.board} leaves": self.available}
        for block, resources in rows.items():
            made.add_row(block, *(f"{_whole(getattr(resources, name))}" for name in names))
        shares = {"share": (self.total, self.available), **self.slrs}
        for region, (used, available) in shares.items():
            percent = (100 * getattr(used, n) / getattr(available, n) for n in names)
            made.add_row(region, *(f"{value:.1f} %" for value in percent))
        made.caption = f"{len(self.crossings)} streams cross SLRs; of each {self.fill:.0%} may be filled"
        return made


@dataclass(frozen=True, kw_only=True)
class IntermediateMemory:
    """Bits for what kernels hand to one another, in the largest run.

    unfused: every intermediate tensor whole, as if each kernel wrote to memory. converters, fifos: what is
    built in the place of that, for inputs too. constants: what converters hold of constants beside it, as
    rows of weights that meet several tokens. stored: tensors between groups, whole.
    """

    unfused: int
    converters: int
    constants: int
    fifos: int
    stored: int

    @property
    def fused(self) -> int:
        """Bits of everything in the place of whole tensors."""
        return self.converters + self.fifos + self.stored

    def __str__(self) -> str:
        share = f", {100 * self.fused / self.unfused:.1f} %" if self.unfused else ""
        stored = f" + {self.stored:,} of tensors between groups" if self.stored else ""
        constants = f"; beside it {self.constants:,} of weights and other constants" if self.constants else ""
        return (
            f"intermediate memory: {self.fused:,} bits ({self.converters:,} of converters "
            f"+ {self.fifos:,} of FIFOs{stored}) against {self.unfused:,} with every tensor whole{share}"
            f"{constants}"
        )


@dataclass(frozen=True, kw_only=True)
class GroupReport:
    """One accelerator.

    units: what it computes. ended: why it holds no more. passes: cycles of each pass of the last run; none
    before the first. scheduled_cycles: by number of tokens, what a pass takes in the schedule that sized the
    FIFOs, where nothing waits for memory. timings: of a language model, its passes beside their bounds.
    channels: bytes by memory channel and by what they are; channel_bytes: the room of each.
    tried: the designs that the search went through.
    """

    name: str
    units: tuple[str, ...]
    ended: str
    converter_bits: int
    converter_budget: int | None
    multipliers: int
    choices: tuple[str, ...]
    resources: ResourceReport
    channels: Mapping[int, Mapping[str, int]]
    channel_bytes: int
    fifos: tuple[FifoReport, ...]
    passes: tuple[int, ...] = ()
    kernels: tuple[KernelReport, ...] = ()
    scheduled_cycles: Mapping[int, int] = field(default_factory=dict)
    timings: tuple[PassTiming, ...] = ()
    tried: tuple[Tried, ...] = ()

    def lines(self, clock_mhz: float, full: bool) -> Iterator[str | Table]:
        """What a report prints of it. full: a line for each kernel and FIFO, though they are alike."""
        yield f"{self.name}: {self.multipliers:,} multipliers"
        budget = "" if self.converter_budget is None else f" of {self.converter_budget:,}"
        yield f"layout converters hold {self.converter_bits:,}{budget} bits"
        for tokens, cycles in self.scheduled_cycles.items():
            yield f"schedule of {counted(tokens, 'token')}: {cycles:,} cycles"
        for choice in self.choices:
            yield f"  {choice}"
        if self.timings:
            yield self._timing_table(clock_mhz)
        if self.kernels:
            yield self._kernel_table(full)
        yield self._fifo_table(full)
        yield self.resources.table()
        yield channel_table(self.channels, self.channel_bytes)

    def _timing_table(self, clock_mhz: float) -> Table:
        made = table("position", "tokens", "cycles", "bound", "ratio", "µs", "tokens/s")
        for t in self.timings:
            took = t.cycles / clock_mhz
            numbers = (
                f"{t.cycles:,}",
                f"{t.bound:,.0f}",
                f"{t.ratio:.3f}",
                f"{took:,.0f}",
                f"{1e6 * t.tokens / took:,.0f}",
            )
            made.add_row(str(t.position), str(t.tokens), *numbers)
        return made

    def _kernel_table(self, full: bool) -> Table:
        made = table("kernel", "kind", "busy", "stalled", "idle", "busy %", texts=2)
        for several in rows(self.kernels, lambda k: k.kind, full):
            counts = [[getattr(k, what) for k in several] for what in ("busy", "stalled", "idle")]
            total = max(1, sum(map(sum, counts)))
            cells = (named([k.name for k in several]), several[0].kind, *map(spread, counts))
            made.add_row(*cells, f"{100 * sum(counts[0]) / total:.1f}")
        return made

    def _fifo_table(self, full: bool) -> Table:
        made = table("FIFO", "bits", "depth", "greatest")
        for several in rows(self.fifos, lambda f: f.bits, full):
            most = [f.greatest for f in several if f.greatest is not None]
            depths = spread([f.depth for f in several])
            made.add_row(
                named([f.name for f in several]), str(several[0].bits), depths, spread(most) if most else ""
            )
        return made


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that `report()` of an accelerator knows; `str()` prints it as tables.

    The last run of a decoder is all passes since its device was opened. study: a search of the design space
    that is told beside it (`with_study`). page: makes HTML of it.
    """

    name: str
    clock_mhz: float
    groups: tuple[GroupReport, ...]
    memory: IntermediateMemory
    study: StudyReport | None = None
    page: "Callable[[Report], str] | None" = field(default=None, repr=False, compare=False)

    @property
    def multipliers(self) -> int:
        """Multipliers of the group that has most."""
        return max(group.multipliers for group in self.groups)

    @property
    def passes(self) -> tuple[int, ...]:
        """Cycles of each pass of the last run, over all groups; none before the first run."""
        return tuple(map(sum, zip(*(group.passes for group in self.groups), strict=True)))

    @property
    def cycles(self) -> int | None:
        """Cycles of the last run over all its passes; None before the first run."""
        return sum(self.passes) if self.passes else None

    @property
    def kernels(self) -> tuple[KernelReport, ...]:
        """Kernels of all groups."""
        return tuple(kernel for group in self.groups for kernel in group.kernels)

    @property
    def fifos(self) -> tuple[FifoReport, ...]:
        """FIFOs of all groups."""
        return tuple(fifo for group in self.groups for fifo in group.fifos)

    def with_study(self, study: StudyReport) -> "Report":
        """The same with the trials of a search (`Study.report`, `search.stored.read_study`)."""
        return dataclasses.replace(self, study=study)

    def to_json(self) -> str:
        """All values, with sums beside them."""
        value = dataclasses.asdict(dataclasses.replace(self, page=None))
        del value["page"]
        for made, group in zip(value["groups"], self.groups, strict=True):
            made["resources"]["total"] = dataclasses.asdict(group.resources.total)
        value |= {"cycles": self.cycles, "passes": self.passes}
        value["memory"]["fused"] = self.memory.fused
        return json.dumps(value, indent=1) + "\n"

    def html(self, path: str | Path) -> Path:
        """Write a page of all of it into one file that needs no network, and return its path: graph, cycles
        by phase and kernel, roofline, FIFOs, resources on the card, memory, exploration, trials of a study.

        Passes that were not profiled are predicted. ValueError for a report made by hand,
        MissingToolError without `streamgen[report]`, FileNotFoundError when there is no such folder,
        IsADirectoryError for a folder, OSError when the file cannot be written: then none is left, and one
        that was there stays.
        """
        if self.page is None:
            raise ValueError("only the report of an accelerator has a page")
        target = require_place(path)
        with new_file(target) as file:
            file.write(self.page(self).encode())
        return target

    def __str__(self) -> str:
        return self.text()

    def text(self, *, full: bool = False, width: int | None = None) -> str:
        """Tables. full: a line for each kernel and FIFO; else those that are alike, as the columns of an
        engine, share one with their least and greatest. width: characters of a line, by default those of the
        terminal."""
        return rendered(self._lines(full), width)

    def _lines(self, full: bool) -> Iterator[str | Table]:
        yield f"{self.name}: {self.clock_mhz:g} MHz, {counted(len(self.groups), 'group')}"
        if self.passes:
            timed = any(group.timings for group in self.groups)
            when = "since the device was opened" if timed else "last run"
            yield f"{when}: {self.cycles:,} cycles in {counted(len(self.passes), 'pass', 'passes')}"
        yield str(self.memory)
        if len(self.groups) > 1:
            yield self._group_table()
        for group in self.groups:
            yield from group.lines(self.clock_mhz, full)
        if self.study is not None:
            yield str(self.study)
            yield self.study.table()

    def _group_table(self) -> Table:
        made = table("group", "computes", "why it ended", "converter bits", "cycles", texts=3)
        for g in self.groups:
            cycles = f"{sum(g.passes):,}" if g.passes else ""
            made.add_row(g.name, ", ".join(g.units), g.ended, f"{g.converter_bits:,}", cycles)
        return made


def _whole(value: float) -> str:
    """Halves (of block memories) are exact, what is estimated is rounded."""
    return f"{value if float(2 * value).is_integer() else round(value):,}".removesuffix(".0")
