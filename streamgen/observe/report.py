"""Reports of an accelerator and its last run, as values and as text.

An accelerator has one group, or several groups that run one after the other. Each group has its own report.
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

NOTES = "notes.json"


@dataclass(frozen=True, kw_only=True)
class Notes:
    """Facts about a group that only the compiler knows.

    units: operations that the group computes. ended: why the group ends after its last unit.
    converter_budget: limit on converter bits; None without a limit. choices: choices of the compiler, as
    sentences. scheduled_cycles: cycles of the schedule by number of tokens. resources, slrs: promised
    resources by kind of block and by SLR. instances: SLR of each instance in the top module. crossings:
    number of SLR boundaries that a stream crosses. wires: wires at each boundary. tried: designs that the
    search compared.
    """

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
        """A text from which `from_json` makes equal notes."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> "Notes":
        """Notes from the text of `to_json`. Raises ValueError for any other text."""
        notes: Notes = decode(cls, parsed(text), "notes")
        if unknown := set(notes.slrs) ^ {slr.name for slr in notes.board.slrs}:
            raise ValueError(f"notes.slrs: {', '.join(sorted(unknown))} do not match the SLRs of the board")
        if len(notes.wires) != len(notes.board.slrs) - 1:
            raise ValueError(f"notes.wires: {len(notes.wires)} numbers for {len(notes.board.slrs)} SLRs")
        return notes

    def write(self, folder: Path) -> None:
        """Write the notes to an existing folder."""
        (folder / NOTES).write_text(self.to_json())

    @classmethod
    def read(cls, folder: Path, read: Callable[[str], bytes] | None = None) -> "Notes":
        """Read the notes that `write` wrote to a folder. Raises ValueError if they cannot be read. read:
        returns the content of a file by its name."""
        try:
            return cls.from_json((read or partial(read_file, folder))(NOTES))
        except ValueError as error:
            raise ValueError(f"{folder / NOTES} cannot be read: {error}") from error


@dataclass(frozen=True, kw_only=True)
class PassTiming:
    """Cycles of a pass of a language model with `tokens` tokens from `position` on.

    bound: fewest cycles that memory and multipliers allow (`explore.bound`).
    """

    position: int
    tokens: int
    cycles: int
    bound: float

    @property
    def ratio(self) -> float:
        """Cycles divided by the bound."""
        return self.cycles / self.bound


@dataclass(frozen=True, kw_only=True)
class KernelReport:
    """Cycles of one node in the last run: busy (a token moved), stalled (an output waited) or idle (all
    others)."""

    name: str
    kind: str
    busy: int
    stalled: int
    idle: int


@dataclass(frozen=True, kw_only=True)
class FifoReport:
    """A FIFO of `depth` tokens. greatest: most tokens that it held in the last run; None before the first
    run."""

    name: str
    bits: int
    depth: int
    greatest: int | None


