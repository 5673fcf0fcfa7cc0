"""Trials of a search of the design space (`streamgen.api.search.study`), for reports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.table import Table

from streamgen.base.tables import table


@dataclass(frozen=True, kw_only=True)
class TrialReport:
    """A point of a study.

    number: index of the trial, from 0. choice: values of the factors that the compiler does not choose.
    values: values of the objectives in their order; empty if the point cannot be built. state: "kept" if the
    point is within all budgets, "over" if it exceeds one, or "pruned". front: whether the point is on the
    Pareto front. why: reason for pruning.
    """

    number: int
    choice: Mapping[str, str]
    values: tuple[float, ...]
    state: Literal["kept", "over", "pruned"]
    front: bool
    why: str

    def __str__(self) -> str:
        """The choice as text."""
        return ", ".join(f"{name}={value}" for name, value in self.choice.items()) or "the compiler's choice"


@dataclass(frozen=True, kw_only=True)
class StudyReport:
    """A search of a design space.

    objectives: names in `search.evaluation.OBJECTIVES`. units: unit of each objective. maximised: whether
    more is better, for each objective. trials: finished trials in the order of their start. Their cycles and
    resources are bounds.
    """

    name: str
    objectives: tuple[str, ...]
    units: tuple[str, ...]
    maximised: tuple[bool, ...]
    trials: tuple[TrialReport, ...]

    @property
    def front(self) -> Sequence[TrialReport]:
        """Points on the Pareto front, sorted by the first objective, best first."""
        sign = -1 if self.maximised[0] else 1
        return sorted(
            (trial for trial in self.trials if trial.front), key=lambda trial: sign * trial.values[0]
        )

    def count(self, state: str) -> int:
        """Number of trials in a state."""
        return sum(trial.state == state for trial in self.trials)

    def __str__(self) -> str:
        """Numbers of trials by state."""
        return (
            f"study {self.name}: {len(self.trials)} points, {self.count('kept')} within the budgets, "
            f"{self.count('over')} over a budget, {self.count('pruned')} pruned, {len(self.front)} on the "
            "front"
        )

    def table(self) -> Table:
        """A table of the front."""
        front_table = table("chosen", *self.units, "trial")
        for trial in self.front:
            front_table.add_row(str(trial), *map(figure, trial.values), str(trial.number))
        return front_table


def figure(value: float) -> str:
    """The value as text: whole from 1,000 on, four digits below."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
