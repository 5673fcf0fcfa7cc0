"""RMSNorm and LayerNorm over rows of f24.

    rms      o = x / sqrt(mean(x^2) + epsilon) · w [+ b]
    layer    o = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) · w [+ b]

With `plus_one`, w is 1 + i_weight (Gemma). Tiles in: `i` (1, lanes) f24, row-major; `i_weight` and, with
`bias`, `i_bias`: one row of such tiles for each descriptor, held for all its rows. Out: `o`, as `i`. Elements
from `valid_k` on are padding: they are ignored, and sent as 0.

How it is computed, and how near it comes:
* Sums are exact integers of terms aligned to the greatest exponent of the row, 40 bits of each term kept
  (`RowSum`): lanes and order cannot matter. x is divided by the greatest power of two of its row on the
  way to the root, so every finite row has the right result; nothing overflows but a result that does.
* layer: the mean is rounded to 2^-36 of that power, x - mean is exact but for that and rounded once
  (`RowCentre`). A row of equal values gives exactly b. Where values differ they do by 2^-16 of the power or
  more, so however small the variance beside the mean, the mean's error is below 2^-19 of the greatest result.
* A row with NaN or an infinity is all NaN. A row of zeros gives ±0 · w [+ b], NaN if epsilon is 0.
* epsilon is rounded to f24. A row below 2^-60 · sqrt(epsilon) gives zeros [+ b].

The reciprocal of K and epsilon come with the descriptor: one build serves different layers.

A row waits once for its greatest exponent and once for its sum, twice as often for layer. Rows follow one
another without a gap, lanes elements a cycle: while one is sent the next are summed and taken in.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.fifo.clocks import Clocks, of_curves
from streamgen.gateware.arith import F24
from streamgen.gateware.rtl import Shared
from streamgen.gateware.stream import add_skid, descriptor_signature, signature, skid_resources
from streamgen.itensor import ITensor
from streamgen.kernels.norm.align import KEPT_BITS, SPECIAL
from streamgen.kernels.norm.held_row import HeldRowParams
from streamgen.kernels.norm.row_centre import MEAN_FIELDS, RowCentreParams
from streamgen.kernels.norm.row_ring import RowRingParams
from streamgen.kernels.norm.row_sum import RowSumParams
from streamgen.kernels.norm.units import LEAST, OFFSET_BITS, NormLaneParams, RowRootParams, row_offset

LONGEST = 1 << 16
LARGEST = float(F24.decode(np.array(0x7F7FFF)))
SQUARE_UNIT = 2 - KEPT_BITS  # a square of the greatest significand lies below 4
CONSTANTS = (("inverse", F24.bits), ("epsilon", F24.bits))


@dataclass(frozen=True, kw_only=True)
class NormParams:
    """kind: "rms" or "layer". lanes: elements of a token. max_k, max_rows: of one descriptor, padding
    included.

    bias: whether there is an i_bias. plus_one: weights are 1 + i_weight. Bounds: t (rows), k (row length as
    streamed, a multiple of lanes), valid_k (its logical length), epsilon; heads (rows that are side by side
    in a row of the tensor, 1).
    """

    kind: Literal["rms", "layer"]
    lanes: int
    max_k: int
    max_rows: int
    bias: bool = False
    plus_one: bool = False

    def __post_init__(self) -> None:
        if self.kind not in ("rms", "layer"):
            raise ValueError(f"Norm.kind is {self.kind!r}; 'rms' and 'layer' are allowed")
        if not 1 <= self.lanes <= self.max_k:
            raise ValueError(f"Norm.lanes is {self.lanes}; 1 to max_k = {self.max_k} are allowed")
        if not self.max_k <= LONGEST or self.max_k % self.lanes:
            raise ValueError(
                f"Norm.max_k is {self.max_k}; a multiple of lanes = {self.lanes} up to {LONGEST} is needed"
            )
        if not 1 <= self.max_rows < 1 << 32:
            raise ValueError(f"Norm.max_rows is {self.max_rows}; 1 to 2^32 - 1 are allowed")

    @property
    def centred(self) -> bool:
        """Whether the mean is subtracted."""
        return self.kind == "layer"

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest row."""
        return self.max_k // self.lanes

    @property
    def centre(self) -> RowCentreParams:
        """The unit that subtracts the mean."""
        return RowCentreParams(lanes=self.lanes, max_tokens=self.max_tokens)

    @property
    def sums(self) -> RowSumParams:
        """The sums of squares."""
        return RowSumParams(
            lanes=self.lanes,
            max_tokens=self.max_tokens,
            squares=True,
            head_bits=1 + 2 * F24.bits,
            lead=self.centre.lead if self.centred else 1,
        )

    @property
    def root(self) -> RowRootParams:
        return RowRootParams(total_bits=self.sums.total_bits)

    @property
    def ring(self) -> RowRingParams:
        """The ring in which rows wait for their root."""
        return RowRingParams(
            bits=self.lanes * F24.bits,
            head_bits=1,
            tail_bits=F24.bits + 8,
            max_tokens=self.max_tokens,
            ahead=self.sums.latency + self.root.latency + 4,
        )

    @property
    def lane(self) -> NormLaneParams:
        return NormLaneParams(bias=self.bias)

    @property
    def parameters(self) -> dict[str, HeldRowParams]:
        """The rows held, by port."""
        plus_one = {"i_weight": self.plus_one} | ({"i_bias": False} if self.bias else {})
        return {
            port: HeldRowParams(
                lanes=self.lanes, max_tokens=self.max_tokens, starts=self.ring.rows, plus_one=adds_one
            )
            for port, adds_one in plus_one.items()
        }

    @property
    def constants(self) -> tuple[tuple[str, int], ...]:
        """Fields of the descriptor that travel with a row."""
        return CONSTANTS + (MEAN_FIELDS if self.centred else ())

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        row = self._itensor(1, bounds["k"])
        return {"i": self._heads(bounds)} | dict.fromkeys(self.parameters, row)

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"o": self._heads(bounds)}

    def descriptor_fields(self) -> tuple[Field, ...]:
        """rows; end: tokens of a row less one; whole, part: valid_k in tokens and elements; constants."""
        return (
            Field("rows", self.max_rows.bit_length()),
            Field("end", self.ring.end_bits),
            Field("whole", self.max_tokens.bit_length()),
            Field("part", max(1, (self.lanes - 1).bit_length())),
            *(Field(name, bits) for name, bits in self.constants),
        )

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        t, k, valid_k, epsilon = (bounds[name] for name in ("t", "k", "valid_k", "epsilon"))
        heads = bounds.get("heads", 1)
        for name, value, law, holds in (
            ("t", t, f"1 to {self.max_rows}", 1 <= t <= self.max_rows),
            (
                "k",
                k,
                f"a multiple of {self.lanes} up to {self.max_k}",
                1 <= k <= self.max_k and k % self.lanes == 0,
            ),
            ("valid_k", valid_k, f"1 to k = {k}", 1 <= valid_k <= k),
            ("heads", heads, f"a divisor of t = {t}", heads >= 1 and t % heads == 0),
            (
                "epsilon",
                epsilon,
                "0, or 2^-126 to the greatest f24",
                epsilon == 0 or LEAST <= epsilon <= LARGEST,
            ),
        ):
            if not holds:
                raise ValueError(f"Norm: {name} is {value}; it must be {law}")
        whole, part = divmod(valid_k, self.lanes)
        return {
            "rows": t,
            "end": k // self.lanes - 1,
            "whole": whole,
            "part": part,
            "inverse": int(F24.encode(_inverse(valid_k))),
            "epsilon": int(F24.encode(np.array(epsilon))),
            **(self.centre.describe(valid_k) if self.centred else {}),
        }

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        valid_k = bounds["valid_k"]
        shape = inputs["i"].shape
        rows = {**inputs, "i": inputs["i"].reshape(bounds["t"], bounds["k"])}
        x, *parameters = (_values(rows[port])[:, :valid_k] for port in self.inputs(bounds))
        epsilon = F24.round(np.full(len(x), bounds["epsilon"], np.float64))
        special = ~np.isfinite(x).all(axis=1)
        if self.centred:
            x, epsilon = self.centre.golden(x, epsilon)
        greatest, total = self.sums.golden(x)
        greatest = np.where(special, SPECIAL, greatest)
        r = self.root.golden(total, greatest, F24.round(_inverse(valid_k)), epsilon)
        weight, bias = parameters[0], parameters[1] if self.bias else None
        if self.plus_one:
            weight = self.parameters["i_weight"].adder.golden(weight, np.ones(1))
        o = np.zeros((bounds["t"], bounds["k"]), np.float32)
        o[:, :valid_k] = self.lane.golden(x, r[:, None], greatest[:, None], weight, bias)
        return {"o": o.reshape(shape)}

    def cost(self, bounds: Bounds) -> Cost:
        tokens = bounds["t"] * bounds["k"] // self.lanes
        first = self._first(bounds)
        return Cost(resources=self._resources(), ii=1.0, latency=first - 1, cycles=first + tokens)

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        row = bounds["k"] // self.lanes
        tokens = bounds["t"] * row
        return {
            "i": Curve.nest(1, (tokens, 1)),
            **{port: Curve.nest(2, (row, 1)) for port in self.parameters},
            "o": Curve.nest(self._first(bounds), (tokens, 1)),
        }

    def clocks(self, bounds: Bounds) -> Clocks:
        """Rows come in while their parameters are on the way."""
        return of_curves(self, bounds, kept=dict.fromkeys(self.parameters, self.lane.latency + 3))

    def build(self) -> "NormKernel":
        return NormKernel(self)

    def _first(self, bounds: Bounds) -> int:
        """The cycle of the first token sent: rows pass token by token when they are complete."""
        row = bounds["k"] // self.lanes
        squares = row + self.sums.waits + self.sums.latency
        centre = self.centre.latency(row) if self.centred else 0
        return centre + squares + row + self.root.latency + self.lane.latency + 3

    def _resources(self) -> Resources:
        total = self.sums.resources + self.root.resources + self.ring.resources
        if self.centred:
            total += self.centre.resources
        for held in self.parameters.values():
            total += held.resources
        bits = sum(field.bits for field in self.descriptor_fields())
        entry = Resources(lut=30 + 1.5 * bits + 10 * self.lanes, ff=40 + 1.3 * bits + 25 * self.lanes)
        out = skid_resources(self.lanes * F24.bits, 1) + Resources(lut=30, ff=40)
        return total + entry + out + self.lanes * self.lane.resources

    def _heads(self, bounds: Bounds) -> ITensor:
        """The rows of `i` and `o`."""
        t, k, heads = bounds["t"], bounds["k"], bounds.get("heads", 1)
        if heads == 1:
            return self._itensor(t, k)
        trips = (t // heads, heads, k // self.lanes)
        return ITensor((1, self.lanes), "f24", trips, (1, k, self.lanes), ((0,), (1, 2)))

    def _itensor(self, t: int, k: int) -> ITensor:
        return ITensor((1, self.lanes), "f24", (t, k // self.lanes), (1, self.lanes), ((0,), (1,)))


def _inverse(valid_k: int) -> ndarray:
    """What makes the mean of a sum of squares."""
    return np.array(2.0**SQUARE_UNIT / valid_k)


def _values(x: ndarray) -> ndarray:
    """float64 of f24."""
    with np.errstate(invalid="ignore"):  # a signalling NaN is as good as another
        values = x.astype(np.float64)
    return np.where(np.abs(values) < LEAST, np.copysign(0.0, values), values)


class NormKernel(wiring.Component):
    """The hardware of a NormParams.

        i -> [RowCentre] -> RowSum -> RowRing -> lanes -> o          RowSum -> RowRoot -> RowRing
        i_weight, i_bias -> HeldRow -> lanes

    Everything before the last ring flows freely, as a token sets out only where room is granted; the lanes
    are one pipe under one clock enable, behind it a register slice.
    """

    def __init__(self, params: NormParams) -> None:
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
