"""The memory of a converter: boxes of source tokens in, boxes of target tokens out.

Writing: the next piece of `token` is registered in a cycle with `take`. One cycle later, when the walker
knows the address, it goes to the bank of its way (with `late` one more cycle later, when a map knows the
address). There is one bank for each box of the source in a word.
Reading: with `fetch` a word is read from all banks, the box of the way is selected, and the pieces of a token
are collected. `complete` says that `collected` is a whole token, `latency` cycles after `fetch`.

kind of memory   stages after the address                                latency
lutram           read register [, way]                                   1 [+ 1]
bram, uram       read register, output register [, way]                  2 [+ 1]
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from streamgen.contract.cost import Resources
from streamgen.converters.banking import Banking
from streamgen.fifo.queue import QueueParams

_RAM_STYLE = {"lutram": "distributed", "bram": "block", "uram": "ultra"}


@dataclass(frozen=True, kw_only=True)
class BanksParams:
    """banking: the geometry. atom_bits: width of an atom. depth: the number of words. late: the address of a
    write comes a cycle after `write`."""

    banking: Banking
    atom_bits: int
    depth: int
    late: bool = False

    @property
    def bank(self) -> QueueParams:
        """Width, depth and memory of a bank: those of a FIFO of this size."""
        bits, depth = self.atom_bits * prod(self.banking.source.box), self.depth
        queue = QueueParams(bits=bits, depth=depth)
        return queue if queue.kind != "register" else QueueParams(bits=bits, depth=depth, memory="lutram")

    @property
    def latency(self) -> int:
        """Cycles from `fetch` to `complete`."""
        return 1 + (self.bank.kind != "lutram") + (prod(self.banking.target.ways) > 1)

    @property
    def resources(self) -> Resources:
        """Resources by structure; a multiplexer of n boxes is (n - 1) / 3 LUTs per bit."""
        geometry, bank = self.banking, self.bank
        banks, pieces, ways = map(prod, (geometry.source.ways, geometry.source.pieces, geometry.target.ways))
        box = self.atom_bits * prod(geometry.target.box)
        waits = bank.bits + 1 + sum(map(ceil_log2, geometry.source.ways)) if self.late else 0
        registers = waits + bank.bits * (1 + banks) + box * (prod(geometry.target.pieces) - (ways == 1))
        multiplexers = bank.bits * _mux(pieces) + box * _mux(ways)
        total = Resources(lut=multiplexers + banks, ff=4 + registers)
        if bank.kind != "lutram":
            return total + bank.storage * banks
        # 8 LUTs hold 32 rows of 14 bits or 64 rows of 7 bits
        rows = -(-bank.depth // 64)
        cells = -(-bank.bits // 14) if bank.depth <= 32 else rows * -(-bank.bits // 7)
        return total + Resources(lut=banks * (8 * cells + bank.bits * _mux(rows)), ff=0)

    def build(self) -> "Banks":
        return Banks(self)


class Banks(wiring.Component):
    """`token` in, `collected` out; the addresses come from the two walkers."""

    def __init__(self, params: BanksParams) -> None:
        self._params = params
        geometry, bits = params.banking, params.atom_bits
        source, target = geometry.source, geometry.target
        super().__init__(
            {
                "token": In(bits * prod(source.box) * prod(source.pieces)),
                "take": In(1),
                "take_last": In(1),
                "write": In(1),
                "write_address": In(ceil_log2(params.bank.depth)),
                "write_way": In(max(1, sum(map(ceil_log2, source.ways)))),
                "fetch": In(1),
                "fetch_last": In(1),
                "fetch_address": In(ceil_log2(params.bank.depth)),
                "fetch_way": In(max(1, sum(map(ceil_log2, target.ways)))),
                "complete": Out(1),
                "collected": Out(bits * prod(target.box) * prod(target.pieces)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        self._read(m, self._write(m))
        return m

    def _write(self, m: Module) -> list[Memory]:
        side, bank = self._params.banking.source, self._params.bank
        token = self._atoms(self.token)
        pieces = [Cat(*(token[place] for place in places)) for places in _boxes(side.box, side.pieces)]
        number = Signal(range(max(2, len(pieces))))
        piece = Signal(bank.bits, reset_less=True)
        selected = _select(m, number, dict(enumerate(pieces)))
        with m.If(self.take):
            m.d.sync += [number.eq(Mux(self.take_last, 0, number + 1)), piece.eq(selected)]
        write, write_way = self.write, self.write_way
        if self._params.late:
            write, write_way, before = Signal(), Signal.like(self.write_way), piece
            piece = Signal(bank.bits, reset_less=True)
            m.d.sync += [write.eq(self.write), write_way.eq(self.write_way), piece.eq(before)]
        banks = []
        for k, way in enumerate(_ways(side.ways)):
            attributes = {"ram_style": _RAM_STYLE[bank.kind]}
            memory = Memory(shape=bank.bits, depth=bank.depth, init=[], attrs=attributes)
            m.submodules[f"bank{k}"] = memory
            port = memory.write_port()
            m.d.comb += [
                port.addr.eq(self.write_address),
                port.data.eq(piece),
                port.en.eq(write & (write_way == way)),
            ]
            banks.append(memory)
        return banks

    def _read(self, m: Module, banks: list[Memory]) -> None:
        geometry, side = self._params.banking, self._params.banking.target

        def later(*values: Value) -> list[Value]:
            registers = [Signal(len(value), reset_less=len(value) > 1) for value in values]
            m.d.sync += [register.eq(value) for register, value in zip(registers, values, strict=True)]
            return list(registers)

        registered = self._params.bank.kind != "lutram"
        word: list[Value] = [Const(0)] * prod(geometry.word)
        for memory, places in zip(banks, _boxes(geometry.source.box, geometry.source.ways), strict=True):
            port = memory.read_port()
            m.d.comb += [port.addr.eq(self.fetch_address), port.en.eq(self.fetch)]
            atoms = self._atoms(later(port.data)[0] if registered else port.data)
            for place, atom in zip(places, atoms, strict=True):
                word[place] = atom
        fetched, last, way = later(self.fetch, self.fetch_last, self.fetch_way)
        if registered:
            fetched, last, way = later(fetched, last, way)
        ways = [Cat(*(word[place] for place in places)) for places in _boxes(side.box, side.ways)]
        box = _select(m, way, dict(zip(_ways(side.ways), ways, strict=True)))
        if len(ways) > 1:
            fetched, last, box = later(fetched, last, box)

        before = [Signal(len(box), name=f"piece{k}", reset_less=True) for k in range(prod(side.pieces) - 1)]
        pieces: list[Value] = [*before, box]
        with m.If(fetched):
            m.d.sync += [piece.eq(following) for piece, following in pairwise(pieces)]
        token: list[Value] = [Const(0)] * (prod(side.box) * prod(side.pieces))
        for piece, places in zip(pieces, _boxes(side.box, side.pieces), strict=True):
            for place, atom in zip(places, self._atoms(piece), strict=True):
                token[place] = atom
        m.d.comb += [self.complete.eq(last), self.collected.eq(Cat(*token))]

    def _atoms(self, value: Value) -> list[Value]:
        """The atoms of a box, row-major."""
        bits = self._params.atom_bits
        return [value[k : k + bits] for k in range(0, len(value), bits)]


def _boxes(box: Sequence[int], counts: Sequence[int]) -> list[list[int]]:
    """For each box of a grid of boxes, row-major: the indices of its atoms in the whole, row-major."""
    places = np.arange(prod(box) * prod(counts)).reshape([b * n for b, n in zip(box, counts, strict=True)])
    return [
        places[tuple(slice(k * b, (k + 1) * b) for k, b in zip(index, box, strict=True))].ravel().tolist()
        for index in np.ndindex(*counts)
    ]


def _ways(counts: Sequence[int]) -> list[int]:
    """The walker's `way` (one field per dimension) for each box of a word, row-major."""
    shifts = np.cumsum([0, *map(ceil_log2, counts)])[:-1].tolist()
    return [sum(k << shift for k, shift in zip(index, shifts, strict=True)) for index in np.ndindex(*counts)]


def _select(m: Module, choice: Value, values: Mapping[int, Value]) -> Value:
    """The value of the current choice, as a wire, so that readers of parts do not build the multiplexer
    again."""
    *cases, (_, rest) = values.items()
    selected = Signal(len(rest))
    with m.Switch(choice):
        for number, value in cases:
            with m.Case(number):
                m.d.comb += selected.eq(value)
        with m.Default():
            m.d.comb += selected.eq(rest)
    return selected


def _mux(inputs: int) -> int:
    """LUTs per bit of a multiplexer: a tree of 4-to-1 multiplexers."""
    return -(-(inputs - 1) // 3)
