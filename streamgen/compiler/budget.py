"""The budget of a design: decided once, from the user's configuration and the size of the model.

`budget_of` makes the decision. Every pass reads the `Budget`, and no pass reads the user's configuration. A
part of a design gets a share of the budget: `dataclasses.replace(budget, multipliers=256)`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from streamgen.compiler.config import MULTIPLIERS, CompileConfig
from streamgen.model.graph.heads import AttentionHeads
from streamgen.model.graph.logical import LogicalGraph
from streamgen.numbers.formats import MX_GROUP
from streamgen.platform.boards import Board, Channel

HELD = 8  # holds may take 1 / HELD of the block and ultra RAM
CYCLES = 512  # most cycles that the products of a token take in a small model


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The budgets of one accelerator, and the factors that the user fixes.

    board: the board with the share that the design may fill. memory: a memory channel at the clock of the
    design. multipliers, channels, converter_bits, hold_bits: upper limits. capped: whether the user gave
    `multipliers`. context: positions of a text; 0 if the model does not depend on positions. The other fields
    are factors, which `CompileConfig` describes; None means that the compiler chooses.
    """

    name: str
    board: Board
    memory: Channel
    clock_mhz: float
    sizing: Literal["conservative", "normal"]
    policy: str
    max_tokens: int
    context: int
    multipliers: int
    capped: bool
    channels: int
    converter_bits: int
    hold_bits: int
    scale_bits: int
    minimum: bool
    fixed: Mapping[str, Mapping[str, int]] = field(hash=False)
    token_lanes: int | None
    n_lanes: int | None
    lanes: int | None
    attention_lanes: int | None
    cache_channels: int | None
    prefetch_beats: int | None


def budget_of(config: CompileConfig, model: LogicalGraph | None = None) -> Budget:
    """The budgets of a quantised model; without a model, those of a graph of kernels. Raises ValueError for
    factors that no part of the design has."""
    board = config.card
    policy = "spatial" if model is None else policy_of(model, config)
    _require_taken(policy, config)
    if model is not None:
        require_attention(model, config)
    return Budget(
        name=config.name,
        board=board,
        memory=config.memory,
        clock_mhz=config.clock_mhz,
        sizing=config.sizing,
        policy=policy,
        max_tokens=config.size("max_tokens"),
        context=0 if model is None else model.context,
        multipliers=config.most_multipliers if model is None else multipliers_of(model, config),
        capped=config.multipliers is not None,
        channels=config.size("channels"),
        converter_bits=board.memory_bits // 2 if config.converter_bits is None else config.converter_bits,
        hold_bits=board.memory_bits // HELD if config.hold_bits is None else config.hold_bits,
        scale_bits=config.scale_bits,
        minimum=config.minimum,
        fixed=config.fixed,
        token_lanes=config.token_lanes,
        n_lanes=config.n_lanes,
        lanes=config.lanes,
        attention_lanes=config.attention_lanes,
        cache_channels=config.cache_channels,
        prefetch_beats=config.prefetch_beats,
    )


def is_network(model: LogicalGraph) -> bool:
    """Whether a model has only matmuls and elementwise operations, so that every value can lie in memory."""
    ops = [operation.op for operation in model.operations]
    return all(op.matmul is not None or op.elementwise is not None or op.is_constant for op in ops)


def policy_of(model: LogicalGraph, config: CompileConfig) -> str:
    """The configured policy. The default is "spatial" for networks and "shared" for all other models."""
    return config.policy or ("spatial" if is_network(model) else "shared")


def require_attention(model: LogicalGraph, config: CompileConfig) -> None:
    """Raise ValueError for options of attention, or of its cache, of a model that has none."""
    for name, attentions, missing in (
        ("attention_lanes", attentions_of(model), "attention that takes several positions per cycle"),
        ("cache_channels", cached_attentions(model), "cache of keys and values"),
    ):
        asked = getattr(config, name)
        if asked is not None and not any(True for _ in attentions):
            raise ValueError(
                f"CompileConfig.{name} is {asked}, but {model.name!r} has no {missing}, so the option has no "
                "effect. Leave it out"
            )


def cached_attentions(model: LogicalGraph) -> Iterator[AttentionHeads]:
    """The attentions of a model that read a cache, of the text or of its source."""
    return (attention for attention, cached in attentions_of(model) if cached)


def attentions_of(model: LogicalGraph) -> Iterator[tuple[AttentionHeads, bool]]:
    """The attentions of a model that may take several positions per cycle, and whether they read a cache."""
    kept = {value for operation in model.operations if operation.op.keeps_state for value in operation.values}
    for operation in model.operations:
        for layer in operation.op.layers:
            yield from attentions_of(layer)
        op = operation.op
        if op.attention is not None and not op.attention.takes_one_position:
            yield op.attention, op.reads_source or operation.inputs[1] in kept


def _require_taken(policy: str, config: CompileConfig) -> None:
    """Raise ValueError for factors that have no effect under a policy."""
    if policy == "spatial" and config.n_lanes is not None:
        raise ValueError(
            f"CompileConfig.n_lanes is {config.n_lanes}, but a design with the policy 'spatial' has no "
            "engine. Give rows to matmuls in CompileConfig.fixed, or use the policy 'shared' or 'mixed'"
        )
    for name in ("n_lanes", "token_lanes", "prefetch_beats") if policy == "resident" else ():
        if (asked := getattr(config, name)) is not None:
            raise ValueError(
                f"CompileConfig.{name} is {asked}, but it has no effect with the policy 'resident'. Leave it "
                "out, or give n_lanes to matmuls in CompileConfig.fixed"
            )
    if policy == "shared" and config.token_lanes is not None:
        raise ValueError(
            f"CompileConfig.token_lanes is {config.token_lanes}, but with the policy 'shared' one engine "
            "computes all matmuls, one token at a time. Use the policy 'spatial'"
        )


def products_of(model: LogicalGraph) -> int:
    """The products of a token in all matmuls."""
    extents = (matmul.extents for _, matmul in model.matmuls())
    return sum(n * MX_GROUP * -(-k // MX_GROUP) for n, k in extents)


def is_small(model: LogicalGraph, config: CompileConfig) -> bool:
    """Whether the design has the sizes of a small design, without a search: the user asks for it, or the
    products of a token take at most `CYCLES` cycles with the multipliers of a small design. With the policy
    "resident" it has them only if the user asks for it."""
    if config.goal is not None:
        return config.goal == "small"
    return config.policy != "resident" and products_of(model) <= CYCLES * MULTIPLIERS


def multipliers_on(board: Board) -> int:
    """The largest power of two of multipliers, of which a DSP holds two, that the board has room for."""
    return 1 << max(1, int(2 * board.resources.dsp * board.fill)).bit_length() - 1


def multipliers_of(model: LogicalGraph, config: CompileConfig) -> int:
    """The limit on multipliers.

    If the user gave a limit, that one. Otherwise the smallest power of two with which the products of a token
    take at most `CYCLES` cycles, if each multiplier computes one product per cycle. It is at least 32 for
    each matmul, or for each of two columns of an engine, and at most 1,024; with resident weights at least 64
    for each matmul. Factors that the user fixes may need more, so with such factors it is 1,024.
    """
    if config.multipliers is not None or config.fixed or config.n_lanes or config.token_lanes:
        return config.most_multipliers
    products = products_of(model)
    each = 2 if config.policy == "resident" else 1
    least = MX_GROUP * max(2, each * sum(1 for _ in model.matmuls()))
    asked = max(least, 1 << (-(-products // CYCLES) - 1).bit_length()) if products else least
    return min(config.most_multipliers, asked)
