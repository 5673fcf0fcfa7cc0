"""Several kernels on one simulated card share memory and time."""

import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from streamgen.api.accelerator import Accelerator
from streamgen.base.errors import DeviceError, DeviceTimeoutError
from streamgen.runtime import MemoryModel, OnSimulator
from streamgen.runtime.banks import CardMemory
from streamgen.runtime.chain import ChainExecution
from streamgen.runtime.memory import Fault
from streamgen.runtime.simulator import SimulatedBuffer, SimulatedDevice, simulated
from tests.shared.accelerators import grouped, same, tiny, values
from tests.shared.decoders import tiny_accelerator

BETWEEN = ("m_0", "m_2")


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[int]]:
    """Addresses of the buffers that the host writes or reads."""
    touched: set[int] = set()
    for name in ("_write", "_read"):
        real = getattr(SimulatedBuffer, name)

        def told(self: SimulatedBuffer, *arguments: object, real=real) -> object:
            touched.add(self.address)
            return real(self, *arguments)

        monkeypatch.setattr(SimulatedBuffer, name, told)
    yield touched


def work(execution: ChainExecution) -> list[list[tuple[int, int]]]:
    """For each group, the first and the last cycle of each run, in cycles of the card."""
    results = []
    for group in execution.groups:
        assert isinstance(group.device, SimulatedDevice)
        ends = [status.cycles for status in group.statuses]
        starts = group.device.starts[-len(ends) :]
        results.append([(start, start + cycles) for start, cycles in zip(starts, ends, strict=True)])
    return results


@pytest.mark.slow
def test_groups_hand_on_and_overlap(copies: set[int]) -> None:
    """Each tensor between groups is one buffer that the host does not touch. While a group works on a sample,
    the group before it works on the next sample."""
    accelerator = grouped()
    accelerator.close()
    x = values(6 * 48 - 5, 40)
    assert same(accelerator.run(x), accelerator.golden(x))
    execution = accelerator._running()
    devices = [group.device for group in execution.groups]
    handed = set()
    for name, pair in zip(BETWEEN, ((0, 1), (1, 2)), strict=True):
        for slot in range(4):
            source, target = (devices[k].allocate(name, slot) for k in pair)
            assert isinstance(source, SimulatedBuffer) and isinstance(target, SimulatedBuffer)
            assert source.region is target.region
            handed.add(source.address)
    assert len(handed) == 8 and not handed & copies
    first, second, third = work(execution)
    for k in range(5):
        assert second[k][0] < first[k + 1][1], "the second group waits for the next sample of the first"
        assert third[k][0] < second[k + 1][1]
    for k in range(6):
        assert first[k][1] <= second[k][0] and second[k][1] <= third[k][0], "before it is written"
    alone = sum(end - start for group in (first, second, third) for start, end in group)
    assert third[-1][1] - first[0][0] < 0.7 * alone


@pytest.mark.slow
def test_any_number_of_samples_and_any_memory() -> None:
    accelerator = grouped()
    for tokens, memory in ((0, None), (1, None), (48, None), (150, MemoryModel(delays=40, seed=3))):
        x = values(tokens, 40)
        assert same(accelerator.run(x, memory=memory), accelerator.golden(x)), tokens
    accelerator.close()


@pytest.mark.slow
def test_a_group_that_fails(copies: set[int]) -> None:
    """The error names the group, all runs in flight are given up, and the next run is right."""
    accelerator, x = grouped(), values(200, 40)
    golden = accelerator.golden(x)
    assert same(accelerator.run(x), golden)
    group = accelerator._running().groups[1]
    assert isinstance(group.device, SimulatedDevice)
    group.device.inject("m_2", 0, Fault("SLVERR"))
    with pytest.raises(DeviceError, match=r"^group_1: the run ended with an error after \d+ cycles"):
        accelerator.run(x)
    group.device.inject("m_2", 0, None)
    assert same(accelerator.run(x), golden)
    group.patience = 200
    group.device.configure(0, MemoryModel(latency=100_000))
    with pytest.raises(DeviceTimeoutError, match=r"^group_1: the run ended with an error"):
        accelerator.run(x)
    accelerator.close()
    assert same(accelerator.run(x), golden)


