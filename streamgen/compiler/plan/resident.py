"""The policy "resident": every matmul has its own kernel, which keeps its weights on the chip.

A row goes through all output rows of a matmul before the next row, so its latency is the sum over the matmuls
of a path. Rows side by side are doubled where this saves most cycles, down to one step for each group of 32, as
long as the multipliers of all matmuls stay within the budget.
"""

from collections.abc import Mapping
from math import lcm

from streamgen.base.errors import BudgetError
from streamgen.base.wording import counted
from streamgen.compiler.budget import Budget
from streamgen.compiler.explore.fixed import fixed_factors
from streamgen.compiler.schedule import HardwarePlan, Schedule, layer_shapes, schedule
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.graph.plan import LinearPlan, LinearShape, Plan
from streamgen.numbers.formats import MX_GROUP

WORD_LANES = 16  # 32-bit words of a beat
MOST_LANES = 32  # rows side by side
FEWEST_LANES = 2  # which share multipliers in pairs
LANES = 32  # elements of rows from memory: a group of a quantiser


def resident_plan(model: LogicalGraph, budget: Budget) -> HardwarePlan:
    """The hardware of a model whose weights stay on the chip.

    Raises BudgetError if the multipliers are too few, or if weights differ between walks, and ValueError for
    factors that cannot be built.
    """
    scheduled = schedule(model, None)
    fixed = fixed_factors(layer_shapes(scheduled), budget.fixed)
    linears = {s.name: s for s in layer_shapes(scheduled) if isinstance(s, LinearShape)}
    _require_resident(model, scheduled, fixed)
    lanes = _grown(linears, fixed, budget)
    plans = {
        name: LinearPlan(columns=1, n_lanes=rows, channels=(number % budget.channels,))
        for number, (name, rows) in enumerate(lanes.items())
    }
    own = Plan(
        token_lanes=1,
        linears=plans,
        widths={},
        quantisers={},
        pads=_pads(scheduled, linears, lanes),
        classes=(),
        io_channel=len(plans) % budget.channels,
        channels=min(len(plans) + 1, budget.channels),
        reasons=tuple(_lines(linears, lanes)),
        resident=True,
    )
    return HardwarePlan(
        max_tokens=budget.max_tokens,
        context=budget.context,
        lanes=budget.lanes or LANES,
        fabric=budget.board.fabric,
        hold_bits=budget.hold_bits,
        own=own,
    )


def steps_of(shape: LinearShape, lanes: int) -> int:
    """Cycles in which a row goes through the multipliers."""
    unit = shape.group or MX_GROUP
    return -(-shape.n // lanes) * (-(-shape.k // unit) * unit // MX_GROUP)


def _require_resident(
    model: LogicalGraph, scheduled: Schedule, fixed: Mapping[str, Mapping[str, int]]
) -> None:
    if model.context:
        raise BudgetError(
            f"the policy 'resident' keeps all weights on the chip, and {model.name!r} is a language model. Use "
            "the policy 'shared' or 'mixed'"
        )
    for step in (step for phase in scheduled.phases for step in phase.steps):
        if step.op.matmul is not None and len(step.matmuls) > 1:
            raise BudgetError(
                f"the policy 'resident' keeps the weights of {step.path!r} on the chip, but {len(step.matmuls)} "
                "layers take turns on its kernel. Use the policy 'shared' or 'spatial'"
            )
    for name, factors in fixed.items():
        if other := [factor for factor in factors if factor != "n_lanes"]:
            raise ValueError(
                f"CompileConfig.fixed gives {name!r} the factor {other[0]!r}; with the policy 'resident' a matmul "
                "has the factor 'n_lanes' only"
            )


def _grown(
    linears: Mapping[str, LinearShape], fixed: Mapping[str, Mapping[str, int]], budget: Budget
) -> dict[str, int]:
    """Rows side by side of each matmul."""
    lanes = {name: fixed.get(name, {}).get("n_lanes", min(FEWEST_LANES, s.n)) for name, s in linears.items()}
    if (needed := sum(lanes.values()) * MX_GROUP) > budget.multipliers:
        raise BudgetError(
            f"{counted(len(linears), 'matmul')} with resident weights need at least {needed} multipliers "
            f"({MX_GROUP} for each row side by side); the budget is {budget.multipliers}, "
            f"{needed - budget.multipliers} too few. Raise CompileConfig.multipliers, or use another policy"
        )
    while True:
        left = budget.multipliers // MX_GROUP - sum(lanes.values())
        gains = []
        for name, shape in linears.items():
            more = min(2 * lanes[name], MOST_LANES)
            added = more - lanes[name]
            saved = steps_of(shape, lanes[name]) - steps_of(shape, more)
            if "n_lanes" not in fixed.get(name, {}) and 0 < added <= left and saved > 0:
                gains.append((saved / added, saved, name, more))
        if not gains:
            return lanes
        _, _, name, more = max(gains, key=lambda gain: gain[:2])
        lanes[name] = more


def _pads(
    scheduled: Schedule, linears: Mapping[str, LinearShape], lanes: Mapping[str, int]
) -> dict[str, int]:
    """By value, the multiple to which its features are padded: the width of the rows that its kernel sends, and
    groups where a matmul reads it."""
    widths = {value.path: WORD_LANES for value in scheduled.inputs.values()}
    pads = dict(widths)
    for step in (step for phase in scheduled.phases for step in phase.steps):
        for value in step.outputs:
            known = [widths[x.path] for x in step.inputs if x.path in widths]
            widths[value.path] = lanes[step.path] if step.op.matmul is not None else max(known, default=1)
            pads[value.path] = widths[value.path]
    for shape in linears.values():
        pads[shape.reads] = lcm(pads[shape.reads], MX_GROUP, shape.group or 1)
    return pads


def _lines(linears: Mapping[str, LinearShape], lanes: Mapping[str, int]) -> list[str]:
    return [
        f"{name}: weights on the chip, {counted(lanes[name], 'row')} side by side, "
        f"{counted(steps_of(shape, lanes[name]), 'cycle')} a token"
        for name, shape in linears.items()
    ]
