"""Numbers for scores of attention, from a table of distances: a window of the table slides over each row.

    o[r, p] = i[h, p - q + span - 1]      row r of head h and of the token at position q; p = 0 ... length - 1

The last number of a head is that of the distance 0, so a row holds the numbers of the positions up to its
token. Behind these it holds what follows in the memory of the table: the beginning of the next head, zeros
behind the last one. A causal mask hides these positions.

Tiles in: (1, lanes) of a tensor [heads, span], filled with zeros to whole tiles. Tiles out: (1, lanes), in
the order of scores: for each head of keys, for each token, for each query head that shares it, the row's
tiles. The table is taken in first, a tile a cycle; then a tile is sent each cycle. Two banks hold
neighbouring tiles of the table, so a window that begins in the middle of a tile is read at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2
from numpy import ndarray

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.fifo.queue import Queue, QueueParams
from streamgen.gateware.arith import F24
from streamgen.gateware.stream import descriptor_layout, descriptor_signature
from streamgen.itensor import ITensor
from streamgen.kernels.row_parts import ring_resources, ring_style, shares, wide_kind


@dataclass(frozen=True, kw_only=True)
class DistanceRowsParams:
    """lanes: numbers of a tile, a power of two. heads: query heads. group: query heads that share a head of
    keys. span: distances of a head, 0 included. max_tokens: tokens of one descriptor. max_length: positions
    of a row.

    Bounds: t (tokens), position (of the first one), length (of a row).
    """

    lanes: int
    heads: int
    group: int
    span: int
    max_tokens: int
    max_length: int

    def __post_init__(self) -> None:
        for name in ("lanes", "heads", "group", "span", "max_tokens", "max_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"DistanceRows.{name} is {getattr(self, name)}; at least 1 is needed")
        if self.lanes & (self.lanes - 1):
            raise ValueError(f"DistanceRows.lanes is {self.lanes}; a power of two is needed")
        if self.heads % self.group:
            raise ValueError(f"DistanceRows.group is {self.group}; it must divide {self.heads} heads")

    @property
    def head_words(self) -> int:
        """Tiles of the table of a head."""
        return -(-self.span // self.lanes)

    @property
    def words(self) -> int:
        """Tiles of the table."""
        return self.heads * self.head_words

    @property
    def bank_bits(self) -> int:
        """Bits of an address of a bank."""
        return max(1, ceil_log2(-(-self.words // 2)))

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        trips = (self.heads, self.head_words)
        return {"i": ITensor((1, self.lanes), "f24", trips, (1, self.lanes), ((0,), (1,)))}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        trips = (self.heads * bounds["t"], self._tiles(bounds))
        return {"o": ITensor((1, self.lanes), "f24", trips, (1, self.lanes), ((0,), (1,)))}

    def descriptor_fields(self) -> tuple[Field, ...]:
        """Tokens, positions of a row, and the place in the table of the first row's first number."""
        return (
            Field("t", self.max_tokens.bit_length()),
            Field("length", self.max_length.bit_length()),
            Field("begin", self.span.bit_length()),
        )

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        t, position, length = (bounds[name] for name in ("t", "position", "length"))
        for name, value, least, most in (
            ("t", t, 1, self.max_tokens),
            ("length", length, 1, self.max_length),
            ("position", position, 0, self.span - t),
        ):
            if not least <= value <= most:
                raise ValueError(f"DistanceRows: {name} is {value}; it must be {least} to {most}")
        return {"t": t, "length": length, "begin": self.span - 1 - position}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        """o [heads · t, length padded to tiles] of i [heads, span padded to tiles]."""
        memory = np.zeros((2 << self.bank_bits) * self.lanes, inputs["i"].dtype)
        memory[: inputs["i"].size] = inputs["i"].reshape(-1)
        heads = np.arange(self.heads).reshape(-1, 1, self.group)  # by head of keys, token, sharing head
        tokens = np.arange(bounds["t"])[:, None]
        first = heads * self.head_words * self.lanes + self.span - 1 - bounds["position"] - tokens
        places = first.reshape(-1, 1) + np.arange(self._tiles(bounds) * self.lanes)
        return {"o": memory[places % len(memory)]}

    def cost(self, bounds: Bounds) -> Cost:
        latency = self.words + 2
        tiles = self.heads * bounds["t"] * self._tiles(bounds)
        return Cost(resources=self._resources, ii=1.0, latency=latency, cycles=2 + latency + tiles)

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        tiles = self.heads * bounds["t"] * self._tiles(bounds)
        return {"i": Curve.nest(2, (self.words, 1)), "o": Curve.nest(self.words + 4, (tiles, 1))}

    @property
    def queue(self) -> QueueParams:
        """Descriptors that wait until the rows of the one before are sent."""
        return QueueParams(bits=sum(field.bits for field in self.descriptor_fields()), depth=2)

    def build(self) -> "DistanceRows":
        return DistanceRows(self)

    def _tiles(self, bounds: Bounds) -> int:
        """Tiles of a row."""
        return -(-bounds["length"] // self.lanes)

    @property
    def _resources(self) -> Resources:
        """Fitted to synthesis: both banks, the choice of a window, counters."""
        bits, depth = self.lanes * F24.bits, 1 << self.bank_bits
        bank = ring_resources(bits, depth, wide_kind(bits, depth))
        choice = max(0.75, self.lanes / 2)  # LUTs of a bit of a window
        fields = sum(field.bits for field in self.descriptor_fields())
        return (
            2 * bank
            + self.queue.resources
            + Resources(
                lut=bits * choice + 2 * fields + 3 * self.bank_bits + 43,
                ff=bits + 2 * fields + 5 * self.bank_bits + 7,
            )
        )


class DistanceRows(wiring.Component):
    """The hardware of a DistanceRowsParams."""

    def __init__(self, params: DistanceRowsParams) -> None:
        self._params = params
        token = stream.Signature(params.lanes * F24.bits)
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i": In(token),
                "o": Out(token),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self._params
        m.submodules.queue = queue = Queue(p.queue)
        fields = data.View(descriptor_layout(p.descriptor_fields()), queue.o.payload)
        split, bits = ceil_log2(p.lanes), p.lanes * F24.bits
        depth = 1 << p.bank_bits
        style = ring_style(depth, wide_kind(bits, depth))
        banks = [Memory(shape=bits, depth=depth, init=[], attrs=style) for _ in range(2)]
        m.submodules.even, m.submodules.odd = banks
        writes, reads = [bank.write_port() for bank in banks], [bank.read_port() for bank in banks]

        # The table comes in.
        loading, sending = Signal(), Signal()
        word = Signal(p.bank_bits + 1)
        loaded = self.i.valid & (word == p.words - 1)
        m.d.comb += [
            queue.i.valid.eq(self.i_descriptor.valid),
            queue.i.payload.eq(self.i_descriptor.payload),
            self.i_descriptor.ready.eq(queue.i.ready),
            queue.o.ready.eq(~loading & ~sending),
            self.i.ready.eq(loading),
        ]
        for parity, write in enumerate(writes):
            m.d.comb += [
                write.en.eq(loading & self.i.valid & (word[0] == parity)),
                write.addr.eq(word[1:]),
                write.data.eq(self.i.payload),
            ]
        with m.If(loading & self.i.valid):
            m.d.sync += [word.eq(word + 1), loading.eq(~loaded), sending.eq(loaded)]

        # The walk: over the tiles of a row, the heads that share keys, the tokens, the heads of keys.
        step, last, head_last, token_last = Signal(), Signal(), Signal(), Signal()
        tiles, tile = (Signal(len(fields.length), name=n, reset_less=True) for n in ("tiles", "tile"))
        tokens, token = (Signal(len(fields.t), name=n, reset_less=True) for n in ("tokens", "token"))
        sharing = Signal(range(p.group + 1), reset_less=True)
        keys = Signal(range(p.heads // p.group + 1), reset_less=True)
        begin, at = (Signal(len(fields.begin), name=n, reset_less=True) for n in ("begin", "at"))
        base_of_keys, base, address = (
            Signal(p.bank_bits + 1, name=n, reset_less=True) for n in ("base_of_keys", "base", "address")
        )
        next_base, next_at = Signal.like(base), Signal.like(at)
        m.d.comb += [
            last.eq(tile == 1),
            head_last.eq(sharing == 1),
            token_last.eq(token == 1),
            next_base.eq(
                Mux(
                    head_last,
                    Mux(token_last, base_of_keys + p.group * p.head_words, base_of_keys),
                    base + p.head_words,
                )
            ),
            next_at.eq(Mux(head_last, Mux(token_last, begin, at - 1), at)),
        ]
        with m.If(step):
            m.d.sync += [address.eq(address + 1), tile.eq(tile - 1)]
            with m.If(last):
                m.d.sync += [tile.eq(tiles), base.eq(next_base), at.eq(next_at)]
                m.d.sync += [address.eq(next_base + next_at[split:]), sharing.eq(sharing - 1)]
                with m.If(head_last):
                    m.d.sync += [sharing.eq(p.group), token.eq(token - 1)]
                    with m.If(token_last):
                        m.d.sync += [token.eq(tokens), keys.eq(keys - 1), base_of_keys.eq(next_base)]
                        m.d.sync += sending.eq(keys != 1)
        with m.If(queue.o.valid & queue.o.ready):
            count = (fields.length + p.lanes - 1) >> split
            m.d.sync += [
                *(loading.eq(1), word.eq(0), tiles.eq(count), tile.eq(count)),
                *(tokens.eq(fields.t), token.eq(fields.t), sharing.eq(p.group), keys.eq(p.heads // p.group)),
                *(begin.eq(fields.begin), at.eq(fields.begin), base.eq(0), base_of_keys.eq(0)),
                address.eq(fields.begin[split:]),
            ]

        # Two tiles are read; the window that begins in the first one is sent.
        read, sent, take = Signal(), Signal(), Signal()
        turn = Signal(split + 1, reset_less=True)  # numbers before the window, counted from the even tile
        m.d.comb += [
            take.eq(read & (~sent | self.o.ready)),
            step.eq(sending & (~read | take)),
            reads[0].en.eq(step),
            reads[1].en.eq(step),
            reads[0].addr.eq((address + 1)[1 : p.bank_bits + 1]),
            reads[1].addr.eq(address[1:]),
            self.o.valid.eq(sent),
        ]
        window = Signal(bits, reset_less=True)
        numbers = [part for bank in reads for part in shares(bank.data, p.lanes)]
        with m.If(step):
            m.d.sync += turn.eq(Cat(at[:split], address[0]))
        with m.If(take):
            m.d.sync += window.eq(Cat(_turned(numbers, turn)[: p.lanes]))
        m.d.sync += [read.eq(step | (read & ~take)), sent.eq(take | (sent & ~self.o.ready))]
        m.d.comb += self.o.payload.eq(window)
        return m


def _turned(numbers: list[Value], turn: Signal) -> list[Value]:
    """The numbers from number `turn` on, then those before it."""
    for bit in range(len(turn)):
        by = 1 << bit
        numbers = [Mux(turn[bit], numbers[(n + by) % len(numbers)], own) for n, own in enumerate(numbers)]
    return numbers
