"""The kernel of this package under cocotb: cocotbext-axi is its host and its memory.

    make                                    # on Icarus; SIM=verilator, SIM=questa, ... are cocotb's names
    make VERILOG_SOURCES=netlist.v          # on a netlist that you built from the Verilog
    make COCOTB_TEST_FILTER=runs SEED=3     # only matching tests, with other stalls

runs.npz holds recorded runs of the kernel: the memory that a run reads, and the memory that it must leave.
Run k is `k/tiles`, `k/position`, `k/table`, `k/in/NAME`, `k/out/NAME`. The manifest of the package names the
weights and the registers.
"""

import logging
import os
from itertools import repeat
from pathlib import Path
from random import Random
from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge, with_timeout
from cocotbext.axi import AxiBus, AxiLiteBus, AxiLiteMaster, AxiRam
from cocotbext.axi.sparse_memory import SparseMemory

from streamgen.artifact.manifest import (
    COMMAND_RESET,
    COMMAND_RUN,
    DEFAULT_TIMEOUT,
    Manifest,
    RunError,
    StatusBlock,
)
from streamgen.runtime.execution import explain

HERE = Path(os.environ.get("STREAMGEN_BENCH", Path(__file__).resolve().parent))
PACKAGE = Path(os.environ.get("STREAMGEN_PACKAGE", HERE.parent))
SEED = int(os.environ.get("SEED") or 0)
PATIENCE = int(os.environ.get("PATIENCE") or 1_000_000)  # cycles that a run may take
RESET, SETTLE = 8, 32  # cycles: the shortest reset that a kernel notices; the wait of the host after it
CONTROL, GLOBAL_ENABLE, ENABLE, STATUS = 0x00, 0x04, 0x08, 0x0C
START, DONE, CONTINUE = 1 << 0, 1 << 1, 1 << 4
PAGE = 4096
Run = dict[str, Any]


