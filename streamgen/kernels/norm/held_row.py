"""A row of parameters, such as weights: received once per descriptor, and read for every row of data.

Tokens of f24 come on `i`, `end` + 1 of them after each `start`, and wait in a ring, so the row of the next
descriptor comes in while this one is in use. `plus_one` adds 1 to every element on the way (rounded to f24).

`available`: the next token is there. `step` reads it, and it is there a cycle later. `row_last`: it is the
last of a row. `last`: it is also in the last row, after which its place is free.
"""

from dataclasses import dataclass
from typing import Any

from amaranth import Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import stream
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Component, In, Out

from streamgen.contract.cost import Resources
from streamgen.gateware.arith import F24, AddParams
from streamgen.gateware.rtl import Shared
from streamgen.kernels.norm.row_ring import memory_resources, power_of_two
from streamgen.kernels.norm.row_sum import follow
from streamgen.kernels.row_parts import ring_style

ONE = F24.bias << F24.fraction_bits
SPARE = 16  # places beyond the longest row, for tokens under way


@dataclass(frozen=True, kw_only=True)
class HeldRowParams:
    """lanes: elements of a token. max_tokens: longest row. plus_one: whether 1 is added.

    starts: descriptors that may wait, a power of two.
    """

    lanes: int
    max_tokens: int
    starts: int
    plus_one: bool

    @property
    def adder(self) -> AddParams:
        return AddParams(form=F24)

    @property
    def depth(self) -> int:
        """Tokens."""
        return power_of_two(self.max_tokens + SPARE)

    @property
    def end_bits(self) -> int:
        """Width of the index of a token in its row."""
        return max(1, (self.max_tokens - 1).bit_length())

    @property
    def resources(self) -> Resources:
        tokens, starts = self.depth.bit_length(), self.starts.bit_length()
        total = Resources(
            lut=3.3 * tokens + 2.2 * starts + 2.2 * self.end_bits,
            ff=4 * tokens + 2 * starts + self.end_bits + 2,
        )
        total += Resources(lut=memory_resources(self.end_bits, self.starts).lut, ff=0)
        total += memory_resources(self.lanes * F24.bits, self.depth)
        if not self.plus_one:
            return total
        # One operand is a constant.
        adder = Resources(lut=0.82 * self.adder.resources.lut, ff=0.98 * self.adder.resources.ff)
        return total + self.lanes * adder + Resources(lut=0, ff=self.adder.latency)

    def build(self) -> "HeldRow":
        return HeldRow(self)


class HeldRow(Component):
    """The ring of one parameter; `room`, known a cycle late as in `RowRing`: another `start` may come."""

    def __init__(self, params: HeldRowParams) -> None:
        self._params = params
        super().__init__(
            {
                "room": Out(1, init=1),
                "start": In(1),
                "end": In(params.end_bits),
                "i": In(stream.Signature(params.lanes * F24.bits)),
                "available": Out(1),
                "enable": In(1),
                "step": In(1),
                "row_last": In(1),
                "last": In(1),
                "o_data": Out(params.lanes * F24.bits),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self._params
        granted, stored, base, at = (
            Signal(range(2 * p.depth), name=f"tokens_{name}") for name in ("granted", "stored", "base", "at")
        )
        # Take tokens in: the ends of rows wait in a queue.
        m.submodules.ends = ends = Memory(
            shape=unsigned(p.end_bits), depth=p.starts, init=[], attrs=ring_style(p.starts)
        )
        asked, begun = (Signal(range(2 * p.starts), name=f"rows_{name}") for name in ("asked", "begun"))
        end_in, end_out = ends.write_port(), ends.read_port(domain="comb")
        loading, left, taken, room = Signal(), Signal(p.end_bits), Signal(), Signal(init=1)
        begin = Signal()
        m.d.comb += [
            end_in.en.eq(self.start),
            end_in.addr.eq(asked),
            end_in.data.eq(self.end),
            end_out.addr.eq(begun),
            self.i.ready.eq(loading & room),
            taken.eq(self.i.valid & self.i.ready),
            begin.eq((asked != begun) & (~loading | (taken & (left == 0)))),
        ]
        m.d.sync += [
            asked.eq(asked + self.start),
            begun.eq(begun + begin),
            self.room.eq((asked - begun)[: len(asked)] < p.starts - 1),
            room.eq((granted - base)[: len(base)] < p.depth - 1),
            granted.eq(granted + taken),
        ]
        with m.If(begin):
            m.d.sync += [loading.eq(1), left.eq(end_out.data)]
        with m.Elif(taken):
            m.d.sync += [loading.eq(left != 0), left.eq(left - 1)]

        # Store them.
        token: Value = self.i.payload
        arrives: Value = taken
        if p.plus_one:
            results = Signal(len(token))
            for lane in range(p.lanes):
                m.submodules[f"add_{lane}"] = adder = Shared(p.adder)
                part = slice(lane * F24.bits, (lane + 1) * F24.bits)
                m.d.comb += [
                    adder.enable.eq(1),
                    adder.a.eq(token[part]),
                    adder.b.eq(Const(ONE, F24.bits)),
                    results[part].eq(adder.o),
                ]
            token = results
            arrives = follow(m, arrives, p.adder.latency)
        m.submodules.tokens = tokens = Memory(
            shape=unsigned(p.lanes * F24.bits), depth=p.depth, init=[], attrs=ring_style(p.depth)
        )
        token_in, token_out = tokens.write_port(), tokens.read_port()
        m.d.comb += [token_in.en.eq(arrives), token_in.addr.eq(stored), token_in.data.eq(token)]
        m.d.sync += stored.eq(stored + arrives)

        # Read them, row by row.
        m.d.comb += [
            self.available.eq(at != stored),
            token_out.en.eq(self.enable),
            token_out.addr.eq(at),
            self.o_data.eq(token_out.data),
        ]
        beyond = Signal.like(at)
        m.d.comb += beyond.eq(at + 1)
        with m.If(self.step):
            m.d.sync += at.eq(Mux(self.row_last & ~self.last, base, beyond))
            with m.If(self.row_last & self.last):
                m.d.sync += base.eq(beyond)
        return m
