"""Single bits that turn over in registers and FIFOs while an accelerator runs: other results, an error, or
nothing; no run hangs, and nothing of it is left once the device is opened again."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from streamgen.base.errors import DeviceError, DeviceTimeoutError
from streamgen.runtime import simulator
from streamgen.runtime.execution import Execution
from tests.shared.accelerators import same, tiny, values
from tests.shared.campaigns import sampled
from tests.shared.verilog_flips import COUNTED, Flip, with_flips

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0)]

FLIPS, FEW = 200, 10
X = values(1, 40)


@pytest.fixture(scope="module")
def flipping(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> tuple[Path, list[Flip]]:
    """The tiny accelerator with all of them."""
    folder = tiny().write(tmp_path_factory.mktemp("flips") / "tiny")
    rng = np.random.default_rng([int(request.config.getoption("--seed")), 9])
    text, flips = with_flips((folder / "design.v").read_text(), "tiny", rng, FLIPS)
    (folder / "design.v").write_text(text)
    return folder, flips


@pytest.mark.parametrize("part", sampled(range(FLIPS // FEW), [0]))
def test_flipped_bits(
    part: int,
    flipping: tuple[Path, list[Flip]],
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    monkeypatch.setattr(simulator, "STALL_CYCLES", 1 << 19)  # the watchdog may be what is hit
    (folder, flips), expected, seen = flipping, tiny().golden(X), Counter[str]()
    with Execution(folder, changed_files=True) as execution:
        usual = execution.patience
        assert same(execution.run(X)[0], expected)
        cycles = execution.statuses[0].cycles
        rng = np.random.default_rng([part, 10])
        for flip in flips[part * FEW : (part + 1) * FEW]:
            execution.patience = flip.timeout(int(rng.integers(cycles)))
            try:
                outcome = "same" if same(execution.run(X, timeout=60)[0], expected) else "other result"
            except DeviceTimeoutError:
                outcome = "watchdog"
            except DeviceError:
                outcome = "error"
            seen[outcome] += 1
            print(f"{flip}: {outcome}")
            execution.close()
            execution.patience = usual
            assert same(execution.run(X)[0], expected), flip
    record_property("outcomes", dict(sorted(seen.items())))


def test_a_flip_takes_effect(flipping: tuple[Path, list[Flip]]) -> None:
    """The count of cycles is off by the weight of the bit, and by no more."""
    folder, flips = flipping
    with Execution(folder, changed_files=True) as execution:
        usual = execution.patience
        for cycle in (10, 100, 200):
            execution.patience = usual
            execution.run(X)
            before = execution.statuses[-1].cycles
            execution.patience = flips[-1].timeout(cycle)
            execution.run(X)
            assert abs(execution.statuses[-1].cycles - before) == 1 << COUNTED


def test_the_flips_are_everywhere(flipping: tuple[Path, list[Flip]]) -> None:
    """In memories of FIFOs, in control, in masters, in kernels."""
    places = " ".join(flip.place for flip in flipping[1][:FLIPS])
    for part in ("memory[", ".control.", ".fifo_", ".bus.", "load_", "store_", "linear_column0.", "reset_"):
        assert part in places, part
