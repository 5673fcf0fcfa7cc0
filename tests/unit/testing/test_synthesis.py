"""streamgen.testing.synthesis: counts and levels of circuits whose answer is known."""

import re
from dataclasses import dataclass

import pytest
from amaranth import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from streamgen.contract.cost import Cost, Resources
from streamgen.gateware.rtl import Shared
from streamgen.gateware.stream import RegisterSliceParams
from streamgen.testing.synthesis import check_resources, synthesise


class Circuit(wiring.Component):
    """Registers for `a` and `b`, and a register `o` for `function` of them."""

    def __init__(self, bits, function):
        self._function = function
        super().__init__({"a": In(bits), "b": In(bits), "o": Out(2 * bits)})

    def elaborate(self, platform):
        m = Module()
        a, b = Signal.like(self.a, name="register_a"), Signal.like(self.b, name="register_b")
        m.d.sync += [a.eq(self.a), b.eq(self.b), self.o.eq(self._function(m, a, b))]
        return m


def read_write(depth, style):
    """A memory that is written with a and b and read into o."""

    def function(m, a, b):
        m.submodules.memory = memory = Memory(shape=len(a), depth=depth, init=[], attrs={"ram_style": style})
        write, read = (
            memory.write_port(),
            memory.read_port(domain="comb" if style == "distributed" else "sync"),
        )
        m.d.comb += [write.addr.eq(a), write.data.eq(b), write.en.eq(1), read.addr.eq(b)]
        return read.data

    return function


def through_shared_slice(m, a, b):
    m.submodules.slice = part = Shared(RegisterSliceParams(bits=len(a)))
    m.d.comb += [part.i.payload.eq(a), part.i.valid.eq(1), part.o.ready.eq(1)]
    return part.o.payload


@pytest.mark.slow
def test_known_circuits():
    copy, logic, total, product, lut_memory, block_memory, ultra_memory, shared = synthesise(
        Circuit(32, lambda m, a, b: a),
        Circuit(3, lambda m, a, b: a.all() & b.all()),
        Circuit(32, lambda m, a, b: a + b),
        Circuit(16, lambda m, a, b: a * b),
        Circuit(14, read_write(32, "distributed")),
        Circuit(32, read_write(2048, "block")),
        Circuit(64, read_write(4096, "ultra")),
        Circuit(8, through_shared_slice),
    )
    assert (copy.resources.lut, copy.resources.ff, copy.levels) == (0, 64, 0)
    # six inputs are one LUT
    assert (logic.resources.lut, logic.resources.ff, logic.levels) == (1, 7, 1)
    assert logic.path[0].startswith("register_") and logic.path[-1] == "o[0].D"
    # the LUT that adds two bits, then the carry chain
    assert (total.resources.ff, total.levels, total.cells["CARRY4"]) == (97, 2, 9)
    assert 32 <= total.resources.lut <= 33
    assert (product.resources.dsp, product.levels) == (1, 5)
    assert (lut_memory.resources.lut, lut_memory.cells["RAM32M16"], lut_memory.levels) == (8, 1, 1)
    assert (block_memory.resources.bram, block_memory.resources.lut) == (2, 0)
    assert (ultra_memory.resources.uram, ultra_memory.resources.lut) == (1, 0)
    assert shared.resources.ff == 8 + 8 + 8


@dataclass(frozen=True)
class InverterParams:
    def build(self):
        return Inverter()


class Inverter(wiring.Component):
    i: In(2)
    o: Out(2)

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.o.eq(~self.i)
        return m


class Loop(wiring.Component):
    """A loop through a shared block, which amaranth does not see."""

    i: In(2)
    o: Out(2)

    def elaborate(self, platform):
        m = Module()
        m.submodules.inverter = inverter = Shared(InverterParams())
        m.d.comb += [inverter.i.eq(inverter.o & self.i), self.o.eq(inverter.o)]
        return m


@pytest.mark.slow
def test_combinational_loop_is_an_error():
    with pytest.raises(ValueError, match="is part of a combinational loop"):
        synthesise(Loop())


@dataclass(frozen=True, kw_only=True)
class AdderParams:
    """b + a, with registers before and after. The promise is a parameter."""

    lut: int
    ff: int

    @property
    def resources(self):
        return Resources(lut=self.lut, ff=self.ff)

    def cost(self, bounds):
        return Cost(resources=self.resources, ii=1.0, latency=1, cycles=bounds["tokens"])

    def build(self):
        return Circuit(64, lambda m, a, b: a + b)


@pytest.mark.slow
def test_a_promise_within_a_fifth_holds():
    synthesis = check_resources(AdderParams(lut=70, ff=200))
    assert (synthesis.resources.ff, synthesis.levels) == (193, 2)
    assert check_resources(AdderParams(lut=58, ff=175), {"tokens": 3}) == synthesis


@pytest.mark.slow
def test_what_is_promised_and_is_not_so():
    liar = AdderParams(lut=200, ff=100)
    with pytest.raises(AssertionError) as error:
        check_resources(liar, levels=1)
    head, lut, ff, path = str(error.value).split("\n")
    assert head == "AdderParams(lut=200, ff=100)"
    assert re.fullmatch(r"  lut: 200 promised, 6[45] found \(\+2\d\d%\)", lut)
    assert ff == "  ff: 100 promised, 193 found (-48%)"
    assert re.fullmatch(r"  a path has 2 LUT levels; 1 are allowed: register_.* -> o\[\d+\]\.D", path)
