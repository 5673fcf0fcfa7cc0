"""The simulated device on a small kernel: results, memory model, error responses, protocol, reset."""

import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from sim.add_one import CYCLES, ERRORS, Breach, manifest
from streamgen.artifact.manifest import MemoryTiming
from streamgen.base.errors import DeviceError, DeviceTimeoutError
from streamgen.runtime.memory import Fault, MemoryModel
from streamgen.runtime.simulator import SimulatedDevice, simulated

BEAT_WORDS = 16


def open_kernel(folder: Path, channels: int = 1, **model) -> SimulatedDevice:
    return simulated(folder, manifest(channels), MemoryModel(**model))


def run(device: SimulatedDevice, beats: int, seed: int = 0, step: int = 1) -> None:
    """Run the kernel and check that each channel holds its input plus the step."""
    rng = np.random.default_rng(seed)
    channels = len(device.manifest.ports)
    inputs = [rng.integers(0, 2**32, beats * BEAT_WORDS, dtype=np.uint32) for _ in range(channels)]
    for c, data in enumerate(inputs):
        device.allocate(f"data{c}").write(data.tobytes())
    device.set_scalar("tiles", beats)
    device.start()
    device.wait()
    start = -(-beats // 64) * 4096
    for c, data in enumerate(inputs):
        output = np.frombuffer(device.allocate(f"data{c}").read(beats * 64, start), np.uint32)
        assert (output == data + np.uint32(step)).all()


@pytest.mark.parametrize("beats", [1, 63, 64, 65, 500])
def test_result(kernel, beats):
    with open_kernel(kernel(channels=2), 2) as device:
        run(device, beats)
        run(device, beats, seed=1)
        assert device.traffic(0) == device.traffic(1) == (2 * beats, 2 * beats)
        assert device.idle()
        assert device.read_register(ERRORS) == 0


def test_two_designs_side_by_side(kernel):
    with open_kernel(kernel(channels=2), 2) as single, open_kernel(kernel(channels=2, step=3), 2) as triple:
        for seed in range(3):
            run(single, 5, seed)
            run(triple, 5, seed, step=3)


@pytest.mark.parametrize("rate", [Fraction(1), Fraction(133, 192), Fraction(1, 3)])
def test_rate(kernel, rate):
    """A beat of data is two beats of traffic, which share the rate. The two latencies are added."""
    beats = 1000
    with open_kernel(kernel(channels=2), 2, rate=rate) as device:
        run(device, beats)
        bound = 2 * beats / rate
        assert bound < device.read_register(CYCLES) < bound + 2 * 100 + 64 / rate


@pytest.mark.parametrize("latency", [1, 37, 400])
def test_latency(kernel, latency):
    """One beat costs the latency of its address, the latency of its response, and the cycles of the
    kernel."""
    with open_kernel(kernel(channels=2), 2, rate=Fraction(1), latency=latency) as device:
        run(device, 1)
        cycles = device.read_register(CYCLES)
    with open_kernel(kernel(channels=2), 2, rate=Fraction(1), latency=latency + 10) as device:
        run(device, 1)
        assert device.read_register(CYCLES) == cycles + 20
    assert 2 * latency < cycles <= 2 * latency + 8


def test_random_delays_change_time_only(kernel):
    times = set()
    for seed in range(5):
        with open_kernel(kernel(channels=2), 2, delays=30, seed=seed) as device:
            run(device, 300)
            times.add(device.read_register(CYCLES))
            assert device.read_register(ERRORS) == 0
    assert len(times) == 5


def test_same_run_takes_the_same_cycles(kernel):
    with open_kernel(kernel(channels=2), 2) as device:
        times = set()
        for _ in range(3):
            run(device, 200)
            times.add(device.read_register(CYCLES))
            device.run(177)
    assert len(times) == 1


def test_a_long_run_says_how_far_it_is(kernel, monkeypatch):
    """Progress also names the expected cycles after a run of as many tokens has ended."""
    monkeypatch.setattr("streamgen.runtime.simulator.CHUNK_CYCLES", 100)
    with open_kernel(kernel(channels=2), 2) as device:
        told: list[str] = []
        device.progress = told.append
        for beats in (200, 200, 300):
            run(device, beats)
    first, second, third = (part.split("\n") for part in "\n".join(told).strip("\n").split("\n\n"))
    numbers = [
        [int(n.replace(",", "")) for n in re.findall(r"[\d,]+", line)] for line in first + second + third
    ]
    assert len(first) == len(second) > 3 and len(third) > len(first)
    once, again, longer = (
        numbers[: len(first)],
        numbers[len(first) : 2 * len(first)],
        numbers[2 * len(first) :],
    )
    assert all(len(line) == 1 for line in once + longer)
    assert [done for done, _ in again] == [done for (done,) in once] == sorted({done for (done,) in once})
    (goal,) = {goal for _, goal in again}
    assert once[-1][0] < goal < longer[-1][0]


def test_a_first_run_says_how_many_cycles_it_takes_at_least(kernel, monkeypatch):
    """The least cycles are shown if they are known. They are asked for once in each long run."""
    monkeypatch.setattr("streamgen.runtime.simulator.CHUNK_CYCLES", 100)
    with open_kernel(kernel(channels=2), 2) as device:
        told: list[str] = []
        asked: list[int] = []
        device.progress = told.append

        def least() -> float:
            asked.append(1)
            return 350.4

        device.least_cycles[0] = least
        run(device, 200)
    before, behind = [t for t in told if "at least 350 cycles" in t], [t for t in told if t and "of" not in t]
    assert len(before) == 2 and behind and asked == [1]


def test_error_response(kernel):
    with open_kernel(kernel(channels=2), 2) as device:
        device.inject("data1", 5 * 64, Fault("SLVERR"))  # a beat that is read
        device.inject("data1", 4096 + 3 * 64, Fault("SLVERR"))  # and one that is written
        run(device, 64)
        assert device.read_register(ERRORS) == 2
        device.inject("data1", 5 * 64, None)
        run(device, 64)
        assert device.read_register(ERRORS) == 1


def test_late_and_lost_responses(kernel):
    """A late beat costs time and changes no bits. A lost beat never comes, and the run times out."""
    with open_kernel(kernel(channels=2), 2) as device:
        run(device, 64)
        usual = device.read_register(CYCLES)
        for offset, fault in ((5 * 64, Fault("late", 3_000)), (4096 + 5 * 64, Fault("late", 3_000))):
            device.inject("data1", offset, fault)
            run(device, 64)
            assert usual + 2_900 < device.read_register(CYCLES) < usual + 3_100
            device.inject("data1", offset, None)
        for offset in (5 * 64, 4096 + 5 * 64):
            device.inject("data1", offset, Fault("never"))
            device.start()
            device.run(100_000)
            assert not device.done() and not device.idle()
            device.inject("data1", offset, None)
            device._reset_hard()
            run(device, 64)
            assert device.read_register(CYCLES) == usual


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("slow",), "kind of a fault is 'slow'; SLVERR, DECERR, late, never are allowed"),
        (("late",), "cycles of a fault 'late' are 0; a late fault needs 1 or more, others take 0"),
        (("DECERR", 3), "cycles of a fault 'DECERR' are 3; a late fault needs 1 or more, others take 0"),
        (("never", 0, False, False), "a fault must affect reads or writes"),
    ],
)
def test_faults_that_are_none(given, message):
    with pytest.raises(ValueError) as error:
        Fault(*given)
    assert str(error.value) == message


