"""A candidate of the search for a design with an engine."""

from dataclasses import dataclass

from streamgen.compiler.plan.closed import ClosedForm
from streamgen.compiler.schedule import HardwarePlan


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
