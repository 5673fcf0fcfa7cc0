"""cocotb tests of a package's kernel under AXI's rules (`sim.axi_rules`): registers, bursts, soft resets.

A host pauses, a memory pauses and answers in any order of IDs, runs repeat, as often as COUNT says.
"""

import os
from functools import partial
from random import Random

import cocotb
from cocotb.triggers import ClockCycles

from sim.axi_rules import AnyOrderRam, Rules
from streamgen.artifact.manifest import COMMAND_RESET, COMMAND_RUN, RunError
from streamgen.package.cosim.shipped.kernel_bench import CONTROL, SEED, STATUS, BenchCard, recorded

COUNT = int(os.environ.get("COUNT", "100"))
QUIET = 64  # cycles after a run in which a master that is drained shows nothing


async def opened(dut, random, chance=0.25):
    """A card with pauses, and its checkers."""
    card = BenchCard(dut, partial(AnyOrderRam, random=random))
    card.stall(random, chance)
    await card.open()
    return card, Rules(dut, card.manifest)


@cocotb.test()
async def transactions(dut):
    """COUNT of them: runs with their bursts, and between and in them registers at random."""
    random = Random(SEED)
    card, rules = await opened(dut, random)
    arguments = {card.offsets[info.name]: card.addresses[info.name] for info in card.manifest.buffers}
    known = {
        offset + 4 * k: base >> 32 * k & 0xFFFFFFFF for offset, base in arguments.items() for k in (0, 1)
    }
    reading = {"on": True}

    async def read():
        """Back to back, several at a time, while runs go on: control and error are read, nothing else."""
        while reading["on"]:
            for address in random.sample(sorted(known), 3):
                assert await card.host.read_dword(address) == known[address]
            if random.random() < 0.3:
                await ClockCycles(dut.ap_clk, random.randrange(40))

    runs = recorded()
    while rules.bursts + rules.accesses < COUNT or rules.bursts < COUNT // 4:
        reading["on"] = True
        reader = cocotb.start_soon(read())
        for run in runs:
            await card.run(run)
        reading["on"] = False
        await reader
        for _ in range(20):  # strobes: some bytes of some register, wherever it lies, are written twice
            first = random.choice(sorted(known))
            byte, size = random.randrange(4), random.randrange(1, 5)
            image = b"".join(known.get(first + 4 * k, 0).to_bytes(4, "little") for k in (0, 1))
            part = image[byte : byte + min(size, 4 - byte)]
            await card.host.write(first + byte, bytes(~b & 0xFF for b in part))
            await card.host.write(first + byte, part)
        await card.host.write(0xFF0, random.randbytes(16))  # no register: nothing happens
        assert await card.host.read_dword(0xFF0) == 0
    rules.require()
    assert not rules.under_way()
    print(f"{rules.bursts} bursts, {rules.accesses} accesses of registers", flush=True)


@cocotb.test()
async def soft_resets(dut):
    """COUNT of them, at random moments of runs: all bursts drain, no rule breaks, the next run is right."""
    random = Random(SEED)
    card, rules = await opened(dut, random)
    runs = recorded()
    cycles = await card.run(runs[0])
    stopped = 0
    for number in range(COUNT):
        card.load(runs[0])
        await card.start(COMMAND_RUN, runs[0]["tiles"], runs[0]["position"])
        await ClockCycles(dut.ap_clk, random.randrange(cycles))
        await card.host.write_dword(card.offsets["command"], COMMAND_RESET)
        await card.finish()
        stopped += await card.host.read_dword(card.manifest.error_offset) == RunError.STOPPED
        assert not rules.under_way(), f"reset {number}: bursts are under way"
        for _ in range(QUIET):
            await ClockCycles(dut.ap_clk, 1)
            for port in card.manifest.ports:
                for channel in ("ar", "aw", "w"):
                    assert not getattr(dut, f"{port.name}_{channel}valid").value, f"reset {number}: {channel}"
        await card.run(runs[0])
    rules.require()
    assert stopped >= COUNT * 0.6, f"{stopped} of {COUNT} resets have met a run"
    assert await card.host.read_dword(CONTROL) & 4 and not await card.host.read_dword(STATUS)
    print(f"{stopped} of {COUNT} resets have met a run", flush=True)
