"""The common part of kernels that reduce rows: the lanes of a row's last token, trees over lanes, rings of
tokens."""

from collections.abc import Callable

from amaranth import Cat, Const, Mux, Value
from amaranth.utils import ceil_log2

from streamgen.contract.cost import Resources
from streamgen.fifo.queue import RAM_STYLE, Kind, QueueParams
from streamgen.gateware.arith.pipeline import Pipeline

MAX_LENGTH = 1 << 20  # of a row
_ONE_BANK = 64  # tokens of a ring in LUT memory


def tree_stages(lanes: int) -> int:
    """Stages of a tree over the lanes; each has two levels."""
    return -(-ceil_log2(lanes) // 2)


def halve(values: list[Value], join: Callable[[Value, Value], Value]) -> list[Value]:
    """One level of a tree; a value without a partner is passed on."""
    pairs = [join(a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
    return pairs + values[len(pairs) * 2 :]


def maximum(a: Value, b: Value) -> Value:
    """The greater value."""
    return Mux(a > b, a, b)


def quarter_maxima(pipe: Pipeline, values: list[Value]) -> list[Value]:
    """Two levels of a tree of maxima, within one stage of the pipe."""
    for _ in range(2):
        values = halve(values, lambda a, b: pipe.wire(maximum(a, b)))
    return values


def lanes_before(limit: Value, lanes: int) -> Value:
    """For each lane, whether its number is less than `limit`, signed or not."""
    low, high = limit[: ceil_log2(lanes)], limit[ceil_log2(lanes) :]
    negative = limit[-1] if limit.shape().signed else Const(0, 1)
    below = ~(Const((1 << lanes) - 1, lanes) << low)[:lanes]
    return (below | high.any().replicate(lanes)) & (~negative).replicate(lanes)


def narrowed(limit: Value, lanes: int) -> Value:
    """A signed limit for `lanes_before`, in as few bits as possible."""
    split = ceil_log2(lanes)
    return Cat(limit[:split], limit[split:].any(), limit[-1]).as_signed()


def wide_kind(bits: int, depth: int) -> Kind:
    """The memory of a ring next to the card's memory ports: LUT memory as long as it is one bank; ultra RAM
    if it takes no more blocks than block RAM, which prefetch FIFOs need there."""
    if depth <= _ONE_BANK:
        return "lutram"
    block, ultra = (QueueParams(bits=bits, depth=depth, memory=kind).storage for kind in ("bram", "uram"))
    return "uram" if ultra.uram <= block.bram else "bram"


def ring_style(depth: int, kind: Kind | None = None) -> dict[str, str]:
    """The attribute of a memory with one read port, such as a ring: LUT memory as long as it is one bank,
    else the given kind."""
    return {"ram_style": RAM_STYLE[kind or ("lutram" if depth <= _ONE_BANK else "bram")]}


def ring_resources(bits: int, depth: int, kind: Kind | None = None) -> Resources:
    """What a ring's memory uses, its read register included."""
    if ring_style(depth, kind) != ring_style(_ONE_BANK):
        blocks = QueueParams(bits=bits, depth=depth, memory=kind or "bram").storage
        return Resources(lut=0, ff=0, bram=blocks.bram, uram=blocks.uram)
    return Resources(lut=8 * -(-bits // (14 if depth <= 32 else 7)), ff=bits)


def shares(row: Value, count: int) -> list[Value]:
    """A row, split into that many parts."""
    bits = len(row) // count
    return [row.word_select(k, bits) for k in range(count)]
