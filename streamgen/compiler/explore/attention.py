"""How many positions of a cache attention takes in a cycle.

As many as the channels of the cache give to all query heads that share them: no read waits for products.

    lanes >= query heads * channels * rate / beats of a position        (keys, values and their scales)

rounded up to a power of two. Every position needs two multipliers for each dimension of a head. It is halved
until they are no more than matmuls may have, the kernels take no more than an eighth of the LUTs that a
design may fill, and the DSPs of matmuls and attention together are there.
"""

from streamgen.artifact.packing import BEAT_BITS
from streamgen.compiler.budget import Budget, cached_attentions
from streamgen.contract.cost import Resources
from streamgen.kernels.attention.row_codes import SCALE
from streamgen.kernels.attention.scores import AttentionScoresParams
from streamgen.kernels.attention.softmax import AttentionSoftmaxParams
from streamgen.kernels.attention.values import AttentionValuesParams
from streamgen.model.graph.logical import AttentionHeads, LogicalGraph

SHARE = 8  # the part of the LUTs that attention may take: the eighth


def attention_width(model: LogicalGraph, budget: Budget, channels: int) -> int:
    """Positions a cycle; 1 where nothing is cached. channels: of a cache.

    ValueError for `CompileConfig.attention_lanes` that the channels cannot give.
    """
    if budget.attention_lanes is not None:
        if budget.attention_lanes > channels:
            raise ValueError(
                f"CompileConfig.attention_lanes is {budget.attention_lanes}; positions of a cache lie on "
                f"{channels} channels, which give no more a cycle"
            )
        return budget.attention_lanes
    return max((_width(op, budget, channels) for op in cached_attentions(model)), default=1)


def _width(op: AttentionHeads, budget: Budget, channels: int) -> int:
    codes = -(-op.head_dim * 8 // BEAT_BITS) * op.kv_heads
    beats = 2 * (codes + -(-op.kv_heads * SCALE.size // BEAT_BITS))
    lanes = 1
    while lanes < channels and lanes * beats < op.heads * channels * budget.memory.rate:
        lanes *= 2
    while lanes > 1 and not _fits(op, lanes, budget):
        lanes //= 2
    return lanes


def _fits(op: AttentionHeads, lanes: int, budget: Budget) -> bool:
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
