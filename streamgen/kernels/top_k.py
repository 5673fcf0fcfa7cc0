"""The k greatest values of each row of f24, and where they are: argmax with k = 1.

    o_values, o_indices = the k greatest of i[row], falling; of equal values the lower index comes first

Tiles in: `i` (1, lanes) f24, row-major, rows padded to whole tokens; what is beyond the length is ignored.
Tiles out: (1, 1), k a row: `o_values` f24 and `o_indices` u<N>. As in torch NaN is the greatest of all and
both zeros are equal; a NaN comes out as the canonical one, a zero as +0. Subnormals count as zero.

Values travel as keys, unsigned integers that rise with the value. Candidates, one a cycle, go into a queue of
max_k cells, the greatest first: a cell that is less takes what the cell above it held, the first of them the
candidate. At the end of a row all cells move on to the output, and the next row begins in the same cycle.

rate   max_k = 1: a tree over the lanes gives one candidate a token (two levels a stage), a token a cycle
       max_k > 1: each element is a candidate, a token every `lanes` cycles
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from numpy import ndarray

from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.gateware.arith import F24
from streamgen.gateware.arith.pipeline import Pipeline, operand
from streamgen.gateware.stream import add_skid, descriptor_signature, signature, skid_resources
from streamgen.itensor import ITensor
from streamgen.kernels.row_parts import MAX_LENGTH, lanes_before, tree_stages
from streamgen.numbers.formats import numpy_dtype

ROWS_BITS = 16
MAX_K = 64


@dataclass(frozen=True, kw_only=True)
class TopKParams:
    """lanes: elements of a token. max_length: longest row. max_k: most results of a row.

    Bounds: rows, length, k.
    """

    lanes: int
    max_length: int
    max_k: int

    def __post_init__(self) -> None:
        for name, most in (("lanes", 32), ("max_length", MAX_LENGTH), ("max_k", MAX_K)):
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"{name} is {getattr(self, name)}; 1 to {most} are allowed")

    @property
    def index_bits(self) -> int:
        """Bits of an index of a row."""
        return max(1, (self.max_length - 1).bit_length())

    @property
    def period(self) -> int:
        """Cycles per token."""
        return 1 if self.max_k == 1 else self.lanes

    @property
    def latency(self) -> int:
        """Cycles from the last token of a row to its first result."""
        return 5 + tree_stages(self.lanes) if self.max_k == 1 else 4 + self.lanes

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        trips = (bounds["rows"], -(-bounds["length"] // self.lanes))
        return {"i": ITensor((1, self.lanes), "f24", trips, (1, self.lanes), ((0,), (1,)))}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        dtypes = {"o_values": "f24", "o_indices": f"u{self.index_bits}"}
        trips = (bounds["rows"], bounds["k"])
        return {port: ITensor((1, 1), dtype, trips, (1, 1), ((0,), (1,))) for port, dtype in dtypes.items()}

    def descriptor_fields(self) -> tuple[Field, ...]:
        return (
            Field("rows", ROWS_BITS),
            Field("length", self.max_length.bit_length()),
            Field("k", self.max_k.bit_length()),
        )

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        """The value of each descriptor field; ValueError for bounds that the hardware cannot run."""
        limits = {"rows": (1 << ROWS_BITS) - 1, "length": self.max_length}
        limits["k"] = min(self.max_k, bounds["length"])
        for name, most in limits.items():
            if not 1 <= bounds[name] <= most:
                raise ValueError(f"{name} is {bounds[name]}; it must be 1 to {most}")
        return {name: bounds[name] for name in limits}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        x = inputs["i"][:, : bounds["length"]].astype(np.float64)
        falling = np.where(np.isnan(x), -np.inf, -x)
        order = np.lexsort((falling, ~np.isnan(x)), axis=1)[:, : bounds["k"]]  # stable
        values = np.take_along_axis(x, order, axis=1) + 0.0  # -0 becomes +0
        return {
            "o_values": values.astype(np.float32),
            "o_indices": order.astype(numpy_dtype(f"u{self.index_bits}")),
        }

    def cost(self, bounds: Bounds) -> Cost:
        curves = self.curves(bounds)
        busiest = max((curve.cycles() for curve in curves.values()), key=len)
        out = curves["o_values"].cycles()
        return Cost(
            resources=self._resources(),
            ii=float(busiest[-1] - busiest[0]) / (len(busiest) - 1) if len(busiest) > 1 else 1.0,
            latency=int(out[0]) - 1,
            cycles=int(out[-1]) + 1,
        )

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        """A token in every `period` cycles; results come one per cycle after the last token of a row."""
        rows, tokens = self.inputs(bounds)["i"].tripcounts
        first = 1 + (tokens - 1) * self.period + self.latency
        out = Curve.nest(first, (rows, tokens * self.period), (bounds["k"], 1))
        return {"i": Curve.nest(1, (rows * tokens, self.period)), "o_values": out, "o_indices": out}

    def _resources(self) -> Resources:
        """Fitted to synthesis: cells twice, in the queue and at the output, and the stages before them."""
        cell, lanes = F24.bits + self.index_bits, self.lanes
        cells = self.max_k * Resources(lut=2 * cell + 18, ff=2 * cell) + skid_resources(cell, 2)
        if self.max_k > 1:
            before = Resources(lut=25 * lanes + 30 + 3.5 * self.index_bits, ff=25 * lanes + 75)
            return cells + before + Resources(lut=0, ff=4.7 * self.index_bits)
        keys, registers = lanes, F24.bits * lanes
        for _ in range(tree_stages(lanes)):
            keys = -(-keys // 4)
            registers += keys * (F24.bits + (lanes - 1).bit_length())
        lut = 76 * (lanes - 1) + 55 + 3.5 * self.index_bits
        return cells + Resources(lut=lut, ff=registers + 75 + self.index_bits)

    def build(self) -> "TopKKernel":
        return TopKKernel(self)


class TopKKernel(wiring.Component):
    """The hardware of a TopKParams."""

    def __init__(self, params: TopKParams) -> None:
        self._params = params
        bounds = {"rows": 1, "length": params.max_length, "k": 1}
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                **{port: In(signature(itensor)) for port, itensor in params.inputs(bounds).items()},
                **{port: Out(signature(itensor)) for port, itensor in params.outputs(bounds).items()},
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        params = self._params
        cell_bits, cells = F24.bits + params.index_bits, params.max_k
        move = Signal()
        pipe = Pipeline(m, move)
        token = self._take(m, move)
        c = self._tree(m, pipe, move, token) if params.max_k == 1 else self._elements(m, pipe, move, token)

        # The queue of cells, a key below its index, the greatest first. Keys of cells without a value are 0.
        queue = [Signal(cell_bits, reset_less=True, name=f"cell_{k}") for k in range(cells)]
        candidate = pipe.wire(Cat(c.index, c.key))
        less = [pipe.wire(c.first | (cell[params.index_bits :] < c.key)) for cell in queue]
        row_done, k_done = Signal(), Signal.like(c.k)
        with m.If(move):
            m.d.sync += [row_done.eq(c.valid & c.last), k_done.eq(c.k)]
            with m.If(c.valid):
                with m.If(less[0]):
                    m.d.sync += queue[0].eq(candidate)
                for k in range(1, cells):
                    with m.If(c.first):
                        m.d.sync += queue[k].eq(0)
                    with m.Elif(less[k]):
                        m.d.sync += queue[k].eq(Mux(less[k - 1], queue[k - 1], candidate))

        # Results leave one by one while the queue fills again.
        results = stream.Signature(cell_bits).create()
        both = [stream.Signature(cell_bits).create() for _ in range(2)]
        add_skid(m, results, both)
        for half, o in zip(both, (self.o_values, self.o_indices), strict=True):
            m.d.comb += [o.valid.eq(half.valid), half.ready.eq(o.ready)]
        key = both[0].payload[params.index_bits :]
        m.d.comb += [
            self.o_values.payload.eq(Cat(key[:-1] ^ (~key[-1]).replicate(F24.bits - 1), ~key[-1])),
            self.o_indices.payload.eq(both[1].payload),
        ]
        out = [Signal(cell_bits, reset_less=True, name=f"out_{k}") for k in range(cells)]
        left, load = Signal(range(cells + 1)), Signal()
        blocked = (left > 1) | (left[0] & ~results.ready)
        m.d.comb += [
            results.valid.eq(left != 0),
            results.payload.eq(out[0]),
            load.eq(row_done & ~blocked),
            move.eq(~row_done | ~blocked),
        ]
        with m.If(load):
            m.d.sync += [left.eq(k_done), *(o.eq(cell) for o, cell in zip(out, queue, strict=True))]
        with m.Elif(results.valid & results.ready):
            m.d.sync += [left.eq(left - 1), *(o.eq(after) for o, after in pairwise(out))]
        return m

    def _take(self, m: Module, move: Value) -> SimpleNamespace:
        """Tokens of a descriptor: `valid` when one is taken, which may happen while `ready`."""
        params = self._params
        descriptor, given = self.i_descriptor, self.i_descriptor.payload
        active, last, first = Signal(), Signal(), Signal()
        length, left = (Signal.like(given.length, reset_less=True, name=name) for name in ("length", "left"))
        rows, k = Signal.like(given.rows, reset_less=True), Signal.like(given.k, reset_less=True)
        base = Signal(params.index_bits, reset_less=True)
        ready, valid, short = Signal(), Signal(), Signal(reset_less=True)
        ending = valid & last & (rows == 1)
        m.d.comb += [
            ready.eq(1),
            self.i.ready.eq(active & move & ready),
            valid.eq(self.i.valid & self.i.ready),
            descriptor.ready.eq(~active | ending),
        ]
        with m.If(descriptor.ready):
            m.d.sync += [
                active.eq(descriptor.valid),
                rows.eq(given.rows),
                length.eq(given.length),
                short.eq(given.length <= params.lanes),
                k.eq(given.k),
            ]
        with m.Elif(valid & last):
            m.d.sync += rows.eq(rows - 1)
        with m.If(descriptor.ready | (valid & last)):
            m.d.sync += [
                first.eq(1),
                base.eq(0),
                left.eq(Mux(descriptor.ready, given.length, length)),
                last.eq(Mux(descriptor.ready, given.length <= params.lanes, short)),
            ]
        with m.Elif(valid):
            m.d.sync += [
                first.eq(0),
                base.eq(base + params.lanes),
                left.eq(left - params.lanes),
                last.eq(left <= 2 * params.lanes),
            ]
        inside = lanes_before(left, params.lanes)
        return SimpleNamespace(
            valid=valid, ready=ready, first=first, last=last, base=base, k=k, inside=inside
        )

    def _tree(self, m: Module, pipe: Pipeline, move: Value, token: SimpleNamespace) -> SimpleNamespace:
        """The greatest of each token as a candidate."""
        names = ("first", "last", "base", "k")
        partial: list[tuple[Value, Value]] = []
        keys = [
            rising_key(pipe, self.i.payload.word_select(lane, F24.bits), token.inside[lane])
            for lane in range(self._params.lanes)
        ]
        s = pipe.stage(keys=Cat(keys), **{name: getattr(token, name) for name in names})
        for lane in range(self._params.lanes):
            partial.append((s.keys.word_select(lane, F24.bits), Const(lane, range(self._params.lanes))))
        for _ in range(tree_stages(self._params.lanes)):
            partial = _halve(pipe, _halve(pipe, partial))
            s = pipe.stage(
                **{f"key{n}": key for n, (key, _) in enumerate(partial)},
                **{f"lane{n}": lane for n, (_, lane) in enumerate(partial)},
                **{name: getattr(s, name) for name in names},
            )
            partial = [(getattr(s, f"key{n}"), getattr(s, f"lane{n}")) for n in range(len(partial))]
        key, lane = partial[0]
        index = (s.base + lane)[: self._params.index_bits]
        s = pipe.stage(key=key, index=index, first=s.first, last=s.last, k=s.k)
        return SimpleNamespace(valid=self._follow(m, pipe, move, token.valid), **vars(s))

    def _elements(self, m: Module, pipe: Pipeline, move: Value, token: SimpleNamespace) -> SimpleNamespace:
        """All elements of a token, one after another, as candidates."""
        lanes = self._params.lanes
        elements, inside = Signal(F24.bits * lanes, reset_less=True), Signal(lanes, reset_less=True)
        index = Signal(self._params.index_bits, reset_less=True)
        first, last, at_end, present = Signal(), Signal(), Signal(), Signal()
        position, k = Signal(range(lanes)), Signal.like(token.k, reset_less=True)
        m.d.comb += [at_end.eq(position == lanes - 1), token.ready.eq(~present | at_end)]
        with m.If(token.valid):
            m.d.sync += [
                present.eq(1),
                position.eq(0),
                elements.eq(self.i.payload),
                inside.eq(token.inside),
                index.eq(token.base),
                first.eq(token.first),
                last.eq(token.last),
                k.eq(token.k),
            ]
        with m.Elif(move):
            m.d.sync += [
                present.eq(present & ~at_end),
                position.eq(position + 1),
                elements.eq(elements[F24.bits :]),
                inside.eq(inside >> 1),
                index.eq(index + 1),
                first.eq(0),
            ]
        key = rising_key(pipe, elements[: F24.bits], inside[0])
        s = pipe.stage(key=key, index=index, first=first, last=last & at_end, k=k)
        return SimpleNamespace(valid=self._follow(m, pipe, move, present), **vars(s))

    def _follow(self, m: Module, pipe: Pipeline, move: Value, valid: Value) -> Value:
        """Whether the last stage of a pipe holds a valid value."""
        moving = Signal(pipe.depth)
        with m.If(move):
            m.d.sync += moving.eq(Cat(valid, moving))
        return moving[-1]


def rising_key(pipe: Pipeline, bits: Value, inside: Value) -> Value:
    """The key of a value; 0, which is less than any key, for padding."""
    x = operand(F24, bits)
    nan = pipe.wire(x.nan)
    magnitude = Mux(nan, F24.nan, bits[:-1] ^ x.sign.replicate(F24.bits - 1))
    number = Mux(x.zero, 1 << (F24.bits - 1), Cat(magnitude[: F24.bits - 1], ~x.sign | nan))
    return pipe.wire(Mux(inside, number, 0)[: F24.bits])


def _halve(pipe: Pipeline, pairs: list[tuple[Value, Value]]) -> list[tuple[Value, Value]]:
    """One level of a tree of maxima; of equal keys the first stays."""
    greater_ones = []
    for (a, lane_a), (b, lane_b) in zip(pairs[::2], pairs[1::2], strict=False):
        greater = pipe.wire(b > a)
        greater_ones.append((pipe.wire(Mux(greater, b, a)), pipe.wire(Mux(greater, lane_b, lane_a))))
    return greater_ones + pairs[len(pairs) - len(pairs) % 2 :]
