"""Factors of a design: what may be chosen, from which values, and why no others."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from streamgen.compiler.budget import is_network, multipliers_of, policy_of, require_cache
from streamgen.compiler.config import VECTOR_LANES, CompileConfig
from streamgen.compiler.explore.fixed import MAX_COLUMNS, MAX_ROWS, Fixed, fixed_factors
from streamgen.compiler.schedule import layer_shapes, schedule
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.graph.plan import LinearShape, Shape
from streamgen.numbers.formats import MX_GROUP

Value = int | str | None

PREFETCH = (64, 128, 256, 512, 1024, 2048)
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # of an engine's column
HELD = (32, 16, 8, 4, 2)  # parts of the board's memory


@dataclass(frozen=True, kw_only=True)
class Factor:
    """name: a field of `CompileConfig`, or fixed.LAYER.FACTOR. values: the legal ones; None leaves the
    choice to the compiler. policies: under which it means something. law: why no other value can be."""

    name: str
    values: tuple[Value, ...]
    policies: tuple[str, ...]
    law: str

    def __str__(self) -> str:
        values = ", ".join("the compiler's choice" if one is None else str(one) for one in self.values)
        return f"{self.name}: {values}; {self.law}"


def factors_of(model: LogicalGraph, config: CompileConfig) -> tuple[Factor, ...]:
    """All factors of a quantised model; those that `config` fixes have one value. ValueError where it fixes
    those of a cache and there is none."""
    require_cache(model, config)
    policies: tuple[str, ...] = (policy_of(model, config),)
    if not config.policy and not config.fixed:
        policies = ("spatial", "shared", "mixed") if is_network(model) else ("shared", "mixed", "spatial")
    factors = [Factor(name="policy", values=policies, policies=policies, law="who has columns of its own")]
    factors += _plain(model, config, policies)
    if "spatial" in policies:
        factors += _by_layer(layer_shapes(schedule(model, None)), config.fixed)
    return tuple(factors)


def _plain(model: LogicalGraph, config: CompileConfig, policies: tuple[str, ...]) -> Iterator[Factor]:
    engine = tuple(p for p in policies if p != "spatial")
    alone = tuple(p for p in policies if p == "spatial")

    def one(name: str, values: Sequence[Value], among: tuple[str, ...], law: str) -> Iterator[Factor]:
        """Nothing where no policy has it; one value where the user has chosen."""
        if among:
            held = getattr(config, name)
            legal = tuple(values) if held is None else (held,)
            yield Factor(name=name, values=legal, policies=among, law=law)

    def halves(most: int, least: int) -> tuple[Value, ...]:
        return tuple(most >> k for k in range(most.bit_length()) if most >> k >= least) or (most,)

    law = f"the budget of {config.most_multipliers}, or a half, a quarter of it, down to {2 * MX_GROUP}"
    asked = config.n_lanes and config.multipliers is None  # rows of an engine go before a budget of nobody
    first = None if asked else multipliers_of(model, config)
    budget = tuple(dict.fromkeys((first, *halves(config.most_multipliers, 2 * MX_GROUP))))
    yield Factor(name="multipliers", values=budget, policies=policies, law=law)
    law = f"the budget of {config.channels}, or a half, a quarter of it; an engine has an even number"
    channels = halves(config.channels, 2 if engine else 1)
    yield Factor(name="channels", values=channels, policies=policies, law=law)
    rows = [None, *(n for n in ROWS if 2 * n * MX_GROUP <= config.most_multipliers)]
    law = f"each row of a column has {MX_GROUP} multipliers; all of them within the budget"
    yield from one("n_lanes", rows, engine, law)
    law = f"a power of two up to a group of {MX_GROUP}"
    yield from one("lanes", (None, *VECTOR_LANES), policies, law)
    if model.context:
        law = "a power of two, at most the context and what the channels of the cache hold"
        yield from one("attention_lanes", (None, 1, 2, 4, 8, 16, 32), policies, law)
        law = "a power of two, from the positions that attention takes to the channels of all caches"
        yield from one("cache_channels", (None, 1, 2, 4, 8, 16), policies, law)
    yield from one("prefetch_beats", (None, *PREFETCH), policies, "whole bursts of 64 beats")
    held = [None, 0, *(config.card.memory_bits // part for part in HELD)]
    yield from one("hold_bits", held, engine, "what does not fit on the chip goes through memory")
    lanes = [None, *(n for n in (1, 2, 4, 8) if n == 1 or n < 2 * config.max_tokens)]
    law = "a power of two below twice max_tokens; 1 where tokens see one another"
    yield from one("token_lanes", [None] if model.mixes_tokens else lanes, alone, law)
    law = "FIFOs keep the end of the run, or the rate of every kernel"
    sizing = (config.sizing, *(s for s in ("conservative", "normal") if s != config.sizing))
    yield Factor(name="sizing", values=sizing, policies=policies, law=law)


def _by_layer(shapes: Sequence[Shape], held: Fixed) -> Iterator[Factor]:
    fixed_factors(shapes, held)  # ValueError where they contradict one another
    powers = (1, 2, 4, 8, 16)
    for shape in shapes:
        laws: dict[str, tuple[tuple[int, ...], str]] = {}
        if isinstance(shape, LinearShape):
            most = {"columns": MAX_COLUMNS, "n_lanes": MAX_ROWS}
            for name, limit in most.items():
                laws[name] = tuple(n for n in powers if n <= limit), f"a power of two up to {limit}"
            laws["quantise_lanes"] = VECTOR_LANES, "of the quantiser before it, which others may share"
        if not isinstance(shape, LinearShape) or shape.bias:
            laws["lanes"] = VECTOR_LANES, "whole parts or multiples of the columns that it follows"
        for name, (values, law) in laws.items():
            given = {**held.get(shape.path, {}), **held.get(shape.name, {})}.get(name)
            yield Factor(
                name=f"fixed.{shape.name}.{name}",
                values=(None, *values) if given is None else (given,),
                policies=("spatial",),
                law=law,
            )


def restricted(factors: Sequence[Factor], only: Mapping[str, Sequence[Value]]) -> tuple[Factor, ...]:
    """The factors with some of their values. ValueError for an unknown factor or value, and for none left."""
    known = {factor.name: factor for factor in factors}
    for name, values in only.items():
        if name not in known:
            raise ValueError(f"no factor is called {name!r}; there are {', '.join(known)}")
        if not values:
            raise ValueError(f"the space is empty: no value is left of factor {name!r}")
        for value in values:
            if value not in known[name].values:
                raise ValueError(f"factor {name!r} has no value {value!r}; {known[name]}")
        known[name] = replace(known[name], values=tuple(dict.fromkeys(values)))
    return tuple(known.values())
