"""The mxi8 quantiser of short rows of one length: the arithmetic of `quantise`, in fewer cycles.

Tiles in: `i` (1, lanes) f24, row-major. Out: `o_x` (1, 32) mxi8s, row-major; `o_e` i16, one a row.

A group is gathered as it comes, and all its elements are quantised side by side. Each of these is a stage:
two levels of the tree of maxima, two more, the last one with distances, products, shifts with codes. The sum
of the codes takes two stages. Groups and the exponents of rows wait in queues; a group leaves when that of
its row is there. Nothing in between ever stalls: a token is taken when the queue has room for its group.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import add
from typing import Any

import numpy as np
from amaranth import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2
from numpy import ndarray

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.fifo.clocks import Clocks
from streamgen.fifo.curves import KernelSide
from streamgen.fifo.queue import Queue, QueueParams
from streamgen.gateware.arith.pipeline import Pipeline
from streamgen.gateware.stream import descriptor_signature, signature
from streamgen.itensor import ITensor
from streamgen.kernels.matmul.group_codes import REAL, STEP_BITS, SUM_BITS, code_stages, size
from streamgen.kernels.matmul.quantise import exponent, golden, mxi8_token
from streamgen.kernels.row_parts import halve, maximum
from streamgen.kernels.softmax.rows import has_room
from streamgen.numbers.formats import MX_GROUP

_MAXIMA, _ADDERS = (2, 2, 1), (3, 2)  # levels of the trees over 32 elements, by stage
_KEPT = frozenset((1, 2, 4, 5, 7, 8, 9))  # registers: none before distances, none between shifts and codes
_GATHERED = 2  # cycles from the last token of a group to its greatest element, which is not registered
_CODES = _GATHERED + 3  # to its codes
_SUMS = len(_ADDERS)  # stages of the tree of sums
_UNKNOWN = 3  # cycles in which a queue's room is not known yet


@dataclass(frozen=True, kw_only=True)
class QuickQuantiseParams:
    """lanes: elements taken per cycle. k, valid_k: the length of a row as streamed, a multiple of 32, and its
    logical length; elements behind it count as zeros. max_rows: of an execution. sums: whether groups are
    sent with the sums of their codes (`mxi8s`, not `mxi8`).

    Bounds: t (rows).
    """

    lanes: int
    k: int
    valid_k: int
    max_rows: int
    sums: bool

    def __post_init__(self) -> None:
        if self.lanes not in (1, 2, 4, 8, 16, 32):
            raise ValueError(f"QuickQuantise.lanes is {self.lanes}; 1, 2, 4, 8, 16 and 32 are allowed")
        if self.k < MX_GROUP or self.k % MX_GROUP:
            raise ValueError(f"QuickQuantise.k is {self.k}; it must be a multiple of {MX_GROUP}")
        if not 1 <= self.valid_k <= self.k:
            raise ValueError(f"QuickQuantise.valid_k is {self.valid_k}; it must be 1 to k = {self.k}")
        if self.max_rows < 1:
            raise ValueError(f"QuickQuantise.max_rows is {self.max_rows}; it must be at least 1")

    @property
    def groups(self) -> int:
        """Groups of a row."""
        return self.k // MX_GROUP

    @property
    def tokens(self) -> int:
        """Tokens of a group."""
        return MX_GROUP // self.lanes

    @property
    def used(self) -> int:
        """Elements of a group that are not padding in all groups."""
        return min(MX_GROUP, self.valid_k)

    @property
    def dtype(self) -> str:
        """Format of `o_x`."""
        return "mxi8s" if self.sums else "mxi8"

    @property
    def latency(self) -> int:
        """Cycles from the last token of a group to the group offered, if the exponent of its row is there."""
        return _CODES + _SUMS * self.sums + 1

    @property
    def exponent_latency(self) -> int:
        """Cycles from the last token of a row to its exponent offered."""
        return _GATHERED + 2

    @property
    def depth(self) -> int:
        """Groups that wait: those of two rows, and those under way."""
        return 1 << ceil_log2(2 * self.groups + self.latency + _UNKNOWN)

    @property
    def waiting(self) -> QueueParams:
        """The queue of groups: codes, sum, step and the exponent of the greatest element."""
        bits = 8 * self.used + SUM_BITS * self.sums + STEP_BITS + 8
        return QueueParams(bits=bits, depth=self.depth, memory="lutram")

    @property
    def exponents(self) -> QueueParams:
        """The queue of the greatest exponents of rows; there are two."""
        return QueueParams(bits=8, depth=self.depth, memory="lutram")

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        t, lanes = bounds["t"], self.lanes
        return {"i": ITensor((1, lanes), "f24", (t, self.k // lanes), (1, lanes), ((0,), (1,)))}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        t = bounds["t"]
        return {
            "o_x": ITensor((1, MX_GROUP), self.dtype, (t, self.groups), (1, MX_GROUP), ((0,), (1,))),
            "o_e": ITensor((1,), "i16", (t,), (1,), ((0,),)),
        }

    def descriptor_fields(self) -> tuple[Field, ...]:
        return (Field("rows", self.max_rows.bit_length()),)

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        if not 1 <= bounds["t"] <= self.max_rows:
            raise ValueError(f"QuickQuantise: t is {bounds['t']}; it must be 1 to {self.max_rows}")
        return {"rows": bounds["t"]}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        x, e = golden(inputs["i"], self.valid_k)
        return {"o_x": x, "o_e": e}

    def cost(self, bounds: Bounds) -> Cost:
        curves = self.curves(bounds)
        outputs = [curves[port].cycles() for port in ("o_x", "o_e")]
        first, last = min(int(c[0]) for c in outputs), max(int(c[-1]) for c in outputs)
        return Cost(resources=self.resources, ii=1.0, latency=first - 1, cycles=last + 1)

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        take, e, x = self._times(bounds["t"])
        return {"i": Curve.at(take), "o_e": Curve.at(e), "o_x": Curve.at(x)}

    def _times(self, rows: int) -> tuple[ndarray, ndarray, ndarray]:
        """The cycles of tokens taken, of exponents and of groups sent."""
        take = 1 + np.arange(rows * self.groups * self.tokens)
        ends = take[self.tokens - 1 :: self.tokens]
        e = ends[self.groups - 1 :: self.groups] + self.exponent_latency
        number = np.arange(len(ends))
        ready = np.maximum(ends + self.latency, np.repeat(e, self.groups))
        return take, e, np.maximum.accumulate(ready - number) + number

    def clocks(self, bounds: Bounds) -> Clocks:
        """Tokens come in; groups wait for the exponent of their row."""
        rows, groups, tokens = bounds["t"], self.groups, self.tokens
        take, e, x = (
            KernelSide(name, cycles)
            for name, cycles in zip(("take", "e", "x"), self._times(rows), strict=True)
        )
        row, every, depth = np.arange(rows), np.arange(rows * groups), self.depth - 1
        ends = (row + 1) * groups * tokens - 1
        return Clocks(
            (take, e, x),
            {"i": (take, np.arange(len(take.cycles))), "o_e": (e, row), "o_x": (x, every)},
            (
                take.to(e, ends, row, latency=self.exponent_latency),
                take.to(x, every * tokens + tokens - 1, every, latency=self.latency),
                take.to(x, ends, row * groups, latency=self.exponent_latency),
                x.to(take, every[:-depth], every[depth:] * tokens, latency=2),
                e.to(take, row[:-depth], row[depth:] * groups * tokens, latency=2),
            ),
        )

    @property
    def resources(self) -> Resources:
        """Fitted to synthesis."""
        gathered = (MX_GROUP - self.lanes) * REAL.size if self.tokens > 1 else 0
        total = Resources(lut=65 + 100 * self.used, ff=65 + 66 * self.used + gathered, dsp=self.used)
        if self.sums:
            total += Resources(lut=17.4 * self.used, ff=20 + 16.5 * self.used)
        return total + self.waiting.resources + 2 * self.exponents.resources

    def build(self) -> "QuickQuantise":
        return QuickQuantise(self)


class QuickQuantise(wiring.Component):
    """i -> o_x, o_e."""

    def __init__(self, params: QuickQuantiseParams) -> None:
        self.params = params
        outputs = params.outputs({"t": 1})
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i": In(signature(params.inputs({"t": 1})["i"])),
                "o_x": Out(signature(outputs["o_x"])),
                "o_e": Out(signature(outputs["o_e"])),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self.params
        room = Signal()
        taken, token, ends_group, ends_row = self._take(m, room)
        group_end = Signal()
        m.d.comb += group_end.eq(taken & ends_group)
        elements = self._gathered(m, taken, token)
        pipe = Pipeline(m, Const(1), _KEPT)

        # The greatest element of the group.
        partial = [size(element) for element in elements]
        kept = {"elements": Cat(Value.cast(element) for element in elements), "last": ends_row}
        for levels in _MAXIMA:
            for _ in range(levels):
                partial = halve(partial, lambda a, b: pipe.wire(maximum(a, b)))
            s = pipe.stage(**kept, **{f"max{k}": value for k, value in enumerate(partial)})
            partial = [getattr(s, f"max{k}") for k in range(len(partial))]
            kept = {"elements": s.elements, "last": s.last}
        greatest, last = partial[0], s.last
        moving = Signal(_CODES + _SUMS * p.sums)
        m.d.sync += moving.eq(Cat(group_end, moving))
        e_done, e = self._exponents(m, moving[_GATHERED - 1], greatest[STEP_BITS:], last)

        # Its codes, with their sum.
        view = data.View(data.ArrayLayout(REAL, p.used), s.elements)
        s = code_stages(pipe, [view[k] for k in range(p.used)], greatest)
        total: Value = Const(0, 0)
        if p.sums:
            sums = [s.codes.word_select(k, 8).as_signed() for k in range(p.used)]
            for levels in _ADDERS:
                for _ in range(levels):
                    sums = halve(sums, add)
                s = pipe.stage(codes=s.codes, greatest=s.greatest, **{f"s{k}": v for k, v in enumerate(sums)})
                sums = [getattr(s, f"s{k}") for k in range(len(sums))]
            total = Cat(sums[0], sums[0][-1].replicate(SUM_BITS))[:SUM_BITS]
        m.submodules.waiting = waiting = Queue(p.waiting)
        m.d.comb += [waiting.i.valid.eq(moving[-1]), waiting.i.payload.eq(Cat(s.greatest, total, s.codes))]
        self._send(m, waiting.o, e_done, e)
        gone = self.o_x.valid & self.o_x.ready
        e_gone = self.o_e.valid & self.o_e.ready
        groups_room = has_room(m, group_end, gone, p.depth)
        rows_room = has_room(m, group_end & ends_row, e_gone, p.depth)
        m.d.comb += room.eq(groups_room & rows_room)
        return m

    def _take(self, m: Module, room: Signal) -> tuple[Value, Value, Value, Value]:
        """Take the tokens of a descriptor: (taken, token with zeros for padding, ends a group, a row)."""
        p = self.params
        running, rows = Signal(), Signal(p.max_rows.bit_length(), reset_less=True)
        count = p.groups * p.tokens
        place = Signal(range(max(2, count)))  # of the token in its row
        ends_row = place == count - 1
        taken = Signal()
        m.d.comb += [
            self.i_descriptor.ready.eq(~running),
            self.i.ready.eq(running & room),
            taken.eq(self.i.valid & self.i.ready),
        ]
        with m.If(~running):
            m.d.sync += [running.eq(self.i_descriptor.valid), rows.eq(self.i_descriptor.payload.rows)]
        with m.If(taken):
            m.d.sync += place.eq(Mux(ends_row, 0, place + 1))
            with m.If(ends_row):
                m.d.sync += [rows.eq(rows - 1), running.eq(rows != 1)]
        ends_group = (place & (p.tokens - 1)) == p.tokens - 1
        return taken, self._valid(m, taken, place), ends_group, ends_row

    def _valid(self, m: Module, taken: Value, place: Value) -> Value:
        """The token with zeros behind valid_k. place: of the token in its row."""
        p = self.params
        if p.valid_k == p.k:
            return self.i.payload
        masks = [
            sum((place * p.lanes + lane < p.valid_k) << lane for lane in range(p.lanes))
            for place in range(p.k // p.lanes)
        ]
        valid = Signal(p.lanes, init=masks[0])
        with m.If(taken):
            m.d.sync += valid.eq(Array(masks[1:] + masks[:1])[place])
        elements = (self.i.payload.word_select(lane, REAL.size) for lane in range(p.lanes))
        return Cat(Mux(valid[lane], element, 0) for lane, element in enumerate(elements))

    def _gathered(self, m: Module, taken: Value, token: Value) -> list[Any]:
        """The used elements of a group, in the cycle in which its last token is taken."""
        group = token
        if self.params.tokens > 1:
            before = Signal((MX_GROUP - self.params.lanes) * REAL.size, reset_less=True)
            with m.If(taken):
                m.d.sync += before.eq(Cat(before, token)[len(token) :])
            group = Cat(before, token)
        return [data.View(REAL, group.word_select(k, REAL.size)) for k in range(self.params.used)]

    def _exponents(self, m: Module, valid: Value, greatest: Value, last: Value) -> tuple[Value, Value]:
        """The greatest exponent of a row, a cycle after that of its last group."""
        so_far, first = Signal(8, reset_less=True), Signal(init=1)
        done, e = Signal(), Signal(8, reset_less=True)
        value = Mux(first, greatest, maximum(so_far, greatest))
        m.d.sync += [done.eq(valid & last), e.eq(value)]
        with m.If(valid):
            m.d.sync += [so_far.eq(value), first.eq(last)]
        return done, e

    def _send(self, m: Module, waiting: Any, done: Value, e: Value) -> None:
        p = self.params
        m.submodules.of_rows = of_rows = Queue(p.exponents)
        m.submodules.sent = sent = Queue(p.exponents)
        for queue in (of_rows, sent):
            m.d.comb += [queue.i.valid.eq(done), queue.i.payload.eq(e)]
        m.d.comb += [
            self.o_e.valid.eq(sent.o.valid),
            self.o_e.payload.eq(exponent(sent.o.payload)),
            sent.o.ready.eq(self.o_e.ready),
        ]
        group = data.StructLayout(
            {"step": STEP_BITS, "greatest": 8, "sum": SUM_BITS * p.sums, "codes": 8 * MX_GROUP}
        )
        token = Cat(waiting.payload, Const(0, group.size - p.waiting.bits))
        place = Signal(range(max(2, p.groups)))
        at_end = place == p.groups - 1
        m.d.comb += [
            self.o_x.valid.eq(waiting.valid & of_rows.o.valid),
            self.o_x.payload.eq(mxi8_token(data.View(group, token), of_rows.o.payload, p.sums)),
            waiting.ready.eq(self.o_x.ready & of_rows.o.valid),
            of_rows.o.ready.eq(self.o_x.ready & waiting.valid & at_end),
        ]
        with m.If(self.o_x.valid & self.o_x.ready):
            m.d.sync += place.eq(Mux(at_end, 0, place + 1))
