"""The scales of values: those of one context wait for its rows while those of the next come in.

    E = the greatest e of all positions of a context

Tokens in: scales of `lanes` positions, the contexts of a descriptor one after another. A complete context is
sent on as E and the fields of its descriptor. Its scales are then read tile by tile, once for each of its
rows. Positions beyond the length get m = 0 and the least e, so they do not affect E.

There are two banks. A context is accepted when one is free, which is when the last tile of the context before
the previous one has been read. Exponents are represented by keys, unsigned integers in the same order.
"""

from dataclasses import dataclass
from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from streamgen.contract import Field
from streamgen.contract.cost import Resources
from streamgen.fifo.queue import QueueParams
from streamgen.gateware.arith.pipeline import Pipeline
from streamgen.gateware.stream import CountdownParams, descriptor_signature
from streamgen.kernels.attention.row_codes import SCALE
from streamgen.kernels.row_parts import lanes_before, quarter_maxima, ring_resources, ring_style, tree_stages

_CONTEXTS = 2  # in the banks, of which at most all wait to be read
_LOWEST = 1 << SCALE.size - 1  # m = 0, e = -32768


@dataclass(frozen=True, kw_only=True)
class ValueScalesParams:
    """lanes: positions a tile. max_tiles: of a context. rows_bits, length_bits: of what a descriptor says."""

    lanes: int
    max_tiles: int
    rows_bits: int
    length_bits: int

    @property
    def depth(self) -> int:
        """Tiles in both banks."""
        return _CONTEXTS << ceil_log2(self.max_tiles)

    @property
    def latency(self) -> int:
        """Cycles from the last tile of a context taken to the context offered."""
        return 2 + tree_stages(self.lanes)

    @property
    def context(self) -> data.StructLayout:
        """The token of a complete context: E as a key, rows, positions."""
        return data.StructLayout({"key": 16, "rows": self.rows_bits, "length": self.length_bits})

    @property
    def queue(self) -> QueueParams:
        """The queue of complete contexts."""
        return QueueParams(bits=self.context.size, depth=_CONTEXTS, memory="register")

    def descriptor_fields(self) -> tuple[Field, ...]:
        """Contexts, rows of each, positions of each."""
        return (
            Field("contexts", self.rows_bits),
            Field("rows", self.rows_bits),
            Field("length", self.length_bits),
        )

    @property
    def resources(self) -> Resources:
        """Fitted to synthesis."""
        stages, keys, along = tree_stages(self.lanes), [self.lanes], self.rows_bits + self.length_bits
        for _ in range(stages):
            keys.append(-(-keys[-1] // 4))
        address = ceil_log2(self.depth)
        # What goes along with a tile waits in registers, from three stages on in shift registers.
        waits = Resources(lut=along, ff=0) if stages > 1 else Resources(lut=0, ff=(1 + stages) * along)
        control = Resources(
            lut=3.2 * self.length_bits + 2 * address,
            ff=24 + self.rows_bits + 2 * self.length_bits + 2 * address,
        )
        lanes = Resources(lut=29 * self.lanes, ff=25 * self.lanes + 16 * sum(keys[1:]))
        return (
            control
            + lanes
            + waits
            + ring_resources(SCALE.size * self.lanes, self.depth)
            + CountdownParams(bits=self.rows_bits).resources
            + self.queue.resources
        )

    def build(self) -> "ValueScales":
        return ValueScales(self)


class ValueScales(wiring.Component):
    """Streams in, `o` out: contexts. scales: those of the next tile, a cycle later.

    read: the tile has been read. again, finished: the tile ends the row, which begins again or frees the
    bank.
    """

    def __init__(self, params: ValueScalesParams) -> None:
        self._params = params
        super().__init__(
            {
                "i_descriptor": In(descriptor_signature(params.descriptor_fields())),
                "i": In(stream.Signature(SCALE.size * params.lanes)),
                "o": Out(stream.Signature(params.context)),
                "read": In(1),
                "again": In(1),
                "finished": In(1),
                "scales": Out(SCALE.size * params.lanes),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        p = self._params
        m.submodules.queue = queue = p.queue.build()
        m.submodules.banks = banks = Memory(
            shape=SCALE.size * p.lanes, depth=p.depth, init=[], attrs=ring_style(p.depth)
        )
        taken, last, left, rows, length = self._take(m)
        token = data.View(data.ArrayLayout(SCALE, p.lanes), self.i.payload)
        valid = lanes_before(left, p.lanes)
        pipe = Pipeline(m, Const(1))
        s = pipe.stage(
            scales=Cat(Mux(valid[n], Value.cast(token[n]), _LOWEST) for n in range(p.lanes)),
            last=last,
            rows=rows,
            length=length,
        )
        present = Signal(1 + tree_stages(p.lanes))
        m.d.sync += present.eq(Cat(taken, present))

        write, at = banks.write_port(), Signal(range(p.depth // _CONTEXTS))
        bank = Signal()
        m.d.comb += [write.en.eq(present[0]), write.addr.eq(Cat(at, bank)), write.data.eq(s.scales)]
        with m.If(present[0]):
            m.d.sync += [at.eq(Mux(s.last, 0, at + 1)), bank.eq(bank ^ s.last)]

        exponents = [s.scales.word_select(n, SCALE.size)[8:] for n in range(p.lanes)]
        keys: list[Value] = [Cat(e[:15], ~e[15]) for e in exponents]
        for _ in range(tree_stages(p.lanes)):
            keys = quarter_maxima(pipe, keys)
            names = {f"key{n}": key for n, key in enumerate(keys)}
            s = pipe.stage(last=s.last, rows=s.rows, length=s.length, **names)
            keys = [getattr(s, name) for name in names]
        so_far = Signal(16)  # 0 where a context begins
        greatest = pipe.wire(Mux(keys[0] > so_far, keys[0], so_far))
        with m.If(present[-1]):
            m.d.sync += so_far.eq(Mux(s.last, 0, greatest))
        m.d.comb += [
            queue.i.valid.eq(present[-1] & s.last),
            queue.i.payload.eq(Cat(greatest, s.rows, s.length)),
            self.o.valid.eq(queue.o.valid),
            Value.cast(self.o.payload).eq(queue.o.payload),
            queue.o.ready.eq(self.o.ready),
        ]
        self._read(m, banks.read_port())
        return m

    def _take(self, m: Module) -> tuple[Value, Value, Value, Value, Value]:
        """Take the scales of contexts while a bank is free.

        Returns: a tile is taken, it is the last of its context, its positions from it on, rows, positions in
        all.
        """
        p, fields = self._params, self.i_descriptor.payload
        m.submodules.count = count = CountdownParams(bits=p.rows_bits).build()
        length, left = (Signal(p.length_bits, reset_less=True, name=name) for name in ("length", "left"))
        rows = Signal(p.rows_bits, reset_less=True)
        begins, last, taken = Signal(), Signal(), Signal()
        used = Signal(range(_CONTEXTS + 1))
        m.d.comb += [
            count.i_count.payload.eq(fields.contexts),
            count.i_count.valid.eq(self.i_descriptor.valid),
            self.i_descriptor.ready.eq(count.i_count.ready),
            count.step.eq(taken & last),
            self.i.ready.eq(count.active & (~begins | (used != _CONTEXTS))),
            taken.eq(self.i.ready & self.i.valid),
        ]
        m.d.sync += used.eq(used + (taken & begins) - self.finished)
        with m.If(count.taken):
            m.d.sync += [
                begins.eq(1),
                rows.eq(fields.rows),
                length.eq(fields.length),
                left.eq(fields.length),
                last.eq(fields.length <= p.lanes),
            ]
        with m.Elif(taken):
            m.d.sync += [
                begins.eq(last),
                left.eq(Mux(last, length, left - p.lanes)),
                last.eq(Mux(last, length <= p.lanes, left <= 2 * p.lanes)),
            ]
        return taken, last, left, rows, length

    def _read(self, m: Module, port: Any) -> None:
        at, bank = Signal(range(self._params.depth // _CONTEXTS)), Signal()
        m.d.comb += [port.addr.eq(Cat(at, bank)), port.en.eq(1), self.scales.eq(port.data)]
        with m.If(self.read):
            m.d.sync += [at.eq(Mux(self.again | self.finished, 0, at + 1)), bank.eq(bank ^ self.finished)]
