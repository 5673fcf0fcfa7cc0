"""Waves read back: signals by their names in the Verilog, cycles as nanoseconds, tokens as golden's."""

from pathlib import Path

import pytest
import pywellen

import streamgen
from streamgen.api.accelerator import Accelerator
from streamgen.numbers import formats
from streamgen.observe.probe import _expected
from streamgen.runtime.arrays import padded
from tests.shared.accelerators import same, tiny, values

STORE = "linear_column0.o_y -> store_linear.i"


@pytest.fixture(scope="module")
def accelerator(tmp_path_factory: pytest.TempPathFactory) -> Accelerator:
    return streamgen.load(tiny().write(tmp_path_factory.mktemp("tiny") / "written"))


def signals(path: Path) -> dict[str, pywellen.Var]:
    return {var.full_name: var for var in pywellen.Waveform(str(path)).all_vars()}


@pytest.mark.slow
def test_tokens_of_a_whole_run(accelerator: Accelerator, tmp_path: Path) -> None:
    """Where valid and ready meet at a FIFO, the payload is golden's next token."""
    x = values(2, 40)
    waves = streamgen.Waves(tmp_path / "all.fst", 0, 100_000, run=2)
    assert same(accelerator.run(x, waves=waves), tiny().golden(x))
    found = signals(tmp_path / "all.fst")
    graph, manifest = accelerator.graph, accelerator.manifest
    edge = next(edge for edge in graph.edges if edge.name == STORE)
    instance = next(stream.instance for stream in manifest.streams if stream.name == STORE)
    info = next(buffer for buffer in manifest.buffers if buffer.role == "input")
    inputs = {info.name: padded(info, formats.round_f24(x[1:]), 1)}
    ((expected,), _) = _expected(graph, inputs, {}, [edge])
    pins = [found[f"tiny.{instance}.o__{name}"] for name in ("valid", "ready", "payload")]
    assert pins[2].bitwidth == 24
    end = max(time for time, _ in found["tiny.ap_clk"].tv)
    valid, ready, payload = (
        [pin.signal.value_at(1000 * cycle) for cycle in range(end // 1000)] for pin in pins
    )
    tokens = [p for v, r, p in zip(valid, ready, payload, strict=True) if v and r]
    assert tokens == [int.from_bytes(token.tobytes(), "little") for token in expected]


@pytest.mark.slow
def test_window(accelerator: Accelerator, tmp_path: Path) -> None:
    """The same cycles as in the waves of the whole run, and no others; the probes may look as well."""
    x = values(1, 40)
    accelerator.run(x, waves=streamgen.Waves(tmp_path / "all.fst", 0, 100_000))
    part = tmp_path / "part.fst"
    accelerator.run(x, probe=True, waves=streamgen.Waves(str(part), 200, 260))
    assert accelerator.probed is not None and accelerator.probed.difference is None
    assert sorted(file.name for file in tmp_path.iterdir()) == ["all.fst", "part.fst"]
    whole, window = signals(tmp_path / "all.fst"), signals(part)
    assert list(window["tiny.ap_clk"].tv) == [(500 * k, k % 2) for k in range(400, 522)]
    # payloads keep what an earlier run left there
    names = [name for name in window if name.startswith("tiny.fifo_") and name.endswith(("valid", "ready"))]
    assert len(names) == 4 * len(accelerator.graph.edges)
    changing = 0
    for name in names:
        one, two = whole[name].signal, window[name].signal
        seen = [two.value_at(1000 * cycle) for cycle in range(200, 261)]
        assert seen == [one.value_at(1000 * cycle) for cycle in range(200, 261)], name
        changing += len(set(seen)) > 1
    assert changing > 10


@pytest.mark.slow
def test_window_that_never_comes(accelerator: Accelerator, tmp_path: Path) -> None:
    x, path = values(1, 40), tmp_path / "never.fst"
    with pytest.raises(ValueError, match=r"^run 1 took \d+ cycles, but the waves begin at cycle 50000$"):
        accelerator.run(x, waves=streamgen.Waves(path, 50_000, 60_000))
    with pytest.raises(ValueError, match=r"^waves of run 2, but the call had only 1 run$"):
        accelerator.run(x, waves=streamgen.Waves(path, 0, 10, run=2))
    with pytest.raises(OSError, match=r"nowhere"):
        accelerator.run(x, waves=streamgen.Waves(tmp_path / "nowhere" / "x.fst", 0, 10))
    assert list(tmp_path.iterdir()) == []
    assert same(accelerator.run(x, waves=streamgen.Waves(path, 0, 10)), tiny().golden(x)) and path.exists()


@pytest.mark.parametrize(
    "window, message",
    [
        ((5, 4), "waves of cycles 5 to 4; 0 <= first <= last must hold"),
        ((-1, 4), "waves of cycles -1 to 4; 0 <= first <= last must hold"),
        ((0, 4, 0), "waves of run 0; runs are counted from 1"),
    ],
)
def test_bad_windows(window: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError) as error:
        streamgen.Waves("x.fst", *window)
    assert str(error.value) == message
