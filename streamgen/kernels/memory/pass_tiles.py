"""Rows of a pass in tiles for attention, head by head, several positions per cycle.

    o = i[p, head]        head by head, p < rows; a head is sent `again` times; zeros behind the last position

Tiles in: `i` (1, width), position by position, head by head. Out: `o` (lanes, width) of a tensor [rows padded
to tiles, heads * width]. The hardware is that of a cache (`memory.kv_tiles`) without positions before the
pass. Its ring holds two heads: one is put together, a row per cycle, while another one is sent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from amaranth import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.artifact.kv_layout import KvLayout
from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.fifo.clocks import Clocks
from streamgen.fifo.curves import KernelSide
from streamgen.gateware.stream import descriptor_signature
from streamgen.itensor import ITensor
from streamgen.kernels.attention.kv_cache import rows_of_pass
from streamgen.kernels.memory.joints import join
from streamgen.kernels.memory.kv_tiles import KvTilesParams

_TAKEN = 2  # cycle in which the first row is taken
_BUILT = 3  # cycles from a row taken to its tile in the ring
_SENT = 2  # cycles from a tile in the ring to the tile sent


@dataclass(frozen=True, kw_only=True)
class PassTilesParams:
    """dtype, width: of a row. heads: of a position. lanes: positions of a tile, a power of two. max_rows:
    positions of a pass. max_again: the most times that a head is sent.

    Bounds: rows (positions), again.
    """

    dtype: str
    width: int
    heads: int
    lanes: int
    max_rows: int
    max_again: int
    squares: ClassVar[frozenset[str]] = frozenset({"o"})
    link_depth: ClassVar[int] = 1
    patient: ClassVar[bool] = True  # its memory holds all rows of a pass

    def __post_init__(self) -> None:
        self.tiles  # noqa: B018 which checks them

    @property
    def tiles(self) -> KvTilesParams:
        """The hardware."""
        layout = KvLayout(
            dtype=self.dtype,
            width=self.width,
            heads=self.heads,
            layers=1,
            positions=2 * self.max_rows,
            channels=self.lanes,
        )
        return KvTilesParams(
            layout=layout,
            lanes=self.lanes,
            parts=1,
            pieces=1,
            max_new=self.max_rows,
            max_again=self.max_again,
        )

    @property
    def held_bits(self) -> int:
        return self.tiles.held_bits

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"i": rows_of_pass(self.tiles.layout, bounds["rows"], 1)}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        loops = (self.heads, bounds["again"], self._count(bounds))
        steps = (self.width, 1, self.lanes)
        return {"o": ITensor((self.lanes, self.width), self.dtype, loops, steps, ((2,), (0,)))}

    def descriptor_fields(self) -> tuple[Field, ...]:
        return self.tiles.descriptor_fields()[1:]

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        for name, most in (("rows", self.max_rows), ("again", self.max_again)):
            if not 1 <= bounds[name] <= most:
                raise ValueError(f"PassTiles: {name} is {bounds[name]}; it must be 1 to {most}")
        return {"rows": bounds["rows"], "again": bounds["again"]}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        """o [rows padded to tiles, heads * width] of i [rows, heads * width]."""
        padded = np.zeros((self._count(bounds) * self.lanes, self.heads * self.width), inputs["i"].dtype)
        padded[: bounds["rows"]] = inputs["i"]
        return {"o": padded}

    def cost(self, bounds: Bounds) -> Cost:
        taken, sent = (curve.cycles() for curve in self.curves(bounds).values())
        busy = max(sent, taken, key=len)
        return Cost(
            resources=self.resources,
            ii=float(busy[-1] - busy[0]) / (len(busy) - 1) if len(busy) > 1 else 1.0,
            latency=int(sent[0]) - _TAKEN,
            cycles=int(sent[-1]) + 1,
        )

    @property
    def resources(self) -> Resources:
        """Fitted to synthesis, which removes the logic for positions before the pass."""
        return self.tiles.resources + -1 * Resources(lut=68 + 2 * self.lanes, ff=30)

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        """A head is sent as its rows come and its tiles get room; then a tile per cycle."""
        rows, again, tiles, depth = bounds["rows"], bounds["again"], self._count(bounds), self.tiles.depth
        pieces: list[Any] = []
        ends = np.minimum(np.arange(1, tiles + 1) * self.lanes, rows) - 1  # the last row of each tile
        freed = np.zeros(self.heads * tiles, np.int64)  # the cycle in which a tile is sent the last time
        filled = sent = 0  # cycles from which the next row, the next tile may pass
        for head in range(self.heads):
            fill = _TAKEN + _BUILT + self._arrivals(rows)[head]
            before = np.arange(head * tiles, (head + 1) * tiles) - depth
            there = ends[before >= 0]
            fill[there] = np.maximum(fill[there], freed[before[before >= 0]])
            fill[0] = max(fill[0], filled)
            fill = np.maximum.accumulate(fill - np.arange(rows)) + np.arange(rows)
            filled = int(fill[-1]) + 1
            first = fill[ends] + _SENT
            first[0] = max(first[0], sent)
            first = np.maximum.accumulate(first - np.arange(tiles)) + np.arange(tiles)
            pieces += [(int(cycle), ()) for cycle in first]
            end = int(first[-1]) + 1
            if again > 1:
                pieces.append((end, ((again - 1, tiles), (tiles, 1))))
            sent = end + (again - 1) * tiles
            freed[head * tiles : (head + 1) * tiles] = first if again == 1 else np.arange(sent - tiles, sent)
        return {"i": Curve.nest(_TAKEN, (rows * self.heads, 1)), "o": Curve(tuple(pieces))}

    def clocks(self, bounds: Bounds) -> Clocks:
        """Rows fill the ring in another order than they come: only a new latest one waits."""
        rows, again, tiles = bounds["rows"], bounds["again"], self._count(bounds)
        heads, depth = np.arange(self.heads), self.tiles.depth
        ends = np.minimum(np.arange(1, tiles + 1) * self.lanes, rows) - 1
        take = KernelSide("take", _TAKEN + np.arange(rows * self.heads))
        fill = KernelSide("fill", _TAKEN + _BUILT + np.arange(rows * self.heads), None)
        moves = np.arange(self.heads * again * tiles)
        send = KernelSide("send", _TAKEN + _BUILT + _SENT + moves)
        wanted = self._arrivals(rows).ravel()
        latest = np.flatnonzero(np.diff(np.maximum.accumulate(wanted), prepend=-1) > 0)
        built = (heads[:, None] * rows + ends).ravel()
        reads = (heads[:, None, None] * again + np.arange(again)[:, None]) * tiles + np.arange(tiles)
        last = reads[:, -1].ravel()
        streams = [
            take.to(fill, wanted[latest], latest, latency=_BUILT),
            fill.to(send, built, reads[:, 0].ravel(), latency=_SENT),
        ]
        if len(built) > depth:
            streams.append(send.to(fill, last[:-depth], built[depth:], latency=0))
        ports = {"i": (take, np.arange(rows * self.heads)), "o": (send, moves)}
        return Clocks((take, fill, send), ports, tuple(streams))

    def build(self) -> "PassTiles":
        return PassTiles(self)

    def _arrivals(self, rows: int) -> ndarray:
        """The number of the token on `i` that is the row of a head at a position: [heads, rows]."""
        return np.arange(rows) * self.heads + np.arange(self.heads)[:, None]

    def _count(self, bounds: Bounds) -> int:
        """Tiles of a head."""
        return -(-bounds["rows"] // self.lanes)


class PassTiles(wiring.Component):
    """The hardware of a PassTilesParams."""

    def __init__(self, params: PassTilesParams) -> None:
        self._params = params
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i": In(stream.Signature(params.tiles.own_bits)),
                "o": Out(stream.Signature(params.tiles.out_bits)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.tiles = tiles = self._params.tiles.build()
        given, asked = self.i_descriptor, tiles.i_descriptor
        m.d.comb += [
            asked.valid.eq(given.valid),
            given.ready.eq(asked.ready),
            asked.payload.position.eq(0),
            asked.payload.rows.eq(given.payload.rows),
            asked.payload.again.eq(given.payload.again),
        ]
        join(m, self.i, tiles.i)
        join(m, tiles.o, self.o)
        return m
