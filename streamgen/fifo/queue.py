"""Queue: a FIFO of any depth and width in the memory that suits it, first word falls through.

    o = i, at least `latency` cycles later

kind        built as                                          latency   depth
register    one register, or a register slice                 1         1, 2
lutram      LUT memory, read combinationally                  1         from 2
bram, uram  block memory, its read register, output register  3         from 8

`depth` is exact: with the output stopped the queue takes `depth` tokens, no more. The read register and
the output register of the block memories are part of that depth, not on top of it. One token a
cycle: a token offered in cycle t is taken in t when (pushes before t) - (pops before t) < depth, so
`i.ready` is a register. Only depth 1 is different: the full register is ready in the cycle in which its
token leaves (`i.ready` depends on `o.ready`), else tokens would move every other cycle.
`level` is (pushes before t) - (pops before t).
"""

from dataclasses import dataclass
from typing import Any, Literal

from amaranth import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from streamgen.contract.cost import Resources
from streamgen.gateware.fabric import ULTRASCALE_PLUS
from streamgen.gateware.stream.register_slice import add_skid, skid_resources

Kind = Literal["register", "lutram", "bram", "uram"]

RAM_STYLE = {"lutram": "distributed", "bram": "block", "uram": "ultra"}
_LATENCY = {"register": 1, "lutram": 1, "bram": 3, "uram": 3}
# A block memory with its two registers moves a token a cycle from this depth on.
_BLOCK_DEPTH = 8
# Up to here LUT memory is the natural choice.
_LUTRAM_DEPTH = 64
_LUTRAM_BITS = 2048


