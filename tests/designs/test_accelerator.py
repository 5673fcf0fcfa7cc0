"""Accelerators run as written: RTL equals golden bit for bit, whatever the inputs, the memory, the faults."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch

import streamgen
from streamgen.api.accelerator import Accelerator
from streamgen.artifact.packing import BEAT_BYTES, MemoryLayout
from streamgen.artifact.weight_layout import CODES, ROWS, SCALES
from streamgen.base.errors import (
    CheckpointError,
    DeviceError,
    DeviceTimeoutError,
    MissingToolError,
    StreamgenError,
)
from streamgen.compiler.config import CompileConfig
from streamgen.kernels.matmul.weights import WeightsParams
from streamgen.model import golden
from streamgen.model.graph import Graph, Tensor
from streamgen.numbers import formats
from streamgen.observe.report import Report
from streamgen.runtime import verilator
from streamgen.runtime.execution import Execution
from streamgen.runtime.memory import Fault, MemoryModel
from streamgen.runtime.simulator import SimulatedDevice
from tests.shared.accelerators import (
    RESIDUAL,
    SHARED_CHANNEL,
    Gated,
    Residual,
    Several,
    by_hand,
    compiled,
    same,
    tiny,
    values,
)
from tests.shared.campaigns import sampled

SLOW = {
    "gated": (Gated, CompileConfig(max_tokens=5, multipliers=192, channels=4, prefetch_beats=64), (33,)),
    "gated, W8, normal FIFOs": (
        Gated,
        CompileConfig(
            max_tokens=4, multipliers=256, channels=8, weights="w8", sizing="normal", prefetch_beats=128
        ),
        (33,),
    ),
    "several, symmetric": (Several, SHARED_CHANNEL, (100, 24)),
    "several, groups of 128, 16 bits": (
        Several,
        CompileConfig(max_tokens=1, multipliers=64, channels=3, group=128, scale_bits=16, clock_mhz=150),
        (100, 24),
    ),
}


@pytest.fixture(scope="session")
def residual() -> Accelerator:
    return compiled(Residual, RESIDUAL, 40)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny accelerator, written; tests leave it as it is."""
    return tiny().write(tmp_path_factory.mktemp("tiny") / "written")


@pytest.fixture(scope="session")
def execution(folder: Path) -> Iterator[Execution]:
    """Runs of that folder, where the device can be got at."""
    with Execution(folder) as execution:
        yield execution


X = values(1, 40)


def works(execution: Execution) -> bool:
    """Whether a run gives the right result."""
    return same(execution.run(X)[0], tiny().golden(X))


def all_tokens_agree(accelerator: Accelerator, features: tuple[int, ...]) -> None:
    most = accelerator.manifest.max_tokens
    for tokens in range(1, 3 * most):
        inputs = [values(tokens, f, seed=f) for f in features]
        result = accelerator.run(*inputs)
        assert same(result, accelerator.golden(*inputs)), tokens
        assert len(accelerator.report().passes) == -(-tokens // most)


@pytest.mark.slow
def test_every_number_of_tokens(residual: Accelerator) -> None:
    all_tokens_agree(residual, (40,))


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(SLOW, ("several, groups of 128, 16 bits",)))
def test_every_number_of_tokens_with(name: str) -> None:
    module, config, features = SLOW[name]
    accelerator = compiled(module, config, *features)
    all_tokens_agree(accelerator, features)
    results = accelerator.run(*(values(2, f) for f in features))
    shapes = {Gated: [(2, 33)], Several: [(2, 24), (2, 7)]}[module]
    assert [r.shape for r in (results if isinstance(results, tuple) else (results,))] == shapes


@pytest.mark.parametrize("leading", [(), (1,), (0,), (2, 3), (3, 1, 2)])
def test_leading_dimensions_are_tokens(residual: Accelerator, leading: tuple[int, ...]) -> None:
    x = values(*leading, 40)
    result = residual.run(x)
    assert result.shape == (*leading, 40) and result.dtype == np.float32
    flat = residual.golden(x.reshape(prod(leading), 40))
    assert same(result, residual.golden(x)) and same(result, flat.reshape(result.shape))


