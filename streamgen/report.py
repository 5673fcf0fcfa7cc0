"""What an accelerator is and how its last run went, as values and as text."""

import dataclasses
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from streamgen.cost import Resources

__all__ = ["FifoReport", "KernelReport", "Notes", "Report", "ResourceReport"]


@dataclass(frozen=True, kw_only=True)
class Notes:
    """What only the compiler knows: its choices in words, the scheduled cycles by number of tokens, the
    promised resources by kind of block."""

    choices: tuple[str, ...]
    scheduled_cycles: Mapping[int, int]
    resources: Mapping[str, Resources]

    def to_json(self) -> str:
        """Text that `from_json` turns back into equal notes."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Notes":
        """ValueError for a text that `to_json` did not make."""
        value = json.loads(text)
        try:
            return cls(
                choices=tuple(value["choices"]),
                scheduled_cycles={int(tokens): c for tokens, c in value["scheduled_cycles"].items()},
                resources={block: Resources(**r) for block, r in value["resources"].items()},
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"these are no notes of the compiler: {error!r}") from error


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
    """Resources by kind of block, and what the card leaves to a kernel."""

    parts: Mapping[str, Resources]
    available: Resources

    @property
    def total(self) -> Resources:
        """Sum over all parts."""
        return sum(self.parts.values(), Resources(lut=0, ff=0))


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that `Accelerator.report()` knows; `str()` prints it as tables.

    passes: cycles of each pass of the last `run`; none before the first. scheduled_cycles: by number of
    tokens, what a pass takes in the schedule that sized the FIFOs, where nothing waits for memory.
    """

    name: str
    clock_mhz: float
    multipliers: int
    choices: tuple[str, ...]
    resources: ResourceReport
    fifos: tuple[FifoReport, ...]
    passes: tuple[int, ...] = ()
    kernels: tuple[KernelReport, ...] = ()
    converter_bits: int = 0
    scheduled_cycles: Mapping[int, int] = field(default_factory=dict)

    @property
    def cycles(self) -> int | None:
        """Cycles of the last run over all its passes; None before the first run."""
        return sum(self.passes) if self.passes else None

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=110)
        console.print(f"{self.name}: {self.multipliers} multipliers, {self.clock_mhz:g} MHz", highlight=False)
        for tokens, cycles in self.scheduled_cycles.items():
            console.print(f"schedule of {tokens} tokens: {cycles} cycles", highlight=False)
        for choice in self.choices:
            console.print(f"  {choice}", highlight=False)
        if self.passes:
            console.print(f"last run: {self.cycles} cycles in {len(self.passes)} pass(es)", highlight=False)
        if self.kernels:
            console.print(self._kernel_table())
        console.print(self._fifo_table())
        console.print(f"layout converters hold {self.converter_bits} bits", highlight=False)
        console.print(self._resource_table())
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()

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
            "U55C leaves": self.resources.available,
        }
        for block, resources in rows.items():
            table.add_row(block, *(f"{getattr(resources, name):g}" for name in names))
        used = (
            f"{100 * getattr(self.resources.total, n) / getattr(self.resources.available, n):.1f} %"
            for n in names
        )
        table.add_row("share", *used)
        return table
