"""Estimates of models on boards, as values, text and JSON."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from streamgen.base.tables import rendered, table
from streamgen.base.wording import counted
from streamgen.observe.channels import channel_table
from streamgen.observe.report import GroupFacts, IntermediateMemory, ResourceReport


@dataclass(frozen=True, kw_only=True)
class PhaseEstimate:
    """All walks of a phase.

    memory_cycles, product_cycles: fewest cycles that the channels and the multipliers need. products: number
    of products. bytes: bytes of all memory streams. limit: "memory", "products" or the operation that works
    longest; "latency" if none of them takes half of the cycles.
    """

    name: str
    walks: int
    cycles: int
    memory_cycles: float
    product_cycles: float
    products: int
    bytes: int
    limit: str


@dataclass(frozen=True, kw_only=True)
class PassEstimate:
    """A pass of `tokens` tokens from `position` on, through one group."""

    group: str
    tokens: int
    position: int
    phases: tuple[PhaseEstimate, ...]

    @property
    def cycles(self) -> int:
        """Cycles of all phases."""
        return sum(phase.cycles for phase in self.phases)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Result of `streamgen.estimate`. `str()` gives tables, `to_json()` all values.

    passes: for a language model, one token at each requested position, then the largest pass at the first
    position. For any other model, the smallest and the largest pass of every group. first_tokens: cycles
    until the first token after a prompt, by the number of prompt tokens. first_bounds: fewest cycles that
    channels and multipliers need for these, summed over the phases. seconds: processor time by stage.
    """

    name: str
    board: str
    clock_mhz: float
    groups: tuple[GroupFacts, ...]
    memory: IntermediateMemory
    passes: tuple[PassEstimate, ...]
    first_tokens: Mapping[int, int]
    first_bounds: Mapping[int, int]
    seconds: Mapping[str, float]

    def tokens_per_second(self, one: PassEstimate) -> float:
        """Tokens per second of repeated passes like this one."""
        return one.tokens * self.clock_mhz * 1e6 / one.cycles

    def milliseconds(self, cycles: int) -> float:
        """Duration of so many cycles, in milliseconds."""
        return cycles / self.clock_mhz / 1e3

    def to_json(self) -> str:
        """All values as JSON, with times and speeds at the clock."""
        value = dataclasses.asdict(self)
        for made, one in zip(value["passes"], self.passes, strict=True):
            made |= {"cycles": one.cycles, "tokens_per_second": self.tokens_per_second(one)}
        value["first_token_ms"] = {n: self.milliseconds(c) for n, c in self.first_tokens.items()}
        for made, group in zip(value["groups"], self.groups, strict=True):
            made["resources"]["total"] = dataclasses.asdict(group.resources.total)
        value["memory"]["fused"] = self.memory.fused
        return json.dumps(value, indent=1) + "\n"

    def __str__(self) -> str:
        return self.text()

    def text(self, *, width: int | None = None) -> str:
        """Tables as text. width: characters of a line; by default the width of the terminal."""
        return rendered(self._lines(), width)

    def _lines(self) -> Iterator[str | Table]:
        yield f"{self.name} on {self.board} at {self.clock_mhz:g} MHz, estimated"
        yield self._speed_table()
        if self.first_tokens:
            yield self._first_table()
        for one in dict.fromkeys((self.passes[0], self.passes[-1])):
            where = f"{counted(one.tokens, 'token')} at position {one.position}"
            yield f"{where}, {one.group}: {one.cycles:,} cycles"
            yield self._phase_table(one)
        for group in self.groups:
            yield f"{group.name}: {group.multipliers:,} multipliers"
            yield from (f"  {choice}" for choice in group.choices)
            yield group.resources.table()
            yield channel_table(group.channels, group.channel_bytes)
        yield str(self.memory)
        yield "processor time: " + ", ".join(f"{stage} {took:.1f} s" for stage, took in self.seconds.items())

    def _speed_table(self) -> Table:
        made = table("group", "position", "tokens", "cycles", "µs", "tokens/s")
        for one in self.passes:
            took = f"{self.milliseconds(one.cycles) * 1e3:,.0f}"
            speed = f"{self.tokens_per_second(one):,.0f}"
            made.add_row(one.group, f"{one.position}", f"{one.tokens}", f"{one.cycles:,}", took, speed)
        return made

    def _first_table(self) -> Table:
        made = table("prompt", "cycles", "bound", "ms to first token", "tokens/s")
        for tokens, cycles in self.first_tokens.items():
            took, least = self.milliseconds(cycles), self.first_bounds[tokens]
            speed = f"{tokens / took * 1e3:,.0f}"
            made.add_row(f"{tokens}", f"{cycles:,}", f"{least:,}", f"{took:,.3f}", speed)
        return made

    def _phase_table(self, one: PassEstimate) -> Table:
        made = table("phase", "bound by", "walks", "cycles", "%", "memory", "products", texts=2)
        for p in one.phases:
            share = f"{100 * p.cycles / one.cycles:.1f}"
            least = f"{p.memory_cycles:,.0f}", f"{p.product_cycles:,.0f}"
            made.add_row(p.name, p.limit, f"{p.walks}", f"{p.cycles:,}", share, *least)
        return made


@dataclass(frozen=True, kw_only=True)
class NoEstimate:
    """A model that cannot be estimated on a board, with the reason."""

    name: str
    board: str
    clock_mhz: float
    reason: str

    def to_json(self) -> str:
        """All values as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"


def comparison(estimates: Sequence[Estimate | NoEstimate], *, width: int | None = None) -> str:
    """A table with a line for each estimate: speed at the first and the last position, time to the first
    token, and largest use of LUTs and DSPs. A second table lists the models that cannot be estimated, with
    the reasons."""
    made = table("model", "board", "MHz", "tokens/s", "at", "to", "at", "first token ms", "LUT %", "DSP %")
    missing = table("model", "board", "MHz")
    missing.add_column("no estimate because", overflow="fold")
    for one in estimates:
        place = one.name, one.board, f"{one.clock_mhz:g}"
        if isinstance(one, NoEstimate):
            missing.add_row(*place, next(iter(one.reason.splitlines()), ""))
            continue
        steps = [p for p in one.passes if p.tokens == 1] or one.passes
        first = [f"{one.milliseconds(c):,.2f} of {n}" for n, c in one.first_tokens.items()]
        ends = [(f"{one.tokens_per_second(p):,.0f}", f"{p.position}") for p in (steps[0], steps[-1])]
        shares = [
            f"{max(_share(group.resources, name) for group in one.groups):.0f}" for name in ("lut", "dsp")
        ]
        made.add_row(*place, *ends[0], *ends[1], first[0] if first else "", *shares)
    return rendered([part for part in (made, missing) if part.row_count], width)


def _share(resources: ResourceReport, name: str) -> float:
    """Percentage of the resources that the shell of the board leaves free."""
    return float(100 * getattr(resources.total, name) / getattr(resources.available, name))
