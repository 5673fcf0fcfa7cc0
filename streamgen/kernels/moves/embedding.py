"""Embedding rows: a stream of token ids becomes the descriptors of a load that reads those rows.

    o = {offset + min(id, vocabulary)·row_beats, row_tokens}        one for each id, in their order

The table lies in memory row after row, each from a beat of its own on: row_beats beats (of 64 bytes), which a
`Load` sends as row_tokens tokens. Rows may hold f24, or int8 codes whose scales are a table of their own with
its own kernel and load. Positions (of learned embeddings, or of a rope table) are ids too.

An id from `vocabulary` on is unknown. It reads the row behind the last one, which the table must have, and
which `with_unknown_row` fills with NaN: the rows of the model that come of it are NaN, no others.

Tiles: `i` (1) u32; `o` (1) of 32 + n bits: the payload of a Load's `i_descriptor`, the offset lowest, n bits
for the tokens. An id a cycle. Where the table begins and how many rows it has come with the descriptor.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for
from numpy import ndarray

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.gateware.stream import (
    CountdownParams,
    add_skid,
    descriptor_signature,
    signature,
    skid_resources,
)
from streamgen.itensor import ITensor

OFFSET_BITS = 32  # of a load, in beats
STAGES = 3  # the row, its distance from the table, its place


def with_unknown_row(table: ndarray) -> ndarray:
    """The rows of a table of floats and one of NaN behind them, for unknown ids."""
    return np.concatenate([table, np.full_like(table[:1], np.nan)])


@dataclass(frozen=True, kw_only=True)
class EmbeddingParams:
    """row_beats: from row to row. row_tokens: tokens of a row that the load sends. load_tokens: the load's
    max_tokens.

    max_rows: of a table. max_ids: of one execution.

    Bounds: ids (their number), vocabulary, offset (in beats).
    """

    row_beats: int
    row_tokens: int
    load_tokens: int
    max_rows: int
    max_ids: int

    def __post_init__(self) -> None:
        beats = 1 << OFFSET_BITS
        for name, low, high in (
            ("row_beats", 1, beats // 2),
            ("load_tokens", 1, (1 << 32) - 1),
            ("row_tokens", 1, self.load_tokens),
            ("max_rows", 1, beats // self.row_beats - 1 if self.row_beats > 0 else 0),
            ("max_ids", 1, (1 << 32) - 1),
        ):
            if not low <= getattr(self, name) <= high:
                raise ValueError(
                    f"Embedding.{name} is {getattr(self, name)}; it must be from {low} to {high}"
                )

    @property
    def latency(self) -> int:
        """Cycles from an id to its descriptor."""
        return STAGES + 1

    @property
    def row_bits(self) -> int:
        """Bits of the number of a row, the unknown one included."""
        return self.max_rows.bit_length()

    @property
    def tokens_bits(self) -> int:
        """Bits of the tokens of a descriptor of the load."""
        return bits_for(self.load_tokens)

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"i": ITensor((1,), "u32", (bounds["ids"],), (1,), ((0,),))}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        dtype = f"u{OFFSET_BITS + self.tokens_bits}"
        return {"o": ITensor((1,), dtype, (bounds["ids"],), (1,), ((0,),))}

    def descriptor_fields(self) -> tuple[Field, ...]:
        return (
            Field("ids", self.max_ids.bit_length()),
            Field("vocabulary", self.row_bits),
            Field("offset", OFFSET_BITS),
        )

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        """The fields; ValueError for too many ids or rows, or a table beyond 2^32 beats."""
        ids, rows, offset = bounds["ids"], bounds["vocabulary"], bounds["offset"]
        last = (1 << OFFSET_BITS) - (rows + 1) * self.row_beats
        for name, value, low, high in (
            ("ids", ids, 1, self.max_ids),
            ("vocabulary", rows, 1, self.max_rows),
            ("offset", offset, 0, last),
        ):
            if not low <= value <= high:
                raise ValueError(f"Embedding: {name} is {value}; it must be from {low} to {high}")
        return {"ids": ids, "vocabulary": rows, "offset": offset}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        """i: uint32 [ids]; o: uint64 [ids], offset + tokens·2^32."""
        rows = np.minimum(inputs["i"].astype(np.uint64), np.uint64(bounds["vocabulary"]))
        offset = np.uint64(bounds["offset"]) + rows * np.uint64(self.row_beats)
        return {"o": offset + np.uint64(self.row_tokens << OFFSET_BITS)}

    def cost(self, bounds: Bounds) -> Cost:
        ids = self.describe(bounds)["ids"]
        return Cost(resources=self._resources(), ii=1.0, latency=self.latency, cycles=1 + ids + self.latency)

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        ids = self.describe(bounds)["ids"]
        return {"i": Curve.nest(1, (ids, 1)), "o": Curve.nest(1 + self.latency, (ids, 1))}

    def _resources(self) -> Resources:
        """Fitted to synthesis: the count, the comparison, the product by a constant, the sum, the slice."""
        count = CountdownParams(bits=self.max_ids.bit_length()).resources
        rows, beats = self.row_bits, self.row_beats
        product = (self.max_rows * beats).bit_length()
        by_shift = beats & (beats - 1) == 0 or product < 10
        own = Resources(
            lut=12 + rows + product,
            ff=STAGES + 4 * OFFSET_BITS + 2 * rows + product,
            dsp=0 if by_shift else -(-rows // 26) * -(-beats.bit_length() // 17),
        )
        return count + skid_resources(OFFSET_BITS, 1) + own

    def build(self) -> "EmbeddingKernel":
        return EmbeddingKernel(self)


class EmbeddingKernel(wiring.Component):
    """The hardware of an EmbeddingParams."""

    def __init__(self, params: EmbeddingParams) -> None:
        self.params = params
        bounds = {"ids": 1}
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i": In(signature(params.inputs(bounds)["i"])),
                "o": Out(signature(params.outputs(bounds)["o"])),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        params, descriptor = self.params, self.i_descriptor
        count = CountdownParams(bits=params.max_ids.bit_length()).build()
        m.submodules.count = count
        m.d.comb += [
            count.i_count.payload.eq(descriptor.payload.ids),
            count.i_count.valid.eq(descriptor.valid),
            descriptor.ready.eq(count.i_count.ready),
        ]
        vocabulary = Signal(params.row_bits, reset_less=True)
        offset = Signal(OFFSET_BITS, reset_less=True)
        with m.If(count.taken):
            m.d.sync += [vocabulary.eq(descriptor.payload.vocabulary), offset.eq(descriptor.payload.offset)]

        results = stream.Signature(OFFSET_BITS).create()
        sent = stream.Signature(OFFSET_BITS).create()
        add_skid(m, results, [sent])
        m.d.comb += [
            self.o.valid.eq(sent.valid),
            sent.ready.eq(self.o.ready),
            self.o.payload.eq(Cat(sent.payload, Const(params.row_tokens, params.tokens_bits))),
        ]
        move, step, full = Signal(), Signal(), Signal(STAGES)
        m.d.comb += [
            move.eq(~results.valid | results.ready),
            step.eq(move & count.active & self.i.valid),
            count.step.eq(step),
            self.i.ready.eq(step),
            results.valid.eq(full[-1]),
        ]
        row = Signal(params.row_bits, reset_less=True)
        distance, place = Signal(OFFSET_BITS, reset_less=True), Signal(OFFSET_BITS, reset_less=True)
        begins = [Signal(OFFSET_BITS, name=f"offset_{stage}", reset_less=True) for stage in (1, 2)]
        m.d.comb += results.payload.eq(place)
        with m.If(move):
            m.d.sync += [
                full.eq(Cat(step, full)),
                row.eq(Mux(self.i.payload < vocabulary, self.i.payload, vocabulary)),
                distance.eq(row * params.row_beats),
                place.eq(begins[1] + distance),
                begins[0].eq(offset),
                begins[1].eq(begins[0]),
            ]
        return m
