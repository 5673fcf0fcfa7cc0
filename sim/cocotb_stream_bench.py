"""The cocotb test of a component with stream ports: a source on every input, a sink on every output.

A stream is three pins: `i__payload`, `i__valid`, `i__ready`. The job says which tokens go in and how many are
to come out; what comes is left in a file beside it.
"""

import json
import os
from itertools import repeat
from pathlib import Path
from random import Random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, Combine, with_timeout
from cocotbext.axi.stream import define_stream

JOB = "STREAMGEN_STREAM_JOB"
TAIL = 24  # cycles in which nothing may come any more
Bus, Token, Source, Sink, _ = define_stream("Stream", signals=["payload", "valid", "ready"])


@cocotb.test()
async def streams(dut):
    """All tokens in, all tokens out, none too many."""
    job = json.loads(Path(os.environ[JOB]).read_text())
    cocotb.start_soon(Clock(dut.clk, 2, unit="step").start())
    dut.rst.value = 1
    sources = {name: Source(Bus(dut, f"{name}_"), dut.clk, dut.rst) for name in job["inputs"]}
    sinks = {name: Sink(Bus(dut, f"{name}_"), dut.clk, dut.rst) for name in job["outputs"]}
    for k, (agents, chance) in enumerate(((sources, job["sources"]), (sinks, job["sinks"]))):
        for name, agent in agents.items():
            random = Random(f"{job['seed']} {k} {name}")
            agent.set_pause_generator(random.random() < chance for random in repeat(random))
    await ClockCycles(dut.clk, 2)
    dut.rst.value = 0
    if job["reset_at"] is not None:
        send(sources, job)
        await ClockCycles(dut.clk, max(1, job["reset_at"]))
        dut.rst.value = 1
        for agent in (*sources.values(), *sinks.values()):
            agent.clear()
        await ClockCycles(dut.clk, 2)
        for agent in sinks.values():
            agent.clear()
        dut.rst.value = 0
    send(sources, job)

    async def collect(name, into):
        while len(into) < job["outputs"][name]:
            into.append(int((await sinks[name].recv()).payload))

    found = {name: [] for name in sinks}
    tasks = [cocotb.start_soon(collect(name, into)) for name, into in found.items()]
    await with_timeout(Combine(*tasks), 2 * job["most"], "step")
    for source in sources.values():
        await with_timeout(source.wait(), 2 * job["most"], "step")
    await ClockCycles(dut.clk, TAIL)
    for name, sink in sinks.items():
        assert sink.empty(), f"{name}: {sink.count()} tokens too many"
    Path(os.environ[JOB]).with_name("answer.json").write_text(json.dumps(found))


def send(sources, job):
    """Queue all tokens at their sources."""
    for name, source in sources.items():
        for value in job["inputs"][name]:
            source.send_nowait(Token(payload=value))