@dataclass(frozen=True, kw_only=True)
class ResourceReport:
    """Promised resources by kind of block (`parts`), and the resources that the shell of the board leaves
    free (`available`).

    slrs: used and available resources of each SLR. fill: share of an SLR that the design may fill. crossings:
    number of SLR boundaries that a stream crosses, for streams that cross one.
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
        """A table of blocks, their sum, the available resources, and the used share of each SLR."""
        names = ("lut", "ff", "dsp", "bram", "uram")
        block_table = table("block", *(name.upper() for name in names))
        rows = {**self.parts, "total": self.total, f"available on {self.board}": self.available}
        for block, resources in rows.items():
            block_table.add_row(block, *(f"{_whole(getattr(resources, name))}" for name in names))
        shares = {"share": (self.total, self.available), **self.slrs}
        for region, (used, available) in shares.items():
            percent = (100 * getattr(used, n) / getattr(available, n) for n in names)
            block_table.add_row(region, *(f"{value:.1f} %" for value in percent))
        block_table.caption = (
            f"{len(self.crossings)} streams cross SLRs; at most {self.fill:.0%} of each SLR may be filled"
        )
        return block_table


@dataclass(frozen=True, kw_only=True)
class IntermediateMemory:
    """Bits of memory between kernels, in the largest run.

    unfused: bits of all intermediate tensors, as if each kernel wrote its result to memory. converters,
    fifos: bits of the converters and FIFOs that replace these tensors. constants: bits of constants in
    converters, such as rows of weights that are used for several tokens. stored: bits of the tensors between
    groups.
    """

    unfused: int
    converters: int
    constants: int
    fifos: int
    stored: int

    @property
    def fused(self) -> int:
        """Bits of converters, FIFOs and tensors between groups."""
        return self.converters + self.fifos + self.stored

    def __str__(self) -> str:
        share = f", {100 * self.fused / self.unfused:.1f} %" if self.unfused else ""
        stored = f" + {self.stored:,} in tensors between groups" if self.stored else ""
        constants = f"; also {self.constants:,} bits of weights and other constants" if self.constants else ""
        return (
            f"intermediate memory: {self.fused:,} bits ({self.converters:,} in converters "
            f"+ {self.fifos:,} in FIFOs{stored}), {self.unfused:,} if every tensor were stored{share}"
            f"{constants}"
        )


@dataclass(frozen=True, kw_only=True)
class GroupFacts:
    """One accelerator, as far as it is known without a run. channels: bytes by memory channel and role of the
    buffer. channel_bytes: capacity of a channel."""

    name: str
    multipliers: int
    choices: tuple[str, ...]
    resources: ResourceReport
    channels: Mapping[int, Mapping[str, int]]
    channel_bytes: int


@dataclass(frozen=True, kw_only=True)
class GroupReport(GroupFacts):
    """One accelerator with its FIFOs and its last run.

    units: operations that the group computes. ended: why the group ends after its last unit. passes: cycles
    of each pass of the last run; empty before the first run. scheduled_cycles: cycles of a pass by number of
    tokens, in the schedule that sized the FIFOs, in which no kernel waits for memory. timings: passes of a
    language model with their bounds. tried: designs that the search compared.
    """

    units: tuple[str, ...]
    ended: str
    converter_bits: int
    converter_budget: int | None
    fifos: tuple[FifoReport, ...]
    passes: tuple[int, ...] = ()
    kernels: tuple[KernelReport, ...] = ()
    scheduled_cycles: Mapping[int, int] = field(default_factory=dict)
    timings: tuple[PassTiming, ...] = ()
    tried: tuple[Tried, ...] = ()

    def lines(self, clock_mhz: float, full: bool) -> Iterator[str | Table]:
        """Lines and tables of the group. full: a line for each kernel and FIFO, even for equal ones."""
        yield f"{self.name}: {self.multipliers:,} multipliers"
        budget = "" if self.converter_budget is None else f" of {self.converter_budget:,}"
        yield f"layout converters: {self.converter_bits:,}{budget} bits"
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
        timing_table = table("position", "tokens", "cycles", "bound", "ratio", "µs", "tokens/s")
        for t in self.timings:
            took = t.cycles / clock_mhz
            numbers = (
                f"{t.cycles:,}",
                f"{t.bound:,.0f}",
                f"{t.ratio:.3f}",
                f"{took:,.0f}",
                f"{1e6 * t.tokens / took:,.0f}",
            )
            timing_table.add_row(str(t.position), str(t.tokens), *numbers)
        return timing_table

    def _kernel_table(self, full: bool) -> Table:
        kernel_table = table("kernel", "kind", "busy", "stalled", "idle", "busy %", texts=2)
        for several in rows(self.kernels, lambda k: k.kind, full):
            counts = [[getattr(k, what) for k in several] for what in ("busy", "stalled", "idle")]
            total = max(1, sum(map(sum, counts)))
            cells = (named([k.name for k in several]), several[0].kind, *map(spread, counts))
            kernel_table.add_row(*cells, f"{100 * sum(counts[0]) / total:.1f}")
        return kernel_table

    def _fifo_table(self, full: bool) -> Table:
        fifo_table = table("FIFO", "bits", "depth", "greatest")
        for several in rows(self.fifos, lambda f: f.bits, full):
            most = [f.greatest for f in several if f.greatest is not None]
            depths = spread([f.depth for f in several])
            fifo_table.add_row(
                named([f.name for f in several]), str(several[0].bits), depths, spread(most) if most else ""
            )
        return fifo_table


@dataclass(frozen=True, kw_only=True)
class Report:
    """The report of an accelerator. `str()` gives tables.

    The last run of a language model has all passes since its device was opened. study: a search of the design
    space that is part of the report (`with_study`). page: makes the HTML page.
    """

    name: str
    clock_mhz: float
    groups: tuple[GroupReport, ...]
    memory: IntermediateMemory
    study: StudyReport | None = None
    page: "Callable[[Report], str] | None" = field(default=None, repr=False, compare=False)

    @property
    def multipliers(self) -> int:
        """Multipliers of the group with the most multipliers."""
        return max(group.multipliers for group in self.groups)

    @property
    def passes(self) -> tuple[int, ...]:
        """Cycles of each pass of the last run, summed over the groups; empty before the first run."""
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
        """The same report with the trials of a search (`Study.report`, `search.stored.read_study`)."""
        return dataclasses.replace(self, study=study)

    def to_json(self) -> str:
        """All values and their sums as JSON."""
        value = dataclasses.asdict(dataclasses.replace(self, page=None))
        del value["page"]
        for group_values, group in zip(value["groups"], self.groups, strict=True):
            group_values["resources"]["total"] = dataclasses.asdict(group.resources.total)
        value |= {"cycles": self.cycles, "passes": self.passes}
        value["memory"]["fused"] = self.memory.fused
        return json.dumps(value, indent=1) + "\n"

    def html(self, path: str | Path) -> Path:
        """Write the report as an HTML page to one file, which needs no network, and return its path. The page
        shows the graph, cycles by phase and kernel, the roofline, FIFOs, resources on the card, memory, the
        exploration and the trials of a study. Passes that were not profiled are predicted.

        Raises ValueError for a report made by hand, MissingToolError without `streamgen[report]`,
        FileNotFoundError if the folder is missing, IsADirectoryError if `path` is a folder, and OSError if
        the file cannot be written. A failed write leaves an existing file as it was.
        """
        if self.page is None:
            raise ValueError("this report was not made by an accelerator, so it has no page")
        target = require_place(path)
        with new_file(target) as file:
            file.write(self.page(self).encode())
        return target

    def __str__(self) -> str:
        return self.text()

    def text(self, *, full: bool = False, width: int | None = None) -> str:
        """Tables as text. full: a line for each kernel and FIFO; otherwise equal ones, such as the columns of
        an engine, share a line with the least and the greatest value. width: characters of a line; by default
        the width of the terminal."""
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
        group_table = table("group", "computes", "ends because", "converter bits", "cycles", texts=3)
        for g in self.groups:
            cycles = f"{sum(g.passes):,}" if g.passes else ""
            group_table.add_row(g.name, ", ".join(g.units), g.ended, f"{g.converter_bits:,}", cycles)
        return group_table


def _whole(value: float) -> str:
    """The value as text. Whole and half numbers are exact; all others are rounded."""
    return f"{value if float(2 * value).is_integer() else round(value):,}".removesuffix(".0")
