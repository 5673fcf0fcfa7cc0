"""The control of a matmul column: joins the three operand streams and walks the loops of a descriptor.

    for n_tile: for t_tile: for k_step:                     a step takes one token of x, of w and of s
        issue(first = (k_step == 0), last = (k_step == k_steps - 1))

In a build for both weight widths an 8-bit step is issued twice: a token of w with one of x, then another of
w (`half`). Ungrouped weights take no tokens of s.

What is issued never waits again, so the room for it must be there before:

* The results of a tile leave the accumulators in one cycle and are then passed on one by one. So the last
  steps of two tiles lie at least `tile_results` cycles apart: a tile of fewer cycles than that starts
  `gap` cycles late, and the first tile of a descriptor does, too (it may follow another's last).
* They are passed into a queue of `depth`. A tile's last step takes `tile_results` credits; a result
  that leaves the queue (`returned`) gives one back.
"""

from dataclasses import dataclass
from typing import Any

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from streamgen.contract import Field
from streamgen.contract.cost import Resources
from streamgen.gateware.stream import descriptor_signature


@dataclass(frozen=True, kw_only=True)
class IssueParams:
    """Greatest loop counts, results of a tile, depth of the result queue, and what descriptors choose.

    two_widths: 4-bit or 8-bit weights by descriptor. scaled: grouped or not by descriptor.
    """

    max_n_tiles: int
    max_t_tiles: int
    max_k_steps: int
    tile_results: int
    depth: int
    two_widths: bool
    scaled: bool

    def descriptor_fields(self) -> tuple[Field, ...]:
        fields = [
            Field("n_tiles", self.max_n_tiles.bit_length()),
            Field("t_tiles", self.max_t_tiles.bit_length()),
            Field("k_steps", self.max_k_steps.bit_length()),
        ]
        if self.two_widths:
            fields.append(Field("wide", 1))
        if self.scaled:
            fields.append(Field("grouped", 1))
        return tuple(fields)

    @property
    def resources(self) -> Resources:
        counted = sum(field.bits for field in self.descriptor_fields())
        paced = self.tile_results.bit_length()
        return Resources(lut=3 * counted + 4 * paced + 24, ff=2 * counted + 2 * paced + 16)

    def build(self) -> "Issue":
        return Issue(self)


class Issue(wiring.Component):
    """Streams' valid in, ready out; `issue` marks the cycle in which a step goes to the lanes."""

    def __init__(self, params: IssueParams) -> None:
        self.params = params
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                **{f"{port}_valid": In(1) for port in "xws"},
                **{f"{port}_ready": Out(1) for port in "xws"},
                "returned": In(1),
                "issue": Out(1),
                "first": Out(1),
                "last": Out(1),
                "half": Out(1),
                "wide": Out(1),
                "grouped": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self.params
        descriptor = self.i_descriptor.payload
        running, due, prompt, room = Signal(), Signal(), Signal(), Signal(init=1)
        wait, gap = (Signal(range(p.tile_results), name=name) for name in ("wait", "gap"))
        n_left, t_left, t_tiles, k_left, k_steps = (
            Signal(len(descriptor[field]), name=name)
            for name, field in (
                ("n_left", "n_tiles"),
                ("t_left", "t_tiles"),
                ("t_tiles", "t_tiles"),
                ("k_left", "k_steps"),
                ("k_steps", "k_steps"),
            )
        )
        first, last = Signal(), Signal()

        with m.If(~running):
            steps = descriptor.k_steps
            cycles = Mux(descriptor.wide, steps << 1, steps) if p.two_widths else steps
            late = Mux(cycles < p.tile_results, p.tile_results - cycles, 0)
            m.d.comb += self.i_descriptor.ready.eq(1)
            m.d.sync += [
                running.eq(self.i_descriptor.valid),
                n_left.eq(descriptor.n_tiles),
                t_left.eq(descriptor.t_tiles),
                t_tiles.eq(descriptor.t_tiles),
                k_left.eq(steps),
                k_steps.eq(steps),
                first.eq(1),
                last.eq(steps == 1),
                wait.eq(late),
                gap.eq(late),
                prompt.eq(late == 0),
                due.eq(self.i_descriptor.valid & (late == 0)),
            ]
            if p.two_widths:
                m.d.sync += self.wide.eq(descriptor.wide)
            if p.scaled:
                m.d.sync += self.grouped.eq(descriptor.grouped)

        go, there, ends = Signal(), Signal(), Signal()
        grouped_there = self.s_valid | ~self.grouped
        m.d.comb += [
            go.eq(due & (~last | room)),
            there.eq(self.half | (self.x_valid & grouped_there)),
            self.w_ready.eq(go & there),
            self.x_ready.eq(go & ~self.half & self.w_valid & grouped_there),
            self.s_ready.eq(go & ~self.half & self.w_valid & self.x_valid & self.grouped),
            self.issue.eq(go & there & self.w_valid),
            ends.eq(self.issue & (self.half | ~self.wide)),
            self.first.eq(first & ~self.half),
            self.last.eq(ends & last),
        ]
        if p.two_widths:
            with m.If(self.issue & self.wide):
                m.d.sync += self.half.eq(~self.half)
        with m.If(running & ~due):
            m.d.sync += [wait.eq(wait - 1), due.eq(wait == 1)]
        with m.If(ends):
            m.d.sync += [first.eq(last), last.eq(Mux(last, k_steps == 1, k_left == 2))]
            m.d.sync += k_left.eq(Mux(last, k_steps, k_left - 1))
            with m.If(last):
                m.d.sync += [wait.eq(gap), due.eq(prompt)]
                m.d.sync += t_left.eq(Mux(t_left == 1, t_tiles, t_left - 1))
                with m.If(t_left == 1):
                    m.d.sync += n_left.eq(n_left - 1)
                    with m.If(n_left == 1):
                        m.d.sync += [running.eq(0), due.eq(0)]

        # Both outcomes are compared at once: whether a step ends a tile is known late in the cycle.
        credits = Signal(range(p.depth + 1), init=p.depth)
        kept = Signal.like(credits)
        m.d.comb += kept.eq(credits + self.returned)
        m.d.sync += [
            credits.eq(Mux(self.last, kept - p.tile_results, kept)),
            room.eq(Mux(self.last, kept >= 2 * p.tile_results, kept >= p.tile_results)),
        ]
        return m
