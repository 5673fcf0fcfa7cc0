"""Texts with a source: its keys and values are written by the host, and every pass reads them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamgen.api.language_model import LanguageModel
from streamgen.compiler.config import CompileConfig
from streamgen.model.graph.interpret import reference
from streamgen.runtime.memory import MemoryModel
from tests.shared.campaigns import sampled
from tests.shared.decoders import compiled_model, opened_model
from tests.shared.sourced_decoders import random_source, sourced_decoder

SIZES = {"hidden": 64, "head_dim": 16, "rotated": 16, "wide": 96, "vocabulary": 64, "context": 40}
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "three layers": ({"layers": 3}, {"channels": 4, "n_lanes": 2, "lanes": 2}),
    "one head each": (
        {"layers": 2, "cross": (2, 2), "source": 33},
        {"channels": 2, "n_lanes": 4, "lanes": 4},
    ),
    "one key head": ({"layers": 2, "cross": (4, 1), "source": 1}, {"channels": 2, "lanes": 2}),
    "own columns": ({"layers": 1, "source": 9}, {"channels": 2, "policy": "spatial"}),
}


def _model(name: str) -> LanguageModel:
    shape, choices = MODELS[name]
    graph = sourced_decoder(1, **{**SIZES, **shape})
    return compiled_model(graph, CompileConfig(name="sourced", max_tokens=4, weights="w8", **choices))


def test_golden_follows_the_reference() -> None:
    model = _model("three layers")
    graph = sourced_decoder(1, **{**SIZES, "layers": 3})
    ids = np.random.default_rng(0).integers(0, 64, 9)
    source = model.source(*random_source(graph, 7))
    assert source is not None
    wanted = reference(graph)({"ids": ids}, state=source.floats, every_row=True)[0]["logits"]
    found = model.golden.logits(ids, source=source)
    assert np.abs(found - wanted).max() < 0.06 * np.abs(wanted).max()
    other = model.source(*random_source(graph, 7, seed=1))
    assert np.abs(model.golden.logits(ids, source=other) - found).max() > 0.2 * np.abs(wanted).max()


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(MODELS, ["three layers", "own columns"]))
def test_logits_are_those_of_golden_and_cycles_those_predicted(name: str) -> None:
    """Sources of one row, of the most rows and of rows between, each with a text of its own; memory answers
    when it likes."""
    model = _model(name)
    layers = model.source_layers
    assert layers is not None
    ids = np.random.default_rng(0).integers(0, 64, 8)
    sources = [
        model.source(*random_source(model._quantised, rows, seed=rows))
        for rows in sorted({1, max(1, layers.most - 4), layers.most})
    ]
    for memory in (None, MemoryModel(delays=40, seed=1)):
        device = model.device(memory)
        for source in sources:
            assert source is not None
            session, at = model._session(device, source), 0
            expected = model.golden.logits(ids, source=source)
            for tokens in (3, 1, 4):
                at += tokens
                np.testing.assert_array_equal(session.last_logits(ids[at - tokens : at]), expected[at - 1])
                run = device.passes[-1]
                assert run.source == source.rows
                if memory is None:
                    wanted = model.predict(run.tokens, run.position, run.variant, run.source)
                    assert run.cycles == pytest.approx(wanted, rel=0.05)
    model.close()


@pytest.mark.slow
def test_texts_with_different_sources_take_turns(tmp_path: Path) -> None:
    """Also those of a model that was written and loaded."""
    _model("own columns").write(tmp_path / "sourced")
    model = opened_model(tmp_path / "sourced")
    ids = np.random.default_rng(3).integers(0, 64, 6)
    sources = [model.source(*random_source(model._quantised, rows, seed=rows)) for rows in (9, 4)]
    sessions = [model.session(source=source) for source in sources]
    for at in range(0, 6, 2):
        for session, source in zip(sessions, sources, strict=True):
            wanted = model.golden.logits(ids[: at + 2], source=source)[-1]
            np.testing.assert_array_equal(session.last_logits(ids[at : at + 2]), wanted)
    rows = random_source(model._quantised, 4, seed=4)
    np.testing.assert_array_equal(model.run(ids, *rows), model.golden(ids, source=sources[1]))
    written = model.generate(ids.tolist(), 4, source=sources[0])
    assert list(written) == list(model.golden.generate(ids, 4, source=sources[0]))
    model.close()


def test_wrong_sources_are_refused() -> None:
    model = _model("own columns")
    rows = random_source(model._quantised, 9)
    ids = [1, 2]
    for given, message in (
        (rows[:1], "the source has 1 arrays; 2 are needed, keys and values of each of 1 layers"),
        ([rows[0], rows[1][:3]], r"array 1 of the source has shape \[3, 32\]; \[rows, 32\] with 1 to 9 rows"),
        ([np.zeros((10, 32))] * 2, r"array 0 of the source has shape \[10, 32\]"),
    ):
        with pytest.raises(ValueError, match=message):
            model.source(*given)
    for refused in (lambda: model.session(), lambda: model.golden(ids), lambda: model.run(ids)):
        with pytest.raises(ValueError, match=r"^the text needs a source: keys and values of 1 layers"):
            refused()


def test_a_text_with_a_source_is_not_packaged(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^a language model with a source cannot be packaged yet"):
        _model("own columns").package(tmp_path / "package")
    assert not (tmp_path / "package").exists()
