"""A compiled accelerator under cocotb, driven by registers and memory only: as on the C++ device."""

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from sim.cocotb_device import CocotbDevice
from streamgen.artifact.manifest import Manifest
from streamgen.base.errors import DeviceError
from streamgen.runtime.execution import Execution
from streamgen.runtime.memory import Fault, MemoryModel
from tests.shared.accelerators import same, tiny, values

pytestmark = pytest.mark.slow

X = values(1, 40)
MEMORIES = {
    "default": None,
    "slow": MemoryModel(rate=Fraction(2, 9), latency=170, outstanding=2),
    "delays": MemoryModel(delays=50, seed=9),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny().write(tmp_path_factory.mktemp("tiny") / "written")


@pytest.fixture(scope="module")
def cocotb(folder: Path) -> Iterator[Execution]:
    """Runs in cocotb's process; the simulator is built once."""

    def device(place: Path, manifest: Manifest) -> CocotbDevice:
        return CocotbDevice(place, manifest, reads=(manifest.error_offset,))

    with Execution(folder, device) as execution:
        yield execution


def _device(execution: Execution) -> CocotbDevice:
    assert isinstance(execution.device, CocotbDevice)
    return execution.device


@pytest.mark.parametrize("memory", MEMORIES.values(), ids=MEMORIES)
def test_same_results_and_the_same_status(
    folder: Path, cocotb: Execution, memory: MemoryModel | None
) -> None:
    """The status block holds the cycles, and the counters of every kernel and FIFO."""
    with Execution(folder, memory=memory) as device:
        (expected,) = device.run(X)
        assert same(expected, tiny().golden(X))
        assert device.device.error_word() == 0
        _device(cocotb).memory = memory or device.device.memory
        (result,) = cocotb.run(X)
        assert same(result, expected)
        assert cocotb.statuses == device.statuses
        assert _device(cocotb).answers == [0]


def test_error_response(folder: Path, cocotb: Execution) -> None:
    device = _device(cocotb)
    device.faults = {device.address("weights_0"): Fault("SLVERR")}
    messages = []
    with Execution(folder) as simulated:
        simulated.device.inject("weights_0", 0, Fault("SLVERR"))
        device.memory = simulated.device.memory
        for execution in (cocotb, simulated):
            with pytest.raises(DeviceError) as error:
                execution.run(X)
            messages.append(str(error.value))
    assert messages[0] == messages[1] and "error response of the memory at m_axi_gmem0" in messages[0]
    device.faults = {}
    assert same(cocotb.run(X)[0], tiny().golden(X))
