"""How many positions of a cache attention takes in a cycle.

As many as the channels of the cache give to all query heads that share them: no read waits for products.

    lanes >= query heads * channels * rate / beats of a position        (keys, values and their scales)

rounded up to a power of two. Every position needs two multipliers for each dimension of a head. It is halved
until they are no more than matmuls may have, the kernels take no more than an eighth of the LUTs that a
design may fill, and the DSPs of matmuls and attention together are there.
"""

from collections.abc import Iterator

from streamgen.artifact.packing import BEAT_BITS
from streamgen.compiler.config import CompileConfig
from streamgen.contract.cost import Resources
from streamgen.kernels.attention.row_codes import SCALE
from streamgen.kernels.attention.scores import AttentionScoresParams
from streamgen.kernels.attention.softmax import AttentionSoftmaxParams
from streamgen.kernels.attention.values import AttentionValuesParams
from streamgen.model.graph.logical import AttentionHeads, LogicalGraph

__all__ = ["attention_width", "require_cache"]

SHARE = 8  # the part of the LUTs that attention may take: the eighth


def attention_width(model: LogicalGraph, config: CompileConfig, channels: int, rate: float) -> int:
    """Positions a cycle; 1 where nothing is cached. channels: of a cache, `rate` beats a cycle each.

    ValueError for `CompileConfig.attention_lanes` that the channels cannot give, or that nothing takes.
    """
    require_cache(model, config)
    if config.attention_lanes is not None:
        if config.attention_lanes > channels:
            raise ValueError(
                f"CompileConfig.attention_lanes is {config.attention_lanes}; positions of a cache lie on "
                f"{channels} channels, which give no more a cycle"
            )
        return config.attention_lanes
    return max((_width(op, model.context, config, channels, rate) for op in _cached(model)), default=1)


def require_cache(model: LogicalGraph, config: CompileConfig) -> None:
    """ValueError for factors of a cache where a model has none."""
    if any(True for _ in _cached(model)):
        return
    for name in ("attention_lanes", "cache_channels"):
        if (asked := getattr(config, name)) is not None:
            raise ValueError(
                f"CompileConfig.{name} is {asked}; {model.name!r} keeps no keys and values in a cache, and "
                "nothing else takes it. Leave it out"
            )


def _cached(model: LogicalGraph) -> Iterator[AttentionHeads]:
    """Attentions over a cache."""
    kept = {value for one in model.operations if one.op.keeps_state for value in one.values}
    for one in model.operations:
        for layer in one.op.layers:
            yield from _cached(layer)
        if (attention := one.op.attention) is not None and one.inputs[1] in kept:
            yield attention


def _width(op: AttentionHeads, context: int, config: CompileConfig, channels: int, rate: float) -> int:
    codes = -(-op.head_dim * 8 // BEAT_BITS) * op.kv_heads
    beats = 2 * (codes + -(-op.kv_heads * SCALE.size // BEAT_BITS))
    lanes = 1
    while lanes < channels and lanes * beats < op.heads * channels * rate:
        lanes *= 2
    while lanes > 1 and not _fits(op, context, lanes, config):
        lanes //= 2
    return lanes


def _fits(op: AttentionHeads, context: int, lanes: int, config: CompileConfig) -> bool:
    sizes = {"dims": op.head_dim, "lanes": lanes, "group": op.group, "max_length": context}
    sizes["max_rows"] = config.max_tokens * op.heads
    bounds = {"heads": op.kv_heads, "t": 1, "length": 1}
    softmax = AttentionSoftmaxParams(lanes=lanes, max_length=context, p_bits=op.p_bits)
    needed: Resources = softmax.cost({"rows": 1, "length": 1}).resources
    needed += AttentionScoresParams(**sizes).cost({**bounds, "scale": 1.0}).resources
    needed += AttentionValuesParams(**sizes, p_bits=op.p_bits).cost(bounds).resources
    card = config.card
    return (
        2 * lanes * op.head_dim <= config.budget
        and SHARE * needed.lut <= card.fill * card.resources.lut
        and needed.dsp + config.budget / 2 <= card.fill * card.resources.dsp
    )
