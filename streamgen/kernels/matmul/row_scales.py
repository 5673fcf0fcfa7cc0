"""Row scales of a matmul column out of beats: each tile's, once for each token.

    for each tile: for each pass: its row scales

A beat has 16 of them, or 8 with a bias beside each, as float32 with the value in the upper 24 bits, and is
kept whole until its last row is sent the last time. What is left of the last beat of a descriptor is dropped.
"""

from dataclasses import dataclass
from typing import Any

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from streamgen.artifact.packing import BEAT_BITS, WORD_LANES
from streamgen.contract import Field
from streamgen.contract.cost import Resources
from streamgen.fifo.queue import QueueParams
from streamgen.gateware.stream import descriptor_signature
from streamgen.kernels.matmul.replay import Walk

_VALUE_BITS = 24
_LEAST = 32  # rows of a LUT memory


@dataclass(frozen=True, kw_only=True)
class RowScalesParams:
    """tile_rows: of a tile. max_tiles, max_passes: of a descriptor. bias: one beside each scale."""

    tile_rows: int
    max_tiles: int
    max_passes: int
    bias: bool = False

    @property
    def row_bits(self) -> int:
        """Bits sent for a row."""
        return _VALUE_BITS * (1 + self.bias)

    @property
    def beat_rows(self) -> int:
        """Rows of a beat."""
        return WORD_LANES // (1 + self.bias)

    @property
    def depth(self) -> int:
        """Beats that are kept: a power of two, with room for more than a tile."""
        return int(max(_LEAST, 1 << ceil_log2(2 + -(-self.tile_rows // self.beat_rows))))

    @property
    def walk(self) -> Walk:
        """The loops of a descriptor."""
        return Walk(
            words=self.tile_rows,
            words_bits=self.tile_rows.bit_length(),
            passes_bits=self.max_passes.bit_length(),
            tiles_bits=self.max_tiles.bit_length(),
        )

    def descriptor_fields(self) -> tuple[Field, ...]:
        return self.walk.fields

    @property
    def resources(self) -> Resources:
        queue = QueueParams(bits=_VALUE_BITS * WORD_LANES, depth=self.depth, memory="lutram")
        choice = 5 * _VALUE_BITS  # of a row out of a beat: half as many of twice the bits
        return queue.storage + self.walk.resources + Resources(lut=choice + 44, ff=self.row_bits + 38)

    def build(self) -> "RowScales":
        return RowScales(self)


class RowScales(wiring.Component):
    """`take` puts the beat `data` in when there is `room`; rows on `o`."""

    def __init__(self, params: RowScalesParams) -> None:
        self._params = params
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "room": Out(1, init=1),
                "take": In(1),
                "data": In(BEAT_BITS),
                "o": Out(stream.Signature(params.row_bits)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self._params
        lanes, address = ceil_log2(p.beat_rows), ceil_log2(p.depth)
        written, following = Signal(address + 1), Signal(address + 1, init=1)  # beats; and one more
        at, start, end = (Signal(lanes + address + 1, name=name) for name in ("at", "start", "end"))
        fetch = Signal()
        m.submodules.memory = beats = Memory(
            shape=_VALUE_BITS * WORD_LANES, depth=p.depth, init=[], attrs={"ram_style": "distributed"}
        )
        write = beats.write_port()
        values = (self.data.word_select(k, 32)[32 - _VALUE_BITS :] for k in range(WORD_LANES))
        m.d.comb += [write.en.eq(self.take), write.data.eq(Cat(values)), write.addr.eq(written[:address])]
        oldest, full = start[lanes:], 1 << address
        m.d.sync += self.room.eq(Mux(self.take, following ^ oldest, written ^ oldest) != full)
        with m.If(self.take):
            m.d.sync += [written.eq(following), following.eq(following + 1)]

        active, row_last, pass_last, tile_last = p.walk.build_into(m, self.i_descriptor, fetch)
        read = beats.read_port(domain="comb")
        m.d.comb += [
            read.addr.eq(at[lanes:][:address]),
            fetch.eq(active & (written != at[lanes:]) & (~self.o.valid | self.o.ready)),
            end.eq(Mux(pass_last & row_last & tile_last, at | (p.beat_rows - 1), at) + 1),
        ]
        with m.If(fetch):
            m.d.sync += at.eq(Mux(row_last & ~pass_last, start, end))
            with m.If(row_last & pass_last):
                m.d.sync += start.eq(end)
        with m.If(~self.o.valid | self.o.ready):
            m.d.sync += [
                self.o.valid.eq(fetch),
                self.o.payload.eq(read.data.word_select(at[:lanes], p.row_bits)),
            ]
        return m
