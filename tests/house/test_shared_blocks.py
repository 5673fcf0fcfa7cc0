"""Blocks of hardware pass from worker to worker; the Verilog stays the same."""

import pickle
from pathlib import Path
from typing import Any

import pytest
from amaranth import Module
from amaranth.lib import wiring

from streamgen.gateware import rtl
from streamgen.kernels.elementwise import BinaryParams
from tests.shared.blocks import BlocksOfWorkers
from tests.unit.testing.increment import IncrementParams


class Around(wiring.Component):
    """A design of one block."""

    def __init__(self, params: rtl.Buildable) -> None:
        self.block = rtl.Shared(params)
        super().__init__(self.block.signature)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.block = self.block
        wiring.connect(m, wiring.flipped(self), self.block)
        return m


ADDER = BinaryParams(operation="add", lanes=2, max_tokens=4)


def test_a_worker_takes_what_another_one_has_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of streamgen with those inside; not those of tests, nor any where nothing is remembered."""
    converted, to_rtlil = [], rtl.to_rtlil
    monkeypatch.setattr(
        rtl,
        "to_rtlil",
        lambda component, name, library: converted.append(name) or to_rtlil(component, name, library),
    )

    def worker(params: rtl.Buildable) -> tuple[str, int]:
        """The Verilog that a new worker makes, and how many blocks it has converted."""
        monkeypatch.setattr(rtl, "_memory", BlocksOfWorkers(tmp_path))
        converted.clear()
        return rtl.to_verilog(Around(params)), len(converted)

    text, blocks = worker(ADDER)
    assert blocks == 3  # the design, the kernel, its unit
    assert worker(ADDER) == (text, 1)  # the top alone
    for file in tmp_path.iterdir():
        _, _, inside = pickle.loads(file.read_bytes())
        if not inside:
            file.unlink()
    assert worker(ADDER) == (text, blocks)  # of a block without those inside there is no use
    assert worker(IncrementParams())[1] == worker(IncrementParams())[1] > 1
    monkeypatch.setattr(rtl, "REMEMBERED", 0)
    assert worker(ADDER) == (text, blocks)
