"""Weights that lie in the memory of a device, read back and compared with what was written."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import streamgen
from streamgen.base.errors import DeviceError
from streamgen.runtime.execution import Execution
from tests.shared.accelerators import same, tiny, values

X = values(1, 40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny accelerator, written; tests leave it as it is."""
    return tiny().write(tmp_path_factory.mktemp("tiny") / "written")


@pytest.fixture
def execution(folder: Path) -> Iterator[Execution]:
    with Execution(folder) as execution:
        yield execution


def test_weights_are_read_back(execution: Execution) -> None:
    """A bit of the memory that has turned over is found, and is right again in the next run."""
    assert same(execution.run(X)[0], tiny().golden(X))
    execution.check_weights()
    (info,) = execution.buffers("weights")
    buffer = execution.device.allocate(info.name)
    for at, bit in ((0, 0), (info.bytes - 1, 7), (info.bytes // 2, 3)):
        (before,) = buffer.read(1, at)
        buffer.write(bytes([before ^ 1 << bit]), at)
        with pytest.raises(DeviceError) as error:
            execution.check_weights()
        where = f"weights on the device are not those of {execution.folder}"
        assert str(error.value) == f"{where}: 'weights_0' in memory channel 0"
        assert same(execution.run(X)[0], tiny().golden(X))
        execution.check_weights()


def test_weights_of_the_last_run(folder: Path) -> None:
    """They are on a device from a run to `close`; what differs there is written again before the next run."""
    accelerator = streamgen.load(folder)
    absent = r"^the weights are not on a device yet: the next run writes them there$"

    def turn_over() -> None:
        (one,) = accelerator._running().groups
        buffer = one.device.allocate("weights_0")
        buffer.write(bytes([buffer.read(1)[0] ^ 1]))

    with pytest.raises(ValueError, match=absent):
        accelerator.check_weights()
    expected = accelerator.golden(X)
    with pytest.raises(ValueError, match=absent):
        accelerator.check_weights()
    for _ in range(2):
        assert same(accelerator.run(X), expected)
        accelerator.check_weights()
        turn_over()
        with pytest.raises(DeviceError, match=r"^weights on the device .*: 'weights_0' in memory channel 0$"):
            accelerator.check_weights()
        with pytest.raises(ValueError, match=absent):
            accelerator.check_weights()
    accelerator.run(X, probe=True)
    with pytest.raises(ValueError, match=absent):
        accelerator.check_weights()
    accelerator.close()
    with pytest.raises(ValueError, match=absent):
        accelerator.check_weights()
