"""The design space of a model: all factors, and the evaluation of points in stages.

import, quantise        once for all points
policy, schedule, bind  for each point, with kernels, forks and converters of its largest run and of its steps
place, size, predict    only for exact evaluations: the stages of `streamgen.estimate`
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property, reduce
from hashlib import blake2b
from typing import Any

from streamgen.api.energy import energy
from streamgen.api.estimation import estimate, imported
from streamgen.api.search.evaluation import Evaluation
from streamgen.api.search.factors import Factor, Value, factors_of, restricted
from streamgen.artifact.packing import BEAT_BITS
from streamgen.base.errors import BudgetError, GraphError
from streamgen.compiler.budget import is_small, multipliers_on
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.plan.goals import GOALS
from streamgen.compiler.plan.grouping import parts_of
from streamgen.compiler.plan.policy import limited, quantised
from streamgen.compiler.plan.sketch import Sketch, larger
from streamgen.contract.cost import Resources
from streamgen.model.golden_text import is_language_model
from streamgen.model.graph.logical import LogicalGraph
from streamgen.numbers.formats import MX_GROUP
from streamgen.numbers.weights import FORMATS
from streamgen.observe.estimate import Estimate

Point = Mapping[str, Value]
"""Values by the name of the factor. The compiler chooses the other factors."""


def space(
    model: Any,
    example_inputs: Any = None,
    config: CompileConfig | None = None,
    *,
    only: Mapping[str, Sequence[Value]] | None = None,
) -> "Space":
    """The design space of a model under the budgets of `config`.

    model, example_inputs: as for `streamgen.estimate`. only: for some factors, by name, the values to choose
    from.

    Raises the errors of `streamgen.estimate`; ValueError for unknown factors or values in `only`, for fixed
    factors that contradict one another, and for a space without a point; BudgetError if no design fits the
    budgets.
    """
    config = config or CompileConfig()
    graph = imported(model, example_inputs, config)
    config, graph = limited(graph, _without_plan(graph, config))
    designs = Space(graph, config, only or {})
    if not only and (why := designs.evaluate(designs.default).why):
        raise BudgetError(why)
    return designs


def _without_plan(graph: LogicalGraph, config: CompileConfig) -> CompileConfig:
    """The budgets of a search: those of a small design, or of the whole board. A search makes the choices of
    a plan, so its points have the goal "small", with which the compiler plans nothing."""
    if is_small(graph, config):
        return replace(config, goal="small", channels=config.size("channels"))
    board = config.card
    channels = config.channels or board.hbm.channels
    multipliers = config.multipliers or multipliers_on(board)
    return replace(config, goal="small", channels=channels, multipliers=multipliers)


class Space:
    """The design space of a model. factors: all factors, in the order in which they are chosen. config: the
    budgets and the fixed factors."""

    def __init__(
        self, graph: LogicalGraph, config: CompileConfig, only: Mapping[str, Sequence[Value]]
    ) -> None:
        self._plain, self.config, self.name = graph, config, graph.name
        self._text = is_language_model(graph)
        self._graph = quantised(graph, config)
        self.factors = restricted(factors_of(self._graph, config), only)
        self._known: dict[tuple[CompileConfig, bool], Evaluation] = {}

    @property
    def default(self) -> dict[str, Value]:
        """The choice of `streamgen.compile`, or the point of the space that is nearest to it."""
        return {factor.name: factor.values[0] for factor in self.factors}

    def applies(self, factor: Factor, point: Point) -> bool:
        """Whether a factor has an effect under the policy of a point."""
        policy = point.get("policy", self.default["policy"])
        return factor.name == "policy" or policy in factor.policies

    def config_of(self, point: Point) -> CompileConfig:
        """The configuration of a point. Raises ValueError for an unknown factor or an illegal value."""
        restricted(self.factors, {name: (value,) for name, value in point.items()})
        plain: dict[str, Any] = {}
        fixed: dict[str, dict[str, int]] = {}
        for factor in self.factors:
            value = point.get(factor.name, self.default[factor.name])
            _, *path = factor.name.split(".", 1)
            if not self.applies(factor, point):
                if not path:  # drop the user's value, too, which is for other policies
                    plain[factor.name] = None
                continue
            if value is None:
                continue
            if path:
                layer, _, name = path[0].rpartition(".")
                assert isinstance(value, int)
                fixed.setdefault(layer, {})[name] = value
            else:
                plain[factor.name] = value
        return replace(self.config, **plain, fixed=fixed or self.config.fixed)

    @property
    def digest(self) -> str:
        """A digest that is equal for spaces of equal models, budgets and factors. The texts of laws do not
        count."""
        factors = [(factor.name, factor.values, factor.policies) for factor in self.factors]
        content = [str(self._graph), str(self.config), repr(self.config.fixed), *map(repr, factors)]
        return blake2b("\n".join(content).encode(), digest_size=16).hexdigest()

    def bound(self, point: Point, best: Mapping[str, float]) -> str:
        """The reason why a point is not worth an evaluation; empty if it may be. Nothing is built for this.
        best: the best known value of each objective."""
        config = self.config_of(point)
        if config.policy != "spatial" and config.n_lanes is not None:
            built = config.size("channels") // 2 * 2 * config.n_lanes * MX_GROUP
            if config.multipliers is not None and built > config.multipliers:
                return f"the engine has {built} multipliers; the budget is {config.multipliers}"
        rate = config.memory.rate
        if not self._weight_bits:  # no bound from memory
            return ""
        least = self._weight_bits / (BEAT_BITS * rate * config.size("channels"))
        hertz, tokens = config.clock_mhz * 1e6, 1 if self._text else config.size("max_tokens")
        most = {"decode": tokens * hertz / least, "first-token": 1e3 * least / hertz}
        worse = [
            name in most and (most[name] <= value if name == "decode" else most[name] >= value)
            for name, value in best.items()
        ]
        return (
            "reading the weights alone takes longer than the best known point" if worse and all(worse) else ""
        )

    @cached_property
    def _weight_bits(self) -> float:
        """Bits of all weights, which each pass reads once."""
        total = 0.0
        for _, matmul in self._graph.matmuls():
            n, k = matmul.extents
            total += n * k * FORMATS[matmul.integers.format].code_bits
        return total

    def evaluate(self, point: Point, *, exact: bool = False) -> Evaluation:
        """Evaluate a point. exact: do all stages up to predicted passes, which takes seconds; otherwise only
        the first stages. If the point cannot be built, the evaluation holds the reason. Raises ValueError
        only for an unknown factor or an illegal value."""
        config = self.config_of(point)
        key = config, exact
        evaluation = self._known.get(key)
        if (
            evaluation is None or evaluation.config.fixed != config.fixed
        ):  # `fixed` is a mapping and not part of the hash
            try:
                evaluation = self._exactly(config) if exact else self._roughly(config)
            except (BudgetError, GraphError, ValueError) as error:
                evaluation = Evaluation(config=config, exact=exact, why=str(error))
            self._known[key] = evaluation
        return evaluation

    def _roughly(self, config: CompileConfig) -> Evaluation:
        parts = [Sketch(part) for part in parts_of(self._graph, config)]
        used = reduce(larger, (part.resources for part in parts))
        most = config.size("max_tokens")
        if self._text:
            position = _position(config)
            step = sum(part.cycles(1, position) for part in parts)
            speed, tokens = 1 / step, 1
            work = [part.work(1, position) for part in parts]
        else:
            step = sum(part.cycles(most, 0) for part in parts)
            speed, tokens = most / step, most
            work = [part.work(most, 0) for part in parts]
        first = sum(part.cycles(most, 0) for part in parts)
        products, bits = map(sum, zip(*work, strict=True))
        hertz = config.clock_mhz * 1e6
        joules = energy(
            config.card, config.clock_mhz, cycles=step, products=products, bits=bits, luts=used.lut
        )
        return Evaluation(
            config=config,
            exact=False,
            tokens_per_second=speed * hertz,
            first_token_ms=1e3 * first / hertz,
            luts=used.lut,
            dsps=used.dsp,
            joules=joules / tokens,
            over=_over(used, config),
        )

    def _exactly(self, config: CompileConfig) -> Evaluation:
        most = config.size("max_tokens")
        asked = {"positions": (_position(config),), "prompts": (most,)} if self._text else {}
        estimated: Estimate = estimate(self._plain, None, config, _silent, **asked)
        steps = estimated.headline
        cycles, tokens = sum(run.cycles for run in steps), steps[0].tokens
        largest = [run for run in estimated.passes if run.tokens == most]
        first = estimated.first_tokens.get(most, sum(run.cycles for run in largest))
        used = reduce(larger, (group.resources.total for group in estimated.groups))
        hertz = config.clock_mhz * 1e6
        return Evaluation(
            config=config,
            exact=True,
            tokens_per_second=tokens * hertz / cycles,
            first_token_ms=1e3 * first / hertz,
            luts=used.lut,
            dsps=used.dsp,
            joules=estimated.joules / tokens,
            over=_over(used, config),
        )


def _position(config: CompileConfig) -> int:
    """The position of the steps that count: that of the goal "decode"."""
    (step,) = GOALS["decode"].passes(config.size("context"), config.size("max_tokens"))
    return step.position


def _over(used: Resources, config: CompileConfig) -> dict[str, float]:
    """For each resource, by name: the share of its budget by which a design exceeds the budget; negative if
    it keeps the budget."""
    limit = config.card.resources * config.card.fill
    return {
        f.name: getattr(used, f.name) / getattr(limit, f.name) - 1 if getattr(limit, f.name) else 0.0
        for f in fields(Resources)
    }


def _silent(text: str) -> None:
    """Show no progress, because there are many evaluations."""