def test_address_outside_the_buffers(kernel):
    with open_kernel(kernel(channels=2), 2) as device:
        run(device, 1)
        device.write_register(0x30, 0x1000_0000)  # pointer 0: no buffer there
        device.start()
        device.wait()
        assert device.read_register(ERRORS) == 2  # one beat read, one response


@pytest.mark.parametrize(
    "breach, beats, message",
    [
        (Breach.LONG, 128, "m_axi_gmem0 ar: burst 1, size 6, address 0x0, length 128"),
        (Breach.CROSSING, 128, "m_axi_gmem0 ar: 48 beats at 0xc00 cross a 4 KiB boundary"),
        (Breach.LAST, 9, "m_axi_gmem0 WLAST is 1 with 2 beats of the burst to come"),
    ],
)
def test_protocol_breach(kernel, breach, beats, message):
    with open_kernel(kernel(channels=2), 2) as device:
        device.set_scalar("command", breach)
        device.allocate("data0")
        device.set_scalar("tiles", beats)
        with pytest.raises(DeviceError) as error:
            device.start()
            device.wait()
        assert str(error.value) == message
        device.reset()
        run(device, beats)


def test_reset_in_mid_run(kernel):
    with open_kernel(kernel(channels=2), 2) as device:
        run(device, 10)
        device.set_scalar("tiles", 1000)
        device.start()
        device.run(500)
        device._reset_hard()
        assert device.idle()
        run(device, 10)


