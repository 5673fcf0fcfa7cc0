"""Estimates of models on boards, as values, text and JSON."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

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
    """A pass of `tokens` tokens from `position` on, through one group. moved: (bytes read, bytes written) by
    channel, without the phase table and the status block."""

    group: str
    tokens: int
    position: int
    phases: tuple[PhaseEstimate, ...]
    moved: Mapping[int, tuple[int, int]] = field(hash=False)

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

    def tokens_per_second(self, predicted: PassEstimate) -> float:
        """Tokens per second of repeated passes like this one."""
        return predicted.tokens * self.clock_mhz * 1e6 / predicted.cycles

    def milliseconds(self, cycles: int) -> float:
        """Duration of so many cycles, in milliseconds."""
        return cycles / self.clock_mhz / 1e3

    def to_json(self) -> str:
        """All values as JSON, with times and speeds at the clock."""
        value = dataclasses.asdict(self)
        for pass_values, predicted in zip(value["passes"], self.passes, strict=True):
            pass_values |= {
                "cycles": predicted.cycles,
                "tokens_per_second": self.tokens_per_second(predicted),
            }
        value["first_token_ms"] = {n: self.milliseconds(c) for n, c in self.first_tokens.items()}
        for group_values, group in zip(value["groups"], self.groups, strict=True):
            group_values["resources"]["total"] = dataclasses.asdict(group.resources.total)
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
        for predicted in dict.fromkeys((self.passes[0], self.passes[-1])):
            where = f"{counted(predicted.tokens, 'token')} at position {predicted.position}"
            yield f"{where}, {predicted.group}: {predicted.cycles:,} cycles"
            yield self._phase_table(predicted)
        for group in self.groups:
            yield f"{group.name}: {group.multipliers:,} multipliers"
            yield from (f"  {choice}" for choice in group.choices)
            yield group.resources.table()
            yield channel_table(group.channels, group.channel_bytes)
        yield str(self.memory)
        yield "processor time: " + ", ".join(f"{stage} {took:.1f} s" for stage, took in self.seconds.items())

    def _speed_table(self) -> Table:
        speed_table = table("group", "position", "tokens", "cycles", "µs", "tokens/s")
        for predicted in self.passes:
            took = f"{self.milliseconds(predicted.cycles) * 1e3:,.0f}"
            speed = f"{self.tokens_per_second(predicted):,.0f}"
            speed_table.add_row(
                predicted.group,
                f"{predicted.position}",
                f"{predicted.tokens}",
                f"{predicted.cycles:,}",
                took,
                speed,
            )
        return speed_table

    def _first_table(self) -> Table:
        first_table = table("prompt", "cycles", "bound", "ms to first token", "tokens/s")
        for tokens, cycles in self.first_tokens.items():
            took, least = self.milliseconds(cycles), self.first_bounds[tokens]
            speed = f"{tokens / took * 1e3:,.0f}"
            first_table.add_row(f"{tokens}", f"{cycles:,}", f"{least:,}", f"{took:,.3f}", speed)
        return first_table

    def _phase_table(self, predicted: PassEstimate) -> Table:
        phase_table = table("phase", "bound by", "walks", "cycles", "%", "memory", "products", texts=2)
        for p in predicted.phases:
            share = f"{100 * p.cycles / predicted.cycles:.1f}"
            least = f"{p.memory_cycles:,.0f}", f"{p.product_cycles:,.0f}"
            phase_table.add_row(p.name, p.limit, f"{p.walks}", f"{p.cycles:,}", share, *least)
        return phase_table


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
    speed_table = table(
        "model", "board", "MHz", "tokens/s", "at", "to", "at", "first token ms", "LUT %", "DSP %"
    )
    missing = table("model", "board", "MHz")
    missing.add_column("no estimate because", overflow="fold")
    for estimate in estimates:
        place = estimate.name, estimate.board, f"{estimate.clock_mhz:g}"
        if isinstance(estimate, NoEstimate):
            missing.add_row(*place, next(iter(estimate.reason.splitlines()), ""))
            continue
        steps = [p for p in estimate.passes if p.tokens == 1] or estimate.passes
        first = [f"{estimate.milliseconds(c):,.2f} of {n}" for n, c in estimate.first_tokens.items()]
        ends = [(f"{estimate.tokens_per_second(p):,.0f}", f"{p.position}") for p in (steps[0], steps[-1])]
        shares = [
            f"{max(_share(group.resources, name) for group in estimate.groups):.0f}"
            for name in ("lut", "dsp")
        ]
        speed_table.add_row(*place, *ends[0], *ends[1], first[0] if first else "", *shares)
    return rendered([part for part in (speed_table, missing) if part.row_count], width)


def _share(resources: ResourceReport, name: str) -> float:
    """Percentage of the resources that the shell of the board leaves free."""
    return float(100 * getattr(resources.total, name) / getattr(resources.available, name))