@pytest.mark.parametrize(
    "convert",
    [
        torch.tensor,
        lambda x: torch.tensor(x, requires_grad=True),
        lambda x: x.astype(float),
        np.ndarray.tolist,
    ],
    ids=["tensor", "tensor with gradient", "float64", "list"],
)
def test_kinds_of_inputs(residual: Accelerator, convert) -> None:
    x = values(2, 40)
    assert same(residual.run(convert(x)), residual.golden(x)) and same(
        residual.golden(convert(x)), residual.golden(x)
    )


def test_bfloat16() -> None:
    """A type that numpy does not have."""
    x = torch.tensor(X).bfloat16()
    assert same(tiny().golden(x), tiny().golden(x.float()))


def test_hard_values(residual: Accelerator) -> None:
    """Zero rows, tiny and huge ones, rows of wide spread."""
    x = values(9, 40).astype(np.float64)
    x *= np.float64(2.0) ** np.array([0, -120, -126, 20, 60, 100, 0, 0, 3])[:, None]
    x[6] = 0
    x[7] *= 2.0 ** np.arange(-20, 20)
    assert same(residual.run(x), residual.golden(x))


def test_by_hand_without_tokens() -> None:
    accelerator = by_hand()
    one, two = values(2, 30), values(2, 32)
    result = accelerator.run(one, two)
    assert same(result, accelerator.golden(one, two))
    padded = np.pad(one, ((0, 0), (0, 2)))
    assert np.allclose(result[0], (padded + two)[:, :30], rtol=1e-4)
    assert np.allclose(result[1], (padded * two)[:, :30], rtol=1e-4)
    with pytest.raises(ValueError, match=r"input 'one' must have shape \(2, 30\); it has \(4, 30\)$"):
        accelerator.run(values(4, 30), two)
    with pytest.raises(TypeError, match=r"^run takes 2 inputs \(one, two\); 1 are given$"):
        accelerator.run(one)


