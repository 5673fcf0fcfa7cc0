"""Every use of a DSP is what a DSP48E2 does, and what does not fit one is refused."""

import random
import re
from typing import Any

import pytest
from amaranth.sim import Simulator

from streamgen.gateware.arith.dsp import DspParams
from streamgen.gateware.rtl import to_verilog
from streamgen.kernels.matmul.dot import CHAIN, DotParams
from streamgen.testing.synthesis import check_resources, synthesise
from tests.unit.gateware.arith.dsp48e2 import (
    MULTIPLY,
    USE_D,
    Z_CASCADE,
    Z_OWN,
    Z_ZERO,
    Attributes,
    Pins,
    Slice,
    wrapped,
)

CYCLES = 200
LANES = [
    DotParams(weight_bits=4, halves=False, rows=2, scale_bits=8, minimum=False, accumulator_bits=48),
    DotParams(weight_bits=4, halves=False, rows=1, scale_bits=16, minimum=True, accumulator_bits=64),
    DotParams(weight_bits=4, halves=True, rows=2, scale_bits=9, minimum=True, accumulator_bits=50),
    DotParams(weight_bits=4, halves=True, rows=2, scale_bits=0, minimum=False, accumulator_bits=47),
    DotParams(weight_bits=8, halves=False, rows=2, scale_bits=0, minimum=False, accumulator_bits=48),
]


def uses(lane: DotParams) -> list[DspParams]:
    """The different DSPs of a lane."""
    found = [lane.product(place) for place in range(CHAIN)]
    found += [lane.scaled(row) for row in range(lane.rows)] + [lane.lifted] * lane.minimum
    return list(dict.fromkeys([*found, *lane.sums]))


def attributes(p: DspParams) -> Attributes:
    """How a slice is set up for it: a second register behind the pre-adder, where there is one."""
    if p.d_bits:
        return Attributes(
            areg=1, breg=p.registers, dreg=1, adreg=p.registers - 1, amultsel="AD", inmode=USE_D
        )
    return Attributes(areg=p.registers, breg=p.registers)


def extremes(rng: random.Random, bits: int) -> int:
    """A signed number, often one of the largest."""
    half = 1 << bits - 1
    return rng.choice((-half, half - 1, rng.randrange(-half, half), rng.randrange(-half, half)))


@pytest.mark.parametrize("p", dict.fromkeys(use for lane in LANES for use in uses(lane)), ids=repr)
def test_is_what_a_slice_does(p: DspParams) -> None:
    dsp, part, rng = p.build(), Slice(attributes(p)), random.Random(7)

    async def drive(ctx: Any) -> None:
        for cycle in range(CYCLES):
            a, b = extremes(rng, p.a_bits), extremes(rng, p.b_bits)
            d, cascade = extremes(rng, p.d_bits or 1), extremes(rng, p.p_bits)
            first, enable = cycle < 4 or rng.random() < 0.2, cycle < 4 or rng.random() < 0.7
            z = Z_CASCADE if p.cascade else Z_ZERO if first or not p.accumulate else Z_OWN
            ctx.set(dsp.a, a)
            ctx.set(dsp.b, b)
            for name, value in (("d", d), ("cascade", cascade), ("first", first), ("enable", enable)):
                if hasattr(dsp, name):
                    ctx.set(getattr(dsp, name), value)
            part.step(
                Pins(
                    a=a << p.shift,
                    b=b,
                    d=d if p.d_bits else 0,
                    pcin=cascade,
                    opmode=z << 4 | MULTIPLY,
                    cep=enable or not p.accumulate,
                )
            )
            await ctx.tick()
            if cycle + 1 >= p.latency:
                assert ctx.get(dsp.p) == wrapped(part.p, p.p_bits), f"cycle {cycle}"

    simulator = Simulator(dsp)
    simulator.add_clock(1e-6)
    simulator.add_testbench(drive)
    simulator.run()


@pytest.mark.parametrize("lane", LANES, ids=repr)
def test_a_lane_promises_its_dsps(lane: DotParams) -> None:
    assert lane.resources.dsp == lane.multipliers
    products = [lane.product(place) for place in range(CHAIN)]
    assert all(use.factor_bits <= 27 and use.b_bits <= 18 and use.p_bits <= 48 for use in uses(lane))
    assert [use.cascade for use in products] == [False, True, True, True]


@pytest.mark.slow
def test_synthesis_finds_one_product_in_each() -> None:
    """Of a module by itself Yosys maps the product, to one DSP; inside others it is a box."""
    several = list(dict.fromkeys(use for lane in LANES for use in uses(lane)))
    for p, found in zip(several, synthesise(*(p.build() for p in several)), strict=True):
        assert found.resources.dsp == p.resources.dsp == 1, p
    lane = LANES[2]
    check_resources(lane)
    assert synthesise(lane.build())[0].resources.dsp == lane.multipliers


def test_text_has_the_shape_that_vendor_tools_know() -> None:
    """A product and a sum for DSPs, registers without reset."""
    text = to_verilog(
        DspParams(a_bits=5, b_bits=8, d_bits=5, shift=19, p_bits=33, cascade=True).build(), "dsp"
    )
    assert re.search(r'use_dsp = "yes" \*\)\n *wire \[32:0\]', text)  # the product
    assert re.search(r'use_dsp = "yes" \*\)\n *output signed \[32:0\] p;', text)
    assert len(re.findall(r"always @\(posedge clk\)\n", text)) == text.count("always") == 4
    widths = [int(width) + 1 for width in re.findall(r"\[(\d+):0\]", text)]
    assert max(widths) <= 48


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a_bits": 0}, "a_bits of a DSP must be at least 1, not 0"),
        ({"shift": -1}, "shift of a DSP must be at least 0, not -1"),
        ({"a_bits": 28}, "the factor a of a DSP has 28 bits; at most 27 are there"),
        (
            {"a_bits": 9, "shift": 18, "d_bits": 8},
            "the sum of the pre-adder of a DSP has 28 bits; at most 27 are there",
        ),
        ({"b_bits": 19}, "the factor b of a DSP has 19 bits; at most 18 are there"),
        ({"p_bits": 49}, "the result of a DSP has 49 bits; at most 48 are there"),
        ({"registers": 3}, "registers of a DSP must be 1 or 2, not 3"),
        (
            {"accumulate": True, "cascade": True},
            "a DSP that accumulates has one register at its inputs and no cascade",
        ),
    ],
)
def test_bad_params(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        DspParams(**{"a_bits": 8, "b_bits": 8, "p_bits": 48, **change})
