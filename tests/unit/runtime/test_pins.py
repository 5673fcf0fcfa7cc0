"""Registers of the simulator stand between memory and the design."""

import re

from sim.add_one import AddOne
from streamgen.gateware.rtl import to_verilog
from streamgen.runtime.pins import READ, WRITE, registered

MASTERS = ["m_axi_gmem0", "m_axi_gmem1"]


def ports(verilog: str, kind: str) -> set[str]:
    return set(re.findall(rf"^  {kind} (?:\[\d+:0\] )?(\w+);", verilog, re.MULTILINE))


def test_inputs_that_memory_drives_become_registers():
    before = to_verilog(AddOne(channels=2))
    after = registered(before, "top", MASTERS)
    driven = {name for name in ports(before, "input") if name.startswith("m_axi_")}
    assert driven <= {f"{master}_{pin}" for master in MASTERS for pin in READ + WRITE}
    assert {"m_axi_gmem0_rdata", "m_axi_gmem1_bvalid"} <= driven
    assert ports(after, "input") == ports(before, "input") - driven | {f"next_{name}" for name in driven}
    assert ports(after, "reg") == driven | ports(before, "reg")
    assert set(re.findall(r"@\(posedge ap_clk\) (\w+) <= next_\1;", after)) == driven
    assert ports(after, "output") == ports(before, "output")


def test_other_masters_and_other_modules_stay():
    verilog = to_verilog(AddOne(channels=2))
    assert "next_m_axi_gmem1" not in registered(verilog, "top", MASTERS[:1])
    assert registered(verilog, "other", MASTERS) == verilog
    assert registered(verilog, "top", []) == verilog
