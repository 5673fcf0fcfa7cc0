"""Choose the widths of the streams between matmuls: elements of a token, and elements that a quantiser takes
per cycle.

Nothing should wait for a vector kernel, and no vector kernel should be wider than its source.

* A matmul of C columns sends t_lanes * n_lanes tokens of C elements while its multipliers work on the next
  tile for `period` cycles. Kernels behind it have a width w < C if C / w times as many tokens still pass in
  that time, and if the lanes saved cost more than the converters between C and w.
* Values from memory come at the rate of the channel, which all inputs share with the outputs that are written
  at the same time.
* A quantiser of values from memory has the width of these values. A quantiser behind a matmul starts when the
  last row is complete, so its time counts in full. It is the narrowest one that takes at most 1/64 of the
  cycles of the matmuls that it feeds.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from streamgen.base.wording import alternatives, counted
from streamgen.compiler.config import VECTOR_LANES
from streamgen.compiler.explore.estimate import WORD_LANES, ClosedForms
from streamgen.compiler.explore.fixed import Fixed
from streamgen.contract.cost import Resources
from streamgen.gateware.arith import F24
from streamgen.gateware.pointwise import Formula
from streamgen.kernels.elementwise import BINARY_OPERATIONS, SCALAR_FUNCTIONS, UNARY_FUNCTIONS
from streamgen.model.graph.plan import LinearPlan, LinearShape
from streamgen.platform.boards import Fabric

_QUANTISE_SHARE = 64
_CONVERTER_LUTS = 80, 40  # a converter between widths: fixed, and for each element of the wider token


@dataclass(frozen=True, kw_only=True)
class Widths:
    """The chosen widths.

    tokens: elements of a token of each input, each elementwise operation and each matmul with a bias.
    quantisers: elements per cycle, by the value that is read. leaders: for each value, the matmul that gives
    its order; None for rows from memory.
    """

    tokens: dict[str, int]
    quantisers: dict[str, int]
    leaders: dict[str, str | None]


def choose_widths(
    estimate: ClosedForms, linears: Mapping[str, LinearPlan], fixed: Fixed, rate: float
) -> Widths:
    """Widths for these unroll factors. rate: beats per cycle of a channel. Raises ValueError for fixed lanes
    that the tiles do not allow."""
    leaders: dict[str, str | None] = dict.fromkeys(estimate.inputs)
    leaders |= {shape.name: shape.name for shape in estimate.linears}
    for vector in estimate.vectors:
        leaders[vector.name] = leaders[vector.operands[0]]
    pads = estimate.pads(linears, {})
    rows = _from_memory(estimate, leaders, rate)
    behind = {
        shape.name: _behind(estimate, shape, linears[shape.name], pads, leaders, fixed)
        for shape in estimate.linears
    }
    tokens = dict.fromkeys(estimate.inputs, rows)
    for name in (*(s.name for s in estimate.linears if s.bias), *(s.name for s in estimate.vectors)):
        leader = leaders[name]
        tokens[name] = fixed.get(name, {}).get("lanes", rows if leader is None else behind[leader])
        if leader is not None:
            _check(name, tokens[name], linears[leader], leader)
    quantisers = _quantisers(estimate, linears, fixed, leaders, tokens)
    return Widths(tokens=tokens, quantisers=quantisers, leaders=leaders)


def _from_memory(estimate: ClosedForms, leaders: Mapping[str, str | None], rate: float) -> int:
    """Elements per cycle of each stream on the channel of inputs and outputs, rounded up to a power of
    two."""
    read = {shape.reads for shape in estimate.linears}
    read |= {operand for shape in estimate.vectors for operand in shape.operands}
    written = [s.name for s in estimate.vectors if leaders[s.name] is None and s.name not in read]
    share = WORD_LANES * rate / max(1, len(estimate.inputs) + len(written))
    return next(lanes for lanes in VECTOR_LANES if lanes >= min(share, WORD_LANES))


def _behind(
    estimate: ClosedForms,
    shape: LinearShape,
    plan: LinearPlan,
    pads: Mapping[str, int],
    leaders: Mapping[str, str | None],
    fixed: Fixed,
) -> int:
    """Elements of a token of the elementwise operations that work in the order of this matmul."""
    results = estimate.lanes * plan.n_lanes
    period = max(estimate.steps(shape, pads), results)
    led = [v for v in estimate.vectors if leaders[v.name] == shape.name and v.name not in fixed]
    lane = sum(_luts(vector.function, estimate.fabric) for vector in led)
    raw = {linear.name for linear in estimate.linears if not linear.bias}
    converted = sum(operand in raw for vector in led for operand in vector.operands)
    if shape.bias:
        lane += _luts("add", estimate.fabric)
        converted += 1
    best, least = plan.columns, float(lane * plan.columns)
    width = plan.columns
    while width % 2 == 0 and results * plan.columns // (width // 2) <= period:
        width //= 2
        cost = lane * width + converted * (_CONVERTER_LUTS[0] + _CONVERTER_LUTS[1] * plan.columns)
        if cost < least:
            best, least = width, cost
    return best


def _luts(function: str | Formula, fabric: Fabric) -> float:
    units = UNARY_FUNCTIONS | SCALAR_FUNCTIONS | BINARY_OPERATIONS
    unit = units[function] if isinstance(function, str) else function.unit(F24)
    resources: Resources = unit.resources
    return resources.lut + fabric.luts_of_a_dsp * resources.dsp


def _check(name: str, lanes: int, plan: LinearPlan, leader: str) -> None:
    columns = plan.columns
    if columns % lanes and (lanes % columns or plan.n_lanes % (lanes // columns)):
        allowed = [w for w in VECTOR_LANES if columns % w == 0 or (w % columns == 0 and plan.tile % w == 0)]
        raise ValueError(
            f"the lanes of {name!r} are {lanes}; behind {leader!r} with {counted(columns, 'column')} of "
            f"{counted(plan.n_lanes, 'row')} they must be {alternatives(allowed)}"
        )


def _quantisers(
    estimate: ClosedForms,
    linears: Mapping[str, LinearPlan],
    fixed: Fixed,
    leaders: Mapping[str, str | None],
    tokens: Mapping[str, int],
) -> dict[str, int]:
    pads = estimate.pads(linears, tokens)
    lanes: dict[str, int] = {}
    passes = {count: estimate.times(linears, count) for count in estimate.tokens}
    for value in dict.fromkeys(shape.reads for shape in estimate.linears):
        readers = [shape for shape in estimate.linears if shape.reads == value]
        held = [f["quantise_lanes"] for r in readers if "quantise_lanes" in (f := fixed.get(r.name, {}))]
        if held:
            lanes[value] = held[0]
        elif leaders[value] is None:
            lanes[value] = tokens[value]
        else:
            width = estimate.steps(readers[0], pads) * 32
            enough = [
                w
                for w in VECTOR_LANES
                if all(
                    count * width / w <= max(times[r.name].cycles for r in readers) / _QUANTISE_SHARE
                    for count, times in passes.items()
                )
            ]
            lanes[value] = enough[0] if enough else VECTOR_LANES[-1]
    return lanes
