"""Choose the unroll of all matmuls for given token lanes: always unroll the slowest matmul.

A max-heap on latency gives the slowest matmul. Its columns or the rows of each column are doubled, whichever
saves more, and with them those of its twins. Twins are equal matmuls of the same level; if they stayed slow,
nothing would be saved. Growth ends if a budget is exhausted or no step saves enough. A matmul that takes less
time than its level takes anyway stays small. The latency of a matmul is the sum of a pass of one token and a
pass of the largest number of tokens, so decode and prefill count alike.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace

from streamgen.base.errors import BudgetError
from streamgen.compiler.budget import Budget
from streamgen.compiler.explore.estimate import GAP, WORTH, ClosedForms
from streamgen.compiler.explore.fixed import MAX_COLUMNS, MAX_ROWS, Fixed
from streamgen.model.graph.plan import LinearPlan, LinearShape, Tried
from streamgen.numbers.formats import MX_GROUP

_UNROLL = ("columns", "n_lanes")


@dataclass(frozen=True, kw_only=True)
class Growth:
    """The unroll of every matmul, the reason why growth ended, and the designs on the way."""

    linears: dict[str, LinearPlan]
    ended: str
    tried: tuple[Tried, ...]


def least_multipliers(shapes: Sequence[LinearShape], fixed: Fixed, lanes: int) -> int:
    """Multipliers of the smallest design, before any growth."""
    return sum(_first(fixed, shape).tile for shape in shapes) * lanes * MX_GROUP


def grow(estimate: ClosedForms, budget: Budget, fixed: Fixed) -> Growth:
    """Choose columns and rows. Raises BudgetError if there are too few multipliers for the smallest
    design."""
    shapes = estimate.linears
    linears = {shape.name: _first(fixed, shape) for shape in shapes}
    if (least := estimate.multipliers(linears)) > budget.multipliers:
        raise BudgetError(_too_few(shapes, budget, fixed, estimate.lanes, least))
    groups = list(_twins(shapes, fixed).values())

    def latency(group: Sequence[LinearShape], choice: dict[str, LinearPlan]) -> float:
        passes = [estimate.times(choice, tokens) for tokens in estimate.tokens]
        return max(sum(times[shape.name].cycles for times in passes) for shape in group)

    tried = [_tried(estimate, linears, "the smallest design")]
    short: set[str] = set()
    grown = True
    while grown:  # start again from the slowest, because growth moves the channels of other matmuls
        grown = False
        short = set()
        # ties go to the first matmul
        heap = [(-latency(group, linears), index) for index, group in enumerate(groups)]
        heapq.heapify(heap)
        while heap:
            known, index = heapq.heappop(heap)
            now = latency(groups[index], linears)
            if now != -known:
                heapq.heappush(heap, (-now, index))
                continue
            total = estimate.total(linears)
            gains = []
            for step in _steps(groups[index][0], linears[groups[index][0].name], fixed):
                choice = linears | {twin.name: step for twin in groups[index]}
                spent = latency(groups[index], choice), estimate.total(choice)
                if now - spent[0] < WORTH * len(estimate.tokens) * GAP or spent[1] > total:
                    continue
                if over := _over(estimate, budget, choice):
                    short.add(over)
                else:
                    gains.append((*spent, step.columns, choice))
            if gains:
                linears = min(gains, key=lambda gain: gain[:3])[3]
                tried.append(_tried(estimate, linears, _step(groups[index], linears)))
                heapq.heappush(heap, (-latency(groups[index], linears), index))
                grown = True
    left = budget.multipliers - estimate.multipliers(linears)
    if not short:
        ended = "no further doubling saves enough"
        return Growth(linears=linears, ended=ended, tried=tuple(tried))
    reasons = {
        "multipliers": f"{left} of {budget.multipliers} multipliers left",
        "converters": f"converters hold {estimate.converter_bits(linears)} of {budget.converter_bits} bits",
    }
    ended = ", ".join(reasons[over] for over in reasons if over in short)
    return Growth(linears=linears, ended=ended, tried=tuple(tried))


def _tried(estimate: ClosedForms, linears: dict[str, LinearPlan], what: str) -> Tried:
    return Tried(
        group=f"{estimate.lanes} token lane{'' if estimate.lanes == 1 else 's'}",
        what=what,
        multipliers=estimate.multipliers(linears),
        cycles=float(estimate.total(linears)),
    )


def _step(group: Sequence[LinearShape], linears: dict[str, LinearPlan]) -> str:
    """A step of the growth, in words."""
    plan = linears[group[0].name]
    return f"{', '.join(shape.name for shape in group)}: {plan.columns} columns of {plan.n_lanes} rows"


def _first(fixed: Fixed, shape: LinearShape) -> LinearPlan:
    factors = fixed.get(shape.name, {})
    return LinearPlan(columns=factors.get("columns", 1), n_lanes=factors.get("n_lanes", 1))


def _twins(shapes: Sequence[LinearShape], fixed: Fixed) -> dict[tuple[object, ...], list[LinearShape]]:
    """Groups of equal matmuls of a level. Unrolling only one matmul of a group saves nothing."""
    twins: dict[tuple[object, ...], list[LinearShape]] = {}
    for shape in shapes:
        factors = fixed.get(shape.name, {})
        own = shape.level, shape.k, shape.n, shape.group, factors.get("columns"), factors.get("n_lanes")
        twins.setdefault(own, []).append(shape)
    return twins


def _steps(shape: LinearShape, plan: LinearPlan, fixed: Fixed) -> list[LinearPlan]:
    factors = fixed.get(shape.name, {})
    steps = []
    if "columns" not in factors and plan.columns < MAX_COLUMNS:
        steps.append(replace(plan, columns=2 * plan.columns))
    if "n_lanes" not in factors and plan.n_lanes < MAX_ROWS:
        steps.append(replace(plan, n_lanes=2 * plan.n_lanes))
    return steps


def _over(estimate: ClosedForms, budget: Budget, linears: dict[str, LinearPlan]) -> str:
    """The budget that a choice exceeds; empty if it exceeds none."""
    if estimate.multipliers(linears) > budget.multipliers:
        return "multipliers"
    return "converters" if estimate.converter_bits(linears) > budget.converter_bits else ""


def _too_few(shapes: Sequence[LinearShape], budget: Budget, fixed: Fixed, lanes: int, least: int) -> str:
    held = {
        shape.name: {factor: value for factor, value in fixed[shape.name].items() if factor in _UNROLL}
        for shape in shapes
        if shape.name in fixed
    }
    words = ", ".join(
        f"{name} has {' and '.join(f'{factor} {value}' for factor, value in factors.items())}"
        for name, factors in held.items()
        if factors
    )
    return (
        f"{len(shapes)} matmuls need at least {least} multipliers ({MX_GROUP} for each of {lanes} token lanes"
        + (f" and each row of a tile; fixed: {words}" if words else "")
        + f"); the budget is {budget.multipliers}, {least - budget.multipliers} too few. "
        "Raise CompileConfig.multipliers"
        + (" or lower token_lanes" if lanes > 1 else "")
        + (", lower the fixed factors" if words else "")
        + ", or split the module"
    )
