"""Weights rounded for the inputs they meet: nearer to the float model, resumed where it was stopped."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.calibration import stretched, turned
from streamgen.base.errors import CheckpointError
from streamgen.model.calibration import calibrated, rounding, within_bits
from streamgen.model.golden_text import GoldenModel
from streamgen.model.graph.interpret import exact, reference
from streamgen.model.graph.logical import Input, LogicalGraph, Operation
from streamgen.model.operations import Linear
from streamgen.numbers.error_feedback import quantise_w4_on
from streamgen.numbers.quantisation import Numbers, QuantisedWeight, quantise
from tests.shared.damage import full_disk
from tests.shared.decoders import random_decoder

NUMBERS = Numbers(by_layer={"logits": "w8", "layers[[]1].o": "w8"})


def _correlated(rows: int, K: int, seed: int = 0) -> np.ndarray:
    """Inputs that lie near a few directions, as activations do."""
    rng = np.random.default_rng(seed)
    directions = rng.normal(size=(K // 8, K)) * np.geomspace(1, 0.05, K // 8)[:, None]
    return rng.normal(size=(rows, K // 8)) @ directions + 0.02 * rng.normal(size=(rows, K))


@pytest.mark.parametrize("options", [{}, {"minimum": False}, {"group": 64, "scale_bits": 10}], ids=str)
@pytest.mark.parametrize("K", [96, 100, 256])
def test_error_of_the_result_is_less_than_half(K: int, options: dict[str, Any]) -> None:
    weight = np.random.default_rng(1).normal(size=(40, K)).astype(np.float32)
    seen, other = _correlated(400, K), _correlated(200, K)[100:]
    plain = quantise(weight, **options)
    found = quantise_w4_on(weight, seen.T @ seen, **options)
    for name in ("codes", "scale", "minimum", "row_scale"):
        one, two = getattr(found, name), getattr(plain, name)
        assert (one is None) == (two is None)
        assert one is None or (one.dtype, one.shape) == (two.dtype, two.shape)
    top = 2 ** (options.get("scale_bits", 8) - 1)
    assert found.codes.min() >= -8 and found.codes.max() <= 7 and np.abs(found.scale).max() < top
    lost = [np.square(other @ (one.dequantise() - weight).T).mean() for one in (plain, found)]
    assert lost[1] < 0.5 * lost[0]


def test_rows_of_zeros_and_inputs_of_zeros() -> None:
    weight = np.random.default_rng(1).normal(size=(4, 64)).astype(np.float32)
    weight[1] = 0
    moments = np.zeros((64, 64))
    found = quantise_w4_on(weight, moments)
    np.testing.assert_array_equal(found.dequantise()[1], np.zeros(64))
    assert np.abs(found.dequantise() - weight).max() < 0.3
    for wrong in (np.zeros((63, 63)), np.full((64, 64), np.nan)):
        with pytest.raises(ValueError, match="moments are"):
            quantise_w4_on(weight, wrong)


def _texts(count: int = 6, tokens: int = 24) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(3)
    return [{"ids": rng.integers(0, 64, tokens)} for _ in range(count)]


SIZES = {"hidden": 64, "head_dim": 16, "rotated": 16, "wide": 96, "vocabulary": 64, "layers": 2}


def _lost(model: LogicalGraph, small: LogicalGraph) -> float:
    """Mean square error of logits on texts that calibration has not seen."""
    run, golden = reference(model, np.float32), GoldenModel(small)
    ids = [np.random.default_rng(seed).integers(0, 64, 24) for seed in range(40, 44)]
    errors = [run({"ids": one}, every_row=True)[0]["logits"] - golden.logits(one) for one in ids]
    return float(np.square(errors).mean())


def test_a_decoder_loses_less(tmp_path: Path) -> None:
    model = random_decoder(**SIZES)
    told: list[str] = []
    small = calibrated(model, _texts(20), NUMBERS, tmp_path / "work", told.append)
    formats = {p: o.op.weight.format for p, o in small.walk() if isinstance(o.op, Linear)}
    assert {p for p, form in formats.items() if form == "w8"} == {"logits", "layers[1].o"}
    count = len(formats) - 2
    assert told[0] == f"calibrating layers[0].q, 1 of {count}" and told[-2:][0].endswith(
        f"{count} of {count}"
    )
    assert len(list((tmp_path / "work").glob("*.npz"))) == count
    assert small.quantised(NUMBERS).op("layers[0].q").weight is small.op("layers[0].q").weight
    assert _lost(model, small) < 0.85 * _lost(model, model.quantised(NUMBERS))


def test_a_full_disk(tmp_path: Path) -> None:
    """Said with its place; what is finished stays, and nothing of what is not."""
    with full_disk(1000), pytest.raises(OSError) as caught:
        calibrated(random_decoder(**SIZES), _texts(2), NUMBERS, tmp_path)
    assert Path(caught.value.filename).parent == tmp_path
    assert [file.name for file in tmp_path.iterdir()] == [rounding.KEY_FILE]


def test_it_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, texts = random_decoder(**SIZES), _texts(2)
    whole = calibrated(model, texts, NUMBERS)
    made = []

    def stopped(*given: Any, **options: Any) -> QuantisedWeight:
        made.append(given)
        if len(made) == 5:
            raise KeyboardInterrupt
        return quantise_w4_on(*given, **options)

    monkeypatch.setattr(rounding, "quantise_w4_on", stopped)
    with pytest.raises(KeyboardInterrupt):
        calibrated(model, texts, NUMBERS, tmp_path)
    assert len(list(tmp_path.glob("*.npz"))) == 4 and not list(tmp_path.glob("*.part"))
    again = calibrated(model, texts, NUMBERS, tmp_path)
    count = len([o for _, o in model.walk() if isinstance(o.op, Linear)]) - 2
    assert len(made) == 5 + count - 4
    for path, operation in whole.walk():
        if isinstance(operation.op, Linear):
            one, two = operation.op.weight, again.op(path).weight
            assert isinstance(one, QuantisedWeight)
            np.testing.assert_array_equal(one.dequantise(), two.dequantise())
            assert (one.format, one.group) == (two.format, two.group)


def test_folders_that_are_of_others_or_damaged(tmp_path: Path) -> None:
    model, texts = random_decoder(**SIZES), _texts(2)
    calibrated(model, texts, NUMBERS, tmp_path)
    for changed in ((model, texts[:1], NUMBERS), (random_decoder(1, **SIZES), texts, NUMBERS)):
        with pytest.raises(CheckpointError, match="belongs to a calibration with other texts, weights"):
            calibrated(*changed, tmp_path)
    with pytest.raises(CheckpointError, match="belongs to a calibration with other"):
        calibrated(model, texts, Numbers(), tmp_path)
    file = tmp_path / "layers[1].up.npz"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(
        CheckpointError, match=r"layers\[1\]\.up\.npz is damaged: .*; remove it to have it made"
    ):
        calibrated(model, texts, NUMBERS, tmp_path)
    (tmp_path / "calibration.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"calibration\.json is damaged: .*; remove the folder"):
        calibrated(model, texts, NUMBERS, tmp_path)


def test_a_module_and_wrong_texts() -> None:
    weight = np.random.default_rng(1).normal(size=(5, 64)).astype(np.float32)
    graph = LogicalGraph((Input("x", 64),), (Operation("y", Linear(weight), ("x",)),), ("y",))
    x = _correlated(30, 64).astype(np.float32)
    small = calibrated(graph, [{"x": x}, {"x": x[:3]}], Numbers())
    assert small.op("y").weight.format == "w4"
    assert exact(small)({"x": x})[0]["y"].shape == (30, 5)
    for texts, message in (
        ([], "calibration needs texts; there are none"),
        ([{"ids": x}], "inputs are ['x'], a text has ['ids']"),
        ([{"x": x[:, :3]}], "input 'x' of a text has shape [30, 3]"),
        ([{"x": x[:0]}], "input 'x' of a text has shape [0, 64]"),
    ):
        with pytest.raises(ValueError) as error:
            calibrated(graph, texts, Numbers())
        assert str(error.value) == message
    decoder = random_decoder(**SIZES, context=16)
    with pytest.raises(ValueError, match="a text has 17 tokens; the context is 16"):
        calibrated(decoder, [{"ids": np.zeros(17, int)}], NUMBERS)


def _formats(graph: LogicalGraph) -> dict[str, str]:
    return {p: o.op.weight.format for p, o in graph.walk() if isinstance(o.op, Linear)}


def test_bits_go_where_they_save_most() -> None:
    model, texts = random_decoder(**SIZES), _texts(4)
    given = Numbers(by_layer={"logits": "w8"})
    told: list[str] = []
    numbers = within_bits(model, texts, given, 5.5, told.append)
    assert told[0].startswith("weighing layers[[]*].q, 1 of ") and not told[-1]
    small = model.quantised(numbers)
    formats = _formats(small)
    wide = {path.split(".")[-1] for path, form in formats.items() if form == "w8"}
    assert wide > {"logits"} and "w4" in formats.values()
    assert all(formats[path.replace("[0]", "[1]")] == form for path, form in formats.items())
    sizes = {p: o.op.extents[0] * o.op.extents[1] for p, o in small.walk() if isinstance(o.op, Linear)}
    spent = sum(size * (8 if formats[p] == "w8" else 4.5) for p, size in sizes.items()) / sum(sizes.values())
    assert spent <= 5.5
    # what is chosen is better than the other choices of as many bits
    best = _lost(model, small)
    names = sorted({path.split(".")[-1] for path in sizes if path != "logits"} - wide)
    for name in names:
        other = replace(given, by_layer={**given.by_layer, f"layers[[]*].{name}": "w8"})
        assert best <= _lost(model, model.quantised(other)) * 1.05


def test_all_or_nothing_of_a_budget() -> None:
    model, texts = random_decoder(**SIZES), _texts(1)
    assert set(_formats(model.quantised(within_bits(model, texts, Numbers(), 8))).values()) == {"w8"}
    tight = within_bits(model, texts, Numbers(), 4.5)
    assert set(_formats(model.quantised(tight)).values()) == {"w4"}
    assert within_bits(model, texts, Numbers(weights="w8"), 8) == Numbers(weights="w8")
    with pytest.raises(ValueError, match=r"a budget of 4\.4 bits .* too small: .* have 4\.5"):
        within_bits(model, texts, Numbers(), 4.4)
    with pytest.raises(ValueError, match="the choice of formats needs texts; there are none"):
        within_bits(model, [], Numbers(), 5)


@pytest.mark.parametrize("change", [turned, stretched])
def test_other_coordinates_are_the_same_function(change: Callable[[LogicalGraph], LogicalGraph]) -> None:
    """What the benchmark calibrates: no weight is what it was."""
    model = random_decoder(**SIZES)
    found = change(model)
    ids = {"ids": np.arange(20)}
    (expected, _), (other, _) = (reference(graph)(ids, every_row=True) for graph in (model, found))
    assert np.abs(other["logits"] - expected["logits"]).max() < 1e-5 * np.abs(expected["logits"]).max()
    for name in ("q", "v", "o", "gate", "up", "down"):
        one, two = (graph.op(f"layers[1].{name}").floats for graph in (model, found))
        assert (one != two).mean() > 0.99
