"""Tokens that are found at run time, and rows of a sequence beside its tokens, as hardware."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import streamgen
from tests.shared.framed_modules import TEXTS, of_transformers

CONFIG = streamgen.CompileConfig(name="found", weights="w8")


def _require_equal(accelerator: Any, *given: Any) -> None:
    golden, found = accelerator.golden(*given), accelerator.run(*given)
    assert golden.keys() == found.keys()
    for name, rows in golden.items():
        assert rows is found[name] is None or rows.tobytes() == found[name].tobytes()


class Classifier(nn.Module):
    """A text without padding by its last token and the greatest id, its tokens centred and weighed."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.rows, self.score, self.head = nn.Embedding(40, 16), nn.Linear(16, 1), nn.Linear(16, 3)

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.rows(ids)
        x = x - x.mean(1, keepdim=True)
        every = torch.arange(len(ids))
        pooled = (self.score(x).softmax(1) * x).sum(1)
        last = x[every, (ids != 0).sum(1) - 1]
        return {"last": self.head(last + pooled), "greatest": x[every, ids.argmax(1)], "place": ids.argmax(1)}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_own_classifier() -> None:
    """Also more tokens than the loads of their rows hold: the rows wait until the token is found."""
    ids = torch.tensor([[5, 7, 9, 7, 0, 0], [1, 39, 39, 4, 3, 2]])
    long = torch.randint(1, 40, (1, 24), generator=torch.Generator().manual_seed(1))
    module = Classifier().eval()
    accelerator = streamgen.compile(module, long, replace(CONFIG, max_tokens=24))
    for given in (long, ids, torch.tensor([[0, 0, 0]]), torch.tensor([[8], [3]])):
        _require_equal(accelerator, given.numpy())
        with torch.no_grad():
            wanted, found = module(given), accelerator.golden(given.numpy())
        assert np.array_equal(found["place"], wanted["place"].numpy())
        np.testing.assert_allclose(found["greatest"], wanted["greatest"].numpy(), atol=1e-3)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_text_of_clip() -> None:
    """The id that ends a text occurs twice, then nowhere."""
    model, example = of_transformers("CLIP text", TEXTS)
    accelerator = streamgen.compile(model, example, CONFIG)
    for ids in ([[48, 3, 49, 7, 49, 2]], [[48, 9, 3]]):
        _require_equal(accelerator, {"input_ids": np.array(ids)})


@pytest.mark.campaign
@pytest.mark.timeout(1800)
def test_classifier_of_gpt2() -> None:
    model, example = of_transformers("GPT-2 classifier", TEXTS)
    accelerator = streamgen.compile(model, example, CONFIG)
    _require_equal(accelerator, {name: x.numpy() for name, x in example.items()})
