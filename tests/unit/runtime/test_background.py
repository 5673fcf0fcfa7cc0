"""A quick simulator first, and the optimised one when runs become long: the same results in the same
cycles."""

import gc
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import streamgen
from sim.add_one import CYCLES, ERRORS, manifest
from streamgen.runtime import background, simulator, verilator
from streamgen.runtime.memory import Fault, MemoryModel
from streamgen.runtime.simulator import OnSimulator, SimulatedDevice, simulated
from tests.shared.decoders import TINY, tiny_decoder
from tests.unit.runtime.test_simulator import run

pytestmark = [pytest.mark.slow, pytest.mark.long_runs]


@pytest.fixture(autouse=True)
def _impatient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use a separate cache, and treat every run as long."""
    (tmp_path / "streamgen").mkdir()
    shared = verilator.cache_folder()  # headers and Verilator's own files
    (tmp_path / "streamgen" / "simulators").mkdir()
    for file in shared.glob("*"):
        if file.suffix in (".gch", ".h", ".o"):
            (tmp_path / "streamgen" / "simulators" / file.name).hardlink_to(file)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(simulator, "QUICK_BYTES", 1e9)
    monkeypatch.setattr(simulator, "QUICK_SECONDS", 0.0)
    yield
    gc.collect()


def built(device: SimulatedDevice) -> None:
    """Wait until the optimised simulator is built."""
    assert device.better is not None and device.better._process is not None
    assert device.better._process.wait(300) == 0


def test_runs_go_on_in_the_optimised_one(kernel: Callable[..., Path]) -> None:
    """Cycles and traffic continue to count."""
    with simulated(kernel(channels=2), manifest(2)) as device:
        run(device, 200)
        assert device.better is not None
        quick, cycles, moved = device.read_register(CYCLES), device.cycles, device.traffic(1)
        built(device)
        run(device, 200, seed=1)
        assert device.better is None
        assert device.read_register(CYCLES) == quick
        assert device.cycles > cycles + quick and moved == (200, 200) and device.traffic(1) == (400, 400)
        assert device.time == device.cycles - 2 * 32, "resets take no time of the card"
    assert len([*verilator.cache_folder().glob("*.so")]) == 2
    with simulated(kernel(channels=2), manifest(2)) as device:
        assert device.better is None, "it is in the cache"


def test_errors_and_models_stay(kernel: Callable[..., Path]) -> None:
    with simulated(kernel(channels=2), manifest(2)) as device:
        device.configure(1, MemoryModel(latency=300))
        run(device, 10)
        before = device.read_register(CYCLES)
        device.inject("data0", 0, Fault("SLVERR"))
        built(device)
        run(device, 10, seed=1)
        assert device.better is None and device.read_register(ERRORS) == 1
        device.inject("data0", 0, None)
        run(device, 10, seed=2)
        assert device.read_register(CYCLES) == before and device.read_register(ERRORS) == 0


def test_random_delays_go_on_as_they_began(kernel: Callable[..., Path]) -> None:
    with simulated(kernel(channels=2), manifest(2), MemoryModel(delays=9)) as device:
        assert device.better is None
    with simulated(kernel(channels=2), manifest(2)) as device:
        assert device.better is None, "now the optimised one is there"


def test_delays_that_begin_later_keep_the_simulator(kernel: Callable[..., Path]) -> None:
    with simulated(kernel(channels=2), manifest(2)) as device:
        run(device, 10)
        built(device)
        device.configure(0, MemoryModel(delays=9))
        before = device._core._library
        run(device, 10)
        assert device.better is None and device._core._library is before


@pytest.mark.campaign
def test_a_text_goes_on() -> None:
    """Keys and values stay in memory. The logits equal golden in every pass."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = streamgen.compile(tiny_decoder(), None, TINY)
    ids = np.random.default_rng(1).integers(0, model.vocabulary, 12)
    session, wanted = model.session(), model.golden.logits(ids)
    device = model.device().execution.device
    quick = device.better is not None
    for k in range(6):
        assert (session.last_logits(ids[k : k + 1]) == wanted[k]).all()
    if quick:
        built(device)
    for k in range(6, 12):
        assert (session.last_logits(ids[k : k + 1]) == wanted[k]).all()
    assert quick and device.better is None
    cycles = [run.cycles for run in model.device().passes]
    model.close()
    session = model.session()
    for k in range(12):
        session.last_logits(ids[k : k + 1])
    assert [run.cycles for run in model.device().passes] == cycles, "those of the optimised one alone"
    model.close()


@pytest.mark.campaign
def test_kernels_of_a_card_keep_their_time(kernel: Callable[..., Path]) -> None:
    card = OnSimulator()
    first, second = (card(kernel(channels=1, step=n), manifest(1)) for n in (1, 3))
    with first, second:
        for seed in range(2):
            run(first, 20, seed)
            run(second, 20, seed, step=3)
        built(first)
        before = second.time
        run(first, 20, 2)
        assert first.better is None and second.better is not None
        assert first.time == second.time > before
        built(second)
        run(second, 20, 3, step=3)
        run(first, 20, 3)
        assert second.better is None and first.time == second.time


def test_a_build_that_fails_is_a_warning(
    kernel: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with simulated(kernel(channels=2), manifest(2)) as device:
        monkeypatch.setenv("CXX", "no-such-compiler")
        run(device, 10)
        assert device.better is not None and device.better._process is not None
        device.better._process.wait(60)
        monkeypatch.delenv("CXX")
        with pytest.warns(
            UserWarning,
            match=r"^the optimised simulator of 'top' could not be built, so runs .*CXX is 'no-such",
        ):
            run(device, 10)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run(device, 10)


def test_a_build_that_cannot_begin_is_a_warning(
    kernel: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with simulated(kernel(channels=2), manifest(2)) as device:
        with pytest.warns(
            UserWarning, match=r"^the optimised simulator of 'top' could not be built.*No such file"
        ):
            run(device, 10)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run(device, 10)


def test_a_library_that_is_gone_is_not_built_in_the_middle_of_a_run(kernel: Callable[..., Path]) -> None:
    with simulated(kernel(channels=2), manifest(2)) as device:
        run(device, 10)
        built(device)
        for file in verilator.cache_folder().glob("*.so"):
            file.unlink()
        with pytest.warns(UserWarning, match=r"the built simulator is no longer in the cache$"):
            run(device, 10)
    assert [*verilator.cache_folder().glob("*.so")] == []


def test_a_build_ends_with_who_waits_for_it(kernel: Callable[..., Path]) -> None:
    device = simulated(kernel(channels=3), manifest(3))
    run(device, 10)
    assert device.better is not None
    process = device.better._process
    assert process is not None and process.poll() is None
    time.sleep(1.0)
    device.close()
    del device
    gc.collect()
    assert process.poll() is not None
    assert [*verilator.cache_folder().glob("build-*")] == []


def test_it_builds_at_leisure(kernel: Callable[..., Path]) -> None:
    """No build begins before runs have become long, and no build begins twice."""
    build = background.BackgroundBuild(
        [kernel(channels=2) / "design.v"], "top", ["m_axi_gmem0", "m_axi_gmem1"]
    )
    assert build.library() is None and build._process is None
    build.begin()
    process = build._process
    assert isinstance(process, subprocess.Popen)
    build.begin()
    assert build._process is process
    process.wait(300)
    library = build.library()
    assert library is not None and library.exists() and build.library() is None
