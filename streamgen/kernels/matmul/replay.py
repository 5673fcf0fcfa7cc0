"""A FIFO whose words are sent tile by tile, each tile several times.

    for each tile: for each pass: its words, in the order in which they were written

The writer waits for `room`, sets `commit` and gives the word with `write`, one or more cycles later, in the
order of the commits. A word is sent as soon as it is written, even if its tile is not complete, and its place
is free when it is read in the last pass. The ring therefore holds a tile, and the words that run ahead of it.
"""

from dataclasses import dataclass
from typing import Any

from amaranth import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from streamgen.contract import Field
from streamgen.contract.cost import Resources
from streamgen.fifo.queue import RAM_STYLE, Kind, QueueParams
from streamgen.gateware.stream import descriptor_signature


@dataclass(frozen=True, kw_only=True)
class ReplayParams:
    """bits: of a word. depth: of the ring, a power of two. max_tiles, max_passes, max_words: of a descriptor.

    A descriptor's `tag` is sent beside each of its words.
    """

    bits: int
    depth: int
    max_tiles: int
    max_passes: int
    max_words: int

    @property
    def kind(self) -> Kind:
        """The memory of the ring."""
        return QueueParams(bits=self.bits, depth=self.depth).kind

    @property
    def latency(self) -> int:
        """Cycles from a word read to the word offered."""
        return 1 if self.kind == "lutram" else 2

    @property
    def walk(self) -> "Walk":
        """The loops of a descriptor."""
        return Walk(
            words_bits=self.max_words.bit_length(),
            passes_bits=self.max_passes.bit_length(),
            tiles_bits=self.max_tiles.bit_length(),
        )

    def descriptor_fields(self) -> tuple[Field, ...]:
        return (*self.walk.fields, Field("tag", 1))

    @property
    def resources(self) -> Resources:
        address = ceil_log2(self.depth)
        memory = QueueParams(bits=self.bits, depth=self.depth).storage + self.walk.resources
        return memory + Resources(lut=4 * address + 22, ff=self.bits + 5 * address + 12)

    def build(self) -> "Replay":
        return Replay(self)


@dataclass(frozen=True, kw_only=True)
class Walk:
    """Loops over tiles, passes and words, each of which may have a single turn; bits of their counts.

    words: of a tile, if the number is fixed.
    """

    words_bits: int
    passes_bits: int
    tiles_bits: int
    words: int | None = None

    @property
    def fields(self) -> tuple[Field, ...]:
        """tiles, passes and, where they are not fixed, words."""
        fields = Field("tiles", self.tiles_bits), Field("passes", self.passes_bits)
        return fields if self.words is not None else (*fields, Field("words", self.words_bits))

    @property
    def resources(self) -> Resources:
        """The registers of the counts, and their steps."""
        counted = self.words_bits + self.passes_bits + self.tiles_bits
        kept = self.passes_bits + (self.words_bits if self.words is None else 0)
        return Resources(lut=2.6 * counted + 12, ff=counted + kept + 4)

    def build_into(self, m: Module, descriptor: Any, step: Any) -> tuple[Any, Any, Any, Any]:
        """active, and whether the current word ends its pass, the pass its tile, and the tile the descriptor.

        A descriptor is taken when nothing is active. step: the current word is done.
        """
        fields = descriptor.payload
        fixed = self.words
        active, word_last, pass_last, tile_last = (
            Signal(name=name) for name in ("active", "word_last", "pass_last", "tile_last")
        )
        words_left = Signal(self.words_bits, reset_less=True)
        passes_left = Signal(self.passes_bits, reset_less=True)
        tiles_left = Signal(self.tiles_bits, reset_less=True)
        passes = Signal(self.passes_bits, reset_less=True)
        words: Any = Signal(self.words_bits, reset_less=True) if fixed is None else fixed
        m.d.comb += descriptor.ready.eq(~active)
        with m.If(~active):
            m.d.sync += [
                active.eq(descriptor.valid),
                words_left.eq(fields.words if fixed is None else fixed),
                word_last.eq((fields.words if fixed is None else fixed) == 1),
                passes.eq(fields.passes),
                passes_left.eq(fields.passes),
                pass_last.eq(fields.passes == 1),
                tiles_left.eq(fields.tiles),
                tile_last.eq(fields.tiles == 1),
            ]
            if fixed is None:
                m.d.sync += words.eq(fields.words)
        with m.Elif(step):
            m.d.sync += [
                words_left.eq(Mux(word_last, words, words_left - 1)),
                word_last.eq(Mux(word_last, words == 1, words_left == 2)),
            ]
            with m.If(word_last):
                m.d.sync += [
                    passes_left.eq(Mux(pass_last, passes, passes_left - 1)),
                    pass_last.eq(Mux(pass_last, passes == 1, passes_left == 2)),
                ]
                with m.If(pass_last):
                    m.d.sync += [
                        tiles_left.eq(tiles_left - 1),
                        tile_last.eq(tiles_left == 2),
                        active.eq(~tile_last),
                    ]
        return active, word_last, pass_last, tile_last


