"""Rows of scores under masks, each with its maximum: what a softmax begins with.

    row r lies at position  position + (r mod rows_per_head) // rows_per_position  and attends to the keys
    lo <= key < hi
    hi = the length, or with `causal` the row's position + 1, if that is less
    lo = start, or with a window the row's position + 1 - window, if that is more

Tokens in: (1, lanes) f24, row-major, the last of a row padded; what a row does not attend to is ignored,
whatever it holds, and goes on as -infinity. Tokens out: the same, once the row is complete, each with the
negated maximum of its row, which is NaN where the row holds NaN or +infinity, +infinity where it has no key.

Values travel as keys, unsigned integers that rise with the value (the sign turned round, all bits turned
round for negative values); NaN lies above +infinity. Tree of maxima over the lanes (two levels a stage),
maximum over the tokens. Rows wait in a ring of two: one fills while the other drains.

The limits of the next row are ready before this one ends, those of a descriptor's first row too: rows of
several tokens follow one another without a gap, whether a descriptor ends between them or not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from amaranth import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2
from numpy import ndarray

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Resources
from streamgen.gateware.arith import F24
from streamgen.gateware.arith.pipeline import Pipeline, operand
from streamgen.gateware.stream import descriptor_signature
from streamgen.itensor import ITensor
from streamgen.kernels.row_parts import (
    MAX_LENGTH,
    lanes_before,
    narrowed,
    quarter_maxima,
    ring_resources,
    ring_style,
    tree_stages,
)

ROWS_BITS = 16
SHARING_BITS = 8
ROWS_WAITING = 16  # complete rows in the ring; a row of one token spends at most 8 cycles there
LOWEST = 0x007FFF  # the key of -infinity


@dataclass(frozen=True, kw_only=True)
class MaskedRowsParams:
    """lanes: elements of a token. max_length: of a row, in elements.

    Bounds: rows, length; and, if there are masks, start (first valid key, 0), causal (False), position (of
    the first row, 0), window (keys that a row sees, 0: all), rows_per_position (1), rows_per_head (rows).
    """

    lanes: int
    max_length: int

    def __post_init__(self) -> None:
        if not 1 <= self.lanes <= 64:
            raise ValueError(f"lanes is {self.lanes}; 1 to 64 are allowed")
        if not 1 <= self.max_length <= MAX_LENGTH:
            raise ValueError(f"max_length is {self.max_length}; 1 to {MAX_LENGTH} are allowed")

    @property
    def bits(self) -> int:
        """Bits of a length, a position and a window."""
        return self.max_length.bit_length()

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest row."""
        return -(-self.max_length // self.lanes)

    @property
    def ring_depth(self) -> int:
        """Tokens that the row buffer holds: two rows, or one row and the tokens in flight."""
        return 1 << ceil_log2(max(2 * self.max_tokens, self.max_tokens + 16))

    @property
    def latency(self) -> int:
        """Cycles from the last token of a row taken to the first one sent on."""
        return 5 + tree_stages(self.lanes)

    @property
    def resources(self) -> Resources:
        """Resources of synthesis, within a fifth."""
        own = Resources(
            lut=100 * self.lanes + 10 * self.bits + 262, ff=80 * self.lanes + 14 * self.bits + 205
        )
        return own + ring_resources(self.lanes * F24.bits, self.ring_depth)

    def tokens(self, bounds: Bounds) -> int:
        """Tokens of a row."""
        return -(-bounds["length"] // self.lanes)

    def itensor(self, bounds: Bounds, dtype: str = "f24") -> ITensor:
        """Rows padded to whole tokens, row-major."""
        trips = (bounds["rows"], self.tokens(bounds))
        return ITensor((1, self.lanes), dtype, trips, (1, self.lanes), ((0,), (1,)))

    def descriptor_fields(self) -> tuple[Field, ...]:
        lengths = [Field(name, self.bits) for name in ("length", "start", "position", "window")]
        return (
            Field("rows", ROWS_BITS),
            *lengths,
            Field("causal", 1),
            Field("rows_per_position", SHARING_BITS),
            Field("rows_per_head", ROWS_BITS),
        )

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        """The value of each descriptor field; ValueError for bounds that the hardware cannot run."""
        given = _complete(bounds)
        rows, most = given["rows"], (1 << self.bits) - 1
        for name, least, greatest in (
            ("rows", 1, (1 << ROWS_BITS) - 1),
            ("length", 1, self.max_length),
            ("start", 0, self.max_length),
            ("window", 0, self.max_length),
            ("rows_per_position", 1, (1 << SHARING_BITS) - 1),
            ("rows_per_head", 1, rows),
            ("causal", 0, 1),
        ):
            if not least <= given[name] <= greatest:
                raise ValueError(f"{name} is {given[name]}; it must be {least} to {greatest}")
        masks = given["causal"] or given["window"]
        beyond = (given["rows_per_head"] - 1) // given["rows_per_position"] if masks else 0
        if not 0 <= given["position"] <= most - beyond:
            raise ValueError(
                f"position is {given['position']}; it must be 0 to {most - beyond}, the last row's at most"
                f" {most}"
            )
        return given

    def golden(self, bounds: Bounds, scores: ndarray) -> tuple[ndarray, ndarray]:
        """(scores, -infinity where a row does not attend; the negated maximum of each row [rows, 1])."""
        given = _complete(bounds)
        rows = np.arange(given["rows"])[:, None] % given["rows_per_head"]
        position = given["position"] + rows // given["rows_per_position"] + 1
        hi = np.minimum(position, given["length"]) if given["causal"] else given["length"]
        lo = np.maximum(position - given["window"], given["start"]) if given["window"] else given["start"]
        key = np.arange(scores.shape[1])
        masked = np.where((lo <= key) & (key < hi), scores.astype(np.float64), -np.inf)
        greatest = masked.max(axis=1, keepdims=True)  # NaN where there is one
        return masked, np.where(greatest == np.inf, np.nan, -greatest)

    def build(self) -> "MaskedRows":
        return MaskedRows(self)


def _complete(bounds: Bounds) -> dict[str, int]:
    """The bounds as descriptor fields, defaults filled in."""
    defaults = {"start": 0, "position": 0, "window": 0, "causal": False, "rows_per_position": 1}
    given = {**defaults, "rows_per_head": bounds["rows"], **bounds}
    names = ("rows", "length", "start", "position", "window", "causal", "rows_per_position", "rows_per_head")
    return {name: int(given[name]) for name in names}


class MaskedRows(wiring.Component):
    """Streams in; out, when o_valid: a token, the negated maximum, whether the row ends with it.

    room, row_room: whether there is room for a token, for a row. sent, row_sent: high two cycles before a
    token comes out, two cycles before a row's first one does.
    """

    def __init__(self, params: MaskedRowsParams) -> None:
        self._params = params
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i": In(stream.Signature(F24.bits * params.lanes)),
                "room": In(1),
                "row_room": In(1),
                "sent": Out(1),
                "row_sent": Out(1),
                "o_valid": Out(1),
                "o_elements": Out(data.ArrayLayout(F24.bits, params.lanes)),
                "o_negated": Out(F24.bits),
                "o_last": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        params = self._params
        row = data.StructLayout({"greatest": F24.bits, "end": max(1, ceil_log2(params.max_tokens))})
        m.submodules.ring = ring = Memory(
            shape=data.ArrayLayout(F24.bits, params.lanes),
            depth=params.ring_depth,
            init=[],
            attrs=ring_style(params.ring_depth),
        )
        m.submodules.rows = rows = Memory(
            shape=row, depth=ROWS_WAITING, init=[], attrs=ring_style(ROWS_WAITING)
        )
        # Both memories are rings. A pointer has one bit more than an address: full is not empty.
        granted, written, drained = (
            Signal(range(2 * ring.depth), name=f"tokens_{name}") for name in ("granted", "written", "drained")
        )
        rows_granted, rows_stored, rows_drained = (
            Signal(range(2 * rows.depth), name=f"rows_{name}") for name in ("granted", "stored", "drained")
        )

        # Room is granted to a token when it is taken, to a row with its first one; whether there is any is
        # known a cycle late, so the last place is never granted.
        token_room, row_room = Signal(init=1), Signal(init=1)
        m.d.sync += [
            token_room.eq((granted - drained)[: len(granted)] < ring.depth - 1),
            row_room.eq((rows_granted - rows_drained)[: len(rows_granted)] < rows.depth - 1),
        ]
        pipe = Pipeline(m, Const(1))
        taken, begins, lo, hi, last = self._take(m, token_room, row_room)
        m.d.sync += [granted.eq(granted + taken), rows_granted.eq(rows_granted + (taken & begins))]
        lo, hi = narrowed(lo, params.lanes), narrowed(hi, params.lanes)
        s = pipe.stage(elements=self.i.payload, lo=lo, hi=hi, last=last)
        attended = pipe.wire(~lanes_before(s.lo, params.lanes) & lanes_before(s.hi, params.lanes))
        keys = [
            key_of(pipe, s.elements.word_select(lane, F24.bits), attended[lane])
            for lane in range(params.lanes)
        ]
        s = pipe.stage(keys=Cat(keys), last=s.last)
        present = Signal(2 + tree_stages(params.lanes))
        m.d.sync += present.eq(Cat(taken, present))
        write = ring.write_port()
        m.d.comb += [
            write.en.eq(present[1]),
            write.addr.eq(written),
            Value.cast(write.data).eq(s.keys),
        ]
        m.d.sync += written.eq(written + present[1])
        self._store(m, pipe, s, present[-1], rows.write_port(), rows_stored)

        # Send the tokens of a complete row: address, memory, conversion.
        out, tokens = rows.read_port(domain="comb"), ring.read_port()
        sent = Signal.like(out.data.end)
        at_start, at_end = sent == 0, sent == out.data.end
        m.d.comb += [
            out.addr.eq(rows_drained),
            tokens.addr.eq(drained),
            tokens.en.eq(1),
            self.sent.eq((rows_drained != rows_stored) & self.room & (self.row_room | ~at_start)),
            self.row_sent.eq(self.sent & at_start),
        ]
        with m.If(self.sent):
            m.d.sync += [
                drained.eq(drained + 1),
                sent.eq(Mux(at_end, 0, sent + 1)),
                rows_drained.eq(rows_drained + at_end),
            ]
        moving = Signal(2)
        m.d.sync += moving.eq(Cat(self.sent, moving))
        s = pipe.stage(greatest=out.data.greatest, last=at_end)
        not_finite = s.greatest[F24.fraction_bits :].all()
        bits = [bits_of_key(tokens.data[lane], Const(0, 1)) for lane in range(params.lanes)]
        s = pipe.stage(
            elements=Cat(bits),
            negated=Mux(not_finite, F24.nan, bits_of_key(s.greatest, Const(1, 1))),
            last=s.last,
        )
        m.d.comb += [
            self.o_valid.eq(moving[-1]),
            Value.cast(self.o_elements).eq(s.elements),
            self.o_negated.eq(s.negated),
            self.o_last.eq(s.last),
        ]
        return m

    def _limits(self, m: Module) -> Any:
        """The rows of the descriptors, one after another: a stream of length, lo and hi."""
        bits = self._params.bits
        descriptor, given = self.i_descriptor, self.i_descriptor.payload
        row = stream.Signature(data.StructLayout({"length": bits, "lo": bits, "hi": bits})).create()
        busy, next_row, next_head, moves = Signal(), Signal(), Signal(), Signal()
        length, start = Signal(bits, reset_less=True), Signal(bits, reset_less=True)
        causal, windowed = Signal(reset_less=True), Signal(reset_less=True)
        # hi does not rise beyond the last position + 1.
        hi, lo = Signal(bits + 1, reset_less=True), Signal(signed(bits + 2), reset_less=True)
        rows_left = Signal(ROWS_BITS, reset_less=True)  # after this one
        sharing, sharing_left = (Signal(SHARING_BITS, reset_less=True) for _ in range(2))
        head, head_left = (Signal(ROWS_BITS, reset_less=True, name=name) for name in ("head", "head_left"))
        first_hi, first_lo = Signal.like(hi, reset_less=True), Signal.like(lo, reset_less=True)
        m.d.comb += [
            descriptor.ready.eq(~busy),
            moves.eq(~row.valid | row.ready),
            next_row.eq(sharing_left == 0),
            next_head.eq(head_left == 0),
        ]
        with m.If(~busy):
            seen = given.position + 1
            begin_hi, begin_lo = (
                Mux(given.causal, seen, given.length),
                Mux(given.window.any(), seen - given.window, 0),
            )
            m.d.sync += [
                first_hi.eq(begin_hi),
                first_lo.eq(begin_lo),
                head.eq(given.rows_per_head - 1),
                head_left.eq(given.rows_per_head - 1),
                busy.eq(descriptor.valid),
                length.eq(given.length),
                start.eq(given.start),
                causal.eq(given.causal),
                windowed.eq(given.window.any()),
                hi.eq(begin_hi),
                lo.eq(begin_lo),
                rows_left.eq(given.rows - 1),
                sharing.eq(given.rows_per_position - 1),
                sharing_left.eq(given.rows_per_position - 1),
            ]
        with m.Elif(moves):
            m.d.sync += [
                busy.eq(rows_left != 0),
                rows_left.eq(rows_left - 1),
                sharing_left.eq(Mux(next_row | next_head, sharing, sharing_left - 1)),
                head_left.eq(Mux(next_head, head, head_left - 1)),
                hi.eq(Mux(next_head, first_hi, hi + (causal & next_row))),
                lo.eq(Mux(next_head, first_lo, lo + (windowed & next_row))),
            ]
        with m.If(moves):
            m.d.sync += [
                row.valid.eq(busy),
                row.payload.length.eq(length),
                row.payload.hi.eq(Mux(hi < length, hi, length)),
                row.payload.lo.eq(Mux(lo > start, lo, start)),
            ]
        return row

    def _take(self, m: Module, room: Value, row_room: Value) -> tuple[Value, Value, Value, Value, Value]:
        """Take tokens; returns (one is taken, its row begins, lo and hi counted from its first element, it
        ends)."""
        lanes, bits = self._params.lanes, self._params.bits
        row = self._limits(m)
        active, begins, last, taken = Signal(), Signal(), Signal(), Signal()
        left = Signal(bits, reset_less=True)  # elements of the row from this token on
        lo, hi = (Signal(signed(bits + 1), reset_less=True, name=name) for name in ("lo", "hi"))
        m.d.comb += [
            self.i.ready.eq(active & room & (~begins | row_room)),
            taken.eq(self.i.valid & self.i.ready),
            row.ready.eq(~active | (taken & last)),
        ]
        with m.If(row.ready):
            m.d.sync += [
                active.eq(row.valid),
                begins.eq(1),
                left.eq(row.payload.length),
                last.eq(row.payload.length <= lanes),
                lo.eq(row.payload.lo),
                hi.eq(row.payload.hi),
            ]
        with m.Elif(taken):
            m.d.sync += [
                begins.eq(0),
                left.eq(left - lanes),
                last.eq(left <= 2 * lanes),
                lo.eq(lo - lanes),
                hi.eq(hi - lanes),
            ]
        return taken, begins, lo, hi, last

    def _store(self, m: Module, pipe: Pipeline, s: Any, present: Value, write: Any, stored: Signal) -> None:
        """The maximum of a row, put into the queue of complete rows with the number of its tokens."""
        partial = [s.keys.word_select(lane, F24.bits) for lane in range(self._params.lanes)]
        last = s.last
        for _ in range(tree_stages(self._params.lanes)):
            partial = quarter_maxima(pipe, partial)
            s = pipe.stage(last=last, **{f"max{index}": value for index, value in enumerate(partial)})
            partial, last = [getattr(s, f"max{index}") for index in range(len(partial))], s.last
        so_far, first = Signal(F24.bits, reset_less=True), Signal(init=1)
        index = Signal.like(write.data.end)
        m.d.comb += [
            write.en.eq(present & last),
            write.addr.eq(stored),
            write.data.greatest.eq(Mux(first | (partial[0] > so_far), partial[0], so_far)),
            write.data.end.eq(index),
        ]
        with m.If(present):
            m.d.sync += [
                first.eq(last),
                so_far.eq(write.data.greatest),
                index.eq(Mux(last, 0, index + 1)),
                stored.eq(stored + last),
            ]


def key_of(pipe: Pipeline, bits: Value, attended: Value) -> Value:
    """The key of a value, that of -infinity where it is not attended to."""
    x = operand(F24, bits)
    nan, sign = pipe.wire(x.nan), x.sign
    magnitude = Mux(nan, F24.nan, bits[:-1] ^ sign.replicate(F24.bits - 1))
    return Mux(attended, Cat(magnitude[: F24.bits - 1], ~sign | nan), LOWEST)


def bits_of_key(key: Value, negated: Value) -> Value:
    """The bits of the value of a key, or of the negated value."""
    return Cat(key[:-1] ^ (~key[-1]).replicate(F24.bits - 1), ~key[-1] ^ negated)
