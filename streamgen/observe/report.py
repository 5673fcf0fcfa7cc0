"""What an accelerator is and how its last run went, as values and as text.

An accelerator is one group or several, which run one after the other; each has a report of its own.
"""

import dataclasses
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from streamgen.boards import Board, board_of
from streamgen.cost import Resources

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
    board, the promised resources by kind of block and by SLR, the boundaries of SLRs that streams cross."""

    units: tuple[str, ...]
    ended: str
    converter_budget: int | None
    choices: tuple[str, ...]
    scheduled_cycles: Mapping[int, int]
    board: Board
    resources: Mapping[str, Resources]
    slrs: Mapping[str, Resources]
    crossings: Mapping[str, int]

    def to_json(self) -> str:
        """Text that `from_json` turns back into equal notes."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Notes":
        """ValueError for a text that `to_json` did not make."""
        value = json.loads(text)
        try:
            return cls(
                units=tuple(value["units"]),
                ended=value["ended"],
                converter_budget=value["converter_budget"],
                choices=tuple(value["choices"]),
                scheduled_cycles={int(tokens): c for tokens, c in value["scheduled_cycles"].items()},
                board=board_of(value["board"]),
                resources={block: Resources(**r) for block, r in value["resources"].items()},
                slrs={slr: Resources(**r) for slr, r in value["slrs"].items()},
                crossings={stream: int(count) for stream, count in value["crossings"].items()},
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"these are no notes of the compiler: {error!r}") from error

    def write(self, folder: Path) -> None:
        """Write them into an existing folder."""
        (folder / NOTES).write_text(self.to_json())

    @classmethod
    def read(cls, folder: Path) -> "Notes":
        """Those that `write` wrote into a folder; ValueError when they cannot be read."""
        try:
            return cls.from_json((folder / NOTES).read_text())
        except (OSError, ValueError) as error:
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


@dataclass(frozen=True, kw_only=True)
class IntermediateMemory:
    """Bits for what kernels hand to one another, in the largest run.

    unfused: every intermediate tensor whole, as if each kernel wrote to memory. converters, fifos: what is
    built in the place of that, for constants and inputs too. stored: tensors between groups, whole.
    """

    unfused: int
    converters: int
    fifos: int
    stored: int

    @property
    def fused(self) -> int:
        """Bits of everything in the place of whole tensors."""
        return self.converters + self.fifos + self.stored

    def __str__(self) -> str:
        share = f", {100 * self.fused / self.unfused:.1f} %" if self.unfused else ""
        stored = f" + {self.stored} of tensors between groups" if self.stored else ""
        return (
            f"intermediate memory: {self.fused} bits ({self.converters} of converters + {self.fifos} of FIFOs"
            f"{stored}) against {self.unfused} with every tensor whole{share}"
        )


@dataclass(frozen=True, kw_only=True)
class GroupReport:
    """One accelerator.

    units: what it computes. ended: why it holds no more. passes: cycles of each pass of the last run; none
    before the first. scheduled_cycles: by number of tokens, what a pass takes in the schedule that sized the
    FIFOs, where nothing waits for memory. timings: of a language model, its passes beside their bounds.
    """

    name: str
    units: tuple[str, ...]
    ended: str
    converter_bits: int
    converter_budget: int | None
    multipliers: int
    choices: tuple[str, ...]
    resources: ResourceReport
    fifos: tuple[FifoReport, ...]
    passes: tuple[int, ...] = ()
    kernels: tuple[KernelReport, ...] = ()
    scheduled_cycles: Mapping[int, int] = field(default_factory=dict)
    timings: tuple[PassTiming, ...] = ()

    def lines(self) -> Iterator[str | Table]:
        """What a report prints of it."""
        yield f"{self.name}: {self.multipliers} multipliers"
        budget = "" if self.converter_budget is None else f" of {self.converter_budget}"
        yield f"layout converters hold {self.converter_bits}{budget} bits"
        for tokens, cycles in self.scheduled_cycles.items():
            yield f"schedule of {tokens} tokens: {cycles} cycles"
        for choice in self.choices:
            yield f"  {choice}"
        if self.timings:
            yield self._timing_table()
        if self.kernels:
            yield self._kernel_table()
        yield self._fifo_table()
        yield self._resource_table()

    def _timing_table(self) -> Table:
        table = Table("position", "tokens", "cycles", "bound", "cycles / bound")
        for t in self.timings:
            table.add_row(str(t.position), str(t.tokens), str(t.cycles), f"{t.bound:.0f}", f"{t.ratio:.3f}")
        return table

    def _kernel_table(self) -> Table:
        table = Table("kernel", "kind", "busy", "stalled", "idle", "busy %")
        for k in self.kernels:
            total = max(1, k.busy + k.stalled + k.idle)
            table.add_row(
                k.name, k.kind, str(k.busy), str(k.stalled), str(k.idle), f"{100 * k.busy / total:.1f}"
            )
        return table

    def _fifo_table(self) -> Table:
        table = Table("FIFO", "bits", "depth", "greatest")
        for f in self.fifos:
            table.add_row(f.name, str(f.bits), str(f.depth), "" if f.greatest is None else str(f.greatest))
        return table

    def _resource_table(self) -> Table:
        names = ("lut", "ff", "dsp", "bram", "uram")
        table = Table("block", *(name.upper() for name in names))
        rows = {
            **self.resources.parts,
            "total": self.resources.total,
            f"{self.resources.board} leaves": self.resources.available,
        }
        for block, resources in rows.items():
            table.add_row(block, *(f"{getattr(resources, name):g}" for name in names))
        shares = {"share": (self.resources.total, self.resources.available), **self.resources.slrs}
        for region, (used, available) in shares.items():
            percent = (100 * getattr(used, n) / getattr(available, n) for n in names)
            table.add_row(region, *(f"{value:.1f} %" for value in percent))
        crossing = len(self.resources.crossings)
        table.caption = f"{crossing} streams cross SLRs; of each {self.resources.fill:.0%} may be filled"
        return table


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that `report()` of an accelerator knows; `str()` prints it as tables.

    The last run of a decoder is all passes since its device was opened.
    """

    name: str
    clock_mhz: float
    groups: tuple[GroupReport, ...]
    memory: IntermediateMemory

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

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=110)
        console.print(f"{self.name}: {self.clock_mhz:g} MHz, {len(self.groups)} group(s)", highlight=False)
        if self.passes:
            timed = any(group.timings for group in self.groups)
            when = "since the device was opened" if timed else "last run"
            console.print(f"{when}: {self.cycles} cycles in {len(self.passes)} pass(es)", highlight=False)
        console.print(str(self.memory), highlight=False)
        if len(self.groups) > 1:
            console.print(self._group_table())
        for group in self.groups:
            for part in group.lines():
                console.print(part, highlight=False)
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()

    def _group_table(self) -> Table:
        table = Table("group", "computes", "converter bits", "cycles", "why it ended")
        for g in self.groups:
            cycles = str(sum(g.passes)) if g.passes else ""
            table.add_row(g.name, ", ".join(g.units), str(g.converter_bits), cycles, g.ended)
        return table