def test_flipped_bits_of_the_weights(residual: Accelerator, tmp_path: Path) -> None:
    """The run follows the file: it gives what golden gives with the changed constant. Golden itself stays."""
    written = streamgen.load(residual.write(tmp_path / "written"), changed_files=True)
    x = values(3, 40)
    expected = residual.golden(x)
    graph = residual.graph
    rng = np.random.default_rng(0)
    constants = [tensor for tensor in graph.tensors if tensor.role == "constant"]
    assert len({t.node.rpartition("_")[2] for t in constants}) == 2  # weights, a bias
    for tensor, beats in ((one, beats) for one in constants for beats in _beats_of(graph, one)):
        itensor = graph.tensor_itensor(tensor)
        layout = MemoryLayout.of(itensor)
        (bounds,) = graph.node(tensor.node).bounds
        file = tmp_path / "written" / f"weights_{tensor.channel}.bin"
        before = file.read_bytes()
        first = bounds["offset"] * BEAT_BYTES
        size = layout.beats(itensor.token_count) * BEAT_BYTES
        image = bytearray(before[first : first + size])
        while True:  # bits of padding, and what the rounding of activations hides, are drawn again
            bit = 8 * BEAT_BYTES * int(rng.choice(beats)) + int(rng.integers(8 * BEAT_BYTES))
            image[bit // 8] ^= 1 << bit % 8
            with suppress(ValueError):  # a subnormal, or a bit below those of the format
                data = layout.unpack(itensor, bytes(image))
                if not same(changed := _golden_with(residual, tensor, data, x), expected):
                    break
            image[bit // 8] ^= 1 << bit % 8
        file.write_bytes(before[:first] + image + before[first + size :])
        assert same(written.run(x), changed), tensor.name
        assert same(residual.golden(x), expected)
        file.write_bytes(before)
        assert same(written.run(x), expected)


def _beats_of(graph: Graph, tensor: Tensor) -> list[np.ndarray]:
    """The beats of a constant: of weights those of codes, of scales, of row scales."""
    (edge,) = graph.outputs_of(tensor.node)
    reader = graph.node(edge.target.node)
    if not isinstance(reader.params, WeightsParams):
        itensor = graph.tensor_itensor(tensor)
        return [np.arange(MemoryLayout.of(itensor).beats(itensor.token_count))]
    (bounds,) = reader.bounds
    assert bounds is not None
    kinds = reader.params.layout(bounds).kinds
    return [np.flatnonzero(kinds == kind) for kind in (ROWS, SCALES, CODES)]


def _golden_with(accelerator: Accelerator, changed: Tensor, data: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The golden result of the largest run, with other data of one constant."""
    graph = accelerator.graph
    tensors = tuple(replace(t, data=data) if t.name == changed.name else t for t in graph.tensors)
    (source,) = [t for t in tensors if t.role == "input"]
    padded = np.zeros(graph.tensor_itensor(source).shape, np.float32)
    padded[: len(x), : x.shape[1]] = formats.round_f24(x)
    outputs, _ = golden.run(replace(graph, tensors=tensors), {source.name: padded})
    (result,) = outputs.values()
    return result[: len(x), : x.shape[1]]


@pytest.mark.slow
def test_changed_operator_in_the_verilog(execution: Execution, tmp_path: Path) -> None:
    accelerator = streamgen.load(tiny().write(tmp_path / "written"), changed_files=True)
    design = tmp_path / "written" / "design.v"
    text = design.read_text()
    place = text.index(" + ", text.index("\nmodule dot_"))
    assert place < text.index("\nendmodule", text.index("\nmodule dot_"))
    assert same(accelerator.run(X), accelerator.golden(X))
    design.write_text(f"{text[:place]} - {text[place + 3 :]}")
    assert not same(accelerator.run(X), accelerator.golden(X))
    design.write_text(text)
    assert same(accelerator.run(X), accelerator.golden(X)) and works(execution)


def test_load_in_another_process(folder: Path) -> None:
    """Runs without torch and without compiling anything."""
    np.save(folder.parent / "x.npy", X)
    script = (
        "import sys, numpy, streamgen\n"
        "from streamgen.runtime import verilator\n"
        f"verilator.FAST = {verilator.FAST}\n"
        "a, x = streamgen.load(sys.argv[1]), numpy.load(sys.argv[2])\n"
        "y = a.run(x)\n"
        "assert y.tobytes() == a.golden(x).tobytes() and 'torch' not in sys.modules\n"
        "print(y.tobytes().hex())"
    )
    command = [sys.executable, "-W", "error", "-c", script, str(folder), str(folder.parent / "x.npy")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == tiny().golden(X).tobytes().hex()


def _check(report: Report) -> None:
    assert report.cycles == sum(report.passes) > 0
    assert report.kernels and all(k.busy > 0 for k in report.kernels)
    assert all(k.busy + k.stalled + k.idle == report.cycles and k.idle >= 0 for k in report.kernels)
    assert all(f.greatest is not None and 1 <= f.greatest <= f.depth for f in report.fifos)


def test_report(residual: Accelerator, tmp_path: Path) -> None:
    before = compiled_again = streamgen.load(residual.write(tmp_path / "written")).report()
    assert before.cycles is None and before.passes == () and before.kernels == ()
    assert all(fifo.greatest is None for fifo in before.fifos)
    assert residual.report() == compiled_again  # nothing has run since it was written
    assert before.multipliers <= RESIDUAL.multipliers and before.name == "residual"
    (group,) = before.groups
    assert set(group.scheduled_cycles) == {2, 4} and group.choices and group.ended == "no units are left"
    residual.run(values(3, 40), memory=MemoryModel(delays=10))
    residual.golden(values(3, 40))
    after = residual.report()
    _check(after)
    assert len(after.passes) == 1
    (ran,) = after.groups
    assert replace(after, groups=(replace(ran, passes=(), kernels=(), fifos=before.fifos),)) == before
    text = str(after)
    for part in (f"{after.cycles} cycles in 1 pass", "quantise_x", "available on u55c", "down_column0.o_y"):
        assert part in text
    assert "last run" not in str(before) and "down_column0.o_y" in str(before)
    residual.run(values(7, 40))
    _check(residual.report())
    assert len(residual.report().passes) == 3


MEMORIES = {
    "fast": MemoryModel(rate=Fraction(1), latency=1),
    "one at a time": MemoryModel(rate=Fraction(1, 3), latency=40, outstanding=1),
    **{f"delays {seed}": MemoryModel(delays=60, seed=seed) for seed in range(6)},
}


@pytest.mark.parametrize("memory", MEMORIES.values(), ids=MEMORIES)
def test_any_memory_gives_the_same_result(residual: Accelerator, memory: MemoryModel) -> None:
    x = values(4, 40)
    assert same(residual.run(x, memory=memory), residual.golden(x))


@pytest.mark.parametrize("buffer", ["input", "weights_0", "table", "linear"])
def test_error_responses(execution: Execution, buffer: str) -> None:
    execution.device.inject(buffer, 0, Fault("SLVERR"))
    with pytest.raises(DeviceError, match=r"cycles: error response of the memory at m_axi_gmem0$"):
        execution.run(X)
    assert execution.statuses == []
    with pytest.raises(DeviceError, match="error response"):
        execution.run(X)
    execution.device.inject(buffer, 0, None)
    assert works(execution)


def test_runs_in_flight(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one runs the next one waits in line, each with its own inputs and outputs; one that fails takes
    those behind it along."""
    x, lengths = values(5, 40), []
    with Execution(folder) as execution:
        device = execution.device
        assert isinstance(device, SimulatedDevice)
        start = device.start

        def counted(slot: int = 0) -> None:
            start(slot)
            lengths.append(len(device._line))

        monkeypatch.setattr(device, "start", counted)
        (found,) = execution.run(x)
        assert same(found, tiny().golden(x)) and lengths == [1, 2, 2, 2, 2]
        assert len(execution.statuses) == 5 and len({status.cycles for status in execution.statuses}) == 1
        device.inject("input", 0, Fault("SLVERR"))  # of the first slot
        with pytest.raises(DeviceError, match="error response of the memory"):
            execution.run(x)
        assert not device._line
        device.inject("input", 0, None)
        assert same(execution.run(x)[0], tiny().golden(x))


@pytest.mark.parametrize("cycles", [0, 1, 60, 120, 180, 200, 230, 260, 300, 340, 380, 420, 450, 1000])
def test_reset_in_mid_run(execution: Execution, cycles: int) -> None:
    assert works(execution)
    execution.device.start()
    execution.device.run(cycles)
    execution.device.reset()
    assert works(execution)


@pytest.mark.slow
def test_hanging_memory(residual: Accelerator, tmp_path: Path) -> None:
    """One channel stops to answer: the watchdog ends the run, the status block names the port. A core that
    waits for the memory cannot be reset, so it is loaded anew."""
    x = values(1, 40)
    with Execution(residual.write(tmp_path / "written")) as execution:
        device = execution.device
        assert isinstance(device, SimulatedDevice)
        execution.patience = 2_000
        for _ in range(2):
            device.configure(1, MemoryModel(latency=60_000))
            with pytest.raises(
                DeviceTimeoutError, match=r"moved any more; memory ports at work: m_axi_gmem1\n"
            ):
                execution.run(x)
            device.configure(1, MemoryModel())
            assert same(execution.run(x)[0], residual.golden(x))


@pytest.mark.slow
@pytest.mark.long_runs
def test_run_that_cannot_end(folder: Path) -> None:
    """A descriptor is missing in the phase table: the watchdog of the hardware says who waits."""
    with Execution(folder) as execution:
        assert works(execution)
        manifest = execution.manifest
        (section,) = manifest.program.sections
        spoilt = replace(section, descriptors=section.descriptors[1:])
        execution.manifest = replace(manifest, program=replace(manifest.program, sections=(spoilt,)))
        with pytest.raises(DeviceTimeoutError) as error:
            execution.run(X)
        execution.manifest = manifest
        assert "no token and no beat moved any more; memory ports at work: none\n" in str(error.value)
        assert ": full, " in str(error.value)
        assert works(execution)


def test_run_that_takes_too_long(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamgen.runtime.simulator.CHUNK_CYCLES", 100)
    with Execution(folder, memory=MemoryModel(latency=5_000)) as slow:
        with pytest.raises(DeviceTimeoutError, match=r"^not done after 0.001 s"):
            slow.run(X, timeout=0.001)
        assert works(slow)


@pytest.mark.slow
@pytest.mark.long_runs
def test_memory_that_never_answers(folder: Path) -> None:
    with Execution(folder, memory=MemoryModel(latency=5_000_000)) as dead, pytest.raises(DeviceTimeoutError):
        dead.run(X, timeout=2)


@pytest.mark.parametrize(
    "inputs, error, message",
    [
        ((), TypeError, "run takes 1 inputs (input); 0 are given"),
        ((X, X), TypeError, "run takes 1 inputs (input); 2 are given"),
        ((X[:, :39],), ValueError, "input 'input' must have shape (..., 40); it has (1, 39)"),
        ((X * 1j,), TypeError, "input 'input' takes f24; numpy's complex64 is given"),
        ((X.astype(str),), TypeError, "input 0 is numpy's <U32; an array of numbers is needed"),
        ((X * np.nan,), ValueError, "input 'input' holds NaN or infinite values"),
        ((X + np.inf,), ValueError, "input 'input' holds NaN or infinite values"),
        ((np.full((1, 40), 1e300),), ValueError, "input 'input' holds values too large for f24"),
    ],
)
def test_bad_inputs(inputs: tuple, error: type[Exception], message: str) -> None:
    for method in (tiny().run, tiny().golden):
        with pytest.raises(error) as caught:
            method(*inputs)
        assert str(caught.value) == message


def test_no_compiler(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator = streamgen.load(folder)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(
        MissingToolError, match=r"C\+\+ compiler, and none is on PATH: apt-get install g\+\+$"
    ):
        accelerator.run(X)
    assert same(accelerator.golden(X), tiny().golden(X))
    monkeypatch.undo()
    assert same(accelerator.run(X), accelerator.golden(X))


def test_damaged_folder(tmp_path: Path) -> None:
    place = tiny().write(tmp_path / "written")
    accelerator = streamgen.load(place)
    weights = place / "weights_0.bin"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match=rf"weights_0.bin has {len(content) - 1} bytes; .* takes"):
        accelerator.run(X)
    weights.unlink()
    with pytest.raises(ValueError, match=r"weights_0.bin is missing or cannot be read$"):
        accelerator.run(X)
    weights.write_bytes(content)
    assert same(accelerator.run(X), accelerator.golden(X))
    design = (place / "design.v").read_text()
    (place / "design.v").write_text("module tiny; endmodule")
    with pytest.raises(StreamgenError):
        accelerator.run(X)
    (place / "design.v").write_text(design)
    assert same(accelerator.run(X), accelerator.golden(X))


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_devices_close_in_any_order(folder: Path, order: tuple[int, ...]) -> None:
    executions = [Execution(folder) for _ in order]
    for execution in executions:
        assert works(execution)
    for i in order:
        executions[i].close()
        assert all(works(executions[j]) for j in order[order.index(i) + 1 :])
