"""A ring of rows: tokens wait until something is known about the whole row, then leave in order.

    grant        room for a token, and with the first one of a row for the row, is promised to who sends it
    write        the token arrives, some cycles later; the first one of a row brings the head of the row
    complete     the tail of the row arrives, after all its tokens: the row may be read
    step         the next token is read; it is there a cycle later

Tokens and rows leave in the order in which they came. Because room is granted before a token is sent, nothing
between the grant and the ring ever stalls. `step` frees the place. `room` is known a cycle late, so the last
place is never granted.
"""

from dataclasses import dataclass
from typing import Any

from amaranth import Module, Signal, Value, unsigned
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Component, In, Out

from streamgen.contract.cost import Resources
from streamgen.kernels.row_parts import ring_style


def power_of_two(least: int) -> int:
    """The least power of two that is not below `least`."""
    return 1 << (least - 1).bit_length()


def memory_resources(bits: int, depth: int) -> Resources:
    """A memory with one write and one registered read port: LUTs up to 64 words, else block RAM."""
    if depth <= 64:
        return Resources(lut=8 * -(-bits // (14 if depth <= 32 else 7)), ff=bits)
    width: float = next(
        (w for w, words in ((72, 512), (36, 1024), (18, 2048), (9, 4096)) if depth <= words), 4.5
    )
    deep = max(1, depth // 8192)
    blocks = -(-2 * bits // width)  # RAMB18
    return Resources(lut=0, ff=0, bram=blocks * deep / 2)


@dataclass(frozen=True, kw_only=True)
class RowRingParams:
    """bits: of a token. head_bits, tail_bits: of a row. max_tokens: of the longest row, at least 1.

    ahead: cycles from the grant of the last token of a row to the completion of the row, with a few to spare.
    The ring has room for that many tokens, and rows, beyond a row, so that short rows and long ones flow
    without a gap.
    """

    bits: int
    head_bits: int
    tail_bits: int
    max_tokens: int
    ahead: int

    @property
    def depth(self) -> int:
        """Tokens."""
        return power_of_two(self.max_tokens + self.ahead)

    @property
    def rows(self) -> int:
        """Rows under way, complete or not."""
        return power_of_two(self.ahead)

    @property
    def end_bits(self) -> int:
        """Width of the index of a token in its row."""
        return max(1, (self.max_tokens - 1).bit_length())

    @property
    def resources(self) -> Resources:
        pointers = 3 * self.depth.bit_length() + 4 * self.rows.bit_length() + self.end_bits
        of_rows = self.head_bits + self.end_bits, self.tail_bits
        small = sum(memory_resources(bits, self.rows).lut for bits in of_rows)
        logic = Resources(lut=small + 0.76 * pointers, ff=pointers + 1)
        return logic + memory_resources(self.bits, self.depth)

    def build(self) -> "RowRing":
        return RowRing(self)


class RowRing(Component):
    """The ring; the module describes the ports. `row`: a complete row waits; `head`, `tail`: those of that
    row.

    `last`: the next token to be read is the last of its row. `enable`: moves the register after the memory.
    """

    def __init__(self, params: RowRingParams) -> None:
        self._params = params
        super().__init__(
            {
                "room": Out(1, init=1),
                "grant": In(1),
                "grant_row": In(1),
                "write": In(1),
                "data": In(params.bits),
                "first": In(1),
                "head": In(params.head_bits),
                "end": In(params.end_bits),
                "complete": In(1),
                "tail": In(params.tail_bits),
                "enable": In(1),
                "step": In(1),
                "row": Out(1),
                "o_head": Out(params.head_bits),
                "o_end": Out(params.end_bits),
                "o_tail": Out(params.tail_bits),
                "begins": Out(1),
                "last": Out(1),
                "o_data": Out(params.bits),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self._params
        m.submodules.tokens = tokens = _memory(p.bits, p.depth)
        m.submodules.heads = heads = _memory(p.head_bits + p.end_bits, p.rows)
        m.submodules.tails = tails = _memory(p.tail_bits, p.rows)
        # A pointer has one bit more than an address: full is not empty.
        granted, written, read = (
            Signal(range(2 * p.depth), name=f"tokens_{name}") for name in ("granted", "written", "read")
        )
        r_granted, r_begun, r_complete, r_read = (
            Signal(range(2 * p.rows), name=f"rows_{name}")
            for name in ("granted", "begun", "complete", "read")
        )
        m.d.sync += [
            self.room.eq((_used(granted, read) < p.depth - 1) & (_used(r_granted, r_read) < p.rows - 1)),
            granted.eq(granted + self.grant),
            r_granted.eq(r_granted + self.grant_row),
            written.eq(written + self.write),
            r_begun.eq(r_begun + (self.write & self.first)),
            r_complete.eq(r_complete + self.complete),
        ]
        token_in, head_in, tail_in = tokens.write_port(), heads.write_port(), tails.write_port()
        m.d.comb += [
            token_in.en.eq(self.write),
            token_in.addr.eq(written),
            token_in.data.eq(self.data),
            head_in.en.eq(self.write & self.first),
            head_in.addr.eq(r_begun),
            head_in.data[: p.end_bits].eq(self.end),
            head_in.data[p.end_bits :].eq(self.head),
            tail_in.en.eq(self.complete),
            tail_in.addr.eq(r_complete),
            tail_in.data.eq(self.tail),
        ]

        index = Signal(p.end_bits)
        token_out = tokens.read_port()
        head_out, tail_out = heads.read_port(domain="comb"), tails.read_port(domain="comb")
        m.d.comb += [
            token_out.en.eq(self.enable),
            token_out.addr.eq(read),
            self.o_data.eq(token_out.data),
            head_out.addr.eq(r_read),
            tail_out.addr.eq(r_read),
            self.row.eq(r_complete != r_read),
            self.o_end.eq(head_out.data[: p.end_bits]),
            self.o_head.eq(head_out.data[p.end_bits :]),
            self.o_tail.eq(tail_out.data),
            self.begins.eq(index == 0),
            self.last.eq(index == self.o_end),
        ]
        with m.If(self.step):
            m.d.sync += [
                read.eq(read + 1),
                r_read.eq(r_read + self.last),
                index.eq(index + 1),
            ]
            with m.If(self.last):
                m.d.sync += index.eq(0)
        return m


def _used(granted: Signal, released: Signal) -> Value:
    """Places of a ring between two pointers."""
    return (granted - released)[: len(granted)]


def _memory(bits: int, depth: int) -> Memory:
    return Memory(shape=unsigned(bits), depth=depth, init=[], attrs=ring_style(depth))
