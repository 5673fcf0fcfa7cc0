"""What a design may take: decided once, from what the user asks for and how large the model is.

`budget_of` makes the decision; every pass reads its `Budget` and none the user's configuration. A part of a
design gets a share: `dataclasses.replace(budget, multipliers=256)`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from streamgen.compiler.config import CompileConfig
from streamgen.model.graph.logical import AttentionHeads, LogicalGraph
from streamgen.numbers.formats import MX_GROUP
from streamgen.platform.boards import Board, Channel

HELD = 8  # the part of block and ultra RAM that holds may take: the eighth
CYCLES = 512  # that the products of a token may take in a small model


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The budgets of one accelerator, and the factors that the user fixes.

    board: with the share of it that the design may fill. memory: a channel at the clock of the design.
    multipliers, channels, converter_bits, hold_bits: the most that the design may have. Of the factors None
    means that the compiler chooses; `CompileConfig` describes each. capped: whether the user gave the
    multipliers. context: positions of a text, 0 where nothing depends on them.
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
    """The budgets of a quantised model, or of a graph of kernels. ValueError for factors that no part of the
    design has."""
    board = config.card
    policy = "spatial" if model is None else policy_of(model, config)
    _require_taken(policy, config)
    if model is not None:
        require_cache(model, config)
    return Budget(
        name=config.name,
        board=board,
        memory=config.memory,
        clock_mhz=config.clock_mhz,
        sizing=config.sizing,
        policy=policy,
        max_tokens=config.max_tokens,
        context=0 if model is None else model.context,
        multipliers=config.most_multipliers if model is None else multipliers_of(model, config),
        capped=config.multipliers is not None,
        channels=config.channels,
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
    """Whether it is nothing but matmuls and elementwise operations: every value can lie in memory."""
    ops = [operation.op for operation in model.operations]
    return all(op.matmul is not None or op.elementwise is not None or op.is_constant for op in ops)


def policy_of(model: LogicalGraph, config: CompileConfig) -> str:
    """The policy that is asked for; by default networks are spatial and all others shared."""
    return config.policy or ("spatial" if is_network(model) else "shared")


def require_cache(model: LogicalGraph, config: CompileConfig) -> None:
    """ValueError for factors of a cache where a model has none."""
    if any(True for _ in cached_attentions(model)):
        return
    for name in ("attention_lanes", "cache_channels"):
        if (asked := getattr(config, name)) is not None:
            raise ValueError(
                f"CompileConfig.{name} is {asked}; {model.name!r} keeps no keys and values in a cache, and "
                "nothing else takes it. Leave it out"
            )


def cached_attentions(model: LogicalGraph) -> Iterator[AttentionHeads]:
    """The attentions of a model that read a cache."""
    kept = {value for one in model.operations if one.op.keeps_state for value in one.values}
    for one in model.operations:
        for layer in one.op.layers:
            yield from cached_attentions(layer)
        if (attention := one.op.attention) is not None and one.inputs[1] in kept:
            yield attention


def _require_taken(policy: str, config: CompileConfig) -> None:
    """ValueError for factors that a policy has no use for."""
    if policy == "spatial" and config.n_lanes is not None:
        raise ValueError(
            f"CompileConfig.n_lanes is {config.n_lanes}; a design whose policy is 'spatial' has no engine. "
            "Name matmuls and their rows in CompileConfig.fixed, or take the policy 'shared' or 'mixed'"
        )
    if policy == "shared" and config.token_lanes is not None:
        raise ValueError(
            f"CompileConfig.token_lanes is {config.token_lanes}; in a design whose policy is 'shared' all "
            "matmuls are the engine's, which takes token after token. Take the policy 'spatial'"
        )


def multipliers_of(model: LogicalGraph, config: CompileConfig) -> int:
    """The user's multipliers, or the least power of two with which the products of a token take at most
    `CYCLES`, where each multiplier has one every cycle; at least what every matmul, or an engine of two
    columns, needs; at most 1,024. Factors that the user fixes may ask for more, so with them it is 1,024."""
    if config.multipliers is not None or config.fixed or config.n_lanes or config.token_lanes:
        return config.most_multipliers
    extents = [matmul.extents for _, matmul in model.matmuls()]
    products = sum(n * MX_GROUP * -(-k // MX_GROUP) for n, k in extents)
    least = MX_GROUP * max(2, len(extents))
    asked = max(least, 1 << (-(-products // CYCLES) - 1).bit_length()) if products else least
    return min(config.most_multipliers, asked)
