"""The quantiser of rows and heads: f24 becomes codes of eight bits with a scale m * 2^e for each group.

    scale = m * 2^e, m of 128 to 255: the least with |x| <= 127 * scale in the whole group
    code = x / scale, rounded to nearest even; -127 to 127 without clamping
    |x - code * scale| <= scale / 2, and scale <= (1 + 1/128) * max|x| / 127

A row of `features` elements is cut in groups of `d`: one a token (d = features) or one a head. A group of
zeros has codes 0, m = 128 and e = E_ZERO = -141, one below the e of any other group. A group with NaN or an
infinity has codes 0, m = 128 and e = E_NOT_FINITE, from which a reader makes NaN; other groups of its row are
not touched. Padding of a group is zero and so takes no part.

Tiles in: `i` (1, lanes) f24, row-major, or `tile` features of all rows before the next ones, as a matmul
sends them. Out: `o_x` (1, lanes) i8, the same order; `o_scale` (1, 1) i24, one a group, m in the lower 8
bits, e above. Tokens wait in a ring until the scale of their group is known, while
those of the next group come in: a token a cycle. A token is let in when the ring has room for it, a group
when its queues have. The arithmetic is that of `row_codes`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from amaranth import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.fifo.clocks import Clocks
from streamgen.fifo.curves import KernelSide
from streamgen.fifo.queue import Queue, QueueParams
from streamgen.gateware.arith.pipeline import Pipeline
from streamgen.gateware.rtl import Shared
from streamgen.gateware.stream import CountdownParams, add_skid, descriptor_signature
from streamgen.itensor import ITensor
from streamgen.kernels.attention.row_codes import (
    MAGNITUDE_BITS,
    SCALE,
    SCALE_DTYPE,
    SCALE_STAGES,
    RowCodeParams,
    codes_of,
    join_scale,
    scale_stages,
    scales_of,
)
from streamgen.kernels.row_parts import quarter_maxima

_GROUPS = 32  # groups in the ring and in the queues; one of a token spends some 12 cycles there
_ELEMENT_BITS = 24


@dataclass(frozen=True, kw_only=True)
class QuantiseRowsParams:
    """lanes: elements per token. max_d: the longest group. max_tokens: the most tokens of one descriptor.

    Bounds: t (rows), features (elements of a row), d (elements of a group, a multiple of lanes), tile (the
    number of features of a row that come together, whole groups), if rows do not come whole.
    """

    lanes: int
    max_d: int
    max_tokens: int

    def __post_init__(self) -> None:
        if self.lanes < 1:
            raise ValueError(f"QuantiseRows.lanes is {self.lanes}; at least 1 is needed")
        if self.max_d < self.lanes or self.max_d % self.lanes:
            raise ValueError(
                f"QuantiseRows.max_d is {self.max_d}; it must be a multiple of lanes, {self.lanes}"
            )
        if not 1 <= self.max_tokens < 1 << 32:
            raise ValueError(f"QuantiseRows.max_tokens is {self.max_tokens}; 1 to 2^32 - 1 are allowed")

    @property
    def tree_stages(self) -> int:
        """Stages of the tree of maxima; each has two levels."""
        return -(-(self.lanes - 1).bit_length() // 2)

    @property
    def wait(self) -> int:
        """Cycles from the last token of a group taken to the first one read."""
        return 3 + self.tree_stages + SCALE_STAGES

    @property
    def latency(self) -> int:
        """Cycles from the last token of a group taken to the first one offered."""
        return self.wait + RowCodeParams().latency + 2

    @property
    def ring_depth(self) -> int:
        """Tokens in the ring: the longest group and the tokens that arrive while its scale is computed."""
        return 1 << (self.max_d // self.lanes + self.wait + 2 - 1).bit_length()

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"i": self._rows("f24", bounds)}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        scales = _order(1, SCALE_DTYPE, bounds, bounds["d"])
        return {"o_x": self._rows("i8", bounds), "o_scale": scales}

    def descriptor_fields(self) -> tuple[Field, ...]:
        """The number of tokens, and the tokens of a group minus one."""
        length = (self.max_d // self.lanes - 1).bit_length()
        return Field("tokens", self.max_tokens.bit_length()), Field("length", max(1, length))

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        t, features, d = bounds["t"], bounds["features"], bounds["d"]
        limit, tile = self.max_tokens, bounds.get("tile", features)
        for name, value, law, holds in (
            ("d", d, f"a multiple of lanes, {self.lanes}, up to {self.max_d}", self._fits(d)),
            ("features", features, f"a multiple of d, {d}", features >= d and features % max(d, 1) == 0),
            ("tile", tile, f"a multiple of d that divides {features}", _whole(tile, d, features)),
            ("t", t, f"1 to {limit} tokens of {self.lanes}", 1 <= t * features // self.lanes <= limit),
        ):
            if not holds:
                raise ValueError(f"QuantiseRows: {name} is {value}; it must be {law}")
        return {"tokens": t * features // self.lanes, "length": d // self.lanes - 1}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        """o_x int8 [t, features], o_scale int32 [t, groups] as `row_codes.join_scale` makes them."""
        with np.errstate(invalid="ignore"):  # a signalling NaN is as good as another
            values = inputs["i"].astype(np.float64)
        values[np.abs(values) < 2.0**-126] = 0
        groups = values.reshape(len(values), -1, bounds["d"])
        m, e = scales_of(groups)
        return {"o_x": codes_of(groups, m, e).reshape(values.shape), "o_scale": join_scale(m, e)}

    def cost(self, bounds: Bounds) -> Cost:
        curves = self.curves(bounds)
        cycles = int(curves["o_x"].cycles()[-1]) + 1
        first = int(curves["o_scale"].cycles()[0])
        return Cost(resources=self._resources, ii=1.0, latency=first - 1, cycles=cycles)

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        """One token per cycle in and, when the first group is complete, out."""
        described = self.describe(bounds)
        tokens, group = described["tokens"], described["length"] + 1
        return {
            "i": Curve.nest(1, (tokens, 1)),
            "o_x": Curve.nest(group + self.latency, (tokens, 1)),
            "o_scale": Curve.nest(group + self.wait, (tokens // group, group)),
        }

    def clocks(self, bounds: Bounds) -> Clocks:
        """Scales and codes wait only for their own group, not for later ones."""
        described = self.describe(bounds)
        tokens, group = np.arange(described["tokens"]), described["length"] + 1
        groups = np.arange(len(tokens) // group)
        curves = {port: curve.cycles() for port, curve in self.curves(bounds).items()}
        take, scale, code = (KernelSide(port, curves[port]) for port in ("i", "o_scale", "o_x"))
        ends, most = groups * group + group - 1, _GROUPS - 1
        held = self.ring_depth - 1 + self.latency - self.wait  # in the ring and behind it
        streams = (
            take.to(scale, ends, groups, latency=self.wait),
            take.to(code, ends, groups * group, latency=self.latency),
            code.to(take, tokens[:-held], tokens[held:]),
            scale.to(take, groups[:-most], groups[most:] * group),
        )
        ports = {"i": (take, tokens), "o_scale": (scale, groups), "o_x": (code, tokens)}
        return Clocks((take, scale, code), ports, streams)

    def build(self) -> "QuantiseRows":
        return QuantiseRows(self)

    @property
    def group_queue(self) -> QueueParams:
        """The data of a group for the lanes: reciprocal, top, length."""
        length = self.descriptor_fields()[1].bits
        return QueueParams(bits=18 + 8 + length, depth=_GROUPS)

    @property
    def scale_queue(self) -> QueueParams:
        """The queue of scales on their way out."""
        return QueueParams(bits=SCALE.size, depth=_GROUPS)

    @property
    def ring(self) -> QueueParams:
        """The memory of the ring, chosen as for a queue: up to 64 tokens in LUTs."""
        bits, depth = self.lanes * _ELEMENT_BITS, self.ring_depth
        return QueueParams(bits=bits, depth=depth, memory="lutram" if depth <= 64 else "bram")

    @property
    def _resources(self) -> Resources:
        """Fitted to synthesis: lanes with their share of the tree, control, ring."""
        tokens, length = (field.bits for field in self.descriptor_fields())
        logic = Resources(
            lut=215 + 127 * self.lanes + 4 * tokens + 4 * length,
            ff=225 + 119 * self.lanes + 2 * tokens + 3 * length,
            dsp=self.lanes,
        )
        ring = self.ring
        if ring.kind == "bram":
            return logic + Resources(lut=0, ff=0, bram=ring.resources.bram)
        return logic + Resources(lut=8 * -(-ring.bits // (14 if ring.depth <= 32 else 7)), ff=ring.bits)

    def _rows(self, dtype: str, bounds: Bounds) -> ITensor:
        return _order(self.lanes, dtype, bounds, self.lanes)

    def _fits(self, d: int) -> bool:
        return self.lanes <= d <= self.max_d and d % self.lanes == 0


def _order(width: int, dtype: str, bounds: Bounds, elements: int) -> ITensor:
    """The order of tokens of `width`, each for that many elements of a row."""
    t, features = bounds["t"], bounds["features"]
    if (tile := bounds.get("tile", features)) == features:
        return ITensor((1, width), dtype, (t, features // elements), (1, width), ((0,), (1,)))
    each = tile // elements
    return ITensor((1, width), dtype, (features // tile, t, each), (each * width, 1, width), ((1,), (0, 2)))


def _whole(tile: int, d: int, features: int) -> bool:
    return tile >= d > 0 and tile % d == 0 and features % tile == 0


class QuantiseRows(wiring.Component):
    """The quantiser of a QuantiseRowsParams."""

    def __init__(self, params: QuantiseRowsParams) -> None:
        self.params = params
        lanes = params.lanes
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i": In(stream.Signature(unsigned(lanes * _ELEMENT_BITS))),
                "o_x": Out(stream.Signature(unsigned(lanes * 8))),
                "o_scale": Out(stream.Signature(unsigned(SCALE.size))),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        params = self.params
        depth = params.ring_depth
        style = {"lutram": "distributed", "bram": "block"}[params.ring.kind]
        m.submodules.ring = ring = Memory(
            shape=unsigned(params.ring.bits), depth=depth, init=[], attrs={"ram_style": style}
        )
        m.submodules.groups = groups = Queue(params.group_queue)
        m.submodules.scales = scales = Queue(params.scale_queue)
        wiring.connect(m, wiring.flipped(self.o_scale), scales.o)

        # Room is granted with a token, and in the queues with the first one of a group; whether there is any
        # is known a cycle late, so the last place is never granted.
        room, taken, read_one = Signal(init=1), Signal(), Signal()
        first, end, length = self._take(m, room, taken)
        began = taken & first
        gone = groups.o.valid & groups.o.ready, scales.o.valid & scales.o.ready
        used = [
            self._used(m, "tokens", depth, taken, read_one),
            self._used(m, "groups", _GROUPS, began, gone[0]),
            self._used(m, "scales", _GROUPS, began, gone[1]),
        ]
        m.d.sync += room.eq(Cat(used).all())

        write, read = ring.write_port(), ring.read_port()
        m.d.comb += [write.en.eq(taken), write.data.eq(self.i.payload)]
        with m.If(taken):
            m.d.sync += write.addr.eq(write.addr + 1)
        ready, scale, group_length = self._scales(m, taken, first, end, length)
        group = data.StructLayout(
            {"reciprocal": len(scale.reciprocal), "top": len(scale.top), "length": len(length)}
        )
        m.d.comb += [
            groups.i.valid.eq(ready),
            groups.i.payload.eq(Cat(scale.reciprocal, scale.top, group_length)),
            scales.i.valid.eq(ready),
            scales.i.payload.eq(scale.token),
        ]

        # Read the group in front, a token a cycle: memory, lanes, register slice.
        codes = stream.Signature(len(self.o_x.payload)).create()
        add_skid(m, codes, [wiring.flipped(self.o_x)])
        front = data.View(group, groups.o.payload)
        of_token = Signal(group, reset_less=True)
        address, sent, move = Signal.like(read.addr), Signal(len(length)), Signal()
        full = Signal(1 + RowCodeParams().latency)
        m.d.comb += [
            move.eq(~codes.valid | codes.ready),
            read_one.eq(move & groups.o.valid),
            read.addr.eq(address),
            read.en.eq(move),
            groups.o.ready.eq(move & (sent == front.length)),
            codes.valid.eq(full[-1]),
        ]
        with m.If(move):
            m.d.sync += [of_token.eq(front), full.eq(Cat(groups.o.valid, full))]
        with m.If(read_one):
            m.d.sync += [address.eq(address + 1), sent.eq(Mux(groups.o.ready, 0, sent + 1))]
        for lane in range(params.lanes):
            m.submodules[f"lane_{lane}"] = block = Shared(RowCodeParams())
            m.d.comb += [
                block.enable.eq(move),
                block.i.eq(read.data.word_select(lane, _ELEMENT_BITS)),
                block.top.eq(of_token.top),
                block.reciprocal.eq(of_token.reciprocal),
                codes.payload.word_select(lane, 8).eq(block.o),
            ]
        return m

    def _take(self, m: Module, room: Value, taken: Signal) -> tuple[Value, Value, Signal]:
        """Take the tokens of descriptors while there is room; returns (first, last of a group, its
        length)."""
        fields = self.i_descriptor.payload
        m.submodules.count = count = CountdownParams(bits=len(fields.tokens)).build()
        length = Signal(len(fields.length), reset_less=True)
        index = Signal(len(length))
        end = index == length
        m.d.comb += [
            count.i_count.payload.eq(fields.tokens),
            count.i_count.valid.eq(self.i_descriptor.valid),
            self.i_descriptor.ready.eq(count.i_count.ready),
            self.i.ready.eq(count.active & room),
            taken.eq(self.i.ready & self.i.valid),
            count.step.eq(taken),
        ]
        with m.If(count.taken):
            m.d.sync += length.eq(fields.length)
        with m.If(taken):
            m.d.sync += index.eq(Mux(end, 0, index + 1))
        return index == 0, end, length

    def _used(self, m: Module, name: str, places: int, more: Value, less: Value) -> Value:
        """Whether there is a free place besides the used places and the one that may be granted now."""
        used = Signal(range(places + 1), name=f"{name}_used")
        m.d.sync += used.eq(used + more - less)
        return used < places - 1

    def _scales(
        self, m: Module, taken: Value, first: Value, end: Value, length: Value
    ) -> tuple[Value, SimpleNamespace, Value]:
        """(valid, scale, length) of each group: its greatest magnitude, then `scale_stages`."""
        pipe = Pipeline(m, Const(1))
        elements = [self.i.payload.word_select(k, _ELEMENT_BITS) for k in range(self.params.lanes)]
        partial: list[Value] = [element[:MAGNITUDE_BITS] for element in elements]
        along: dict[str, Value] = {"first": first, "end": end, "length": length}
        for stage in range(1 + self.params.tree_stages):
            if stage:
                partial = quarter_maxima(pipe, partial)
            s = pipe.stage(**along, **{f"greatest{k}": value for k, value in enumerate(partial)})
            partial = [getattr(s, f"greatest{k}") for k in range(len(partial))]
            along = {name: getattr(s, name) for name in along}
        valid = Signal(pipe.depth)
        m.d.sync += valid.eq(Cat(taken, valid)[: pipe.depth])
        so_far = Signal(MAGNITUDE_BITS, reset_less=True)
        greatest = Mux(s.first | (partial[0] > so_far), partial[0], so_far)
        with m.If(valid[-1]):
            m.d.sync += so_far.eq(greatest)
        complete = Signal(1 + SCALE_STAGES)
        m.d.sync += complete.eq(Cat(valid[-1] & s.end, complete))
        s = pipe.stage(length=s.length)
        scale = scale_stages(m, pipe, so_far)
        lengths = [s.length]
        for _ in range(SCALE_STAGES):
            lengths.append(Signal.like(lengths[-1], name="length_of_group", reset_less=True))
            m.d.sync += lengths[-1].eq(lengths[-2])
        return complete[-1], scale, lengths[-1]
