"""Modules that write a text about a source, whole: encoder and text on the Verilog, with caches."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import streamgen
from streamgen.api.language_model import LanguageModel
from streamgen.compiler.config import CompileConfig
from tests.shared.sourced_modules import Captioner, Translator, from_transformers

CONFIG = CompileConfig(name="sourced", goal="small", channels=4, context=24, max_tokens=4, weights="w8")


def _compiled(module: torch.nn.Module, example: Any, text: int | str) -> LanguageModel:
    found = streamgen.compile(module.eval(), example, CONFIG, text=text)
    assert isinstance(found, LanguageModel) and found.encoder is not None
    return found


def _written_by(
    module: torch.nn.Module, example: Any, text: int | str, ids: list[int], count: int
) -> list[int]:
    """The likeliest ids by torch, in float32."""
    ids = list(ids)
    with torch.no_grad():
        for _ in range(count):
            given = torch.tensor([ids])
            if isinstance(example, dict):
                results = module(**{**example, text: given})
            else:
                results = module(*[given if n == text else part for n, part in enumerate(example)])
            ids.append(int(getattr(results, "logits", results)[0, -1].argmax()))
    return ids[-count:]


@pytest.mark.slow
def test_a_translation_on_verilog(tmp_path: Path) -> None:
    """Another source of as many words than that of the example; the model is written and loaded."""
    torch.manual_seed(0)
    module, words = Translator(), torch.tensor([[5, 9, 2, 6, 5, 3]])
    model = _compiled(module, (torch.zeros_like(words), torch.tensor([[1, 2]])), 1)
    source = model.source(words, golden=True)
    prompt = [7, 3, 9]
    golden = list(model.generate(prompt, 5, source=source, golden=True))
    assert golden == _written_by(module, (words, None), 1, prompt, 5)
    loaded = streamgen.load(model.write(tmp_path / "translator"))
    assert isinstance(loaded, LanguageModel) and loaded.encoder is not None
    found = loaded.source(words)
    for rows, expected in zip(found.arrays, source.arrays, strict=True):
        np.testing.assert_array_equal(rows, expected)
    assert list(loaded.generate(prompt, 5, source=found)) == golden
    np.testing.assert_array_equal(loaded.run([7, 3], words), model.golden([7, 3], source))
    loaded.write(tmp_path / "again")
    assert (tmp_path / "again" / "encoder" / "manifest.json").read_bytes() == (
        tmp_path / "translator" / "encoder" / "manifest.json"
    ).read_bytes()
    loaded.close()


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.parametrize("name", from_transformers())
def test_models_of_transformers_on_verilog(name: str) -> None:
    module, example, text = from_transformers()[name]
    model = _compiled(module, example, text)
    (given,) = pytree.tree_leaves({key: value for key, value in example.items() if key != text})
    source = model.source(given, golden=True)
    found = model.source(given)
    for rows, expected in zip(found.arrays, source.arrays, strict=True):
        np.testing.assert_array_equal(rows, expected)
    golden = list(model.generate([1, 5], 4, source=source, golden=True))
    assert list(model.generate([1, 5], 4, source=found)) == golden
    model.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*from_transformers(), "features"])
def test_golden_logits_are_near_those_of_torch(name: str) -> None:
    """8-bit weights, 8-bit keys and values."""
    torch.manual_seed(3)
    features = (torch.tensor([[1, 2, 3]]), torch.randn(1, 9, 24))
    cases = {"features": (Captioner(), features, 0), **from_transformers()}
    module, example, text = cases[name]
    model = _compiled(module, example, text)
    ids = torch.tensor([[4, 9, 17, 8, 33, 5, 21]])
    parts = example.items() if isinstance(example, dict) else enumerate(example)
    (given,) = pytree.tree_leaves([part for key, part in parts if key != text])
    with torch.no_grad():
        if isinstance(example, dict):
            wanted = module(**{**example, text: ids}).logits[0].numpy()
        else:
            wanted = module(ids, given)[0].numpy()
    found = model.golden.logits(ids[0].numpy(), source=model.source(given, golden=True))
    assert np.abs(found - wanted).max() < 0.05 * np.abs(wanted).max()
