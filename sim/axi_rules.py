"""AXI under cocotb, held to checkers that are not ours, with a memory that answers in any legal order.

    rules = Rules(dut, manifest)            # cocotb-framework's checkers on every master and on the slave
    AnyOrderRam(bus, ..., random=random)    # cocotbext-axi's memory: IDs in any order, their beats mixed
    ...
    rules.require()

cocotbext-axi's memory refuses bursts over 4 KiB and a wrong last beat by itself.
"""

import logging
from collections import deque
from random import Random
from typing import Any

import cocotb
from cocotb.triggers import RisingEdge
from cocotbext.axi import AxiBus, AxiResp
from cocotbext.axi.axi_ram import AxiRamRead, AxiRamWrite
from CocoTBFramework.components.axi4.axi4_compliance_checker import AXI4ComplianceChecker
from CocoTBFramework.components.axil4.axil4_compliance_checker import AXIL4ComplianceChecker

from streamgen.artifact.manifest import Manifest

__all__ = ["AnyOrderRam", "Rules"]

_OUTSTANDING = 16
_UNALIGNED = "address_alignment_violation"


class Rules:
    """The checkers of a kernel."""

    def __init__(self, dut: Any, manifest: Manifest) -> None:
        log = logging.getLogger("cocotb.rules")
        log.setLevel(logging.ERROR)
        self._masters = {
            port.name: AXI4ComplianceChecker(
                dut, dut.ap_clk, f"{port.name}_", log, data_width=512, id_width=port.id_bits, addr_width=64
            )
            for port in manifest.ports
        }
        registers = _WithProtection(dut, manifest.ports[0].name)
        self._slave = AXIL4ComplianceChecker(
            registers, dut.ap_clk, "s_axi_control_", log, data_width=32, addr_width=12
        )
        cocotb.start_soon(self._guard(RisingEdge(dut.ap_clk)))

    @property
    def bursts(self) -> int:
        """Of all masters so far."""
        return sum(_transactions(one) for one in self._masters.values())

    @property
    def accesses(self) -> int:
        """Of registers so far."""
        return _transactions(self._slave)

    def under_way(self) -> int:
        """Bursts without their last beat or response."""
        return sum(
            sum(map(len, queue.values()))
            for one in self._masters.values()
            for queue in (one.outstanding_reads, one.outstanding_writes)
        )

    def breaches(self) -> list[str]:
        """What has been violated so far; the host's own unaligned addresses are none."""
        found = []
        for name, one in [*self._masters.items(), ("s_axi_control", self._slave)]:
            assert one.enabled and one.monitors_active, f"the checker of {name} sees nothing"
            found += [
                f"{name} {breach.channel}, cycle {breach.cycle}: {breach.message}"
                for breach in one.violations
                if breach.violation_type.value != _UNALIGNED
            ]
        return found

    async def _guard(self, edge: RisingEdge) -> None:
        """The first breach fails the test at once."""
        while True:
            await edge
            assert not (found := self.breaches()), found

    def require(self) -> None:
        """AssertionError when a checker has seen nothing."""
        for name, one in self._masters.items():
            seen = one.stats
            assert seen["total_ar_transactions"] and seen["total_r_beats"], f"{name} has read nothing"
            assert seen["checks_performed"] > seen["total_r_beats"]
            assert seen["total_b_responses"] <= seen["total_aw_transactions"] <= seen["total_w_beats"]
        assert self.accesses, "nobody has read or written a register"


class _WithProtection:
    """A kernel as its checker wants it: kernels of Vitis have no `prot` at their registers; that of a master,
    which is constant, stands for it."""

    def __init__(self, dut: Any, master: str) -> None:
        self._dut = dut
        self._stand_ins = {f"s_axi_control_a{way}prot": f"{master}_a{way}prot" for way in "rw"}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dut, self._stand_ins.get(name, name))

    def __dir__(self) -> list[str]:
        return [*dir(self._dut), *self._stand_ins]


class AnyOrderRam:
    """A memory behind a master. Of the bursts that wait, the next beat is of any ID; so are responses."""

    def __init__(self, bus: AxiBus, clock: Any, reset: Any, random: Random, **given: Any) -> None:
        self.write_if = AxiRamWrite(bus.write, clock, reset, **given)
        self.read_if = _Read(bus.read, clock, reset, **given)
        self.write_if.b_channel = _Responses(self.write_if.b_channel, clock, random)
        self.read_if.random = random
        for channel in (self.write_if.aw_channel, self.read_if.ar_channel):
            channel.queue_occupancy_limit = _OUTSTANDING
        self.write_if.w_channel.queue_occupancy_limit = 64  # data may come before their address


class _Read(AxiRamRead):
    random: Random

    async def _process_read(self) -> None:
        waiting: dict[int, deque[list[int]]] = {}
        while True:
            while not waiting or not self.ar_channel.empty():
                ar = await self.ar_channel.recv()
                assert int(ar.arsize) == self.max_burst_size and int(ar.arburst) == 1
                address, beats = int(ar.araddr), int(ar.arlen) + 1
                assert address % self.byte_lanes == 0, f"{address:#x} is unaligned"
                assert address % 4096 + beats * self.byte_lanes <= 4096, f"{address:#x} crosses 4 KiB"
                waiting.setdefault(int(ar.arid), deque()).append([address, beats])
            number = self.random.choice(list(waiting))
            burst = waiting[number][0]
            r = self.r_channel._transaction_obj()
            r.rid, r.rresp, r.rlast = number, AxiResp.OKAY, burst[1] == 1
            r.rdata = int.from_bytes(self.read(burst[0], self.byte_lanes), "little")
            burst[0], burst[1] = burst[0] + self.byte_lanes, burst[1] - 1
            if not burst[1]:
                waiting[number].popleft()
                if not waiting[number]:
                    del waiting[number]
            await self.r_channel.send(r)


class _Responses:
    """In the place of the B channel: keeps what is sent, and lets it go in any order of IDs, late."""

    def __init__(self, channel: Any, clock: Any, random: Random) -> None:
        self._channel, self._clock, self._random = channel, clock, random
        self._waiting: dict[int, deque[Any]] = {}
        cocotb.start_soon(self._serve())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    async def send(self, response: Any) -> None:
        self._waiting.setdefault(int(response.bid), deque()).append(response)

    async def _serve(self) -> None:
        while True:
            await RisingEdge(self._clock)
            if self._waiting and self._random.random() < 0.2:
                number = self._random.choice(list(self._waiting))
                await self._channel.send(self._waiting[number].popleft())
                if not self._waiting[number]:
                    del self._waiting[number]


def _transactions(checker: Any) -> int:
    return checker.stats["total_ar_transactions"] + checker.stats["total_aw_transactions"]
