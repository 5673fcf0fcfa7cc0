"""Estimates of models on boards, as values, text and JSON."""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rich.table import Table

from streamgen.base.tables import rendered, table
from streamgen.base.wording import counted
from streamgen.compiler.plan.record import DesignPlan
from streamgen.observe.channels import channel_table
from streamgen.observe.report import GroupFacts, IntermediateMemory


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


def headline(passes: Sequence[PassEstimate], *, text: bool) -> tuple[PassEstimate, ...]:
    """The passes that say most of an estimate: the first step of a text, or the largest pass through every
    group."""
    if text:
        return tuple(passes[:1])
    return tuple(run for run in passes if run.tokens == passes[-1].tokens)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Result of `streamgen.estimate`. `str()` gives tables, `to_json()` all values.

    plan: the plan of the design. context: positions of a text; 0 for a model without them. weights: number of
    weights of all matmuls. weight_bytes: their bytes, and those of tables, in memory. bandwidth: bytes per
    second of all channels of the board, sustained. data_sheet: the same in the data sheet; None if unknown.
    joules: energy of `headline`, by a model without measurements. joules_range: least and most energy that
    the figures of this model allow. watts: most that the board takes. advice: changes of the configuration
    that make the design faster, with the result of trying them in closed form.

    passes: for a language model, one token at each requested position, then the largest pass at the first
    position. For any other model, the smallest and the largest pass of every group. first_tokens: cycles
    until the first token after a prompt, by the number of prompt tokens. first_bounds: fewest cycles that
    channels and multipliers need for these, summed over the phases. seconds: processor time by stage.
    """

    name: str
    plan: DesignPlan
    context: int
    weights: int
    weight_bytes: int
    bandwidth: float
    data_sheet: float | None
    joules: float
    joules_range: tuple[float, float]
    watts: float
    advice: tuple[str, ...]
    board: str
    clock_mhz: float
    groups: tuple[GroupFacts, ...]
    memory: IntermediateMemory
    passes: tuple[PassEstimate, ...]
    first_tokens: Mapping[int, int]
    first_bounds: Mapping[int, int]
    seconds: Mapping[str, float]

    @property
    def headline(self) -> tuple[PassEstimate, ...]:
        """The passes of the first lines, which follow one another."""
        return headline(self.passes, text=bool(self.context))

    @property
    def steps(self) -> tuple[PassEstimate, ...]:
        """Steps of one token of a text, in the order of their positions; for other models, `headline`."""
        if not self.context:
            return self.headline
        return tuple(run for run in self.passes if run.tokens == 1) or self.passes

    @property
    def goal_milliseconds(self) -> float:
        """Time of the plan's goal in closed form. Without a search, time of `headline`."""
        cycles = self.plan.cycles
        return (sum(run.cycles for run in self.headline) if cycles is None else cycles) / self.clock_mhz / 1e3

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

    def text(self, *, phases: bool = True, width: int | None = None) -> str:
        """Text for people. phases: with tables of passes, phases, resources and memory. width: characters of
        a line; by default the width of the terminal."""
        return rendered([*self._summary(), *(["", *self._lines()] if phases else [])], width)

    def _summary(self) -> Iterator[str | Table]:
        """The result in a few lines."""
        yield f"{self.name} on {self.board} at {self.clock_mhz:g} MHz, estimated"
        facts = Table.grid(padding=(0, 2))
        for title, text in self._facts():
            facts.add_row(f"  {title}", text)
        yield facts

    def _facts(self) -> Iterator[tuple[str, str]]:
        weights = f"{self.weights / 1e6:,.1f} million weights of matmuls"
        size = f"{weights}, {self.weight_bytes / 1e9:.3f} GB in memory"
        yield "model", size + (f", context {self.context:,}" if self.context else "")
        runs = self.headline
        tokens, cycles = runs[0].tokens, sum(run.cycles for run in runs)
        seconds = self.milliseconds(cycles) / 1e3
        if self.context:
            speeds = [
                f"{self.tokens_per_second(step):,.0f} tokens/s at position {step.position:,}"
                for step in dict.fromkeys((self.steps[0], self.steps[-1]))
            ]
        else:
            speeds = [f"{tokens / seconds:,.0f} tokens/s in passes of {tokens:,}"]
        yield "speed", "; ".join(speeds)
        if self.first_tokens:
            times = [
                f"{self.milliseconds(first):,.1f} ms after {counted(prompt, 'token')}"
                for prompt, first in self.first_tokens.items()
            ]
            yield "first token", "; ".join(times)
        moved = sum(phase.bytes for run in runs for phase in run.phases) / seconds
        shares = [f"{moved / self.bandwidth:.0%} of the {self.bandwidth / 1e9:g} GB/s of the channels"]
        if (sheet := self.data_sheet) is not None:
            shares.append(f"{moved / sheet:.0%} of the {sheet / 1e9:g} GB/s of the data sheet")
        yield "bandwidth", ", ".join(shares)
        low, high = self.joules_range
        watts = f"about {self.joules / seconds:,.0f} W ({low / seconds:,.0f} to {high / seconds:,.0f})"
        each = f"{tokens / self.joules:,.1f} tokens a joule ({tokens / high:,.1f} to {tokens / low:,.1f})"
        most = f"the card takes at most {self.watts:,.0f} W"
        yield "energy", f"{watts}, {each}, by a model that no board has confirmed; {most}"
        limits = Counter[str]()
        for run in runs:
            for phase in run.phases:
                limits[phase.limit] += phase.cycles
        ((limit, limited),) = limits.most_common(1)
        yield "limit", f"{limit}, in {limited / cycles:.0%} of the cycles"
        for text in self.advice:
            yield "to try", text

    def _lines(self) -> Iterator[str | Table]:
        yield self._speed_table()
        if self.first_tokens:
            yield self._first_table()
        for predicted in dict.fromkeys((self.passes[0], self.passes[-1])):
            where = f"{counted(predicted.tokens, 'token')} at position {predicted.position}"
            yield f"{where}, {predicted.group}: {predicted.cycles:,} cycles"
            yield self._phase_table(predicted)
        yield (
            "memory, products: cycles that the channels and the multipliers need. Memory may need more than "
            "a phase lasts: the rest is read ahead, in earlier phases"
        )
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
