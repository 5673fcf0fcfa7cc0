"""Factors of a design: the choices, their legal values, and the laws that exclude other values."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from streamgen.compiler.budget import attentions_of, is_network, multipliers_of, policy_of, require_attention
from streamgen.compiler.config import VECTOR_LANES, CompileConfig
from streamgen.compiler.explore.fixed import MAX_COLUMNS, MAX_ROWS, Fixed, fixed_factors
from streamgen.compiler.schedule import layer_shapes, schedule
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.graph.plan import LinearShape, Shape
from streamgen.numbers.formats import MX_GROUP

Value = int | str | None

PREFETCH = (64, 128, 256, 512, 1024, 2048)
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # of a column of the engine
HELD = (32, 16, 8, 4, 2)  # divisors of the on-chip memory of the board


@dataclass(frozen=True, kw_only=True)
class Factor:
    """A factor. name: a field of `CompileConfig`, or fixed.LAYER.FACTOR. values: the legal values; None
    leaves the choice to the compiler. policies: the policies under which the factor has an effect. law: the
    reason why other values are not legal."""

    name: str
    values: tuple[Value, ...]
    policies: tuple[str, ...]
    law: str

    def __str__(self) -> str:
        values = ", ".join("the compiler's choice" if value is None else str(value) for value in self.values)
        return f"{self.name}: {values}; {self.law}"


def factors_of(model: LogicalGraph, config: CompileConfig) -> tuple[Factor, ...]:
    """All factors of a quantised model. A factor that `config` fixes has one value. Raises ValueError if
    `config` fixes factors of a cache and the model has no cache."""
    require_attention(model, config)
    policies: tuple[str, ...] = (policy_of(model, config),)
    if not config.policy and not config.fixed:
        policies = ("spatial", "shared", "mixed") if is_network(model) else ("shared", "mixed", "spatial")
    factors = [
        Factor(
            name="policy",
            values=policies,
            policies=policies,
            law="matmuls with their own columns: all, none, or some",
        )
    ]
    factors += _plain(model, config, policies)
    if "spatial" in policies:
        factors += _by_layer(layer_shapes(schedule(model, None)), config.fixed)
    return tuple(factors)


def _plain(model: LogicalGraph, config: CompileConfig, policies: tuple[str, ...]) -> Iterator[Factor]:
    engine = tuple(p for p in policies if p in ("shared", "mixed"))
    columns = tuple(p for p in policies if p != "resident")
    alone = tuple(p for p in policies if p == "spatial")

    def factor(name: str, values: Sequence[Value], among: tuple[str, ...], law: str) -> Iterator[Factor]:
        """The factor with its values, or with the user's choice; nothing if no policy uses it."""
        if among:
            choice = getattr(config, name)
            legal = tuple(values) if choice is None else (choice,)
            yield Factor(name=name, values=legal, policies=among, law=law)

    def halves(most: int, least: int) -> tuple[Value, ...]:
        return tuple(most >> k for k in range(most.bit_length()) if most >> k >= least) or (most,)

    law = (
        f"the budget of {config.most_multipliers}, or this budget halved once or more, down to {2 * MX_GROUP}"
    )
    asked = (
        config.n_lanes and config.multipliers is None
    )  # rows that the user chose count, not a budget that the user did not set
    first = None if asked else multipliers_of(model, config)
    budget = tuple(dict.fromkeys((first, *halves(config.most_multipliers, 2 * MX_GROUP))))
    yield Factor(name="multipliers", values=budget, policies=policies, law=law)
    most = config.size("channels")
    law = f"the budget of {most}, or this budget halved once or more; an engine has an even number"
    channels = halves(most, 2 if engine else 1)
    yield Factor(name="channels", values=channels, policies=policies, law=law)
    rows = [None, *(n for n in ROWS if 2 * n * MX_GROUP <= config.most_multipliers)]
    law = f"each row of a column has {MX_GROUP} multipliers, and all rows keep the budget of multipliers"
    yield from factor("n_lanes", rows, engine, law)
    law = f"a power of two up to a group of {MX_GROUP}"
    yield from factor("lanes", (None, *VECTOR_LANES), policies, law)
    if any(True for _ in attentions_of(model)):
        law = "a power of two, at most the context and the values that the channels of a cache hold"
        yield from factor("attention_lanes", (None, 1, 2, 4, 8, 16, 32), policies, law)
    if model.context:
        law = "a power of two, from the positions that attention takes to the channels of all caches"
        yield from factor("cache_channels", (None, 1, 2, 4, 8, 16), policies, law)
    yield from factor("prefetch_beats", (None, *PREFETCH), columns, "whole bursts of 64 beats")
    held = [None, 0, *(config.card.memory_bits // part for part in HELD)]
    yield from factor("hold_bits", held, engine, "values that do not fit into these bits go through memory")
    lanes = [None, *(n for n in (1, 2, 4, 8) if n == 1 or n < 2 * config.size("max_tokens"))]
    law = "a power of two below twice max_tokens; 1 if tokens depend on one another"
    yield from factor("token_lanes", [None] if model.mixes_tokens else lanes, alone, law)
    law = "FIFO depths keep the end of the run, or the rate of every kernel"
    sizing = (config.sizing, *(s for s in ("conservative", "normal") if s != config.sizing))
    yield Factor(name="sizing", values=sizing, policies=policies, law=law)


def _by_layer(shapes: Sequence[Shape], held: Fixed) -> Iterator[Factor]:
    fixed_factors(shapes, held)  # raises ValueError if the factors contradict one another
    powers = (1, 2, 4, 8, 16)
    for shape in shapes:
        laws: dict[str, tuple[tuple[int, ...], str]] = {}
        if isinstance(shape, LinearShape):
            most = {"columns": MAX_COLUMNS, "n_lanes": MAX_ROWS}
            for name, limit in most.items():
                laws[name] = tuple(n for n in powers if n <= limit), f"a power of two up to {limit}"
            laws["quantise_lanes"] = (
                VECTOR_LANES,
                "lanes of the quantiser before the matmul, which other matmuls may share",
            )
        if not isinstance(shape, LinearShape) or shape.bias:
            laws["lanes"] = VECTOR_LANES, "a divisor or a multiple of the columns before the operation"
        for name, (values, law) in laws.items():
            given = {**held.get(shape.path, {}), **held.get(shape.name, {})}.get(name)
            yield Factor(
                name=f"fixed.{shape.name}.{name}",
                values=(None, *values) if given is None else (given,),
                policies=("spatial",),
                law=law,
            )


def restricted(factors: Sequence[Factor], only: Mapping[str, Sequence[Value]]) -> tuple[Factor, ...]:
    """The factors, restricted to some of their values. Raises ValueError for an unknown factor or value, and
    if no value is left."""
    known = {factor.name: factor for factor in factors}
    for name, values in only.items():
        if name not in known:
            raise ValueError(f"no factor is called {name!r}; there are {', '.join(known)}")
        if not values:
            raise ValueError(f"the space is empty: factor {name!r} has no value left")
        for value in values:
            if value not in known[name].values:
                raise ValueError(f"factor {name!r} has no value {value!r}; {known[name]}")
        known[name] = replace(known[name], values=tuple(dict.fromkeys(values)))
    return tuple(known.values())
