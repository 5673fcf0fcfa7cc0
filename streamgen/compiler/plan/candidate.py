"""A candidate of the search for a design with an engine."""

from dataclasses import dataclass

from streamgen.compiler.plan.closed import ClosedForm
from streamgen.compiler.schedule import HardwarePlan

THRIFT = 0.0005  # share of the time that a doubling of a factor must save


@dataclass(frozen=True)
class Candidate:
    """A candidate with an engine. score: cycles of the goal, and a little for each doubling of a factor.
    plan: its hardware. form: its closed form."""

    score: float
    cycles: float
    plan: HardwarePlan
    form: ClosedForm

    @property
    def factors(self) -> dict[str, int]:
        """Its factors, by field of `CompileConfig`."""
        plan = self.plan
        return {
            "channels": plan.columns,
            "n_lanes": plan.n_lanes,
            "lanes": plan.lanes,
            "attention_lanes": plan.attention_lanes,
            "cache_channels": plan.cache_channels or plan.kv_channels,
            "prefetch_beats": plan.prefetch,
        }


def differs(factors: dict[str, int], others: dict[str, int], name: str) -> bool:
    """Whether factors differ in this one only."""
    return all((factors[other] != others[other]) == (other == name) for other in factors)


def why_not(larger: Candidate, chosen: Candidate, name: str, context: int, short: str) -> str:
    """Why the larger value of a factor was not chosen, for a candidate that fits the card with the shortest
    context. context: the planned one. short: what the larger candidate lacks with that context."""
    value, change = larger.factors[name], larger.cycles / chosen.cycles - 1
    if abs(change) < THRIFT:
        return f"{value:,} would save nothing"
    if change > 0:
        return f"{value:,} would take {change:.1%} longer"
    if larger.score >= chosen.score:
        least = 1 - chosen.score / chosen.cycles * larger.cycles / larger.score
        return f"{value:,} would save {-change:.2%}, less than the {least:.2%} that more hardware must save"
    found = (
        f"with a context of {context:,} it {short}" if short else "the complete design did not fit the card"
    )
    return f"{value:,} would save {-change:.1%}, but {found}"
