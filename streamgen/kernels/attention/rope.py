"""Rotary position embedding: pairs of elements of each head turn by an angle of the row's position.

    o1 = x1·c - x2·s      o2 = x2·c + x1·s      c, s: cosine and sine of pair j at the row's position

    half-split     x1 = x[j], x2 = x[j + rotated/2]      (Llama, Qwen, Gemma in transformers)
    interleaved    x1 = x[2j], x2 = x[2j + 1]            (Llama in GGUF files)

The first `rotated` elements of each head of `dims` turn, the others pass unchanged. Each product and the sum
round once to f24. Specials follow the products: an infinity meets NaN where the table holds 0 (position 0).

Tiles: `i` and `o` are (1, lanes) f24, rows of heads, row-major. `i_table` carries cosines and sines of lanes
(half-split) or lanes/2 (interleaved) pairs as (1, 2, pairs) of the table [rows, 2, rotated/2] of
`rope_tables`: a row for each row of `i`, sent once for every head, and for half-split for either half, hence
an itensor with re-use loops. Bases, scalings and positions are data: the load of the table begins at the row
of the first position.

Half-split pairs lie rotated/2 apart. Tokens go through a ring with two readers: an element leaves with its
partner, once both are there. Interleaved pairs lie in one token and need no ring. One token a cycle.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.gateware.arith import F24, ProductSumParams
from streamgen.gateware.rtl import Shared
from streamgen.gateware.stream import (
    CountdownParams,
    add_skid,
    descriptor_signature,
    signature,
    skid_resources,
)
from streamgen.itensor import ITensor

UNIT = ProductSumParams(form=F24)
ONE = int(F24.encode(np.array(1.0)))
SIGN = 1 << (F24.bits - 1)


@dataclass(frozen=True, kw_only=True)
class RopeParams:
    """dims: elements of a head; the first `rotated` of them turn. max_heads: of all rows of an execution.

    Bounds: rows, heads (of a row).
    """

    lanes: int
    dims: int
    rotated: int
    interleaved: bool
    max_heads: int

    def __post_init__(self) -> None:
        if self.lanes < 1 or (self.interleaved and self.lanes % 2):
            law = "even and at least 2" if self.interleaved else "at least 1"
            raise ValueError(f"Rope.lanes is {self.lanes}; it must be {law}")
        step = self.lanes if self.interleaved else 2 * self.lanes
        tokens = self.max_heads * (self.dims // self.lanes)
        for name, law, holds in (
            ("dims", f"a multiple of lanes = {self.lanes}", self.dims % self.lanes == 0),
            (
                "rotated",
                f"a multiple of {step} from {step} to dims = {self.dims}",
                step <= self.rotated <= self.dims and self.rotated % step == 0,
            ),
            ("max_heads", "at least 1, of fewer than 2^32 tokens", 1 <= tokens < 1 << 32),
        ):
            if not holds:
                raise ValueError(f"Rope.{name} is {getattr(self, name)}; it must be {law}")

    @property
    def head_tokens(self) -> int:
        """Tokens of a head."""
        return self.dims // self.lanes

    @property
    def turning_tokens(self) -> int:
        """Tokens of a head that turn; these are its first tokens."""
        return self.rotated // self.lanes

    @property
    def distance(self) -> int:
        """Tokens from a token to its partner; 0 for interleaved pairs."""
        return 0 if self.interleaved else self.turning_tokens // 2

    @property
    def ring_depth(self) -> int:
        """Tokens of the ring: all between partners, before and after, and two in flight."""
        return 1 << (2 * self.distance + 1).bit_length()

    @property
    def ring_style(self) -> str:
        """The memory of the ring: LUTs or block RAM."""
        return "distributed" if self.ring_depth <= 128 else "block"

    @property
    def latency(self) -> int:
        """Cycles from the first token in to the first one out."""
        ring = 0 if self.interleaved else self.distance + 1
        return ring + 1 + UNIT.latency + 1

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        rows, heads, turning = bounds["rows"], bounds["heads"], self.turning_tokens
        if self.interleaved:
            pairs, loops = self.lanes // 2, (rows, heads, 1, turning)
        else:
            pairs, loops = self.lanes, (rows, heads, 2, turning // 2)
        table = ITensor((1, 2, pairs), "f24", loops, (1, 1, 1, pairs), ((0,), (), (3,)))
        return {"i": self._rows(bounds), "i_table": table}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"o": self._rows(bounds)}

    def _rows(self, bounds: Bounds) -> ITensor:
        loops = (bounds["rows"], bounds["heads"], self.head_tokens)
        return ITensor((1, self.lanes), "f24", loops, (1, self.dims, self.lanes), ((0,), (1, 2)))

    def descriptor_fields(self) -> tuple[Field, ...]:
        """The number of tokens."""
        return (Field("tokens", (self.max_heads * self.head_tokens).bit_length()),)

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        """The value of the field; ValueError if there are more than `max_heads` heads in all."""
        rows, heads = bounds["rows"], bounds["heads"]
        for name, value in (("rows", rows), ("heads", heads)):
            if value < 1:
                raise ValueError(f"Rope: {name} is {value}; it must be at least 1")
        if rows * heads > self.max_heads:
            raise ValueError(f"Rope: {rows} rows of {heads} heads are more than max_heads = {self.max_heads}")
        return {"tokens": rows * heads * self.head_tokens}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        """i [rows, heads·dims] and the table [rows, 2, rotated/2] to o, float32 as i."""
        result = inputs["i"].reshape(bounds["rows"], bounds["heads"], self.dims).copy()
        turning = result[:, :, : self.rotated]  # a view
        shape = (-1, 2) if self.interleaved else (2, -1)
        pairs = turning.reshape(*turning.shape[:2], *shape).astype(np.float64)
        first, second = np.moveaxis(pairs, 3 if self.interleaved else 2, 0)
        c, s = np.moveaxis(inputs["i_table"].astype(np.float64)[:, None], 2, 0)
        turned = UNIT.golden(first, c, -second, s), UNIT.golden(second, c, first, s)
        turning[:] = np.stack(turned, axis=3 if self.interleaved else 2).reshape(turning.shape)
        return {"o": result.reshape(inputs["i"].shape)}

    def cost(self, bounds: Bounds) -> Cost:
        tokens = self.describe(bounds)["tokens"]
        return Cost(
            resources=self._resources(), ii=1.0, latency=self.latency, cycles=1 + tokens + self.latency
        )

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        tokens = self.describe(bounds)["tokens"]
        issued = self.latency - UNIT.latency - 1  # the cycle in which the first token leaves the ring
        heads = (tokens // self.head_tokens, self.head_tokens)
        return {
            "i": Curve.nest(1, (tokens, 1)),
            "i_table": Curve.nest(issued, heads, (self.turning_tokens, 1)),
            "o": Curve.nest(1 + self.latency, (tokens, 1)),
        }

    def _resources(self) -> Resources:
        """Fitted to synthesis: the units, the ring, the registers before them, the control."""
        token = self.lanes * F24.bits
        count = CountdownParams(bits=self.descriptor_fields()[0].bits)
        total = self.lanes * UNIT.resources + count.resources + skid_resources(token, 1)
        if self.turning_tokens < self.head_tokens:  # what passes is multiplied by 1
            total += Resources(lut=2.4 * token, ff=0)
        if self.interleaved:
            return total + Resources(lut=20, ff=2 * token)
        control = Resources(lut=30, ff=30 + 2 * token)
        if self.ring_style == "block":
            blocks = -(-token * max(self.ring_depth, 512) // 18432) / 2
            return total + control + Resources(lut=0, ff=0, bram=2 * blocks)
        # For each reader eight LUTs for 14 bits of 32 words or 7 of 64, multiplexers beyond.
        words = max(self.ring_depth, 32)
        lut = 2 * 8 * -(-token * words // (14 * 32)) + (2 * token if words > 64 else 0)
        return total + control + Resources(lut=lut, ff=2 * token)

    def build(self) -> "Rope":
        return Rope(self)


class Rope(wiring.Component):
    """The hardware of a RopeParams."""

    def __init__(self, params: RopeParams) -> None:
        self.params = params
        bounds = {"rows": 1, "heads": 1}
        inputs = params.inputs(bounds)
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i": In(signature(inputs["i"])),
                "i_table": In(signature(inputs["i_table"])),
                "o": Out(signature(params.outputs(bounds)["o"])),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        params = self.params
        count = CountdownParams(bits=params.descriptor_fields()[0].bits).build()
        m.submodules.count = count
        m.d.comb += [
            count.i_count.payload.eq(self.i_descriptor.payload.tokens),
            count.i_count.valid.eq(self.i_descriptor.valid),
            self.i_descriptor.ready.eq(count.i_count.ready),
        ]
        results = stream.Signature(len(self.o.payload)).create()
        add_skid(m, results, [wiring.flipped(self.o)])
        move, there, issue = Signal(), Signal(), Signal()  # the pipe moves; a token is there; it enters
        index = Signal(range(params.head_tokens))
        turns = Signal()
        m.d.comb += [
            move.eq(~results.valid | results.ready),
            turns.eq(index < params.turning_tokens),
            issue.eq(move & there & (~turns | self.i_table.valid)),
            self.i_table.ready.eq(move & there & turns),
        ]
        with m.If(issue):
            m.d.sync += index.eq(Mux(index == params.head_tokens - 1, 0, index + 1))
        table = Signal.like(self.i_table.payload, reset_less=True)
        turning, moving = Signal(reset_less=True), Signal(1 + UNIT.latency)
        with m.If(move):
            m.d.sync += [
                table.eq(self.i_table.payload),
                turning.eq(turns),
                moving.eq(Cat(issue, moving)),
            ]
        m.d.comb += results.valid.eq(moving[-1])

        take = self._take_pairs if params.interleaved else self._take_halves
        own, partner, negative = take(m, count, move, there, issue, index)
        always = params.turning_tokens == params.head_tokens
        pairs = len(table) // F24.bits // 2
        for lane in range(params.lanes):
            block = Shared(UNIT)
            m.submodules[f"lane_{lane}"] = block
            pair = lane // 2 if params.interleaved else lane
            x, y = own.word_select(lane, F24.bits), partner.word_select(lane, F24.bits)
            y ^= Cat(Const(0, F24.bits - 1), negative[lane])
            c, s = table.word_select(pair, F24.bits), table.word_select(pairs + pair, F24.bits)
            if not always:  # x·1 + -0·0 is x, also its sign where it is 0
                y, c, s = Mux(turning, y, SIGN), Mux(turning, c, ONE), Mux(turning, s, 0)
            m.d.comb += [
                block.enable.eq(move),
                block.a.eq(x),
                block.b.eq(c),
                block.c.eq(y),
                block.d.eq(s),
                results.payload.word_select(lane, F24.bits).eq(block.o),
            ]
        return m

    def _take_pairs(
        self, m: Module, count: Any, move: Value, there: Value, issue: Value, index: Value
    ) -> tuple[Value, Value, Value]:
        """A token and its neighbours, in the order of partners, a cycle after `issue`; which are negative."""
        own = Signal.like(self.i.payload, reset_less=True)
        m.d.comb += [
            there.eq(count.active & self.i.valid),
            count.step.eq(issue),
            self.i.ready.eq(issue),
        ]
        with m.If(move):
            m.d.sync += own.eq(self.i.payload)
        lanes = range(self.params.lanes)
        partner = Cat(own.word_select(lane ^ 1, F24.bits) for lane in lanes)
        return own, partner, Cat(Const(1 - lane % 2, 1) for lane in lanes)

    def _take_halves(
        self, m: Module, count: Any, move: Value, there: Value, issue: Value, index: Value
    ) -> tuple[Value, Value, Value]:
        """A token and its partner, a cycle after `issue`; whether the partner is negative.

        A partner that went before stays in the ring: `distance` places behind the reader are not written.
        """
        depth, distance = self.params.ring_depth, self.params.distance
        attributes = {"ram_style": self.params.ring_style}
        ring = Memory(shape=len(self.i.payload), depth=depth, init=[], attrs=attributes)
        m.submodules.ring = ring
        write, own, partner = ring.write_port(), ring.read_port(), ring.read_port()
        waiting = Signal(range(depth + 1))  # tokens in the ring that have not left
        taken, first, negative = Signal(), Signal(), Signal(reset_less=True)
        m.d.comb += [
            self.i.ready.eq(count.active & (waiting < depth - distance)),
            taken.eq(self.i.valid & self.i.ready),
            count.step.eq(taken),
            write.en.eq(taken),
            write.data.eq(self.i.payload),
            first.eq(index < distance),
            there.eq(Mux(first, waiting > distance, waiting != 0)),
            own.en.eq(move),
            partner.en.eq(move),
            partner.addr.eq(Mux(first, own.addr + distance, own.addr - distance)),
        ]
        m.d.sync += [
            write.addr.eq(write.addr + taken),
            own.addr.eq(own.addr + issue),
            waiting.eq(waiting + taken - issue),
        ]
        with m.If(move):
            m.d.sync += negative.eq(first)
        return own.data, partner.data, negative.replicate(self.params.lanes)