class BenchCard:
    """Clock, memory and host of one kernel. They take the place of the card and XRT."""

    def __init__(self, dut: Any, ram: Any = AxiRam) -> None:
        self.dut, self.manifest = dut, Manifest.from_json((PACKAGE / "manifest.json").read_text())
        logging.getLogger(f"cocotb.{dut._name}").setLevel(logging.WARNING)  # else each burst prints a line
        self.memory = SparseMemory(2**48)  # all masters share it, as on the card
        self.host = AxiLiteMaster(
            AxiLiteBus.from_prefix(dut, "s_axi_control"), dut.ap_clk, dut.ap_rst_n, reset_active_level=False
        )
        self.ports = [
            ram(
                AxiBus.from_prefix(dut, port.name),
                dut.ap_clk,
                dut.ap_rst_n,
                reset_active_level=False,
                mem=self.memory,
            )
            for port in self.manifest.ports
        ]
        self.offsets = {argument.name: argument.offset for argument in self.manifest.arguments}
        self.addresses = self._placed()

    def _placed(self) -> dict[str, int]:
        """The address of each buffer. Every buffer begins at a page of its channel."""
        free = {p.channel: p.channel * self.manifest.board.channel_bytes for p in self.manifest.ports}
        addresses = {}
        for info in self.manifest.buffers:
            addresses[info.name] = free[info.channel]
            free[info.channel] += -(-info.bytes // PAGE) * PAGE
        return addresses

    async def open(self) -> None:
        """Reset the kernel, write the weights, and write the addresses of the buffers to the registers."""
        self.dut.ap_rst_n.value = 0
        cocotb.start_soon(Clock(self.dut.ap_clk, 2, unit="step").start())
        await ClockCycles(self.dut.ap_clk, RESET)
        self.dut.ap_rst_n.value = 1
        await ClockCycles(self.dut.ap_clk, SETTLE)
        for info in self.manifest.buffers:
            address = self.addresses[info.name]
            content = bytes(info.bytes) if info.file is None else (PACKAGE / info.file).read_bytes()
            self.memory.write(address, content)
            await self.host.write_dword(self.offsets[info.name], address & 0xFFFFFFFF)
            await self.host.write_dword(self.offsets[info.name] + 4, address >> 32)
        await self.host.write_dword(GLOBAL_ENABLE, 1)
        await self.host.write_dword(ENABLE, 1)

    async def start(
        self, command: int, tiles: int = 0, position: int = 0, timeout: int = DEFAULT_TIMEOUT
    ) -> None:
        """Write the arguments and start a run."""
        given = {"command": command, "tiles": tiles, "position": position, "timeout": timeout}
        for name, value in given.items():
            await self.host.write_dword(self.offsets[name], value)
        await self.host.write_dword(CONTROL, START)

    async def finish(self) -> None:
        """Wait for the interrupt, and acknowledge the run as ap_ctrl_chain demands."""
        if not self.dut.interrupt.value:
            await with_timeout(RisingEdge(self.dut.interrupt), 2 * PATIENCE, "step")
        assert await self.host.read_dword(CONTROL) & DONE, "an interrupt, but no run has ended"
        await self.host.write_dword(STATUS, 1)
        await self.host.write_dword(CONTROL, CONTINUE)

    def load(self, run: Run) -> None:
        """Write the memory that a run reads."""
        (status,) = (info for info in self.manifest.buffers if info.role == "status")
        (table,) = (info for info in self.manifest.buffers if info.role == "table")
        self.memory.write(self.addresses[status.name], bytes(status.bytes))
        self.memory.write(self.addresses[table.name], run["table"])
        for name, image in run["in"].items():
            self.memory.write(self.addresses[name], image)

    def status(self) -> StatusBlock:
        """The status block that the kernel wrote."""
        (info,) = (info for info in self.manifest.buffers if info.role == "status")
        image = self.memory.read(self.addresses[info.name], self.manifest.status_bytes)
        status = StatusBlock.unpack(bytes(image), len(self.manifest.counters))
        assert status.design_hash == self.manifest.design_hash, "the hardware holds another design"
        return status

    async def run(self, run: Run) -> int:
        """Do one run, check the memory that it leaves, and return its cycles."""
        self.load(run)
        await self.start(COMMAND_RUN, run["tiles"], run["position"])
        await self.finish()
        status = self.status()
        assert status.error is RunError.NONE, explain(self.manifest, status)
        for name, image in run["out"].items():
            content = self.memory.read(self.addresses[name], len(image))
            wrong = [k for k, (a, b) in enumerate(zip(content, image, strict=True)) if a != b]
            assert not wrong, f"{len(wrong)} of {len(image)} bytes of {name} differ, the first is {wrong[0]}"
        return status.cycles

    def stall(self, random: Random, chance: float) -> None:
        """Pause every channel of every port at random, independently of the others. chance: probability of a
        pause in a cycle."""
        channels = [
            self.host.write_if.aw_channel, self.host.write_if.w_channel, self.host.write_if.b_channel,
            self.host.read_if.ar_channel, self.host.read_if.r_channel,
        ]  # fmt: skip
        for port in self.ports:
            channels += [
                port.write_if.aw_channel, port.write_if.w_channel, port.write_if.b_channel,
                port.read_if.ar_channel, port.read_if.r_channel,
            ]  # fmt: skip
        for channel in channels:
            source = Random(random.getrandbits(64))
            channel.set_pause_generator(source.random() < chance for _ in repeat(None))


def recorded() -> list[Run]:
    """The runs of runs.npz."""
    with np.load(HERE / "runs.npz") as arrays:
        return [
            {
                "tiles": int(arrays[f"{k}/tiles"]),
                "position": int(arrays[f"{k}/position"]),
                "table": arrays[f"{k}/table"].tobytes(),
                **{
                    side: {
                        name.rpartition("/")[2]: arrays[name].tobytes()
                        for name in arrays.files
                        if name.startswith(f"{k}/{side}/")
                    }
                    for side in ("in", "out")
                },
            }
            for k in range(int(arrays["runs"]))
        ]


@cocotb.test()
async def runs(dut: Any) -> None:
    """All recorded runs, one after the other, give the recorded results."""
    card = BenchCard(dut)
    await card.open()
    for number, run in enumerate(recorded()):
        dut._log.info("run %d: %d cycles", number, await card.run(run))


@cocotb.test()
async def runs_with_stalls(dut: Any) -> None:
    """All recorded runs give the recorded results while host and memory pause at random."""
    card = BenchCard(dut)
    card.stall(Random(SEED), 0.3)
    await card.open()
    for run in recorded():
        await card.run(run)


@cocotb.test()
async def reset_in_mid_run(dut: Any) -> None:
    """A soft reset at a random moment drains all transfers, and the next run is right."""
    card, random = BenchCard(dut), Random(SEED)
    await card.open()
    first = recorded()[0]
    cycles = await card.run(first)
    for _ in range(3):
        card.load(first)
        await card.start(COMMAND_RUN, first["tiles"], first["position"])
        await ClockCycles(dut.ap_clk, random.randrange(1, cycles + 1))
        await card.host.write_dword(card.offsets["command"], COMMAND_RESET)
        await card.finish()
        assert await card.run(first) > 0
