"""What a search of the design space went through (`streamgen.api.search.study`), as a report has it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.table import Table

from streamgen.base.tables import table

__all__ = ["StudyReport", "TrialReport", "figure"]


@dataclass(frozen=True, kw_only=True)
class TrialReport:
    """A point of a study. number: the first is 0. choice: the values of the factors that are not left to the
    compiler. values: of the objectives, in their order; none where the point cannot be built. state: "kept"
    within all budgets, "over" one of them, or "pruned". front: no other point beats it in all objectives.
    why: it was pruned."""

    number: int
    choice: Mapping[str, str]
    values: tuple[float, ...]
    state: Literal["kept", "over", "pruned"]
    front: bool
    why: str

    def __str__(self) -> str:
        """The choice in words."""
        return ", ".join(f"{name}={value}" for name, value in self.choice.items()) or "the compiler's choice"


@dataclass(frozen=True, kw_only=True)
class StudyReport:
    """objectives: names in `search.evaluation.OBJECTIVES`. units: of each. maximised: whether more is better.
    trials: those that are done, in the order in which they began; cycles and resources are bounds."""

    name: str
    objectives: tuple[str, ...]
    units: tuple[str, ...]
    maximised: tuple[bool, ...]
    trials: tuple[TrialReport, ...]

    @property
    def front(self) -> Sequence[TrialReport]:
        """The best in the first objective first."""
        sign = -1 if self.maximised[0] else 1
        return sorted((one for one in self.trials if one.front), key=lambda one: sign * one.values[0])

    def count(self, state: str) -> int:
        """Trials that ended so."""
        return sum(one.state == state for one in self.trials)

    def __str__(self) -> str:
        """How the trials ended, in a sentence."""
        return (
            f"study {self.name}: {len(self.trials)} points, {self.count('kept')} within the budgets, "
            f"{self.count('over')} over one, {self.count('pruned')} pruned, {len(self.front)} on the front"
        )

    def table(self) -> Table:
        """The front."""
        made = table("chosen", *self.units, "trial")
        for one in self.front:
            made.add_row(str(one), *map(figure, one.values), str(one.number))
        return made


def figure(value: float) -> str:
    """Whole above a thousand, else four digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
