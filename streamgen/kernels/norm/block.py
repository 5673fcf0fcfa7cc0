"""The hardware of the norms: what `streamgen.kernels.norm.norm` says, put together of its parts.

    i -> [RowCentre] -> RowSum -> RowRing -> lanes -> o          RowSum -> RowRoot -> RowRing
    i_weight, i_bias -> HeldRow -> lanes

Everything before the last ring flows freely, as a token sets out only where room is granted; the lanes are
one pipe under one clock enable, behind it a register slice.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from streamgen.gateware.arith import F24
from streamgen.gateware.rtl import Shared
from streamgen.gateware.stream import add_skid, descriptor_signature, signature
from streamgen.kernels.norm.units import OFFSET_BITS, row_offset

if TYPE_CHECKING:
    from streamgen.kernels.norm.norm import NormParams

__all__ = ["Norm"]


class Norm(wiring.Component):
    """The hardware of a NormParams."""

    def __init__(self, params: "NormParams") -> None:
        self.params = params
        bounds = {"t": 1, "k": params.max_k}
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                **{port: In(signature(itensor)) for port, itensor in params.inputs(bounds).items()},
                "o": Out(signature(params.outputs(bounds)["o"])),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self.params
        m.submodules.sums = sums = p.sums.build()
        m.submodules.root = root = p.root.build()
        m.submodules.ring = ring = p.ring.build()
        held = {port: Shared(params) for port, params in p.parameters.items()}
        for port, block in held.items():
            m.submodules[port] = block
            wiring.connect(m, wiring.flipped(getattr(self, port)), block.i)
        entry: Any = sums
        if p.centred:
            m.submodules.centre = entry = p.centre.build()
            m.d.comb += [
                entry.o_room.eq(sums.room),
                sums.grant.eq(entry.o_issue),
                sums.grant_row.eq(entry.o_issue_row),
                sums.valid.eq(entry.o_valid),
                *(
                    getattr(sums, name).eq(getattr(entry, f"o_{name}"))
                    for name in ("data", "first", "last", "head", "end", "special")
                ),
            ]
        self._take(m, entry, list(held.values()))
        inverse, epsilon = sums.s_head[1 : 1 + F24.bits], sums.s_head[1 + F24.bits :]
        m.d.comb += [
            sums.o_room.eq(ring.room),
            ring.grant.eq(sums.o_issue),
            ring.grant_row.eq(sums.o_issue_row),
            ring.write.eq(sums.o_valid),
            ring.data.eq(sums.o_data),
            ring.first.eq(sums.o_first),
            ring.head.eq(sums.o_head[0]),
            ring.end.eq(sums.o_end),
            root.valid.eq(sums.s_valid),
            root.total.eq(sums.s_total),
            root.greatest.eq(sums.s_greatest),
            root.inverse.eq(inverse),
            root.epsilon.eq(epsilon),
            ring.complete.eq(root.o_valid),
            ring.tail.eq(Cat(root.o_root, root.o_greatest)),
        ]
        self._send(m, ring, held)
        return m

    def _take(self, m: Module, entry: Any, held: list[Any]) -> None:
        """Hand the tokens of a descriptor to `entry`, a cycle later, and start the rows of parameters."""
        p = self.params
        descriptor = self.i_descriptor
        bounds = Signal(descriptor.payload.shape(), reset_less=True)
        running, taken = Signal(), Signal()
        rows, left = Signal(p.descriptor_fields()[0].bits), Signal(p.ring.end_bits)
        whole_left, whole, part = Signal.like(bounds.whole), Signal(), Signal()
        part_mask = Signal(p.lanes)
        row_begins, row_ends, last_row = Signal(), left == 0, rows == 1
        ready = Signal()
        m.d.comb += [
            ready.eq(Cat(block.room for block in held).all() & (~running | (taken & row_ends & last_row))),
            descriptor.ready.eq(ready),
            self.i.ready.eq(running & entry.room),
            taken.eq(self.i.valid & self.i.ready),
            entry.grant.eq(taken),
            entry.grant_row.eq(taken & row_begins),
            *(block.start.eq(ready & descriptor.valid) for block in held),
            *(block.end.eq(descriptor.payload.end) for block in held),
        ]
        # The row that comes next: the first of a descriptor, or another of the same.
        source = descriptor.payload
        next_whole, next_end = Mux(ready, source.whole, bounds.whole), Mux(ready, source.end, bounds.end)
        new_row = [
            row_begins.eq(1),
            left.eq(next_end),
            whole_left.eq(next_whole),
            whole.eq(next_whole != 0),
            part.eq(next_whole == 0),
        ]
        with m.If(taken):
            m.d.sync += [
                row_begins.eq(0),
                left.eq(left - 1),
                whole_left.eq(whole_left - whole),
                whole.eq(whole_left > 1),
                part.eq(whole_left == 1),
            ]
            with m.If(row_ends):
                m.d.sync += [*new_row, rows.eq(rows - 1)]
        with m.If(ready):
            m.d.sync += [
                running.eq(descriptor.valid),
                bounds.eq(source),
                *new_row,
                rows.eq(source.rows),
                part_mask.eq(Cat(source.part > lane for lane in range(p.lanes))),
            ]
        with m.Elif(taken & row_ends & last_row):
            m.d.sync += running.eq(0)

        elements = []
        for lane in range(p.lanes):
            x = self.i.payload.word_select(lane, F24.bits)
            inside = whole | (part & part_mask[lane])
            exponent = x[F24.fraction_bits : -1]
            marked = Mux(exponent.any() & inside, x[0], ~inside)
            elements.append(Cat(marked, x[1 : F24.fraction_bits], Mux(inside, exponent, 0), x[-1]))
        for target, value in (
            (entry.data, Cat(elements)),
            (entry.first, row_begins),
            (entry.last, row_ends),
            (entry.head, Cat(last_row, *(getattr(bounds, name) for name, _ in p.constants))),
            (entry.end, bounds.end),
        ):
            register = Signal(len(target), reset_less=True)
            m.d.sync += register.eq(value)
            m.d.comb += target.eq(register)
        valid = Signal()
        m.d.sync += valid.eq(taken)
        m.d.comb += entry.valid.eq(valid)

    def _send(self, m: Module, ring: Any, held: Mapping[str, Any]) -> None:
        """Rows whose root is known, through the lanes."""
        p = self.params
        results = stream.Signature(p.lanes * F24.bits).create()
        add_skid(m, results, [wiring.flipped(self.o)])
        move, issue = Signal(), Signal()
        full = Signal(1 + p.lane.latency)
        root, greatest = ring.o_tail[: F24.bits], ring.o_tail[F24.bits :]
        r, offset = Signal(F24.bits, reset_less=True), Signal(OFFSET_BITS, reset_less=True)
        available: list[Value] = [block.available for block in held.values()]
        m.d.comb += [
            move.eq(~results.valid | results.ready),
            issue.eq(move & ring.row & Cat(available).all()),
            ring.enable.eq(move),
            ring.step.eq(issue),
            results.valid.eq(full[-1]),
        ]
        for block in held.values():
            m.d.comb += [
                block.enable.eq(move),
                block.step.eq(issue),
                block.row_last.eq(ring.last),
                block.last.eq(ring.o_head[0]),
            ]
        with m.If(move):
            m.d.sync += [full.eq(Cat(issue, full)), r.eq(root), offset.eq(row_offset(root, greatest))]
        for lane in range(p.lanes):
            m.submodules[f"lane_{lane}"] = block = Shared(p.lane)
            part = slice(lane * F24.bits, (lane + 1) * F24.bits)
            m.d.comb += [
                block.enable.eq(move),
                block.x.eq(ring.o_data[part]),
                block.r.eq(r),
                block.offset.eq(offset),
                block.w.eq(held["i_weight"].o_data[part]),
                results.payload[part].eq(block.o),
            ]
            if p.bias:
                m.d.comb += block.b.eq(held["i_bias"].o_data[part])
