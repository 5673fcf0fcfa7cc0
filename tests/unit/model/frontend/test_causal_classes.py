"""Every causal class of transformers: right or refused in plain words, as module, folder, config.json."""

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streamgen.base.errors import StreamgenError
from streamgen.model.frontend import import_any, load_decoder, shapes_of
from streamgen.model.graph.interpret import reference
from streamgen.model.graph.logical import LogicalGraph
from tests.shared.campaigns import sampled
from tests.unit.model.frontend.causal_classes import (
    CLASSES,
    VOCABULARY,
    WITHOUT_A_MODULE,
    config_of,
    model_of,
)

TOKENS = 19
LINES = 9  # of a refusal: one, and eight more
FOREIGN = re.compile(
    r"site-packages|Sizes of tensors|has no attribute|Mismatching|Attempting to|torch\.export|aten\."
)
"""What the first line must not have: names of torch's, of Python's, and of files that are not the user's."""
CHECKED = random.Random(1).sample(CLASSES, 12)


def _refused(error: StreamgenError) -> None:
    """A refusal is short, and its first line is for people."""
    first, *others = str(error).splitlines()
    assert not FOREIGN.search(first), first
    assert len(others) < LINES, str(error)
    assert not any("site-packages" in line for line in others), str(error)


def _outcome(call: Callable[[], LogicalGraph], model: Any = None) -> str:
    """`right` or `refused`; AssertionError for a wrong graph and a refusal that nobody understands."""
    try:
        graph = call()
    except StreamgenError as error:
        _refused(error)
        return "refused"
    if model is not None:
        ids = np.random.default_rng(3).integers(3, VOCABULARY - 2, TOKENS)
        with torch.no_grad():
            eager = model(torch.as_tensor(ids)[None]).logits[0].double().numpy()
        found = reference(graph)({"ids": ids}, every_row=True)[0]["logits"]
        assert np.linalg.norm(found - eager) <= 1e-5 * np.linalg.norm(eager)
    return "right"


@pytest.mark.slow
@pytest.mark.parametrize("kind", sampled(CLASSES, CHECKED))
@pytest.mark.filterwarnings("ignore")  # transformers' own
def test_right_or_refused(kind: str, tmp_path: Path) -> None:
    config = config_of(kind)
    if kind in WITHOUT_A_MODULE:
        config.save_pretrained(tmp_path)
        assert _outcome(lambda: shapes_of(tmp_path / "config.json")) == "refused"
        return
    model = model_of(config)
    model.save_pretrained(tmp_path / "folder")
    config.save_pretrained(tmp_path / "config")
    outcomes = {
        "module": _outcome(lambda: import_any(model)[0], model),
        "folder": _outcome(lambda: load_decoder(tmp_path / "folder"), model),
        "config": _outcome(lambda: shapes_of(tmp_path / "config" / "config.json")),
    }
    if type(model.config) is not type(config):
        del outcomes[
            "folder"
        ]  # of a part of the configuration, which transformers may open as no causal model
    assert len(set(outcomes.values())) == 1, outcomes