class Replay(wiring.Component):
    """See the module."""

    def __init__(self, params: ReplayParams) -> None:
        self._params = params
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "room": Out(1, init=1),
                "commit": In(1),
                "write": In(1),
                "data": In(params.bits),
                "o": Out(stream.Signature(params.bits)),
                "tag": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self._params
        address = ceil_log2(p.depth)
        top = 1 << address
        committed, written, at, freed = (
            Signal(address + 1, name=name) for name in ("committed", "written", "at", "freed")
        )
        following = Signal(address + 1, init=1)  # committed + 1
        fetch, advance = Signal(), Signal()
        tag = Signal(reset_less=True)
        m.submodules.memory = rows = Memory(
            shape=p.bits, depth=p.depth, init=[], attrs={"ram_style": RAM_STYLE[p.kind]}
        )
        write = rows.write_port()
        m.d.comb += [write.en.eq(self.write), write.data.eq(self.data), write.addr.eq(written[:address])]
        m.d.sync += [
            written.eq(written + self.write),
            self.room.eq(Mux(self.commit, following ^ freed, committed ^ freed) != top),
        ]
        with m.If(self.commit):
            m.d.sync += [committed.eq(following), following.eq(following + 1)]

        active, word_last, pass_last, _ = p.walk.build_into(m, self.i_descriptor, fetch)
        with m.If(~active):
            m.d.sync += tag.eq(self.i_descriptor.payload.tag)
        m.d.comb += fetch.eq(active & (written != at) & advance)
        with m.If(fetch):
            m.d.sync += at.eq(Mux(word_last & ~pass_last, freed, at + 1))
            with m.If(pass_last):
                m.d.sync += freed.eq(at + 1)

        shift = Signal()
        payload = Signal(p.bits, reset_less=True)
        m.d.comb += [shift.eq(~self.o.valid | self.o.ready), self.o.payload.eq(payload)]
        if p.kind == "lutram":
            read = rows.read_port(domain="comb")
            m.d.comb += [read.addr.eq(at[:address]), advance.eq(shift)]
            with m.If(shift):
                m.d.sync += [self.o.valid.eq(fetch), payload.eq(read.data), self.tag.eq(tag)]
            return m
        read = rows.read_port(domain="sync")
        fetched, fetched_tag = Signal(), Signal(reset_less=True)
        m.d.comb += [read.addr.eq(at[:address]), read.en.eq(advance), advance.eq(~fetched | shift)]
        with m.If(advance):
            m.d.sync += [fetched.eq(fetch), fetched_tag.eq(tag)]
        with m.If(shift):
            m.d.sync += [self.o.valid.eq(fetched), payload.eq(read.data), self.tag.eq(fetched_tag)]
        return m
