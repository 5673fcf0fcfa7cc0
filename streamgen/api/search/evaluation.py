"""The evaluation of a point of the design space."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from streamgen.compiler.config import CompileConfig

OBJECTIVES: Mapping[str, tuple[str, bool]] = {
    "decode": ("tokens_per_second", True),
    "first-token": ("first_token_ms", False),
    "luts": ("luts", False),
    "energy": ("joules", False),
}
"""For each objective, by name: the field of an Evaluation, and whether more is better."""

UNITS: Mapping[str, str] = {
    "decode": "tokens/s",
    "first-token": "first token (ms)",
    "luts": "LUTs",
    "energy": "energy (J a token)",
}
"""For each objective, by name: the title of its values, with their unit."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The evaluation of a point.

    config: the point as a configuration; `streamgen.compile(model, config=...)` builds it. exact: whether
    cycles and resources are those of `streamgen.estimate`. If not, the cycles are a lower bound from memory,
    products and the slowest operation of each phase, and FIFOs have their least depth. tokens_per_second:
    rate of steps of one token at the position of the goal "decode" (`compiler.plan.goals`); for models other
    than language models, rate of the largest pass. first_token_ms: time of a prompt that is one largest pass,
    in ms. luts, dsps: resources of the design. joules: energy of a token (`api.energy`). over: for each
    resource, by name, the share by which the design exceeds its budget; at most 0 if it keeps the budget.
    why: reason why the point cannot be built; empty if it can.
    """

    config: CompileConfig
    exact: bool
    tokens_per_second: float = 0.0
    first_token_ms: float = float("inf")
    luts: float = float("inf")
    dsps: float = float("inf")
    joules: float = float("inf")
    over: Mapping[str, float] = field(default_factory=dict)
    why: str = ""

    @property
    def feasible(self) -> bool:
        """Whether the point can be built within all budgets."""
        return not self.why and all(share <= 0 for share in self.over.values())

    def value(self, objective: str) -> float:
        """The value of an objective, by its name in OBJECTIVES."""
        return float(getattr(self, OBJECTIVES[objective][0]))
