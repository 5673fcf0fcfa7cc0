"""Choose all factors of an accelerator that the user has not fixed.

* Tiles are powers of two. Up to 32 rows, a tile therefore pads no more than the groups of the next matmul. A
  value is padded for the operations that compute and read it, not for the largest tile of the graph.
* The unroll of the matmuls (`growth`) is chosen for every number of token lanes. Among these designs, those
  within a part of the gaps between levels of the fastest one count as equally fast; the design with the
  fewest multipliers wins. Cycles are those of one token plus those of the largest number of tokens.
* The widths of everything between the matmuls follow (`widths`).
* Each matmul sums over K inside a tile of t_lanes x n_lanes sums. The reduction is outside of the parallel
  loops, so there is no order of loops to choose.
"""

from collections.abc import Sequence

from streamgen.base.wording import counted
from streamgen.compiler.budget import Budget
from streamgen.compiler.explore.estimate import WORTH, ClosedForms
from streamgen.compiler.explore.fixed import Fixed, fixed_factors
from streamgen.compiler.explore.growth import grow, least_multipliers
from streamgen.compiler.explore.widths import Widths, choose_widths
from streamgen.model.graph.plan import LinearPlan, LinearShape, Plan, Shape
from streamgen.numbers.formats import MX_GROUP

_TOKEN_LANES = (1, 2, 4, 8)


def explore(shapes: Sequence[Shape], budget: Budget, fixed: Fixed | None = None) -> Plan:
    """Choose all factors.

    fixed: `budget.fixed` by operation; needed if `shapes` are only a part of the layers that it names.

    Raises BudgetError if even the smallest design does not fit, and ValueError for fixed factors that cannot
    be built.
    """
    fixed = fixed_factors(shapes, budget.fixed) if fixed is None else fixed
    linears = [shape for shape in shapes if isinstance(shape, LinearShape)]
    if budget.token_lanes is not None:
        choices = [budget.token_lanes]
    else:
        choices = [lanes for lanes in _TOKEN_LANES if lanes < 2 * budget.max_tokens]
        least = choices[0]
        choices = [
            n for n in choices if n == least or least_multipliers(linears, fixed, n) <= budget.multipliers
        ]
    candidates = []
    for lanes in choices:
        estimate = ClosedForms(shapes, budget, lanes)
        growth = grow(estimate, budget, fixed)
        candidates.append((estimate.total(growth.linears), lanes, estimate, growth))
    least_total, *_ = min(candidates, key=lambda f: f[:2])
    best, lanes, estimate, growth = min(
        (candidate for candidate in candidates if candidate[0] - least_total <= WORTH * candidate[2].gaps),
        key=lambda f: (f[2].multipliers(f[3].linears), *f[:2]),
    )
    widths = choose_widths(estimate, growth.linears, fixed, budget.memory.rate)
    placed, io_channel, used = estimate.place(growth.linears)
    if budget.token_lanes is not None:
        choice = f"{counted(lanes, 'token lane')}: fixed by the user"
    else:
        choice = (
            f"{counted(lanes, 'token lane')}: fewest cycles for 1 plus {counted(budget.max_tokens, 'token')} "
            f"({best:.0f}) among " + ", ".join(f"{other[1]} ({other[0]:.0f})" for other in candidates)
        )
    return Plan(
        token_lanes=lanes,
        linears=placed,
        widths=widths.tokens,
        quantisers=widths.quantisers,
        pads=estimate.pads(growth.linears, widths.tokens),
        classes=estimate.classes,
        io_channel=io_channel,
        channels=used,
        reasons=(choice, *_lines(shapes, estimate, placed, widths, fixed), f"growth ended: {growth.ended}"),
        tried=tuple(design for *_, grown in candidates for design in grown.tried),
    )


def _lines(
    shapes: Sequence[Shape],
    estimate: ClosedForms,
    placed: dict[str, LinearPlan],
    widths: Widths,
    fixed: Fixed,
) -> list[str]:
    """A line for each layer: its factors, its cycles, the resource that limits it, and whether the user fixed
    the factors."""
    passes = {tokens: estimate.times(placed, tokens) for tokens in dict.fromkeys(estimate.tokens)}
    pads = estimate.pads(placed, widths.tokens)
    lines = []
    for shape in shapes:
        held = fixed.get(shape.name, {})
        chosen = f"fixed: {', '.join(held)}" if held else "by default"
        if isinstance(shape, LinearShape):
            plan = placed[shape.name]
            cycles = ", ".join(
                f"{counted(tokens, 'token')} {times.cycles:.0f} cycles ({times.bound})"
                for tokens, times in ((n, passes[n][shape.name]) for n in passes)
            )
            lines.append(
                f"{shape.name}: {counted(plan.columns, 'column')} x {counted(plan.n_lanes, 'row')} x "
                f"{counted(estimate.lanes, 'token')} x {MX_GROUP}, "
                f"its quantiser takes {widths.quantisers[shape.reads]} per cycle, "
                f"channels {', '.join(map(str, dict.fromkeys(plan.channels)))}; {cycles}; {chosen}"
            )
            continue
        width = widths.tokens[shape.name]
        extent = -(-shape.features // pads[shape.name]) * pads[shape.name]
        leader = widths.leaders[shape.name]
        lines.append(
            f"{shape.name}: {counted(width, 'lane')}; "
            + ", ".join(
                f"{counted(tokens, 'token')} {tokens * extent // width} cycles "
                + _vector_bound(tokens * extent / width, None if leader is None else times[leader].cycles)
                for tokens, times in passes.items()
            )
            + (f", behind {leader}" if leader is not None else ", from memory")
            + f"; {chosen}"
        )
    return lines


def _vector_bound(cycles: float, source: float | None) -> str:
    return "(memory)" if source is None else "(vector lanes)" if cycles > source else "(its source)"
