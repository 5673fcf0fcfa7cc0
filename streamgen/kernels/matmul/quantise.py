"""The mxi8 quantiser: rows of f24 become groups of 32 eight-bit codes and one exponent a row.

    m = max |x| = 2^b * (1 + s / 4 + ...) for each group of 32 along K  f = 5 + s, e = b - 9
    code = x / (f * 2^e) to nearest even, clamped to +-127 (`group_codes`)  E = the greatest e of the row
    x ~ code * f * 2^(E - d), d = min(E - e, 16); groups with d > 15 are sent as zeros with d = 16

So the largest code of a group is 102 to 127, whatever its numbers are.

Groups of zeros take no part in E; a row of zeros has E = 0. A row with NaN or an infinity has
E = E_NOT_FINITE and groups of zeros (d = 16), from which a matmul makes NaN. Elements from `valid_k` on are
padding and count as zeros, whatever they hold.

Tiles in: `i` (1, lanes) f24, row-major. Out: `o_x` (1, 32) mxi8 or mxi8s (with the group sum), row-major;
`o_e` i16, one a row, before its groups. E is known when a row is complete, so groups wait in a ring of two
rows: one fills while the other drains. A row takes k / lanes cycles in steady state. A group is let in when
the ring has room for it, so nothing between the input and the ring ever stalls.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.fifo.clocks import Clocks
from streamgen.fifo.curves import KernelSide
from streamgen.gateware.stream import descriptor_signature, signature
from streamgen.itensor import ITensor
from streamgen.kernels.matmul.group_codes import STEP_BITS, SUM_BITS, GroupCodesParams, group_codes
from streamgen.kernels.row_parts import ring_style
from streamgen.numbers.formats import E_NOT_FINITE, MX, MX_GROUP, MX_MAX_SHIFT

E_BIAS = 136  # of a biased exponent of f24: 127, and 9 for codes that 5 to 8 divide
NOT_FINITE = 255  # the biased exponent of NaN and the infinities
ROWS_BITS = 16
ROWS_WAITING = 16  # complete rows in the ring; a row of one group spends 12 cycles there


@dataclass(frozen=True, kw_only=True)
class QuantiseParams:
    """lanes: elements taken per cycle. max_k: the longest row. sums: send group sums (mxi8s).

    Bounds: t (rows), k (row length as streamed, a multiple of 32), valid_k (its logical length).
    """

    lanes: int
    max_k: int
    sums: bool

    def __post_init__(self) -> None:
        if self.lanes not in (1, 2, 4, 8, 16, 32):
            raise ValueError(f"Quantise.lanes is {self.lanes}; 1, 2, 4, 8, 16 and 32 are allowed")
        if self.max_k < MX_GROUP or self.max_k % MX_GROUP:
            raise ValueError(f"Quantise.max_k is {self.max_k}; it must be a multiple of {MX_GROUP}")

    @property
    def codes(self) -> GroupCodesParams:
        """The arithmetic inside."""
        return GroupCodesParams(lanes=self.lanes, sums=self.sums)

    @property
    def ring_depth(self) -> int:
        """Groups that the row buffer holds: two rows, or one row and the groups in flight."""
        groups = self.max_k // MX_GROUP
        return 1 << (max(2 * groups, groups + 16) - 1).bit_length()

    @property
    def dtype(self) -> str:
        """Format of `o_x`."""
        return "mxi8s" if self.sums else "mxi8"

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        t, k, lanes = bounds["t"], bounds["k"], self.lanes
        return {"i": ITensor((1, lanes), "f24", (t, k // lanes), (1, lanes), ((0,), (1,)))}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        t, k = bounds["t"], bounds["k"]
        return {
            "o_x": ITensor((1, MX_GROUP), self.dtype, (t, k // MX_GROUP), (1, MX_GROUP), ((0,), (1,))),
            "o_e": ITensor((1,), "i16", (t,), (1,), ((0,),)),
        }

    def descriptor_fields(self) -> tuple[Field, ...]:
        groups = self.max_k // MX_GROUP
        return (
            Field("rows", ROWS_BITS),
            Field("groups", groups.bit_length()),
            Field("valid", self.max_k.bit_length()),
        )

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        t, k, valid_k = bounds["t"], bounds["k"], bounds["valid_k"]
        for name, value, law, holds in (
            ("t", t, f"1 to {(1 << ROWS_BITS) - 1}", 1 <= t < 1 << ROWS_BITS),
            ("k", k, f"a multiple of {MX_GROUP} up to {self.max_k}", _fits(k, self.max_k)),
            ("valid_k", valid_k, f"1 to k = {k}", 1 <= valid_k <= k),
        ):
            if not holds:
                raise ValueError(f"Quantise: {name} is {value}; it must be {law}")
        return {"rows": t, "groups": k // MX_GROUP, "valid": valid_k}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        x, e = golden(inputs["i"], bounds["valid_k"])
        return {"o_x": x, "o_e": e}

    def cost(self, bounds: Bounds) -> Cost:
        curves = self.curves(bounds)
        first = min(int(curves[port].cycles()[0]) for port in ("o_x", "o_e"))
        cycles = max(int(curves[port].cycles()[-1]) for port in ("o_x", "o_e")) + 1
        return Cost(resources=self._resources(), ii=1.0, latency=first - 1, cycles=cycles)

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        t, k = bounds["t"], bounds["k"]
        row = k // self.lanes
        stored = row + self.codes.latency  # the cycle in which the last group of the first row is stored
        return {
            "i": Curve.nest(1, (t * row, 1)),
            "o_x": Curve.nest(stored + 3, (t, row), (k // MX_GROUP, 1)),
            "o_e": Curve.nest(stored + 2, (t, row)),
        }

    def clocks(self, bounds: Bounds) -> Clocks:
        """Rows come in; a complete row goes to a ring, from which its groups leave."""
        rows, groups = bounds["t"], bounds["k"] // MX_GROUP
        group = MX_GROUP // self.lanes  # tokens of a group
        curves = {name: curve.cycles() for name, curve in self.curves(bounds).items()}
        take, exponent, codes = (
            KernelSide("take", curves["i"]),
            KernelSide("e", curves["o_e"]),
            KernelSide("x", curves["o_x"]),
        )
        row, every = np.arange(rows), np.arange(rows * groups)
        ends, waiting, ring = (row + 1) * groups * group - 1, ROWS_WAITING - 1, self.ring_depth - 1
        return Clocks(
            (take, exponent, codes),
            {"i": (take, np.arange(len(take.cycles))), "o_e": (exponent, row), "o_x": (codes, every)},
            (
                take.to(exponent, ends, row, latency=self.codes.latency + 2),
                take.to(codes, ends, row * groups, latency=self.codes.latency + 3),
                codes.to(take, every[:-ring], every[ring:] * group, latency=0),
                exponent.to(take, row[:-waiting], row[waiting:] * groups * group, latency=0),
                codes.to(
                    take, row[:-waiting] * groups + groups - 1, row[waiting:] * groups * group, latency=0
                ),
            ),
        )

    def _resources(self) -> Resources:
        """Fitted to synthesis: the codes, the control, the masks of the lanes, the ring."""
        group_bits = 8 * MX_GROUP + 8 + STEP_BITS + (SUM_BITS if self.sums else 0)
        control = Resources(lut=470 + 25 * self.lanes, ff=23 + 11 * self.max_k.bit_length() + group_bits)
        logic = self.codes.resources + control
        if self.ring_depth <= 64:  # LUT memory, eight LUTs for 14 bits of 32 words or 7 of 64
            return logic + Resources(lut=8 * -(-group_bits * self.ring_depth // (14 * 32)), ff=group_bits)
        return logic + Resources(lut=0, ff=0, bram=-(-group_bits * max(self.ring_depth, 512) // 18432) / 2)

    def build(self) -> "Quantise":
        return Quantise(self)


def golden(x: ndarray, valid_k: int) -> tuple[ndarray, ndarray]:
    """Quantise rows: f24 values [T, K] -> (MX [T, K], int16 [T])."""
    with np.errstate(invalid="ignore"):  # a signalling NaN is as good as another
        values = x.astype(np.float64)
    values[:, valid_k:] = 0
    finite = np.isfinite(values).all(axis=1)
    values[~finite] = 0
    values[np.abs(values) < 2.0**-126] = 0
    groups = values.reshape(len(values), -1, MX_GROUP)
    codes, b, step = group_codes(groups)
    some = np.any(groups, axis=2)
    e = b - 9
    E = np.where(some, e, np.iinfo(np.int32).min).max(axis=1)
    E[~np.any(some, axis=1)] = 0
    shift = np.where(some, np.minimum(E[:, None] - e, MX_MAX_SHIFT), MX_MAX_SHIFT)
    lost = shift == MX_MAX_SHIFT
    codes[lost] = 0
    result = np.zeros(groups.shape, MX)
    result["code"] = codes
    result["shift"], result["step"] = shift[:, :, None], np.where(lost, 0, step)[:, :, None]
    E[~finite] = E_NOT_FINITE
    return result.reshape(values.shape), E.astype(np.int16)


def _fits(k: int, max_k: int) -> bool:
    return MX_GROUP <= k <= max_k and k % MX_GROUP == 0


class Quantise(wiring.Component):
    """The quantiser of a QuantiseParams."""

    def __init__(self, params: QuantiseParams) -> None:
        self.params = params
        bounds = {"t": 1, "k": params.max_k}
        outputs = params.outputs(bounds)
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i": In(signature(params.inputs(bounds)["i"])),
                "o_x": Out(signature(outputs["o_x"])),
                "o_e": Out(signature(outputs["o_e"])),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        params = self.params
        m.submodules.codes = codes = params.codes.build()
        group = data.StructLayout(
            {"codes": 8 * MX_GROUP, "sum": len(codes.o_sum), "step": STEP_BITS, "greatest": 8}
        )
        row = data.StructLayout({"greatest": 8, "end": range(params.max_k // MX_GROUP)})
        m.submodules.groups = groups = Memory(
            shape=group, depth=params.ring_depth, init=[], attrs=ring_style(params.ring_depth)
        )
        m.submodules.rows = rows = Memory(
            shape=row, depth=ROWS_WAITING, init=[], attrs=ring_style(ROWS_WAITING)
        )
        # Both memories are rings. A pointer has one bit more than an address: full is not empty.
        g_granted, g_stored, g_drained = (
            Signal(range(2 * groups.depth), name=f"groups_{name}")
            for name in ("granted", "stored", "drained")
        )
        r_granted, r_stored, r_drained, e_sent = (
            Signal(range(2 * rows.depth), name=f"rows_{name}")
            for name in ("granted", "stored", "drained", "e_sent")
        )

        # Take tokens in. Room for a group is granted with its first token, for a row likewise; whether there
        # is any is known a cycle late, so the last place is never granted.
        group_room, row_room = Signal(init=1), Signal(init=1)
        m.d.sync += [
            group_room.eq(_used(g_granted, g_drained) < groups.depth - 1),
            row_room.eq(
                (_used(r_granted, r_drained) < rows.depth - 1) & (_used(r_granted, e_sent) < rows.depth - 1)
            ),
        ]
        group_begins, row_begins = self._take(m, codes, group_room, row_room)
        m.d.sync += [g_granted.eq(g_granted + group_begins), r_granted.eq(r_granted + row_begins)]

        # Store a group; with the last one of a row, the row.
        group_in, row_in = groups.write_port(), rows.write_port()
        first, so_far, index = Signal(init=1), Signal(8, reset_less=True), Signal(row["end"].shape)
        m.d.comb += [
            group_in.en.eq(codes.o_valid),
            group_in.addr.eq(g_stored),
            group_in.data.codes.eq(codes.o_codes),
            group_in.data.sum.eq(codes.o_sum),
            group_in.data.step.eq(codes.o_step),
            group_in.data.greatest.eq(codes.o_greatest),
            row_in.en.eq(codes.o_valid & codes.o_last),
            row_in.addr.eq(r_stored),
            row_in.data.greatest.eq(Mux(first | (codes.o_greatest > so_far), codes.o_greatest, so_far)),
            row_in.data.end.eq(index),
        ]
        with m.If(codes.o_valid):
            m.d.sync += [
                g_stored.eq(g_stored + 1),
                r_stored.eq(r_stored + codes.o_last),
                first.eq(codes.o_last),
                so_far.eq(row_in.data.greatest),
                index.eq(Mux(codes.o_last, 0, index + 1)),
            ]

        # Send the exponent of a row.
        row_e = rows.read_port(domain="comb")
        m.d.comb += row_e.addr.eq(e_sent)
        with m.If(~self.o_e.valid | self.o_e.ready):
            m.d.sync += [
                self.o_e.valid.eq(e_sent != r_stored),
                self.o_e.payload.eq(exponent(row_e.data.greatest)),
                e_sent.eq(e_sent + (e_sent != r_stored)),
            ]

        # Send its groups: address, memory, output register.
        row_x, group_out = rows.read_port(domain="comb"), groups.read_port()
        sent, move, read, greatest = Signal.like(index), Signal(), Signal(), Signal(8, reset_less=True)
        m.d.comb += [
            row_x.addr.eq(r_drained),
            group_out.addr.eq(g_drained),
            group_out.en.eq(move),
            move.eq(~self.o_x.valid | self.o_x.ready),
        ]
        with m.If(move):
            m.d.sync += [
                read.eq(r_drained != r_stored),
                greatest.eq(row_x.data.greatest),
                self.o_x.valid.eq(read),
                self.o_x.payload.eq(mxi8_token(group_out.data, greatest, self.params.sums)),
            ]
            with m.If(r_drained != r_stored):
                at_end = sent == row_x.data.end
                m.d.sync += [
                    g_drained.eq(g_drained + 1),
                    r_drained.eq(r_drained + at_end),
                    sent.eq(Mux(at_end, 0, sent + 1)),
                ]
        return m

    def _take(self, m: Module, codes: Any, group_room: Value, row_room: Value) -> tuple[Value, Value]:
        """Feed `codes` with the tokens of a descriptor; returns (a group, a row begins)."""
        lanes, tokens = self.params.lanes, self.params.codes.tokens
        split = lanes.bit_length() - 1  # of valid_k: whole tokens above, elements of the next one below
        descriptor = self.i_descriptor
        running, row_begins, taken = Signal(), Signal(), Signal()
        bounds = Signal(descriptor.payload.shape(), reset_less=True)
        rows, groups, whole_left = (
            Signal(ROWS_BITS),
            Signal.like(bounds.groups),
            Signal.like(bounds.valid[split:]),
        )
        whole, part, part_mask = Signal(), Signal(), Signal(lanes)
        index = Signal(range(tokens))
        group_begins, group_ends = index == 0, index == tokens - 1
        last_group = groups == 1
        elements = data.View(codes.elements.shape(), self.i.payload)
        m.d.comb += [
            descriptor.ready.eq(~running),
            self.i.ready.eq(running & (~group_begins | group_room) & (~row_begins | row_room)),
            taken.eq(self.i.valid & self.i.ready),
            codes.valid.eq(taken),
            codes.last.eq(last_group),
        ]
        for lane in range(lanes):
            inside = whole | (part & part_mask[lane])
            m.d.comb += codes.elements[lane].eq(Mux(inside, elements[lane].as_value(), 0))
        # The row that comes next: the first of a descriptor, or another of the same.
        new_groups = Mux(running, bounds.groups, descriptor.payload.groups)
        new_whole = Mux(running, bounds.valid, descriptor.payload.valid)[split:]
        new_row = [
            row_begins.eq(1),
            groups.eq(new_groups),
            whole_left.eq(new_whole),
            whole.eq(new_whole.any()),
            part.eq(~new_whole.any()),
        ]
        with m.If(~running):
            m.d.sync += [running.eq(descriptor.valid), bounds.eq(descriptor.payload), *new_row]
            m.d.sync += [
                rows.eq(descriptor.payload.rows),
                part_mask.eq(Cat(descriptor.payload.valid[:split] > lane for lane in range(lanes))),
            ]
        with m.Elif(taken):
            m.d.sync += [
                index.eq(index + 1),
                row_begins.eq(0),
                whole_left.eq(whole_left - whole),
                whole.eq(whole_left > 1),
                part.eq(whole_left == 1),
            ]
            with m.If(group_ends):
                m.d.sync += groups.eq(groups - 1)
                with m.If(last_group):
                    m.d.sync += [*new_row, rows.eq(rows - 1), running.eq(rows != 1)]
        return taken & group_begins, taken & row_begins


def mxi8_token(group: Any, row_greatest: Value, sums: bool) -> Value:
    """A group in its sent form: with its shift, and zeros if it is too small."""
    distance = (row_greatest - group.greatest)[:8]
    kept = (group.greatest != 0) & ~distance[4:].any() & (row_greatest != NOT_FINITE)
    fields = [Mux(kept, group.codes, 0), Mux(kept, distance[:4], MX_MAX_SHIFT)]
    fields += [Mux(kept, group.step, 0), Const(0, 1)]
    if sums:
        fields.append(Mux(kept, Cat(group.sum, group.sum[-1].replicate(16 - len(group.sum))), 0))
    return Cat(fields)


def _used(granted: Signal, released: Signal) -> Value:
    """Places of a ring between two pointers."""
    return (granted - released)[: len(granted)]


def exponent(greatest: Value) -> Value:
    """E of a row, 16 bits, from its greatest biased exponent."""
    e = (greatest - E_BIAS).as_signed()
    return Mux(greatest == 0, 0, Mux(greatest == NOT_FINITE, E_NOT_FINITE, e))