@pytest.mark.slow
def test_two_models_share_a_card() -> None:
    """A module in groups and a language model run one after the other, and in parallel from two threads."""
    module, model, card = grouped(), tiny_accelerator(), OnSimulator()
    x, prompt = values(150, 40), [3, 14, 15, 9, 2]
    golden, ids = module.golden(x), [*model.golden.generate(prompt, 3)]
    assert same(module.run(x, device=card), golden)
    assert [*model.generate(prompt, 3, device=card)] == ids
    opened = [group.device for group in (*module._running().groups, model.device(device=card).execution)]
    assert len({id(device.card) for device in opened if isinstance(device, SimulatedDevice)}) == 1
    wrong: list[object] = []

    def several(call, expected) -> None:
        for _ in range(3):
            if not same(np.asarray(call()), np.asarray(expected)):
                wrong.append(expected)

    threads = [
        threading.Thread(target=several, args=(lambda: module.run(x, device=card), golden)),
        threading.Thread(target=several, args=(lambda: [*model.generate(prompt, 3, device=card)], ids)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    model.close()
    assert same(module.run(x, device=card), golden), "the other one is still there"
    module.close()


@pytest.mark.slow
def test_a_kernel_that_rests_takes_no_time(tmp_path: Path) -> None:
    """Time passes only for kernels that work or wait."""
    folder, card = tiny().write(tmp_path / "tiny"), OnSimulator()
    busy, resting = (card(folder, tiny().manifest) for _ in range(2))
    with busy, resting:
        before = resting.cycles
        busy.run(1000)
        assert (resting.cycles, busy.time) == (before, resting.time)


def test_banks() -> None:
    banks, owners = CardMemory(2, 1 << 16), [OnSimulator() for _ in range(3)]
    assert banks.take(owners[0], 1) == 1 and banks.take(owners[1], 1) == 0
    with pytest.raises(
        DeviceError, match=r"^the card has no free memory channel for the kernel: 2 of 2 are taken$"
    ):
        banks.take(owners[2], 0)
    banks.leave(owners[0])
    assert banks.take(owners[2], 0) == 1
    low, high = banks.allocate(1, 100), banks.allocate(1, 8192)
    assert (low.address, high.address) == (1 << 16, (1 << 16) + 4096)
    with pytest.raises(DeviceError, match=r"^channel 1 is full$"):
        banks.allocate(1, 60_000)
    del low
    assert banks.allocate(1, 4096).address == 1 << 16
    for address, size, message in (
        (0x1020, 64, r"^buffer address 0x1020 is not a multiple of 64 bytes$"),
        (1 << 17, 64, r"^no memory channel has 64 bytes at 0x20000$"),
        (0, 1 << 17, r"^no memory channel has 131072 bytes at 0x0$"),
    ):
        with pytest.raises(DeviceError, match=message):
            banks.place(address, size)


@pytest.mark.slow
def test_what_is_not_on_the_card(tmp_path: Path) -> None:
    folder, manifest = tiny().write(tmp_path / "tiny"), tiny().manifest
    with simulated(folder, manifest) as first, simulated(folder, manifest) as second:
        with pytest.raises(DeviceError, match=r"^buffer 'input' is not on the card of kernel 'tiny'$"):
            second.adopt("input", first.allocate("input"))
        with pytest.raises(ValueError, match=r"^buffer 'weights_0' needs \d+ bytes; \d+ are given$"):
            first.adopt("weights_0", first.allocate("status"))
        other = replace(manifest, board=replace(manifest.board, name="other"))
        with pytest.raises(
            DeviceError, match=r"is compiled for board 'other', but the card is board 'u55c'$"
        ):
            simulated(folder, other, card=first.card)


def changed(accelerator: Accelerator, folder: Path, old: str, new: str) -> Path:
    """A written folder with a change in the manifest of the second group."""
    shutil.copytree(accelerator.written, folder)
    place = folder / "group_1" / "manifest.json"
    text = place.read_text()
    assert old in text
    place.write_text(text.replace(old, new))
    return folder


@pytest.mark.slow
def test_groups_that_do_not_meet(tmp_path: Path) -> None:
    """A group that would read other beats than are written is refused before anything runs."""
    (info,) = (b for b in grouped().manifests[1].buffers if b.name == "m_0")
    assert info.itensor is not None
    other = info.itensor.replace("1x16xf24", "16x1xf24")
    folder = changed(grouped(), tmp_path / "written", info.itensor, other)
    with pytest.raises(
        ValueError, match=r"group_1 reads 'm_0' as .*; .*group_0 writes it as .*, and these give"
    ):
        ChainExecution(folder, changed_files=True)
