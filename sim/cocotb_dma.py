"""A Load, a FIFO, a Store and the master of one channel, and the cocotb test that copies through them.

cocotbext-axi's memory serves them; its stream sources give the descriptors.
"""

import json
import os
from itertools import repeat
from pathlib import Path
from random import Random
from typing import Any

import cocotb
from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge, with_timeout
from cocotbext.axi import AxiBus, AxiRam

from sim.cocotb_stream_bench import Bus, Source, Token
from streamgen.fifo.queue import QueueParams
from streamgen.platform.axi import AxiSignature
from streamgen.platform.dma import LoadParams, StoreParams
from streamgen.platform.master import ChannelMasterParams

__all__ = ["JOB", "Copy"]

JOB = "STREAMGEN_DMA_JOB"


class Copy(wiring.Component):
    """i_load, i_store: descriptors. source, target: addresses. done: one cycle for each store that ends."""

    def __init__(self, load: LoadParams, store: StoreParams) -> None:
        self._load, self._store = load.build(), store.build()
        self._queue = QueueParams(bits=load.token_bits, depth=4).build()
        super().__init__(
            {
                "i_load": In(self._load.i_descriptor.signature.flip()),
                "i_store": In(self._store.i_descriptor.signature.flip()),
                "source": In(64),
                "target": In(64),
                "done": Out(1),
                "m_axi": Out(AxiSignature()),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.load, m.submodules.store, m.submodules.queue = self._load, self._store, self._queue
        m.submodules.master = master = ChannelMasterParams(readers=1, writers=1).build()
        wiring.connect(m, self._load.memory, master.read_0)
        wiring.connect(m, self._store.memory, master.write_0)
        wiring.connect(m, self._load.o, self._queue.i)
        wiring.connect(m, self._queue.o, self._store.i)
        wiring.connect(m, wiring.flipped(self.i_load), self._load.i_descriptor)
        wiring.connect(m, wiring.flipped(self.i_store), self._store.i_descriptor)
        wiring.connect(m, wiring.flipped(self.m_axi), master.m_axi)
        m.d.comb += [
            self._load.base.eq(self.source),
            self._store.base.eq(self.target),
            self.done.eq(self._store.done),
        ]
        return m


@cocotb.test()
async def copies(dut):
    """Every transfer back to back, with pauses of the memory; the image of the target is left in a file."""
    job = json.loads(Path(os.environ[JOB]).read_text())
    cocotb.start_soon(Clock(dut.clk, 2, unit="step").start())
    dut.rst.value, dut.source.value, dut.target.value = 1, job["source"], job["target"]
    ram = AxiRam(AxiBus.from_prefix(dut, "m_axi_"), dut.clk, dut.rst, size=2**40)
    channels = [ram.write_if.aw_channel, ram.write_if.w_channel, ram.write_if.b_channel]
    for k, channel in enumerate([*channels, ram.read_if.ar_channel, ram.read_if.r_channel]):
        random = Random(f"{job['seed']} {k}")
        channel.set_pause_generator(random.random() < 0.3 for random in repeat(random))
    ram.write(job["source"], bytes.fromhex(job["image"]))
    ram.write(job["target"], b"\xff" * (len(job["image"]) // 2))
    sources = [Source(Bus(dut, f"i_{way}_"), dut.clk, dut.rst) for way in ("load", "store")]
    await ClockCycles(dut.clk, 2)
    dut.rst.value = 0
    for source, words in zip(sources, (job["loads"], job["stores"]), strict=True):
        for word in words:
            source.send_nowait(Token(payload=word))
    for _ in job["stores"]:
        while True:
            await with_timeout(RisingEdge(dut.clk), 4, "step")
            if dut.done.value:
                break
    found = ram.read(job["target"], len(job["image"]) // 2)
    Path(os.environ[JOB]).with_name("answer.bin").write_bytes(found)
