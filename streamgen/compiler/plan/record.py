"""The record of a plan: each factor of a design, its value, who chose it and why it is not more."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from streamgen.base.tables import rendered, table
from streamgen.base.wording import counted
from streamgen.compiler.config import CompileConfig

By = Literal["user", "rule", "search"]
PLAN_FILE = "plan.json"


@dataclass(frozen=True)
class PlannedFactor:
    """A factor of a plan. name: field of `CompileConfig`. by: who chose the value. why: why it is not more
    or, for a rule, the rule."""

    name: str
    value: Any
    by: By
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class DesignPlan:
    """The plan of a design.

    goal: name of the goal. factors: all planned factors. ranked: number of candidates that the closed form
    ranked. refused: why candidates that it ranked higher cannot be built, although their promised resources
    fit the card. cycles: of the goal in closed form; None without a search. config: configuration
    of the design, in which every planned factor has its value; `CompileConfig(**config)` builds the same
    design.
    """

    goal: str
    factors: tuple[PlannedFactor, ...]
    ranked: int = 0
    refused: tuple[str, ...] = ()
    cycles: float | None = None
    config: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        listed = table("factor", "value", "chosen by", "why not more", texts=4)
        for factor in self.factors:
            value = f"{factor.value:,}" if isinstance(factor.value, int) else str(factor.value)
            listed.add_row(factor.name, value, factor.by, factor.why)
        tried = (
            f"{counted(self.ranked, 'candidate')} ranked, {len(self.refused)} refused when they were built"
        )
        return rendered([f"goal: {self.goal}" + (f"; {tried}" if self.ranked else ""), listed])

    def write(self, folder: Path) -> None:
        """Write the plan to `PLAN_FILE` in an existing folder."""
        (folder / PLAN_FILE).write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: str | Path) -> "DesignPlan":
        """The plan in a file. Raises OSError if the file cannot be read, and ValueError if it holds no
        plan."""
        try:
            fields = json.loads(Path(path).read_text())
            factors = tuple(PlannedFactor(**factor) for factor in fields.pop("factors"))
            plan = cls(**{**fields, "factors": factors, "refused": tuple(fields["refused"])})
            CompileConfig(**plan.config)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(
                f"{path} holds no plan of this version of streamgen ({error}); a compiled folder has one in "
                f"{PLAN_FILE}"
            ) from error
        return plan
