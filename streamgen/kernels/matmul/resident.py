"""A matmul whose weights stay on the chip: read once after a reset, and used by all executions.

    y[t,n] = f24(f24(sum over g of term) * r[n]) * 2^(E[t] - 15) [+ b[n]]        as `matmul` computes it
    y[t,n] = max(y[t,n], 0)                                                      with relu

The first descriptor after a reset reads the weights from memory. A reset clears the mark that they are there,
so the next descriptor reads them again. All other executions read nothing.

Tiles in: `i_x` (1, 32) mxi8 or mxi8s, row-major; `i_e` i16, one a row. Out: `o` (1, n_lanes) f24, row-major.
A row goes through all tiles of n_lanes output rows before the next one: no other row waits in front of it. So
a row takes n / n_lanes * k / 32 cycles, and its results follow one another in the order of memory.

Memory: for each tile its row scales (and biases), then a word for each group of 32 along k; codes, then group
scales. Each begins with a beat.

    ring of rows -> word of weights beside it -> lanes (`quick_dot`) -> `row_result` of each row -> queue

Nothing behind the ring ever stalls: a step is issued when the queue will have room for its results.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2
from numpy import ndarray

from streamgen.artifact.packing import BEAT_BITS, BEAT_BYTES
from streamgen.contract import Bounds, Field
from streamgen.contract.cost import Cost, Curve, Resources
from streamgen.fifo.clocks import Clocks
from streamgen.fifo.curves import KernelSide
from streamgen.fifo.queue import RAM_STYLE, QueueParams
from streamgen.gateware.arith import F24
from streamgen.gateware.arith.pipeline import delayed
from streamgen.gateware.rtl import Shared
from streamgen.gateware.stream import descriptor_signature
from streamgen.itensor import ITensor
from streamgen.kernels.matmul.dot import CHAIN, K_LANES
from streamgen.kernels.matmul.matmul import ColumnParams
from streamgen.kernels.matmul.operands import OperandsParams
from streamgen.kernels.matmul.quick_dot import QuickDotParams
from streamgen.kernels.matmul.resident_fill import fill
from streamgen.kernels.matmul.resident_image import ISSUED, times, unpack
from streamgen.kernels.matmul.results import EXPONENT_BITS
from streamgen.kernels.matmul.row_result import RELU, RowResultParams
from streamgen.kernels.softmax.rows import has_room
from streamgen.numbers import formats
from streamgen.numbers.weights import FORMATS
from streamgen.platform.axi import ReadPort
from streamgen.platform.read_client import ReadClientParams

_OFFSET_BITS = 32
_LEAST = 32  # places of a LUT memory


@dataclass(frozen=True, kw_only=True)
class ResidentParams:
    """column: the arithmetic. It has one token lane and one format; max_k and max_n are k and n of all
    executions. sums: whether groups of activations come with the sums of their codes, which minimums need.
    relu: whether negative results become 0.

    Bounds: t (rows), offset (of the weights, in beats). Raises ValueError for other columns, and for minimums
    without sums.
    """

    column: ColumnParams
    sums: bool
    relu: bool = False
    memory_ports: ClassVar[Mapping[str, Literal["read"]]] = {"memory": "read"}
    is_of_column: ClassVar[bool] = True
    keeps_weights: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name, value in (("t_lanes", self.column.t_lanes), ("formats", len(self.column.formats))):
            if value != 1:
                raise ValueError(f"{name} of a matmul with resident weights must be 1, not {value}")
        if self.column.minimum and not self.sums:
            raise ValueError("sums of a matmul with minimums must be True, not False")

    @property
    def dtype(self) -> str:
        """Format of the activations."""
        return "mxi8s" if self.sums else "mxi8"

    @property
    def group_bits(self) -> int:
        """Bits of a group of activations."""
        return formats.token_bits(self.dtype, (K_LANES,))

    @property
    def tiles(self) -> int:
        return self.column.max_n // self.column.n_lanes

    @property
    def groups(self) -> int:
        """Groups of 32 of a row, and words of a tile."""
        return self.column.max_k // K_LANES

    @property
    def code_bits(self) -> int:
        """Bits of the codes of a word."""
        return self.column.operands.token_bits

    @property
    def word_bits(self) -> int:
        return self.code_bits + self.column.n_lanes * self.column.operands.scale_bits

    @property
    def row_bits(self) -> int:
        """Bits of the row scales of a tile, with biases."""
        return self.column.n_lanes * self.column.results.row_bits

    @property
    def parts(self) -> tuple[int, int]:
        """Beats of the row scales of a tile, and of a word."""
        return -(-self.row_bits // BEAT_BITS), -(-self.word_bits // BEAT_BITS)

    @property
    def beats(self) -> int:
        """Beats of the weights."""
        rows, word = self.parts
        return self.tiles * (rows + self.groups * word)

    @property
    def image(self) -> ITensor:
        """The weights in memory: bytes [beats, 64]."""
        return ITensor((1, BEAT_BYTES), "u8", (self.beats,), (1,), ((0,), ()))

    @property
    def weight_bits(self) -> int:
        """Bits of the weights on the chip."""
        return self.tiles * (self.row_bits + self.groups * self.word_bits)

    @property
    def words(self) -> QueueParams:
        """The memory of words."""
        return self._memory(self.word_bits, self.tiles * self.groups)

    @property
    def rows(self) -> QueueParams:
        """The memory of row scales."""
        return self._memory(self.row_bits, self.tiles)

    @property
    def ring(self) -> QueueParams:
        """The memory of rows that wait, with their exponents."""
        places = max(_LEAST, 1 << ceil_log2(2 * self.groups))
        return QueueParams(bits=self.group_bits + EXPONENT_BITS, depth=places, memory="lutram")

    @staticmethod
    def _memory(bits: int, places: int) -> QueueParams:
        return QueueParams(bits=bits, depth=max(_LEAST, 1 << ceil_log2(places)))

    @property
    def client(self) -> ReadClientParams:
        return ReadClientParams(depth=_LEAST, burst=_LEAST // 2)

    def lane(self, rows: int) -> QuickDotParams:
        """The lane of one or two rows."""
        column = self.column
        return QuickDotParams(
            weight_bits=FORMATS[column.formats[0]].code_bits,
            rows=rows,
            scale_bits=column.scale_bits,
            minimum=column.minimum,
            accumulator_bits=column.accumulator_bits,
            table=FORMATS[column.formats[0]].multiplicands,
        )

    @property
    def operands(self) -> OperandsParams:
        """What the lanes take from words and groups."""
        return replace(self.column.operands, lane=self.lane(2))

    @property
    def result(self) -> RowResultParams:
        """The unit of a row behind its sum."""
        return RowResultParams(scaler=self.column.results.scaler, bias=self.column.bias, relu=self.relu)

    @property
    def ahead(self) -> int:
        """Cycles from a step to the sums of its tile."""
        return self.lane(2).latency

    @property
    def latency(self) -> int:
        """Cycles from the last step of a tile to its results offered."""
        return self.ahead + self.result.latency + 1

    @property
    def queue(self) -> QueueParams:
        """The queue of results: with room for all that is under way."""
        depth = 1 << ceil_log2(self.latency + 5)
        return QueueParams(bits=self.column.n_lanes * F24.bits, depth=depth, memory="lutram")

    @property
    def multipliers(self) -> int:
        return self.column.multipliers

    def products(self, bounds: Bounds) -> int:
        return self.column.products(self.of_column(bounds))

    def of_column(self, bounds: Bounds) -> dict[str, Any]:
        """The bounds of the column."""
        column = self.column
        return {
            "t": bounds["t"],
            "k": column.max_k,
            "n": column.max_n,
            "format": column.formats[0],
            "grouped": column.scale_bits > 0,
        }

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        t = bounds["t"]
        x = ITensor((1, K_LANES), self.dtype, (t, self.groups), (1, K_LANES), ((0,), (1,)))
        return {"i_x": x, "i_e": ITensor((1,), f"i{EXPONENT_BITS}", (t,), (1,), ((0,),))}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        lanes = self.column.n_lanes
        return {"o": ITensor((1, lanes), "f24", (bounds["t"], self.tiles), (1, lanes), ((0,), (1,)))}

    def descriptor_fields(self) -> tuple[Field, ...]:
        return Field("rows", self.column.max_t.bit_length()), Field("offset", _OFFSET_BITS)

    def describe(self, bounds: Bounds) -> Mapping[str, int]:
        t, offset = bounds["t"], bounds["offset"]
        if not 1 <= t <= self.column.max_t:
            raise ValueError(f"t is {t}; the matmul takes 1 to {self.column.max_t} rows")
        if not 0 <= offset < 1 << _OFFSET_BITS:
            raise ValueError(f"offset must be 0 to 2^{_OFFSET_BITS} - 1 beats, not {offset}")
        return {"rows": t, "offset": offset}

    def traffic(self, bounds: Bounds) -> Mapping[str, int]:
        """Beats of an execution that finds the weights on the chip: none."""
        return {"memory": 0}

    def golden(self, bounds: Bounds, inputs: Mapping[str, ndarray]) -> Mapping[str, ndarray]:
        """`memory`: the image, uint8 [beats, 64]."""
        weights = {f"i_{name}": array for name, array in unpack(self, inputs["memory"]).items()}
        operands = {"i_x": inputs["i_x"], "i_e": inputs["i_e"], **weights}
        y = self.column.golden(self.of_column(bounds), operands)["o_y"]
        return {"o": RELU.golden(y).astype(np.float32) if self.relu else y}

    def cost(self, bounds: Bounds) -> Cost:
        """Of an execution that finds the weights on the chip, like curves and clocks."""
        take, _, out = times(self, bounds["t"])
        first, last = int(out[0]), int(out[-1])
        ii = (last - first) / (len(out) - 1) if len(out) > 1 else 1.0
        return Cost(resources=self.resources, ii=max(1.0, ii), latency=first - int(take[0]), cycles=last + 1)

    def curves(self, bounds: Bounds) -> Mapping[str, Curve]:
        take, _, out = times(self, bounds["t"])
        return {"i_x": Curve.at(take), "i_e": Curve.at(take[:: self.groups]), "o": Curve.at(out)}

    def clocks(self, bounds: Bounds) -> Clocks:
        """Groups are taken, steps issued for all tiles of a row, results sent."""
        t, tiles, groups = bounds["t"], self.tiles, self.groups
        take, issue, send = (
            KernelSide(name, cycles)
            for name, cycles in zip(("take", "issue", "send"), times(self, t), strict=True)
        )
        own = np.arange(t * groups)
        row, group = np.divmod(own, groups)
        first, last = (row * tiles * groups + tile * groups + group for tile in (0, tiles - 1))
        ends, ring, room = np.arange(t * tiles) * groups + groups - 1, self.ring.depth, self.queue.depth - 1
        out = np.arange(t * tiles)
        return Clocks(
            (take, issue, send),
            {"i_x": (take, own), "i_e": (take, own[::groups]), "o": (send, out)},
            (
                take.to(issue, own, first, latency=ISSUED),
                issue.to(take, last[:-ring], own[ring:], latency=0),
                issue.to(send, ends, out, latency=self.latency),
                send.to(issue, out[:-room], ends[room:], latency=2),
            ),
        )

    @property
    def resources(self) -> Resources:
        lanes = self.column.n_lanes
        pairs, odd = divmod(lanes, 2)
        dots = self.lane(2).resources * pairs + self.lane(1).resources * odd
        kept = self.words.storage + self.rows.storage + self.ring.storage
        for memory in (self.words, self.rows, self.ring):
            kept += Resources(lut=0, ff=memory.bits if memory.kind == "lutram" else 0)
        held = BEAT_BITS * (max(self.parts) - 1) + self.word_bits + self.row_bits
        control = Resources(lut=180, ff=250 + held)
        return (
            kept
            + dots
            + self.operands.resources
            + self.result.resources * lanes
            + self.queue.resources
            + self.client.resources
            + control
        )

    def build(self) -> "Resident":
        return Resident(self)


class Resident(wiring.Component):
    """i_x, i_e -> o; `base`: the byte address of the buffer of the weights, which come through `memory`."""

    def __init__(self, params: ResidentParams) -> None:
        self.params = p = params
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(p.descriptor_fields())),
                "i_x": In(stream.Signature(p.group_bits)),
                "i_e": In(stream.Signature(EXPONENT_BITS)),
                "o": Out(stream.Signature(p.column.n_lanes * F24.bits)),
                "memory": Out(ReadPort),
                "base": In(64),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self.params
        asked, loaded, words, rows = fill(m, self)
        room, issue = Signal(), Signal()
        there, x, e, first, last, tile = self._rows(m, asked, issue)
        m.d.comb += issue.eq(there & loaded & room)

        # The word of the step that is issued next is always there.
        count = p.tiles * p.groups
        at, following = Signal(range(max(2, count))), Signal(range(max(2, count)), init=1 % count)
        read = words.read_port()
        m.d.comb += read.addr.eq(Mux(issue, following, at))
        with m.If(issue):
            m.d.sync += [at.eq(following), following.eq(Mux(following == count - 1, 0, following + 1))]

        sums = self._lanes(m, x, Value.cast(read.data), issue, first)
        of_tile = rows.read_port()
        ended = Signal(p.ahead + p.result.latency)  # tiles on their way
        m.d.comb += of_tile.addr.eq(delayed(m, tile, p.ahead - 1))
        m.d.sync += ended.eq(Cat(issue & last, ended))
        results = self._results(m, sums, Value.cast(of_tile.data), delayed(m, e, p.ahead))
        m.submodules.queue = queue = p.queue.build()
        wiring.connect(m, queue.o, wiring.flipped(self.o))
        m.d.comb += [queue.i.payload.eq(results), queue.i.valid.eq(ended[-1])]
        m.d.comb += room.eq(has_room(m, issue & last, self.o.valid & self.o.ready, p.queue.depth))
        return m

    def _rows(self, m: Module, asked: Signal, issue: Signal) -> tuple[Any, Any, Any, Any, Any, Any]:
        """Take rows into a ring and send each once for every tile. Returns whether a step is there, its
        group, exponent, whether it is the first and the last of its tile, and the tile."""
        p = self.params
        descriptor = self.i_descriptor
        running, left = Signal(), Signal(p.column.max_t.bit_length(), reset_less=True)
        address = ceil_log2(p.ring.depth)
        written, at, freed = (Signal(address + 1, name=name) for name in ("written", "at", "freed"))
        m.submodules.ring = ring = Memory(
            shape=p.ring.bits, depth=p.ring.depth, init=[], attrs={"ram_style": RAM_STYLE[p.ring.kind]}
        )
        write = ring.write_port()
        group = Signal(range(max(2, p.groups)))
        begins, free, take = group == 0, Signal(), Signal()
        m.d.comb += [
            descriptor.ready.eq(~running & asked),
            free.eq(running & ((written ^ freed) != p.ring.depth)),
            take.eq(free & self.i_x.valid & (~begins | self.i_e.valid)),
            self.i_x.ready.eq(free & (~begins | self.i_e.valid)),
            self.i_e.ready.eq(free & begins & self.i_x.valid),
            write.en.eq(take),
            write.addr.eq(written[:address]),
            write.data.eq(Cat(self.i_x.payload, self.i_e.payload)),
        ]
        with m.If(~running):
            m.d.sync += [running.eq(descriptor.valid & asked), left.eq(descriptor.payload.rows)]
        with m.If(take):
            m.d.sync += [written.eq(written + 1), group.eq(Mux(group == p.groups - 1, 0, group + 1))]
            with m.If(group == p.groups - 1):
                m.d.sync += [left.eq(left - 1), running.eq(left != 1)]

        there, fetch = Signal(), Signal()
        x, e = Signal(p.group_bits, reset_less=True), Signal(EXPONENT_BITS, reset_less=True)
        first, last = Signal(reset_less=True), Signal(reset_less=True)
        tile = Signal(range(max(2, p.tiles)), reset_less=True)
        step, of = Signal(range(max(2, p.groups))), Signal(range(max(2, p.tiles)))
        row_end, tile_end = of == p.tiles - 1, step == p.groups - 1
        read, empty = ring.read_port(domain="comb"), written == at
        data = Mux(empty, write.data, read.data)  # a group that no other one waits for passes the ring
        m.d.comb += [read.addr.eq(at[:address]), fetch.eq((~empty | take) & (~there | issue))]
        with m.If(fetch):
            m.d.sync += [
                x.eq(data[: p.group_bits]),
                first.eq(step == 0),
                last.eq(tile_end),
                tile.eq(of),
                step.eq(Mux(tile_end, 0, step + 1)),
                at.eq(Mux(tile_end & ~row_end, freed, at + 1)),
            ]
            with m.If(step == 0):
                m.d.sync += e.eq(data[p.group_bits :])
            with m.If(tile_end):
                m.d.sync += of.eq(Mux(row_end, 0, of + 1))
            with m.If(row_end):
                m.d.sync += freed.eq(at + 1)
        with m.If(fetch | issue):
            m.d.sync += there.eq(fetch)
        return there, x, e, first, last, tile

    def _lanes(self, m: Module, x: Value, word: Value, issue: Value, first: Value) -> list[Value]:
        """The sums of the rows of a tile."""
        p, column = self.params, self.params.column
        lane = p.lane(2)
        m.submodules.operands = operands = Shared(p.operands)
        m.d.comb += [operands.x.eq(x), operands.w.eq(word[: p.code_bits])]
        if column.scale_bits:
            m.d.comb += [operands.s.eq(word[p.code_bits :]), operands.grouped.eq(1)]
        valid, begins = (delayed(m, value, lane.power_delay) for value in (issue, first))
        sums: list[Value] = []
        for n in range(0, column.n_lanes, 2):
            rows = min(2, column.n_lanes - n)
            m.submodules[f"lane_{n}"] = dot = Shared(p.lane(rows))
            m.d.comb += [dot.valid.eq(valid), dot.first.eq(begins)]
            taken = [("far", "far", 0), ("power", "powers", 0)] + [("sum", "sums", 0)] * column.minimum
            for k in range(CHAIN):
                taken += [(f"codes_{k}", f"codes_{k}", 0), (f"low_{k}", f"low_{k}", n // 2)]
                taken += [(f"high_{k}", f"high_{k}", n // 2)] * (rows == 2)
            for target, source, place in taken:
                port = getattr(dot, target)
                m.d.comb += port.eq(getattr(operands, source).word_select(place, len(port)))
            for name in ("scales",) * bool(column.scale_bits) + ("minimums",) * column.minimum:
                part = getattr(operands, name)[n * column.scale_bits :]
                m.d.comb += getattr(dot, name).eq(part[: rows * column.scale_bits])
            sums += [dot.accumulators.word_select(row, column.accumulator_bits) for row in range(rows)]
        return sums

    def _results(self, m: Module, sums: list[Value], rows: Value, e: Value) -> Value:
        """The results of a tile."""
        p, results = self.params, []
        for n, total in enumerate(sums):
            row = rows.word_select(n, p.column.results.row_bits)
            m.submodules[f"result_{n}"] = result = Shared(p.result)
            m.d.comb += [
                result.enable.eq(1),
                result.acc.eq(total.as_signed()),
                result.scale.eq(row[: F24.bits]),
                result.exponent.eq(e.as_signed()),
            ]
            if p.column.bias:
                m.d.comb += result.bias.eq(row[F24.bits :])
            results.append(result.o)
        return Cat(results)
