"""What a point of the design space gives."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from streamgen.compiler.config import CompileConfig

OBJECTIVES: Mapping[str, tuple[str, bool]] = {
    "tokens/s": ("tokens_per_second", True),
    "first-token": ("first_token_ms", False),
    "luts": ("luts", False),
    "energy": ("joules", False),
}
"""By name: the field of an Evaluation, and whether more is better."""

UNITS: Mapping[str, str] = {
    "tokens/s": "tokens/s",
    "first-token": "ms to first token",
    "luts": "LUTs",
    "energy": "J a token",
}
"""Of the values, by name."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """config: the point as a configuration: `streamgen.compile(model, config=...)` builds it.

    exact: whether cycles and resources are those of `streamgen.estimate`; else cycles are what memory,
    products and the slowest operation of each phase need, and FIFOs count with their least depth. why: why it
    cannot be built; empty where it can. over: by budget, the share by which it is exceeded; at most 0 where
    it is kept. tokens_per_second: of steps of one token in the middle of the context; of other models than
    language models, of the largest pass. first_token_ms: of a prompt of the largest pass. joules: of a token
    (`search.energy`).
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
        """Whether it can be built within all budgets."""
        return not self.why and all(share <= 0 for share in self.over.values())

    def value(self, objective: str) -> float:
        """Of an objective, by its name in OBJECTIVES."""
        return float(getattr(self, OBJECTIVES[objective][0]))
