"""The HBM channel of `sim.memory` behind an AXI master of a design that cocotb simulates."""

from typing import Any

import cocotb
from cocotb.triggers import RisingEdge

from sim.memory import Channel, MasterPins

__all__ = ["MemorySlave"]

VALIDS = {
    "ar": ("araddr", "arlen", "arid", "arsize", "arburst"),
    "aw": ("awaddr", "awlen", "awid", "awsize", "awburst"),
    "w": ("wdata", "wstrb", "wlast"),
}
ANSWERS = {"r": ("rid", "rdata", "rresp", "rlast"), "b": ("bid", "bresp")}
READY = ("arready", "awready", "wready")


class MemorySlave:
    """Serves the master whose pins are `<prefix>_...`, one step of the channel a clock edge."""

    def __init__(self, dut: Any, prefix: str, channel: Channel) -> None:
        self._dut, self._channel = dut, channel
        names = [*MasterPins.__dataclass_fields__, *READY, "rvalid", "bvalid", *ANSWERS["r"], *ANSWERS["b"]]
        self._pins = {
            name: pin for name in names if (pin := getattr(dut, f"{prefix}_{name}", None)) is not None
        }
        for name in (*READY, "rvalid", "bvalid"):
            self._pins[name].value = 0
        self._task = cocotb.start_soon(self._serve())

    async def _serve(self) -> None:
        pins, channel = self._pins, self._channel
        edge = RisingEdge(self._dut.ap_clk)
        driven: dict[str, int] = {}

        def drive(name: str, value: int) -> None:
            if driven.get(name) != value and name in pins:
                pins[name].value = driven[name] = value

        while True:
            await edge
            master = MasterPins(rready=int(pins["rready"].value), bready=int(pins["bready"].value))
            for kind, payload in VALIDS.items():
                if int(pins[f"{kind}valid"].value):
                    setattr(master, f"{kind}valid", 1)
                    for name in payload:
                        if name in pins:
                            setattr(master, name, int(pins[name].value))
            if not int(self._dut.ap_rst_n.value):
                channel.reset()
                answer = channel.pins
            else:
                answer = channel.step(master)
            for name in READY:
                drive(name, getattr(answer, name))
            for kind, payload in ANSWERS.items():
                drive(f"{kind}valid", getattr(answer, f"{kind}valid"))
                if getattr(answer, f"{kind}valid"):
                    for name in payload:
                        drive(name, getattr(answer, name))
