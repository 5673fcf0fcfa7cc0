"""cocotb and the C++ device agree cycle for cycle: same design, same memory model, another host."""

from fractions import Fraction

import numpy as np
import pytest

from sim.add_one import CYCLES, ERRORS, AddOne, manifest
from sim.cocotb_device import CocotbDevice
from streamgen.gateware.rtl import to_verilog
from streamgen.runtime.memory import Fault, MemoryModel
from streamgen.runtime.simulator import simulated

pytestmark = pytest.mark.slow

MODELS = {
    "default": MemoryModel(),
    "fast": MemoryModel(rate=Fraction(1), latency=3, outstanding=1),
    "slow": MemoryModel(rate=Fraction(2, 7), latency=250, outstanding=2),
    "delays": MemoryModel(delays=40, seed=5),
}
BEATS = 300
WRITTEN = 320 * 64  # where it writes
FAULTS = {
    ("data1", 7 * 64): Fault("SLVERR"),
    ("data1", 11 * 64): Fault("late", 700),
    ("data1", 12 * 64): Fault("late", 50, writes=False),
    ("data1", 13 * 64): Fault("late", 9_000, reads=False),  # nobody writes there
    ("data1", WRITTEN + 70 * 64): Fault("DECERR"),
    ("data1", WRITTEN + 71 * 64): Fault("SLVERR"),  # of the same burst
    ("data0", WRITTEN + 200 * 64): Fault("late", 500),
    ("data0", WRITTEN + 201 * 64): Fault("late", 400, reads=False),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernel")
    (folder / "design.v").write_text(to_verilog(AddOne(channels=2)))
    return folder


@pytest.fixture(scope="module")
def cocotb(folder):
    with CocotbDevice(folder, manifest(2), reads=(CYCLES, ERRORS)) as device:
        yield device


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_same_results_in_the_same_cycles(folder, cocotb, model):
    cocotb.memory = model
    with simulated(folder, manifest(2), model) as device:
        images = {}
        for which in (device, cocotb):
            rng = np.random.default_rng(1)
            for c in range(2):
                which.allocate(f"data{c}").write(rng.bytes(BEATS * 64))
            which.set_scalar("tiles", BEATS)
        for (name, offset), fault in FAULTS.items():
            device.inject(name, offset, fault)
        cocotb.faults = {cocotb.address(name) + offset: fault for (name, offset), fault in FAULTS.items()}
        for which in (device, cocotb):
            which.start()
            which.wait()
            images[which] = [which.allocate(f"data{c}").read() for c in range(2)]
        assert images[device] == images[cocotb]
        assert cocotb.answers == [device.read_register(CYCLES), device.read_register(ERRORS)]
        assert cocotb.answers[1] == 2