@pytest.mark.slow
def test_timeout(kernel, monkeypatch):
    monkeypatch.setattr("streamgen.runtime.simulator.STALL_CYCLES", 70_000)
    with open_kernel(kernel(channels=2), 2, latency=10_000_000) as device:
        for name in ("data0", "data1"):
            device.allocate(name)
        device.set_scalar("tiles", 3)
        device.start()
        with pytest.raises(DeviceTimeoutError, match=r"^not done, and no memory access for \d+ cycles$"):
            device.wait()
        monkeypatch.undo()
        with pytest.raises(DeviceTimeoutError, match=r"^not done after 0 s \(\d+ cycles\)$"):
            device.wait(timeout=0)
        for channel in range(2):
            device.configure(channel, MemoryModel())
        device.reset()
        run(device, 3)


def test_pins_that_do_not_match(kernel):
    description = manifest(2)
    port = replace(description.ports[1], name="m_axi_other")
    with pytest.raises(DeviceError) as error:
        simulated(kernel(channels=2), replace(description, ports=(description.ports[0], port)))
    assert str(error.value).startswith(
        "the design does not have the pins of the manifest: m_axi_other_arvalid (missing) m_axi_other_arready"
    )


def test_bad_arguments(kernel):
    with open_kernel(kernel(channels=2), 2) as device:
        with pytest.raises(ValueError, match=r"^the design has no buffer 'x'$"):
            device.allocate("x")
        with pytest.raises(ValueError, match=r"^the design has no scalar argument 'data0'$"):
            device.set_scalar("data0", 1)
        with pytest.raises(
            ValueError, match=r"^argument 'tiles' is 2147483648; 0 to 2147483647 are allowed$"
        ):
            device.set_scalar("tiles", 2**31)
        buffer = device.allocate("data0")
        for call in (lambda: buffer.write(b"12", buffer.size - 1), lambda: buffer.read(1, -1)):
            with pytest.raises(ValueError, match=r"lie outside a buffer of 131072 bytes$"):
                call()


@pytest.mark.parametrize(
    "choice, message",
    [
        ({"rate": Fraction(3, 2)}, "rate is 3/2 beats a cycle; more than 0 and at most 1 are allowed"),
        ({"latency": 0}, "latency is 0; 1 to 2147483647 are allowed"),
        ({"delays": -1}, "delays is -1; 0 to 2147483647 are allowed"),
    ],
)
def test_bad_model(choice, message):
    with pytest.raises(ValueError) as error:
        MemoryModel(**choice)
    assert str(error.value) == message


def test_the_manifest_sets_what_a_model_leaves_open():
    timing = MemoryTiming(beats=3, cycles=7, latency=90)
    assert MemoryModel(delays=4).on(timing) == MemoryModel(rate=Fraction(3, 7), latency=90, delays=4)
    chosen = MemoryModel(rate=Fraction(1, 2), latency=5)
    assert chosen.on(timing) == chosen
