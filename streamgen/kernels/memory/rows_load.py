"""Rows of a table in memory by their numbers: embeddings, rotary tables.

    o = table[id]        one row for each id of i, in their order; the row behind the last for unknown ids

Tiles in: `i` (1) u32. Out: `o` (1, *tile), row by row, the tiles of a row in row-major order. The table, a
constant [vocabulary + 1, *stored], lies in memory in that order, each row in whole beats: what is stored of a
row may be longer than what is sent. Inside are an `Embedding`, which finds the rows, and a `Load`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise
from math import ceil, prod
from typing import Any, ClassVar, Literal

import numpy as np
from amaranth import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.artifact.packing import MemoryLayout
from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve
from streamgen.fifo.clocks import Clocks
from streamgen.fifo.curves import KernelSide
from streamgen.gateware.stream import descriptor_signature
from streamgen.itensor import ITensor
from streamgen.kernels.memory.joints import TRIP, beat_pace, join
from streamgen.kernels.moves.embedding import EmbeddingParams
from streamgen.kernels.moves.join_rows import JoinRowsParams
from streamgen.platform.axi import ReadPort
from streamgen.platform.dma import LoadParams

_HELD = 6  # rows that a load surely takes numbers for while its first row waits
_LEAST_PREFETCH = 32  # beats, of a load of parts of rows


@dataclass(frozen=True, kw_only=True)
class RowsLoadParams:
    """shape: of a row of the table. tile: of a token, which divides the row. vocabulary: the number of rows
    without the unknown row. max_ids: of one execution. prefetch, burst, rate, latency: as of a Load.

    Bounds: ids (their number), offset (of the table, in beats).
    """

    shape: tuple[int, ...]
    tile: tuple[int, ...]
    vocabulary: int
    max_ids: int
    dtype: str = "f24"
    prefetch: int = 64
    burst: int = 16
    rate: float
    latency: int
    memory_ports: ClassVar[Mapping[str, Literal["read"]]] = {"memory": "read"}

    def __post_init__(self) -> None:
        shapes = zip(self.shape, self.tile, strict=False)
        if len(self.shape) != len(self.tile) or any(tile < 1 or row % tile for row, tile in shapes):
            raise ValueError(f"tiles {self.tile} do not divide the rows {self.shape} of a RowsLoad")
        if self.stored != self.shape and self.shape[:-1] != self.tile[:-1]:
            raise ValueError(
                f"a row {self.shape} of {self.dtype} in tiles {self.tile} does not fill whole beats; only "
                "rows with all their tiles along the last dimension may be longer in memory"
            )

    @property
    def tokens(self) -> int:
        """Tokens of a row."""
        return prod(self.shape) // prod(self.tile)

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape of a row in memory, where it fills whole beats."""
        left = -self.tokens % self.layout.tokens_per_beat
        return (*self.shape[:-1], self.shape[-1] + left * self.tile[-1])

    @property
    def row_units(self) -> int:
        """Pieces of a row in memory that may lie apart, each in as few whole beats as possible; 1 for rows
        whose tiles do not all follow one another along the last dimension."""
        if self.shape[:-1] != self.tile[:-1]:
            return 1
        return self.row_beats // self.layout.beats_per_token

    def parts(self, units: Sequence[int]) -> list[tuple["RowsLoadParams", slice]]:
        """Loads of consecutive parts of each row, which together take the beats of the row and about the same
        FIFOs, and the elements of a stored row that each part holds. units: of each part. ValueError if these
        are not the units of the row."""
        if sum(units) != self.row_units or min(units) < 1:
            raise ValueError(
                f"rows {self.shape} of {self.dtype} in tiles {self.tile} have {self.row_units} units, which "
                f"parts of {list(units)} units are not"
            )
        elements = self.layout.tokens_per_beat * self.tile[-1]
        loads = []
        for first, end in pairwise(accumulate(units, initial=0)):
            held = slice(first * elements, end * elements)
            share = self.prefetch * (end - first) // self.row_units
            prefetch = min(self.prefetch, max(_LEAST_PREFETCH, 1 << (share - 1).bit_length()))
            part = replace(
                self,
                shape=(*self.shape[:-1], min(held.stop, self.shape[-1]) - held.start),
                prefetch=prefetch,
                burst=min(self.burst, 1 << max(0, prefetch.bit_length() - 2)),
            )
            loads.append((part, held))
        return loads

    def joined(self, parts: Sequence["RowsLoadParams"]) -> JoinRowsParams:
        """The kernel that joins the rows of parts to whole rows."""
        return JoinRowsParams(
            ways=len(parts),
            dtype=self.dtype,
            lanes=self.tile[-1],
            max_tokens=self.max_ids * self.tokens,
            lines=prod(self.tile[:-1]),
        )

    def joined_bounds(self, parts: Sequence["RowsLoadParams"], bounds: Bounds) -> Bounds:
        """Its bounds. bounds: of the load of whole rows."""
        return {"rows": bounds["ids"], "parts": tuple(part.shape[-1] for part in parts)}

    @property
    def layout(self) -> MemoryLayout:
        """The layout of tokens in memory."""
        return MemoryLayout(self.dtype, (1, *self.tile))

    @property
    def row_beats(self) -> int:
        return self.layout.beats(self.tokens)

    @property
    def table(self) -> ITensor:
        """The table in memory."""
        return self._rows(self.vocabulary + 1, self.stored)

    @property
    def places(self) -> EmbeddingParams:
        """The unit that finds the rows."""
        return EmbeddingParams(
            row_beats=self.row_beats,
            row_tokens=self.tokens,
            load_tokens=self.tokens,
            max_rows=self.vocabulary,
            max_ids=self.max_ids,
        )

    @property
    def load(self) -> LoadParams:
        return LoadParams(
            layout=self.layout,
            max_tokens=self.tokens,
            prefetch=self.prefetch,
            burst=self.burst,
            rate=self.rate,
            latency=self.latency,
        )

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return self.places.inputs(bounds)

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"o": self._rows(bounds["ids"], self.shape)}

    def descriptor_fields(self) -> tuple[Field, ...]:
        return self.places.descriptor_fields()

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        return self.places.describe({**bounds, "vocabulary": self.vocabulary})

    def traffic(self, bounds: Bounds) -> Mapping[str, int]:
        return {"memory": bounds["ids"] * self.row_beats}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        """`memory`: the table [vocabulary + 1, stored row]."""
        rows = inputs["memory"][np.minimum(inputs["i"], self.vocabulary)]
        return {"o": rows[..., : self.shape[-1]]}

    def cost(self, bounds: Bounds) -> Cost:
        resources = self.places.cost({**bounds, "vocabulary": 1}).resources + self.load._resources
        last = int(self.curves(bounds)["o"].cycles()[-1])
        ii = max(self.load._ii, float(self._pace(bounds["ids"]) / self.tokens))
        return Cost(resources=resources, ii=ii, latency=self._first, cycles=last + 1)

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        """Rows one after the other as memory gives them; ids wait for room in the queue of descriptors."""
        ids = bounds["ids"]
        pace, alone = ceil(self._pace(ids)), ceil(self._pace(1))
        return {
            "i": Curve.nest(1, (ids, pace)),
            "o": Curve.nest(self._first, (ids, pace), (self.tokens, max(1, alone // self.tokens))),
        }

    def clocks(self, bounds: Bounds) -> Clocks:
        """A command for each id. The place of a row relative to bursts is not known, so a row counts as
        beginning at one."""
        ids, ahead = np.arange(bounds["ids"]), self.load.counts.depth + 1
        take, ask = KernelSide("take", 1 + ids), KernelSide("ask", 2 + self.places.latency + ids)
        pop, send, streams = self.load.unpacked(bounds["ids"] * self.tokens)
        streams += (take.to(ask, ids, ids, latency=1 + self.places.latency), ask.to(take, ids[:-2], ids[2:]))
        if self.layout.tokens_per_beat > 1:
            streams += (send.to(ask, ids[:-ahead] * self.tokens + self.tokens - 1, ids[ahead:]),)
        count = len(ids)
        return Clocks(
            (take, ask, pop, send),
            {"i": (take, ids), "o": (send, np.arange(count * self.tokens))},
            streams,
            (self.load.reads("memory", (ask, ids), pop, [self.row_beats] * count, [0] * count),),
        )

    def build(self) -> "RowsLoad":
        return RowsLoad(self)

    def _pace(self, ids: int) -> Fraction:
        """Cycles per row, of that many rows; a load with several tokens per beat has few transfers
        in flight."""
        load = self.load
        pace = max(Fraction(self.tokens), self.row_beats * beat_pace(load, ids * self.row_beats))
        if load.layout.tokens_per_beat > 1 and ids > (ahead := load.counts.depth + 1):
            pace = max(pace, Fraction(load.latency + 2 * TRIP + self.tokens, ahead))
        return pace

    @property
    def _first(self) -> int:
        return 1 + self.places.latency + self.load._first

    def _rows(self, count: int, shape: tuple[int, ...]) -> ITensor:
        trips = (count, *(row // tile for row, tile in zip(shape, self.tile, strict=True)))
        loops = tuple((k,) for k in range(len(trips)))
        return ITensor((1, *self.tile), self.dtype, trips, (1, *self.tile), loops)


class WaitingRowsLoadParams(RowsLoadParams):
    """A RowsLoad whose rows may wait for a row of the whole sequence, which other rows of the same numbers
    make. FIFOs are sized for the few rows that it holds meanwhile, not for those on their way from memory."""

    apart: ClassVar[bool] = True

    def clocks(self, bounds: Bounds) -> Clocks:
        """Ids are taken up to `_HELD` rows ahead of the row that is sent."""
        curves, ids = self.curves(bounds), np.arange(bounds["ids"])
        take, send = (
            KernelSide(name, curves[port].cycles(), None) for name, port in (("take", "i"), ("send", "o"))
        )
        ends = ids * self.tokens + self.tokens - 1
        streams = (
            take.to(send, ids, ids * self.tokens, latency=self._first - 1),
            send.to(take, ends[:-_HELD], ids[_HELD:]),
        )
        ports = {"i": (take, ids), "o": (send, np.arange(len(ids) * self.tokens))}
        return Clocks((take, send), ports, streams)


class RowsLoad(wiring.Component):
    """The hardware of a RowsLoadParams; `base`: the byte address of the buffer that holds the table."""

    def __init__(self, params: RowsLoadParams) -> None:
        self.params = params
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i": In(stream.Signature(32)),
                "o": Out(params.load.token_signature),
                "memory": Out(ReadPort),
                "base": In(64),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.places = places = self.params.places.build()
        m.submodules.load = load = self.params.load.build()
        join(m, self.i_descriptor, places.i_descriptor)
        join(m, self.i, places.i)
        join(m, places.o, load.i_descriptor)
        join(m, load.o, self.o)
        wiring.connect(m, wiring.flipped(self.memory), load.memory)
        m.d.comb += load.base.eq(self.base)
        return m
