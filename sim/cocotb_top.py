"""The test that cocotb runs inside the simulator: host and memory of one run of a written top.

It does what the job that `sim.cocotb_device` wrote says, with cocotbext-axi's AXI4-Lite master as the host
and `sim.cocotb_memory` as the memory, touching nothing else of the design.
"""

import os
import pickle
from pathlib import Path

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, with_timeout
from cocotbext.axi import AxiLiteBus, AxiLiteMaster

from sim.cocotb_memory import MemorySlave
from sim.memory import Channel
from streamgen.runtime.simulator import CONTINUE, CONTROL, DONE, START

JOB = "STREAMGEN_COCOTB_JOB"
RESET_CYCLES = 32


@cocotb.test()
async def one_run(dut) -> None:
    """Reset, write the arguments, start, poll until done; leave the memory and the register reads behind."""
    path = Path(os.environ[JOB])
    job = pickle.loads(path.read_bytes())
    dut.ap_rst_n.value = 0
    cocotb.start_soon(Clock(dut.ap_clk, 2, unit="step").start())
    host = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axi_control"), dut.ap_clk, dut.ap_rst_n, False)
    for c, (port, buffers) in enumerate(job.ports):
        errors = {
            address for address in job.errors if any(b <= address < b + len(v) for b, v in buffers.items())
        }
        MemorySlave(dut, port, Channel(job.memory, c, buffers, errors))
    await ClockCycles(dut.ap_clk, RESET_CYCLES)
    dut.ap_rst_n.value = 1
    await ClockCycles(dut.ap_clk, RESET_CYCLES)

    async def run() -> None:
        for offset, value in (*job.registers, (CONTROL, START)):
            await host.write_dword(offset, value)
        while not await host.read_dword(CONTROL) & DONE:
            await ClockCycles(dut.ap_clk, 64)
        await host.write_dword(CONTROL, CONTINUE)
        for offset in job.reads:
            job.answers.append(await host.read_dword(offset))

    await with_timeout(run(), 2 * job.timeout_cycles, "step")
    path.write_bytes(pickle.dumps(job))
