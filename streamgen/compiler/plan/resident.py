"""The policy "resident": every matmul has its own kernel, which keeps its weights on the chip.

The weights of all matmuls may take `SHARE` of the block RAM and ultra RAM of the SLR at the memory.

A row goes through all output rows of a matmul before the next row, so its latency is the sum over the matmuls
of a path. Rows side by side are doubled where this saves most cycles, down to one step for each group of 32,
as long as the multipliers of all matmuls stay within the budget.
"""

from collections.abc import Mapping
from math import lcm

from streamgen.base.errors import BudgetError
from streamgen.base.wording import counted
from streamgen.compiler.budget import Budget
from streamgen.compiler.explore.fixed import fixed_factors
from streamgen.compiler.schedule import HardwarePlan, Schedule, layer_shapes, schedule
from streamgen.contract.cost import Resources
from streamgen.gateware.arith import F24
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.graph.plan import LinearPlan, LinearShape, Plan
from streamgen.numbers.formats import MX_GROUP
from streamgen.numbers.weights import FORMATS
from streamgen.platform.boards import Board
from streamgen.platform.capacity import RESOURCES, number

WORD_LANES = 16  # 32-bit words of a beat
MOST_LANES = 32  # rows side by side
FEWEST_LANES = 2  # which share multipliers in pairs
LANES = 32  # elements of rows from memory: a group of a quantiser
SHARE = 4  # the weights take at most 1 / SHARE of the block RAM and ultra RAM of an SLR


def resident_plan(model: LogicalGraph, budget: Budget) -> HardwarePlan:
    """The hardware of a model whose weights stay on the chip.

    Raises BudgetError if the multipliers are too few, or if weights differ between walks, and ValueError for
    factors that cannot be built.
    """
    scheduled = schedule(model, None)
    fixed = fixed_factors(layer_shapes(scheduled), budget.fixed)
    linears = {s.name: s for s in layer_shapes(scheduled) if isinstance(s, LinearShape)}
    _require_resident(model, budget.board, fixed)
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


def weight_bytes(model: LogicalGraph) -> int:
    """Bytes of the weights of all matmuls on the chip, with their scales and biases."""
    bits = 0
    for _, matmul in model.matmuls():
        weight, (n, k) = matmul.integers, matmul.extents
        unit = weight.group or MX_GROUP
        groups = -(-k // unit)
        row = groups * unit * FORMATS[weight.format].code_bits + F24.bits * (1 + (matmul.bias is not None))
        if weight.grouped:
            row += groups * weight.scale_bits * (1 + weight.minimums)
        bits += n * row
    return -(-bits // 8)


def room_bytes(board: Board) -> int:
    """Bytes that resident weights may take."""
    offered, fabric = board.home.resources, board.fabric
    bits = offered.bram * fabric.bram_bits + offered.uram * fabric.uram_bits
    return int(bits * board.fill) // SHARE // 8


def unfit(model: LogicalGraph, board: Board) -> str:
    """Why the weights of a model cannot stay on the chip; empty if they can."""
    if model.context:
        return f"{model.name!r} is a language model"
    if model.mixes_tokens:
        return f"tokens of {model.name!r} depend on one another"
    for operation in model.operations:
        if len(operation.op.layers) > 1:
            return f"{len(operation.op.layers)} layers of {model.name!r} take turns on their kernels"
    if not any(True for _ in model.matmuls()):
        return f"{model.name!r} has no weights"
    if (needed := weight_bytes(model)) > (there := room_bytes(board)):
        return f"the weights take {number(needed)} bytes, and {_room(there, board)}"
    return ""


def fit(model: LogicalGraph, board: Board) -> str:
    """The reason for the policy, if the weights fit."""
    return f"the weights take {number(weight_bytes(model))} bytes, and {_room(room_bytes(board), board)}"


def over_one_slr(needed: Resources, board: Board) -> str:
    """Which resources of a design one SLR does not have; empty if the design fits."""
    offered = board.home.resources * board.fill
    for name, title in RESOURCES.items():
        if (need := getattr(needed, name)) > (there := getattr(offered, name)):
            return f"needs {number(round(need))} of {number(int(there))} {title} of {board.home.name}"
    return ""


def _room(there: int, board: Board) -> str:
    return f"1/{SHARE} of the block RAM and ultra RAM of {board.home.name} holds {number(there)} bytes"


def _require_resident(model: LogicalGraph, board: Board, fixed: Mapping[str, Mapping[str, int]]) -> None:
    if why := unfit(model, board):
        raise BudgetError(
            f"the policy 'resident' keeps all weights on the chip, but {why}. Use another policy, or none"
        )
    for name, factors in fixed.items():
        if other := [factor for factor in factors if factor != "n_lanes"]:
            raise ValueError(
                f"CompileConfig.fixed gives {name!r} the factor {other[0]!r}; with the policy 'resident' a "
                "matmul has the factor 'n_lanes' only"
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
    """By value, the multiple to which its features are padded: the width of the rows that its kernel sends,
    and groups where a matmul reads it."""
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
