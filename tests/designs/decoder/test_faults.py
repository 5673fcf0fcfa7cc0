"""Faults in a decoder, in Verilog and weights, and a slow memory: each is caught, or harmless; none hangs."""

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from streamgen.base.errors import CheckpointError, DeviceError, DeviceTimeoutError
from streamgen.runtime import execution, simulator
from streamgen.runtime.memory import MemoryModel
from tests.shared.decoders import WORDS, opened_model, tiny_accelerator
from tests.shared.verilog_mutants import Mutant, with_mutants

pytestmark = [pytest.mark.slow, pytest.mark.campaign, pytest.mark.timeout(0)]

MUTANTS, PARTS = 300, 10
FLIPS = 200
IDS = np.random.default_rng(1).integers(0, WORDS.size, 72)
WATCHDOG = 1 << 14  # cycles without progress, low bits 0


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands still ends after some thousand cycles, also where the watchdog itself is broken."""
    monkeypatch.setattr(execution, "DEFAULT_TIMEOUT", WATCHDOG)
    monkeypatch.setattr(simulator, "STALL_CYCLES", 1 << 17)


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    return tiny_accelerator().golden.logits(IDS)


class Faulty:
    """The decoder with all faults, and what it does with one of them."""

    def __init__(self, folder: Path, seed: int, expected: np.ndarray) -> None:
        whole = tiny_accelerator().write(folder.with_name(f"{folder.name}_whole"))
        shutil.copytree(whole, folder)
        verilog = (folder / "design.v").read_text()
        text, self.mutants = with_mutants(
            verilog, "tiny.control.timeout", np.random.default_rng([seed, 5]), MUTANTS
        )
        (folder / "design.v").write_text(text)
        self.model = opened_model(folder, changed_files=True)
        self.expected = expected

    def outcome(self, number: int, monkeypatch: pytest.MonkeyPatch) -> tuple[str, int]:
        """What a fault does, "same" for nothing, and the cycles of the passes."""
        model, cycles = self.model, 0
        monkeypatch.setattr(execution, "DEFAULT_TIMEOUT", WATCHDOG + number)
        memory = MemoryModel(delays=40, seed=3)
        device = model.device(memory)
        device.timeout = 60.0
        try:
            session, at = device.session(), 0
            for count in (
                3,
                4,
                1,
                1,
            ):  # passes of several tokens, the ring of a pass once around, single steps
                found = session.last_logits(IDS[at : at + count])
                at += count
                cycles += model.device(memory).passes[-1].cycles
                if not np.array_equal(found, self.expected[at - 1]):
                    return "other logits", cycles
            best = next(session.generate(IDS[at : at + 1], 1))
            if best != int(self.expected[at].argmax()):
                return "another token", cycles
        except DeviceTimeoutError:
            return "watchdog", cycles
        except DeviceError:
            return "error", cycles
        finally:
            model.close()
        return "same", cycles


@pytest.fixture(scope="module")
def faulty(
    tmp_path_factory: pytest.TempPathFactory, expected: np.ndarray, request: pytest.FixtureRequest
) -> Iterator[Faulty]:
    seed = int(request.config.getoption("--seed"))
    found = Faulty(tmp_path_factory.mktemp("faulty") / "tiny", seed, expected)
    yield found
    found.model.close()


@pytest.mark.parametrize("part", [range(first, MUTANTS + 1, PARTS) for first in range(1, PARTS + 1)], ids=str)
def test_mutations(
    part: range,
    faulty: Faulty,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """Faults of the Verilog, one at a time: most are seen as other bits, or a run ends with an error."""
    outcome, usual = faulty.outcome(0, monkeypatch)
    assert outcome == "same"
    counts: Counter[str] = Counter()
    survivors: list[tuple[Mutant, str]] = []
    for number in part:
        mutant = faulty.mutants[number - 1]
        outcome, cycles = faulty.outcome(number, monkeypatch)
        kind = outcome if outcome != "same" else "time" if cycles != usual else "nothing"
        counts[kind] += 1
        if outcome == "same":
            survivors.append((mutant, kind))
        print(f"{number} {mutant.module}: {mutant.was} -> {mutant.now}: {kind}")
    record_property("outcomes", dict(counts))
    assert faulty.outcome(0, monkeypatch) == ("same", usual)  # nothing of a fault is left
    assert counts["nothing"] <= 0.5 * len(part), survivors


@pytest.mark.parametrize("part", range(5))
def test_stalls(part: int, seed: int, expected: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """A memory that answers after up to 100,000 cycles is slow, not wrong: the watchdog waits longer."""
    model = tiny_accelerator()
    delays = [300, 3_000, 20_000, 50_000, 100_000][part]
    memory = replace(MemoryModel(delays=delays, seed=seed), outstanding=64)
    monkeypatch.setattr(execution, "DEFAULT_TIMEOUT", 1 << 20)
    monkeypatch.setattr(simulator, "STALL_CYCLES", 1 << 22)
    session = model.device(memory).session()
    np.testing.assert_array_equal(session.last_logits(IDS[:2]), expected[1])
    model.close()


@pytest.mark.parametrize("part", range(FLIPS // 20))
def test_flipped_bits_of_weights(part: int, seed: int, tmp_path: Path, expected: np.ndarray) -> None:
    """In a file a digest finds every one before anything runs; in memory it changes logits or nothing, and
    the run ends as others do."""
    draw = random.Random(f"{seed} {part} weights")
    model = opened_model(tiny_accelerator().write(tmp_path / "tiny"))
    weights = [buffer for buffer in model.manifest.buffers if buffer.role == "weights"]
    seen = Counter[str]()
    for _ in range(20):
        info = draw.choice(weights)
        device = model.device()
        device.open()
        session = device.session()
        session.last_logits(IDS[:1])  # now weights are on the device
        buffer = device.execution.device.allocate(info.name)
        at, bit = draw.randrange(info.bytes), 1 << draw.randrange(8)
        (before,) = buffer.read(1, at)
        buffer.write(bytes([before ^ bit]), at)
        found = session.last_logits(IDS[1:4])
        seen["same" if np.array_equal(found, expected[3]) else "other"] += 1
        buffer.write(bytes([before]), at)
        session = device.session()
        np.testing.assert_array_equal(session.last_logits(IDS[:4]), expected[3])
    assert seen["other"]
    model.close()
    file = tmp_path / "tiny" / str(weights[0].file)
    content = bytearray(file.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="is not the file that was written"):
        opened_model(tmp_path / "tiny").session().last_logits(IDS[:1])
