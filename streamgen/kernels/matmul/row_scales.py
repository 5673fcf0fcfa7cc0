"""Row scales of a matmul column out of beats: each tile's, once for each token.

    for each tile: for each pass: its row scales

A beat has 16 of them, as float32 with the value in the upper 24 bits, and is kept whole until its last row
is sent the last time. What is left of the last beat of a descriptor is dropped.
"""

from dataclasses import dataclass
from typing import Any

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from streamgen.buffers.packing import BEAT_BITS, WORD_LANES
from streamgen.contract import Field
from streamgen.cost import Resources
from streamgen.fifo.queue import QueueParams
from streamgen.kernels.matmul.replay import Walk
from streamgen.stream import descriptor_signature

__all__ = ["RowScales", "RowScalesParams"]

_ROW_BITS = 24
_LEAST = 32  # rows of a LUT memory


@dataclass(frozen=True, kw_only=True)
class RowScalesParams:
    """tile_rows: of a tile. max_tiles, max_passes: of a descriptor."""

    tile_rows: int
    max_tiles: int
    max_passes: int

    @property
    def depth(self) -> int:
        """Beats that are kept: a power of two, with room for more than a tile."""
        return int(max(_LEAST, 1 << ceil_log2(2 + -(-self.tile_rows // WORD_LANES))))

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
        queue = QueueParams(bits=_ROW_BITS * WORD_LANES, depth=self.depth, memory="lutram")
        return queue.storage + self.walk.resources + Resources(lut=5 * _ROW_BITS + 44, ff=_ROW_BITS + 38)

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
                "o": Out(stream.Signature(_ROW_BITS)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self._params
        lanes, address = ceil_log2(WORD_LANES), ceil_log2(p.depth)
        written, following = Signal(address + 1), Signal(address + 1, init=1)  # beats; and one more
        at, start, end = (Signal(lanes + address + 1, name=name) for name in ("at", "start", "end"))
        fetch = Signal()
        m.submodules.memory = beats = Memory(
            shape=_ROW_BITS * WORD_LANES, depth=p.depth, init=[], attrs={"ram_style": "distributed"}
        )
        write = beats.write_port()
        rows = (self.data.word_select(k, 32)[32 - _ROW_BITS :] for k in range(WORD_LANES))
        m.d.comb += [write.en.eq(self.take), write.data.eq(Cat(rows)), write.addr.eq(written[:address])]
        oldest, full = start[lanes:], 1 << address
        m.d.sync += self.room.eq(Mux(self.take, following ^ oldest, written ^ oldest) != full)
        with m.If(self.take):
            m.d.sync += [written.eq(following), following.eq(following + 1)]

        active, row_last, pass_last, tile_last = p.walk.build_into(m, self.i_descriptor, fetch)
        read = beats.read_port(domain="comb")
        m.d.comb += [
            read.addr.eq(at[lanes:][:address]),
            fetch.eq(active & (written != at[lanes:]) & (~self.o.valid | self.o.ready)),
            end.eq(Mux(pass_last & row_last & tile_last, at | (WORD_LANES - 1), at) + 1),
        ]
        with m.If(fetch):
            m.d.sync += at.eq(Mux(row_last & ~pass_last, start, end))
            with m.If(row_last & pass_last):
                m.d.sync += start.eq(end)
        with m.If(~self.o.valid | self.o.ready):
            m.d.sync += [
                self.o.valid.eq(fetch),
                self.o.payload.eq(read.data.word_select(at[:lanes], _ROW_BITS)),
            ]
        return m
