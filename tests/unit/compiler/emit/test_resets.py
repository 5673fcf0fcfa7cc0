"""The resets of a top: a register for each block, equal distances, and the fan-out that is promised."""

import re
from collections import Counter

import pytest
from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator, SimulatorContext

from streamgen.compiler.emit.resets import FAN_OUT, PIN, SHORTEST_RESET, Resets, levels, registers
from streamgen.gateware.rtl import to_verilog
from streamgen.platform.control.control import SETTLE
from tests.shared.accelerators import tiny


class Blocks(wiring.Component):
    """As many blocks as asked for, each a register that counts."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        pins = {"clk": In(1), "reset_n": In(1), "core_reset": In(1)}
        super().__init__({**pins, "o": Out(blocks), "control": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        resets = Resets(m, self.clk, self.reset_n, self.core_reset, {"SLR0": self._blocks})
        for k in range(self._blocks):
            m.d[PIN] += self.o[k].eq(~resets.next("SLR0"))
        m.d.sync += self.control.eq(1)
        return m


@pytest.mark.parametrize("blocks", [1, FAN_OUT, FAN_OUT + 1, FAN_OUT**2 + 3])
def test_fan_out_and_count(blocks: int) -> None:
    text = to_verilog(Blocks(blocks), "blocks")
    names = dict(re.findall(r"^  assign (\w+) = (\w+);$", text, re.MULTILINE))
    moves = re.findall(r"^    (reset_\w+) <= (\S+);$", text, re.MULTILINE)
    sources = Counter(names.get(source, source) for _, source in moves)
    assert len(moves) + 2 == registers([blocks])
    assert max(sources.values()) <= FAN_OUT
    assert text.count('dont_touch = "true"') == len(moves) + 1
    assert text.count('shreg_extract = "no"') == len(moves) + 1


@pytest.mark.parametrize("blocks", [1, 40, FAN_OUT**2 + 1])
def test_all_leave_reset_in_the_same_cycle(blocks: int) -> None:
    """Pulses of the pin and of the control arrive everywhere, as long as they are, in the same cycle."""
    dut, seen = Blocks(blocks), []
    pin = [0] * 10 + [1] * 12 + [0] + [1] * 12 + [0, 0, 0] + [1] * 40
    core = [0] * 45 + [1, 1] + [0] * 31

    async def bench(ctx: SimulatorContext) -> None:
        for reset_n, core_reset in zip(pin, core, strict=True):
            ctx.set(dut.reset_n, reset_n)
            ctx.set(dut.core_reset, core_reset)
            for level in (1, 0):
                await ctx.delay(1e-9)
                ctx.set(dut.clk, level)
            seen.append((ctx.get(dut.o), ctx.get(dut.control)))

    simulator = Simulator(dut)
    simulator.add_testbench(bench)
    simulator.run()
    depth, everything = levels([blocks]), (1 << blocks) - 1
    control = [0] * (2 + depth) + pin[: -(2 + depth)]
    blocks_reset = [0] * depth + core[:-depth]
    assert [one for _, one in seen] == control
    assert [o for o, _ in seen] == [everything * (c & ~r) for c, r in zip(control, blocks_reset, strict=True)]


def test_the_control_waits_for_the_resets_it_gives() -> None:
    most = SHORTEST_RESET - 3  # levels that are allowed
    assert levels([FAN_OUT**most, 1]) == most < SETTLE - 1
    assert levels([FAN_OUT, 1], way=most - 1) == 1
    for blocks, way in (([1, FAN_OUT**most + 1], 0), ([FAN_OUT + 1, 1], most - 1)):
        with pytest.raises(
            ValueError, match=rf"^a reset takes {SHORTEST_RESET} cycles to reach \d+ blocks; it must"
        ):
            levels(blocks, way)


def test_every_block_of_a_top_has_its_own() -> None:
    text = tiny().groups[0].design.verilog
    (top,) = re.findall(r"^module tiny\(.*?^endmodule", text, re.MULTILINE | re.DOTALL)
    given = re.findall(r"^    \.rst\((\w+)\)", top, re.MULTILINE)
    assert len(given) == len(set(given)) == text.count('keep_hierarchy = "yes"') > 15
    assert {name.rsplit("_", 1)[0] for name in given} == {"reset_SLR0_0"}
    assert len(re.findall(r"^  reg reset_SLR0_0_\d+ ", top, re.MULTILINE)) == len(given)
