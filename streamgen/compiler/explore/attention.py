"""Choose how many positions attention reads per cycle (lanes): of a cache, unless the user or a plan chooses.

The lanes match the rate of the channels, so that reads do not wait for products. All query heads of a group
share the positions that are read:

    lanes >= query heads * channels * rate / beats of a position        (keys, values and their scales)

The number is rounded up to a power of two. Each position needs two multipliers for each dimension of a head.
The lanes are halved until all of these hold: attention has no more multipliers than matmuls may have, its
kernels take at most 1/8 of the LUTs that a design may fill, and the board has the DSPs for matmuls and
attention together.
"""

from streamgen.artifact.packing import BEAT_BITS
from streamgen.compiler.budget import Budget, cached_attentions
from streamgen.contract.cost import Resources
from streamgen.kernels.attention.row_codes import SCALE
from streamgen.kernels.attention.scores import AttentionScoresParams
from streamgen.kernels.attention.softmax import AttentionSoftmaxParams
from streamgen.kernels.attention.values import AttentionValuesParams
from streamgen.model.graph.heads import AttentionHeads
from streamgen.model.graph.logical import LogicalGraph

SHARE = 8  # attention may take 1 / SHARE of the LUTs that a design may fill


def attention_width(model: LogicalGraph, budget: Budget, channels: int) -> int:
    """Positions per cycle; 1 by default if the model has no cache. channels: number of channels of a cache.

    Raises ValueError if `CompileConfig.attention_lanes` is more than the channels can deliver.
    """
    if budget.attention_lanes is not None:
        if budget.attention_lanes > channels and any(True for _ in cached_attentions(model)):
            raise ValueError(
                f"CompileConfig.attention_lanes is {budget.attention_lanes}; it must be at most {channels}, "
                "because the positions of a cache lie on that many channels, and each channel delivers one "
                "position per cycle"
            )
        return budget.attention_lanes
    return max((_width(op, budget, channels) for op in cached_attentions(model)), default=1)


def _width(op: AttentionHeads, budget: Budget, channels: int) -> int:
    """The lanes of one attention."""
    codes = -(-op.head_dim * 8 // BEAT_BITS) * op.kv_heads
    beats = 2 * (codes + -(-op.kv_heads * SCALE.size // BEAT_BITS))
    lanes = 1
    while lanes < channels and lanes * beats < op.heads * channels * budget.memory.rate:
        lanes *= 2
    while lanes > 1 and not _fits(op, lanes, budget):
        lanes //= 2
    return lanes


def _fits(op: AttentionHeads, lanes: int, budget: Budget) -> bool:
    """Whether the kernels of an attention with these lanes are within their part of the budget."""
    sizes = {"dims": op.head_dim, "lanes": lanes, "group": op.group, "max_length": budget.context}
    sizes["max_rows"] = budget.max_tokens * op.heads
    bounds = {"heads": op.kv_heads, "t": 1, "length": 1}
    softmax = AttentionSoftmaxParams(lanes=lanes, max_length=budget.context, p_bits=op.p_bits)
    needed: Resources = softmax.cost({"rows": 1, "length": 1}).resources
    needed += AttentionScoresParams(**sizes).cost({**bounds, "scale": 1.0}).resources
    needed += AttentionValuesParams(**sizes, p_bits=op.p_bits).cost(bounds).resources
    board = budget.board
    return (
        2 * lanes * op.head_dim <= budget.multipliers
        and SHARE * needed.lut <= board.fill * board.resources.lut
        and needed.dsp + budget.multipliers / 2 <= board.fill * board.resources.dsp
    )
