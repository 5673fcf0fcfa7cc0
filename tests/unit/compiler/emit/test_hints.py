"""What vendor tools are told: products for DSPs, delay lines for shift registers. Memories: `test_text`."""

import re
from typing import Any

import pytest
from amaranth import Const, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from streamgen.gateware.arith.pipeline import Pipeline
from streamgen.gateware.rtl import Library, to_rtlil, to_verilog
from streamgen.testing.synthesis import promised
from tests.designs.sim.test_blocks import FIRSTS
from tests.shared.campaigns import sampled

QUICK = ("client", "dma", "rope", "group codes", "row codes", "attention blocks")


@pytest.mark.parametrize("kind", sampled(FIRSTS, QUICK))
def test_products_for_dsps_are_those_that_are_promised(kind: str) -> None:
    """Multiplying by a power of two, as addresses are made, takes none."""
    for params, bounds in FIRSTS[kind]:
        library = Library()
        text = to_rtlil(params.build(), "top", library) + library.text()
        assert ("use_dsp" in text) == (promised(params, bounds).dsp > 0), params


class Delays(wiring.Component):
    """A sum that waits three stages beside a product."""

    a: In(8)
    b: In(8)
    o: Out(32)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        pipe = Pipeline(m, Const(1))
        s = pipe.stage(total=self.a + self.b, a=self.a, b=self.b)
        s = pipe.stage(total=s.total, product=s.a * s.b)
        s = pipe.stage(total=s.total, product=s.product + 1)
        m.d.comb += self.o.eq(s.total + (s.product << 9))
        return m


def test_what_only_delays_is_for_shift_registers() -> None:
    text = to_verilog(Delays(), "delays")
    told = re.findall(r'\(\* (\w+) = "(\w+)" \*\)\n  (?:reg|wire) (?:\[.*?\] )?(\w+)', text)
    assert [name for hint, value, name in told if (hint, value) == ("shreg_extract", "yes")] == [
        "total_2",
        "total_3",
    ]
    assert [value for hint, value, _ in told if hint == "use_dsp"] == ["yes"]