@dataclass(frozen=True, kw_only=True)
class QueueParams:
    """bits: payload width. depth: tokens it holds. memory: the kind, or None for the one that suits.

    Which kind suits: registers up to depth 2, LUT memory up to depth 64 or 2048 bits, else block or ultra
    RAM, whichever takes the smaller share of what boards have (`Fabric`).
    """

    bits: int
    depth: int
    memory: Kind | None = None

    def __post_init__(self) -> None:
        for name in ("bits", "depth"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} of a queue must be at least 1, not {getattr(self, name)}")
        if self.memory not in (None, "register", *RAM_STYLE):
            raise ValueError(
                f"memory of a queue must be register, lutram, bram, uram or None, not {self.memory!r}"
            )
        if self.memory == "register" and self.depth > 2:
            raise ValueError(f"depth of a register queue must be at most 2, not {self.depth}")
        least = {"lutram": 2, "bram": _BLOCK_DEPTH, "uram": _BLOCK_DEPTH}.get(self.memory or "register", 1)
        if self.depth < least:
            raise ValueError(f"depth of a {self.memory} queue must be at least {least}, not {self.depth}")

    @property
    def kind(self) -> Kind:
        """What the queue is built of."""
        if self.memory is not None:
            return self.memory
        if self.depth <= 2:
            return "register"
        if self.depth <= _LUTRAM_DEPTH or self.depth * self.bits <= _LUTRAM_BITS:
            return "lutram"
        brams, urams = ULTRASCALE_PLUS.brams_of_urams
        if self._bram[0] * urams <= self._uram * brams:
            return "bram"
        return "uram"

    @property
    def latency(self) -> int:
        """Cycles from a token taken by an empty queue to the token offered."""
        return _LATENCY[self.kind]

    @property
    def resources(self) -> Resources:
        if self.kind == "register":
            if self.depth == 1:
                return Resources(lut=2, ff=self.bits + 1)
            return skid_resources(self.bits, 1)
        count, address = bits_for(self.depth), ceil_log2(self.depth)
        folds = 1 << address != self.depth  # a pointer that turns round before its width does
        if self.kind == "lutram":
            pointers = 4 * address + 3 if folds else 3 * address + 6
            return self.storage + Resources(lut=pointers, ff=2 * address + count + 2)
        pointers = Resources(lut=(5 if folds else 4) * address + 10, ff=2 * address + 2 * count + 4)
        return self.storage + pointers + Resources(lut=0, ff=self.bits)

    @property
    def storage(self) -> Resources:
        """The memory alone, not of registers: with the LUTs that choose among blocks of rows."""
        if self.kind == "lutram":
            # a LUT chooses among 4 banks
            shapes = ULTRASCALE_PLUS.lutram
            shape = next((shape for shape in shapes if self.depth <= shape.rows), shapes[-1])
            banks = -(-self.depth // shape.rows)
            memory = -(-self.bits // shape.columns) * banks * int(shape.blocks)
            return Resources(lut=memory + (self.bits * -(-banks // 4) + banks if banks > 1 else 0), ff=0)
        blocks, rows = self._bram
        memories = {"bram": blocks}
        if self.kind == "uram":
            memories, rows = {"uram": self._uram}, ULTRASCALE_PLUS.uram.rows
        return Resources(lut=self.bits * -(-(-(-self.depth // rows) - 1) // 3), ff=0, **memories)

    @property
    def _bram(self) -> tuple[float, int]:
        """Blocks, and the rows of the shape that needs the fewest, the deepest of several."""
        blocks, rows = min(
            (-(-self.depth // rows) * -(-self.bits // columns) * blocks, -rows)
            for rows, columns, blocks in ULTRASCALE_PLUS.bram
        )
        return blocks, -rows

    @property
    def _uram(self) -> int:
        """Blocks, all of one shape: what is narrower leaves columns empty."""
        rows, columns, _ = ULTRASCALE_PLUS.uram
        return -(-self.depth // rows) * -(-self.bits // columns)

    def build(self) -> "Queue":
        return Queue(self)


class Queue(wiring.Component):
    """`i` to `o`; `level` is the number of tokens inside."""

    def __init__(self, params: QueueParams) -> None:
        self._params = params
        signature = stream.Signature(params.bits)
        super().__init__({"i": In(signature), "o": Out(signature), "level": Out(range(params.depth + 1))})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        if self._params.kind != "register":
            self._build_memory(m)
        elif self._params.depth == 2:
            m.d.comb += self.level.eq(add_skid(m, wiring.flipped(self.i), [wiring.flipped(self.o)]))
        else:
            payload = Signal(self._params.bits, reset_less=True)
            m.d.comb += [
                self.i.ready.eq(~self.level | self.o.ready),
                self.o.valid.eq(self.level),
                self.o.payload.eq(payload),
            ]
            with m.If(self.i.ready):
                m.d.sync += [self.level.eq(self.i.valid), payload.eq(self.i.payload)]
        return m

    def _build_memory(self, m: Module) -> None:
        params = self._params
        m.submodules.memory = rows = Memory(
            shape=params.bits, depth=params.depth, init=[], attrs={"ram_style": RAM_STYLE[params.kind]}
        )
        push = Signal()
        pop = Signal()
        full = Signal()
        m.d.comb += [
            self.i.ready.eq(~full),
            push.eq(self.i.valid & ~full),
            pop.eq(self.o.valid & self.o.ready),
        ]
        with m.If(push & ~pop):
            m.d.sync += [self.level.eq(self.level + 1), full.eq(self.level == params.depth - 1)]
        with m.Elif(pop & ~push):
            m.d.sync += [self.level.eq(self.level - 1), full.eq(0)]

        write = rows.write_port()
        m.d.comb += [write.en.eq(push), write.data.eq(self.i.payload)]
        self._advance(m, write.addr, push)
        if params.kind == "lutram":
            read = rows.read_port(domain="comb")
            occupied = Signal()
            m.d.comb += [self.o.valid.eq(occupied), self.o.payload.eq(read.data)]
            self._advance(m, read.addr, pop)
            with m.If(push & ~pop):
                m.d.sync += occupied.eq(1)
            with m.Elif(pop & ~push):
                m.d.sync += occupied.eq(self.level != 1)
            return

        # memory -> its read register (fetched) -> output register (o.valid)
        read = rows.read_port(domain="sync")
        stored = Signal(range(params.depth + 1))  # in the memory proper
        occupied = Signal()  # stored != 0
        fetched = Signal()
        shift = Signal()
        fetch = Signal()
        output = Signal(params.bits, reset_less=True)
        m.d.comb += [
            self.o.payload.eq(output),
            shift.eq(~self.o.valid | self.o.ready),
            read.en.eq(~fetched | shift),
            fetch.eq(read.en & occupied),
        ]
        self._advance(m, read.addr, fetch)
        with m.If(push & ~fetch):
            m.d.sync += [stored.eq(stored + 1), occupied.eq(1)]
        with m.Elif(fetch & ~push):
            m.d.sync += [stored.eq(stored - 1), occupied.eq(stored != 1)]
        with m.If(read.en):
            m.d.sync += fetched.eq(occupied)
        with m.If(shift):
            m.d.sync += [self.o.valid.eq(fetched), output.eq(read.data)]

    def _advance(self, m: Module, address: Signal, step: Signal) -> None:
        last = self._params.depth - 1
        pointer = Signal.like(address)
        m.d.comb += address.eq(pointer)
        with m.If(step):
            m.d.sync += pointer.eq(pointer + 1)
            with m.If(pointer == last):
                m.d.sync += pointer.eq(0)
