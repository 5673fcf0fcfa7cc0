"""Control of the ping-pong converter: which half is filled and which is read, and when.

One place of the memory (an address and a way of a half) is followed. It holds a value from the cycle in
which it is written to the end of the window that reads it.
"""

from math import prod

import pytest
from amaranth import Signal

from sim.formal import Theorem, prove
from sim.formal_laws import Inside, obey
from streamgen.converters.layout import WindowConverter
from streamgen.converters.pingpong import PingPong, PingPongParams
from streamgen.itensor import ITensor
from tests.external.formal.seeded import check_found

PAIRS = {
    "transposed": (
        "itensor<1x1xi1, iter_space: [2,2]*[1,1], iter_map: (d0,d1)->(d0,d1)>",
        "itensor<1x1xi1, iter_space: [2,2]*[1,1], iter_map: (d0,d1)->(d1,d0)>",
    ),
    "rows to columns": (
        "itensor<1x2xi1, iter_space: [2]*[1], iter_map: (d0)->(d0,0)>",
        "itensor<2x1xi1, iter_space: [2]*[1], iter_map: (d0)->(0,d0)>",
    ),
    "used again": (
        "itensor<1xi1, iter_space: [2]*[1], iter_map: (d0)->(d0)>",
        "itensor<1xi1, iter_space: [2,2]*[1,1], iter_map: (d0,d1)->(d1)>",
    ),
    "windows": (
        "itensor<1x1xi1, iter_space: [2,2]*[1,1], iter_map: (d0,d1)->(d0,d1)>",
        "itensor<1x1xi1, iter_space: [2,2,2]*[1,1,1], iter_map: (d0,d1,d2)->(d0,d2)>",
    ),
}


def theorem(name: str) -> Theorem:
    """No half is read before it is full or filled before it is drained; every token has room on its way."""
    source, target = map(ITensor.parse, PAIRS[name])
    params = PingPongParams(source=source, target=target)
    block = PingPong(params)
    t = Theorem(f"ping-pong control, {name}", block)
    m = t.m
    obey(t, i=block.i, i_descriptor=block.i_descriptor)
    for field, value in params.describe({"source": source, "target": target}).items():
        t.assume(block.i_descriptor.payload[field] == value)
    parts = t.inside.submodules
    writer, reader, banks, queue = parts.writer, parts.reader, parts.banks, parts.queue

    filled, drained = Signal(name="filled"), Signal(name="drained")
    m.d.comb += [
        filled.eq(writer.step & writer.window_last),
        drained.eq(reader.step & reader.window_last),
    ]
    full = Inside(t, "halves", filled, drained, 2).count
    t.always("a window is filled only while a half is free", ~writer.step | (full != 2))
    t.always("a half is read only when it is full", ~reader.step | (full != 0))

    # half of the access that a step leads to, a cycle later
    writes, reads, ends = Signal(name="write_half"), Signal(name="read_half"), Signal(name="window_ends")
    wrote, read = Signal(name="_wrote"), Signal(name="_read")
    m.d.sync += [wrote.eq(filled), read.eq(drained), ends.eq(drained)]
    m.d.sync += [writes.eq(writes ^ wrote), reads.eq(reads ^ read)]
    words = params.banking.words
    t.always(
        "windows are filled in either half by turns",
        ~banks.write | ((banks.write_address >= words) == writes),
    )
    t.always(
        "windows are read from either half by turns", ~banks.fetch | ((banks.fetch_address >= words) == reads)
    )
    t.always("an address is one of the memory", ~banks.write | (banks.write_address < 2 * words))

    place, way = t.free("place", range(2 * words)), t.free("way", len(banks.write_way))
    here, there = Signal.like(place, name="followed_place"), Signal.like(way, name="followed_way")
    chosen = Signal(name="chosen")
    with m.If(~chosen):
        m.d.sync += [chosen.eq(1), here.eq(place), there.eq(way)]
    t.assume(~chosen | (there < prod(params.banking.source.ways)))
    put = chosen & banks.write & (banks.write_address == here) & (banks.write_way == there)
    got = chosen & banks.fetch & (banks.fetch_address == here)
    holds = Signal(name="holds")
    used = Signal(name="used")
    over = ends & (reads == (here >= words))
    with m.If(over):
        m.d.sync += [holds.eq(0), used.eq(0)]
    with m.Elif(got):
        m.d.sync += used.eq(1)
    with m.If(put):
        m.d.sync += holds.eq(1)
    t.always("what is read was written in this window", ~got | holds)
    t.always("what is written was read before", ~put | ~holds)
    t.always("a window ends when all of it was read", ~(over & holds) | used | got)
    t.always("a token that comes from memory has room", ~queue.i.valid | queue.i.ready)
    again = Signal(name="written_before")
    with m.If(put):
        m.d.sync += again.eq(1)
    t.reachable("the followed place is written twice", put & again)
    t.reachable("both halves are full", full == 2)
    return t


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_control(name: str) -> None:
    prove(theorem(name))


FAULTS = {
    "a half is filled that is not drained": (PingPong.elaborate, "writer.running & ~two", "writer.running"),
    "a half is read that is not full": (
        PingPong.elaborate,
        "reader.running & one & room",
        "reader.running & room",
    ),
    "a half is given away": (WindowConverter._begin, "[one.eq(two), two.eq(0)]", "[one.eq(0), two.eq(0)]"),
    "room is not counted": (PingPong.elaborate, "reader.running & one & room", "reader.running & one"),
    "halves are not swapped": (
        PingPong.elaborate,
        "banks.write_address.eq(writer.address)",
        "banks.write_address.eq(writer.address % self._params.banking.words)",
    ),
    "a half counts as full too early": (
        PingPong.elaborate,
        "filled.eq(writer.step & writer.window_last)",
        "filled.eq(writer.step & writer.token_last)",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    function, old, new = FAULTS[name]
    check_found(lambda: theorem("used again"), function, old, new)
