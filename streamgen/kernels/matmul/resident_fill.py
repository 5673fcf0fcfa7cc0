"""How `resident` reads its weights: once after a reset, into a memory of words and one of row scales."""

from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory

from streamgen.artifact.packing import BEAT_BITS
from streamgen.fifo.queue import RAM_STYLE
from streamgen.platform.axi import BEAT_SHIFT
from streamgen.platform.read_client import ReadClient


def fill(m: Module, component: Any) -> tuple[Signal, Signal, Any, Any]:
    """Add the hardware to the module of `resident.Resident`. Returns whether memory has been asked for the
    weights, whether they are there, and the memories of words and of row scales."""
    p = component.params
    m.submodules.client = client = ReadClient(p.client)
    wiring.connect(m, wiring.flipped(component.memory), client.memory)
    asked, loaded, wanted = Signal(), Signal(), Signal()
    address = Signal(64 - BEAT_SHIFT, reset_less=True)
    command = client.i_command
    m.d.comb += [
        command.valid.eq(wanted),
        command.payload.address.eq(Cat(Const(0, BEAT_SHIFT), address)),
        command.payload.beats.eq(p.beats),
        client.o.ready.eq(1),
    ]
    m.d.sync += address.eq(component.base[BEAT_SHIFT:] + component.i_descriptor.payload.offset)
    m.d.sync += wanted.eq((wanted | (component.i_descriptor.valid & ~asked)) & ~(wanted & command.ready))
    with m.If(wanted & command.ready):
        m.d.sync += asked.eq(1)

    memories = []
    for name, queue, depth in (
        ("words", p.words, p.tiles * p.groups),
        ("row_scales", p.rows, p.tiles),
    ):
        attributes = {"ram_style": RAM_STYLE[queue.kind]}
        memory = Memory(shape=queue.bits, depth=max(2, depth), init=[], attrs=attributes)
        m.submodules[name] = memory
        memories.append(memory)
    few, many = min(p.parts), max(p.parts)
    held = Signal(BEAT_BITS * (many - 1), reset_less=True)
    part, unit = Signal(range(max(2, many))), Signal(range(1 + p.groups))  # unit 0: row scales
    is_rows = unit == 0
    final = part == Mux(is_rows, p.parts[0] - 1, p.parts[1] - 1)
    came = Cat(held, client.o.payload)
    with m.If(client.o.valid):
        m.d.sync += [held.eq(came[BEAT_BITS:]), part.eq(Mux(final, 0, part + 1))]
        with m.If(final):
            m.d.sync += unit.eq(Mux(unit == p.groups, 0, unit + 1))
    assert few >= 1
    for memory, beats, mine in zip(memories, reversed(p.parts), (~is_rows, is_rows), strict=True):
        port = memory.write_port()
        data = came[BEAT_BITS * (many - beats) :][: len(port.data)]
        written = Signal(range(memory.depth + 1))
        write = Signal()
        m.d.sync += [write.eq(client.o.valid & final & mine), port.data.eq(data)]
        m.d.comb += [port.en.eq(write), port.addr.eq(written[: len(port.addr)])]
        with m.If(write):
            m.d.sync += written.eq(written + 1)
        if memory is memories[0]:
            m.d.sync += loaded.eq(written == p.tiles * p.groups)
    return asked, loaded, memories[0], memories[1]
