"""Encoders and classifiers of transformers: small ones on their Verilog, whole ones on the golden model."""

from pathlib import Path

import numpy as np
import pytest
import torch

import streamgen
from streamgen.model.frontend import checking, import_any
from streamgen.model.graph.interpret import exact
from tests.shared.transformers_encoders import WHOLE, encoded, made, small

CONFIG = streamgen.CompileConfig(name="encoder", max_tokens=12, weights="w8")
TOKENS = 16
NEAR = 0.08  # 8-bit weights and activations; small matrices of random numbers hide little of their rounding


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_folder(tmp_path: Path) -> None:
    """Marks for each token of a text, from a folder and the dict of a tokenizer."""
    model = small("Bert tokens")
    model.save_pretrained(tmp_path / "model")
    accelerator = streamgen.compile(tmp_path / "model", encoded(5, types=True), CONFIG)
    given = encoded(12, types=True)
    golden = accelerator.golden(given)
    with torch.no_grad():
        require_near(golden["logits"], model(**given).logits, NEAR)
    assert accelerator.run(given)["logits"].tobytes() == golden["logits"].tobytes()
    again = streamgen.load(accelerator.write(tmp_path / "written"))
    assert again.golden(given)["logits"].tobytes() == golden["logits"].tobytes()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_padded_texts() -> None:
    """A text without padding and a padded one, whose ids of padding do not enter."""
    model = small("Roberta sequence")
    accelerator = streamgen.compile(model, encoded(5), CONFIG)
    given = encoded(9, 2)
    given["input_ids"][1, 6:], given["attention_mask"][1, 6:] = 1, 0
    golden = accelerator.golden(given)
    with torch.no_grad():
        require_near(golden["logits"], model(**given).logits, NEAR)
    assert accelerator.run(given)["logits"].tobytes() == golden["logits"].tobytes()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_windows_on_both_sides() -> None:
    """Attention of a few tokens on both sides; texts that are shorter than a window, as long and longer."""
    model = small("ModernBert")
    accelerator = streamgen.compile(model, None, CONFIG)
    for tokens in (2, 4, 12):
        ids = encoded(tokens)["input_ids"]
        golden = accelerator.golden(ids)
        with torch.no_grad():
            require_near(golden["last_hidden_state"], model(ids).last_hidden_state, NEAR)
        found = accelerator.run(ids)["last_hidden_state"]
        assert found.tobytes() == golden["last_hidden_state"].tobytes()


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", ["DistilBert tokens", "Electra tokens", "Albert"])
def test_other_families(family: str) -> None:
    model, ids = small(family), encoded(12)["input_ids"]
    accelerator = streamgen.compile(model, None, CONFIG)
    golden, found = accelerator.golden(ids), accelerator.run(ids)
    with torch.no_grad():
        wanted = model(ids)
    for name, rows in golden.items():
        require_near(rows, wanted[name], NEAR)
        assert found[name].tobytes() == rows.tobytes()


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", WHOLE)
def test_whole_models(family: str) -> None:
    """The sizes of each configuration, with 8-bit weights and activations. The layers of ALBERT share their
    weights and so the rounding of them, which does not average out."""
    model = made(*WHOLE[family])
    with checking(False):  # which small models are for
        graph, interface = import_any(model, None, TOKENS)
    assert interface is not None
    ids = torch.randint(5, 20000, (1, TOKENS), generator=torch.Generator().manual_seed(4))
    taken = {name: array.reshape(TOKENS) for name, array in interface.taken((ids.numpy(),)).items()}
    computed, _ = exact(graph.quantised(CONFIG.numbers(False)))(taken)
    found = interface.rebuilt(computed, (ids.numpy(),))
    with torch.no_grad():
        wanted = model(ids)
    for name, rows in found.items():
        require_near(rows, wanted[name], 0.06 if family == "Albert" else 0.04)


def require_near(found: np.ndarray, wanted: torch.Tensor, bound: float) -> None:
    """The difference is at most so large a part of the values wanted, by the root of their mean squares."""
    difference = np.linalg.norm(found - wanted.numpy()) / np.linalg.norm(wanted.numpy())
    assert found.shape == wanted.shape and difference < bound, difference
