"""Responses of the memory that are wrong, late or lost, at random places: a run ends with an error that names
the channel, or with the right bits; none hangs, and nothing of it is left in the next one."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest

from streamgen.artifact.manifest import Buffer, Manifest
from streamgen.base.errors import DeviceError, DeviceTimeoutError
from streamgen.runtime.execution import Execution
from streamgen.runtime.memory import Fault
from streamgen.runtime.simulator import SimulatedDevice
from tests.shared.accelerators import RESIDUAL, Residual, compiled, same, values
from tests.shared.campaigns import sampled
from tests.shared.decoders import WORDS, tiny_accelerator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0)]

PLACES = 25  # a test
PATIENCE = 1 << 12  # cycles without progress; a run of the module has 1,200, a pass of the decoder 4,300


def _drawn(draw: Random, manifest: Manifest) -> tuple[Buffer, int, Fault]:
    """A buffer, an offset of a beat in it, and what goes wrong there."""
    info = draw.choice(manifest.buffers)
    kind = draw.choice(["SLVERR", "DECERR", "late", "late", "never"])
    cycles = draw.choice([PATIENCE // 8, 3 * PATIENCE]) if kind == "late" else 0
    reads, writes = draw.choice([(True, True), (True, False), (False, True)])
    return info, 64 * draw.randrange(-(-info.bytes // 64)), Fault(kind, cycles, reads, writes)


def _hold(
    execution: Execution, run: Callable[[], np.ndarray], expected: np.ndarray, draw: Random
) -> Counter[str]:
    """What became of the runs. A response that is late by less than the watchdog's cycles is harmless. Where
    one is still to come when a run has ended well, the next may end with an error too."""
    seen = Counter[str]()
    execution.patience = PATIENCE
    assert same(run(), expected)
    ports = {port.channel: port.name for port in execution.manifest.ports}
    simulated = execution.device
    assert isinstance(simulated, SimulatedDevice)
    for _ in range(PLACES):
        info, offset, fault = _drawn(draw, execution.manifest)
        long, outcome = fault.delay > PATIENCE, "right"
        simulated.inject(info.name, offset, fault)
        try:
            assert same(run(), expected)
        except DeviceError as error:
            outcome = "error"
            assert ports[info.channel] in str(error), (info.name, offset, fault)
            assert long or (fault.response and not isinstance(error, DeviceTimeoutError))
        simulated.inject(info.name, offset, None)
        if long and outcome == "right":
            try:
                assert same(run(), expected)
            except DeviceError as error:
                outcome = "error of the next run"
                assert ports[info.channel] in str(error), (info.name, offset, fault)
        seen[f"{fault.kind}: {outcome}"] += 1
        assert same(run(), expected), (info.name, offset, fault)
    return seen


def _say(seen: Counter[str], record_property: Callable[[str, object], None]) -> None:
    record_property("outcomes", dict(sorted(seen.items())))
    assert {"right", "error"} <= {key.partition(": ")[2] for key in seen}


@pytest.mark.parametrize("part", sampled(range(4), [0]))
def test_of_a_module(
    part: int, seed: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Of 40 -> 24 -> 40 features on two channels; two runs of the hardware, so that one waits in line."""
    accelerator, x = compiled(Residual, RESIDUAL, 40), values(5, 40)
    with Execution(accelerator.write(tmp_path / "residual")) as execution:
        draw = Random(f"{seed} module {part}")
        _say(_hold(execution, lambda: execution.run(x)[0], accelerator.golden(x), draw), record_property)


@pytest.mark.campaign
@pytest.mark.long_runs
@pytest.mark.parametrize("part", range(16))
def test_of_a_decoder(part: int, seed: int, record_property: Callable[[str, object], None]) -> None:
    """A text of two passes, by itself: nothing of texts before is used."""
    model, ids = tiny_accelerator(), np.random.default_rng(1).integers(0, WORDS.size, 6)
    device = model.device()

    def run() -> np.ndarray:
        session = device.session()
        session.last_logits(ids[:3])
        return session.last_logits(ids[3:])

    draw = Random(f"{seed} decoder {part}")
    _say(_hold(device.execution, run, model.golden.logits(ids)[-1], draw), record_property)
    model.close()
