"""What kernels that reduce rows share: the lanes of a row's last token, trees over lanes, rings of tokens."""

from amaranth import Cat, Const, Value
from amaranth.utils import ceil_log2

from streamgen.cost import Resources
from streamgen.fifo.queue import QueueParams

__all__ = ["MAX_LENGTH", "lanes_before", "narrowed", "ring_resources", "ring_style", "tree_stages"]

MAX_LENGTH = 1 << 20  # of a row


def tree_stages(lanes: int) -> int:
    """Stages of a tree over the lanes, two levels in each."""
    return -(-ceil_log2(lanes) // 2)


def lanes_before(limit: Value, lanes: int) -> Value:
    """For each lane whether its number is less than `limit`, signed or not."""
    low, high = limit[: ceil_log2(lanes)], limit[ceil_log2(lanes) :]
    negative = limit[-1] if limit.shape().signed else Const(0, 1)
    below = ~(Const((1 << lanes) - 1, lanes) << low)[:lanes]
    return (below | high.any().replicate(lanes)) & (~negative).replicate(lanes)


def narrowed(limit: Value, lanes: int) -> Value:
    """A signed limit as the same for `lanes_before`, in as few bits as that asks for."""
    split = ceil_log2(lanes)
    return Cat(limit[:split], limit[split:].any(), limit[-1]).as_signed()


def ring_style(depth: int) -> dict[str, str]:
    """The attribute of a memory with one read port, of a ring say: LUT memory as long as it is one bank."""
    return {"ram_style": "distributed" if depth <= 64 else "block"}


def ring_resources(bits: int, depth: int) -> Resources:
    """What a ring's memory uses, its read register included."""
    if ring_style(depth)["ram_style"] == "block":
        block = QueueParams(bits=bits, depth=depth, memory="bram").resources.bram
        return Resources(lut=0, ff=0, bram=block)
    return Resources(lut=8 * -(-bits // (14 if depth <= 32 else 7)), ff=bits)
