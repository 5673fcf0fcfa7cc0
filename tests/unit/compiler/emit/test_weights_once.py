"""Weights are a stream: a few of them are in memory, and a written folder holds them once."""

import gc
import os
import tracemalloc
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from streamgen.artifact.packed import PackedFloats, PackedTable, PackedWeight, WeightFiles
from streamgen.base import kept
from streamgen.base.errors import CheckpointError
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.emit import packed_model
from streamgen.compiler.emit.images import constant_bytes, weights_file, write_constants
from streamgen.compiler.plan.policy import finished, quantised, whole
from streamgen.model.frontend import load_decoder
from streamgen.model.golden_text import GoldenModel
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.operations import Embedding, Linear, exact_linear
from streamgen.model.operations.storage import load_graph, save_graph
from streamgen.numbers.quantisation import QuantisedWeight
from streamgen.numbers.streamed import StreamedWeight
from tests.shared.decoders import random_decoder
from tests.shared.llama_folders import llama_folder

CONFIG = CompileConfig(name="once", max_tokens=2, context=64, channels=4, multipliers=256)
IDS = np.array([3, 1, 4, 1, 5, 60])


def _written(model: LogicalGraph, config: CompileConfig, folder: Path) -> None:
    """Write the weight files and the stored model of a design, without its Verilog."""
    program, _ = finished(whole(model, config), model, config.sizing)
    write_constants(program.graph, folder)
    save_graph(packed_model(model, program.graph), folder / "model.npz")


def _opened(folder: Path) -> LogicalGraph:
    return load_graph(folder / "model.npz", files=WeightFiles(_Files(folder)))  # type: ignore[arg-type]


class _Files(SimpleNamespace):
    """What `WeightFiles` asks of a written folder. read: the files that were compared with their digests."""

    def __init__(self, folder: Path) -> None:
        sizes = {path.name: path.stat().st_size for path in folder.glob("*.bin")}
        buffers = [SimpleNamespace(file=name, bytes=count) for name, count in sizes.items()]
        super().__init__(path=folder, manifest=SimpleNamespace(buffers=buffers), read=[])

    def pieces(self, name: str) -> list[bytes]:
        self.read.append(name)
        return []


KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "w4": ({}, {}),
    "two widths": ({}, {"formats": {"layers[[]*].gate": "w8", "logits": "w8"}}),
    "mxfp4": ({}, {"weights": "mxfp4"}),
    "symmetric": ({}, {"minimum": False, "group": 64}),
    "wide scales": ({}, {"scale_bits": 12}),
    "biases": ({"bias": True}, {}),
    "w8": ({}, {"weights": "w8"}),
    "columns of their own": ({"bias": True}, {"policy": "spatial", "multipliers": 2048}),
    "w8 table": ({}, {"formats": {"embedding": "w8"}}),
    "three layers": ({"layers": 3, "windows": (None, 8)}, {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_holds_the_weights(tmp_path: Path, kind: str) -> None:
    """The stored model has every integer of the weights that were packed, and no array of them."""
    changes, choices = KINDS[kind]
    config = replace(CONFIG, **choices)
    model = quantised(random_decoder(**changes), config)
    _written(model, config, tmp_path)
    found = _opened(tmp_path)
    for path, operation in model.walk():
        op, stored = operation.op, found.op(path)
        if isinstance(op, Linear):
            assert isinstance(stored.weight, PackedWeight)
            _require_same(op.integers.read(), stored.integers.read(), path)
            some = np.array([4, 0, 4])
            _require_same(op.integers.read(some), stored.integers.read(some), path)
            facts = op.integers.scale_bits, op.integers.row_sum
            assert (stored.integers.scale_bits, stored.integers.row_sum) == facts
            assert stored.form() == Linear(op.integers, op.bias).form()
        elif isinstance(op, Embedding):
            assert isinstance(stored.table, PackedTable if kind == "w8 table" else PackedFloats)
            exact, again = op.exact()(None, IDS), stored.exact()(None, IDS)
            np.testing.assert_array_equal(exact, again)
    np.testing.assert_array_equal(GoldenModel(model).logits(IDS), GoldenModel(found).logits(IDS))


def _require_same(one: QuantisedWeight, other: QuantisedWeight, path: str) -> None:
    assert (one.format, one.group, one.grouped, one.minimums) == (
        other.format,
        other.group,
        other.grouped,
        other.minimums,
    )
    for name in ("codes", "scale", "minimum", "row_scale"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), f"{name} of {path}")


def test_files_are_compared_before_they_are_read(tmp_path: Path) -> None:
    model = quantised(random_decoder(), CONFIG)
    _written(model, CONFIG, tmp_path)
    files = _Files(tmp_path)
    found = load_graph(tmp_path / "model.npz", files=WeightFiles(files))  # type: ignore[arg-type]
    assert files.read == []
    for _ in range(2):
        found.op("layers[1].gate").integers.read()
    assert sorted(files.read) == [weights_file(channel) for channel in range(4)]
    alone = load_graph(tmp_path / "model.npz")
    with pytest.raises(CheckpointError, match="lie in the weight files of its folder; load the folder"):
        alone.op("logits").integers.read()
    os.truncate(tmp_path / weights_file(2), 64)
    with pytest.raises(CheckpointError, match=r"weights_2\.bin, which has 64"):
        _opened(tmp_path).op("layers[1].gate").integers.read()


@pytest.mark.slow
def test_memory_does_not_grow_with_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading, quantising, packing and writing 24 layers takes the memory of 2 layers, but for chance in what
    processors do at the same time; so does the golden model without room to keep integers. The folder holds
    weights once."""
    peaks = {}
    for layers in (2, 24):
        place = llama_folder(tmp_path / f"{layers}", layers=layers, hidden=384, features=1024)
        written = tmp_path / f"written {layers}"
        written.mkdir()
        with _peak() as reading:
            model = quantised(load_decoder(place), CONFIG)
        assert isinstance(model.op("layers[1].gate").weight, StreamedWeight)
        program, _ = finished(whole(model, CONFIG), model, CONFIG.sizing)
        with _peak() as writing:
            write_constants(program.graph, written)
            save_graph(packed_model(model, program.graph), written / "model.npz")
        packed = sum(constant_bytes(program.graph).values())
        assert sum(file.stat().st_size for file in written.iterdir()) < 1.05 * packed
        monkeypatch.setattr(exact_linear, "ROOM", kept.KeptRoom(0))
        logits = GoldenModel(model).logits(IDS)
        with _peak() as computing:
            np.testing.assert_array_equal(logits, GoldenModel(_opened(written)).logits(IDS))
        monkeypatch.setattr(exact_linear, "ROOM", kept.KeptRoom())
        with _peak() as keeping:
            np.testing.assert_array_equal(logits, GoldenModel(_opened(written)).logits(IDS))
        peaks[layers] = [one.bytes for one in (reading, writing, computing, keeping)]
    weights = layers * 384 * (2 * 384 + 128 + 3 * 1024)
    for few, many in zip(peaks[2][:3], peaks[24][:3], strict=True):
        assert many < few + weights / 4 and many < weights, peaks
    assert peaks[24][3] > 2 * weights, "integers are kept while there is room"


class _peak:  # noqa: N801 - used as a function
    """The most bytes that Python and numpy hold in a block, beyond what they held before it."""

    bytes: int

    def __enter__(self) -> "_peak":
        gc.collect()
        tracemalloc.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()


def test_a_changed_checkpoint_is_refused(tmp_path: Path) -> None:
    """Weights are read when they are written; the checkpoint must be the same until then."""
    place = llama_folder(tmp_path / "llama", layers=1, hidden=64, features=96)
    model = quantised(load_decoder(place), CONFIG)
    program, _ = finished(whole(model, CONFIG), model, CONFIG.sizing)
    for change, message in (
        (lambda file: os.utime(file, (1, 1)), "has changed since it was opened. The weights are read when"),
        (lambda file: file.unlink(), "cannot be read any more: No such file or directory. The weights are"),
    ):
        for file in sorted(place.glob("*.safetensors")):
            change(file)
        with pytest.raises(CheckpointError, match=message):
            write_constants(program.graph, tmp_path)
