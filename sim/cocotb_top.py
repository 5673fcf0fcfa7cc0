"""The test that cocotb runs inside the simulator: host and memory of one run of a written top.

It does what the job that `sim.cocotb_device` wrote says, with cocotbext-axi's AXI4-Lite master as the host
and `sim.cocotb_memory` as the memory, touching nothing else of the design.
"""

import os
import pickle
import re
from pathlib import Path

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge, with_timeout
from cocotb.utils import get_sim_time
from cocotbext.axi import AxiLiteBus, AxiLiteMaster

from sim.cocotb_memory import MemorySlave
from sim.memory import Channel
from streamgen.compiler.emit.resets import SHORTEST_RESET
from streamgen.runtime.simulator import CONTINUE, CONTROL, DONE, START

# Pins that the accelerator drives: those that say something in every cycle, and those of a channel's payload.
ALWAYS = re.compile(
    r"interrupt|s_axi_control_(awready|wready|arready|bvalid|rvalid)|"
    r"m_axi_gmem\d+_(awvalid|wvalid|arvalid|bready|rready)"
)
PAYLOAD = re.compile(r"(s_axi_control_(?:b|r)|m_axi_gmem\d+_(?:aw|ar|w))(?!valid|ready)\w+")
JOB = "STREAMGEN_COCOTB_JOB"
SETTLE = 32  # cycles that a host waits after a reset


@cocotb.test()
async def one_run(dut) -> None:
    """Reset, write the arguments, start, poll until done; leave the memory and the register reads behind."""
    path = Path(os.environ[JOB])
    job = pickle.loads(path.read_bytes())
    dut.ap_rst_n.value = 0
    cocotb.start_soon(Clock(dut.ap_clk, 2, unit="step").start())
    host = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axi_control"), dut.ap_clk, dut.ap_rst_n, False)
    for c, (port, buffers) in enumerate(job.ports):
        MemorySlave(dut, port, Channel(job.memory, c, buffers, job.faults))
    await reset(dut)
    if job.four_valued:
        cocotb.start_soon(hold_to_two_values(dut))

    async def begin() -> None:
        for offset, value in (*job.registers, (CONTROL, START)):
            await host.write_dword(offset, value)

    async def run() -> None:
        for cycles in job.interruptions:
            await begin()
            await ClockCycles(dut.ap_clk, cycles)
            await reset(dut)
        await begin()
        while not await host.read_dword(CONTROL) & DONE:
            await ClockCycles(dut.ap_clk, 64)
        await host.write_dword(CONTROL, CONTINUE)
        for offset in job.reads:
            job.answers.append(await host.read_dword(offset))

    await with_timeout(run(), 2 * job.timeout_cycles, "step")
    path.write_bytes(pickle.dumps(job))


async def reset(dut) -> None:
    """The shortest that is legal."""
    dut.ap_rst_n.value = 0
    await ClockCycles(dut.ap_clk, SHORTEST_RESET)
    dut.ap_rst_n.value = 1
    await ClockCycles(dut.ap_clk, SETTLE)


async def hold_to_two_values(dut) -> None:
    """Fail the test when an output is X or Z at any rising edge from now on.

    Payloads count while they are valid: memories have no initial contents.
    """
    always = [pin for pin in dut if ALWAYS.fullmatch(pin._name)]
    payloads: dict[str, list] = {}
    for pin in dut:
        if found := PAYLOAD.fullmatch(pin._name):
            payloads.setdefault(f"{found[1]}valid", []).append(pin)
    assert len(always) >= 11 and len(payloads) >= 5, "the pins of a Vitis kernel are missing"
    while True:
        await RisingEdge(dut.ap_clk)
        for pin in always:
            assert pin.value.is_resolvable, f"{pin._name} is {pin.value} at {get_sim_time('step')}"
        for valid, pins in payloads.items():
            for pin in pins if getattr(dut, valid).value else ():
                assert pin.value.is_resolvable, f"{pin._name} is {pin.value} at {get_sim_time('step')}"
