"""Modules of several extents as hardware: small ones on their Verilog, whole ones on the golden model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import streamgen
from streamgen.model.frontend import checking, import_any
from streamgen.model.graph.interpret import exact
from tests.shared.framed_modules import MODULES, SHAPES, WHOLE, framed_module, of_transformers

CONFIG = streamgen.CompileConfig(name="framed", weights="w8")


def _require_equal(accelerator: Any, *given: Any) -> None:
    golden, found = accelerator.golden(*given), accelerator.run(*given)
    for wanted, rows in zip(_arrays(golden), _arrays(found), strict=True):
        assert wanted.tobytes() == rows.tobytes()


def _arrays(nest: Any) -> list[np.ndarray]:
    if isinstance(nest, dict):
        return [array for part in nest.values() for array in _arrays(part)]
    return (
        []
        if nest is None
        else [nest]
        if isinstance(nest, np.ndarray)
        else [a for p in nest for a in _arrays(p)]
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["patches", "cross, longer queries", "relative places"])
def test_rtl_is_golden(name: str, tmp_path: Path) -> None:
    """The example, other numbers, and the design from its folder."""
    module, example = framed_module(name)
    accelerator = streamgen.compile(module, example, CONFIG)
    _require_equal(accelerator, *(x.numpy() for x in example))
    other = tuple(x.flip(-1).numpy() for x in example)
    _require_equal(accelerator, *other)
    again = streamgen.load(accelerator.write(tmp_path / "written"))
    for wanted, rows in zip(_arrays(accelerator.golden(*other)), _arrays(again.golden(*other)), strict=True):
        assert wanted.tobytes() == rows.tobytes()
    shorter = tuple(x[:, 1:].numpy() for x in example)
    with pytest.raises(ValueError, match="the module was compiled for"):
        accelerator.run(*shorter)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_encoder_beside_decoder() -> None:
    """T5: biases in two of three attentions, so that streams of scores change their way between phases."""
    model, example = of_transformers("T5", SHAPES)
    accelerator = streamgen.compile(model, example, CONFIG)
    _require_equal(accelerator, {name: x.numpy() for name, x in example.items()})


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", sorted(MODULES.keys() - {"patches", "cross, longer queries", "relative places"})
)
def test_other_modules(name: str) -> None:
    module, example = framed_module(name)
    accelerator = streamgen.compile(module, example, CONFIG)
    _require_equal(accelerator, *(x.numpy() for x in example))


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", sorted(SHAPES.keys() - {"T5"}))
def test_other_families(family: str) -> None:
    model, example = of_transformers(family, SHAPES)
    accelerator = streamgen.compile(model, example, CONFIG)
    _require_equal(accelerator, {name: x.numpy() for name, x in example.items()})


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("family", WHOLE)
def test_whole_models(family: str) -> None:
    """The sizes of each configuration, with 8-bit weights and activations."""
    model, example = of_transformers(family, WHOLE)
    with checking(False):  # which small models are for
        graph, interface = import_any(model, example)
    assert interface is not None
    given = ({name: x.numpy() for name, x in example.items()},)
    taken = {
        name: array.reshape(graph.tokens, *([] if name in graph.vocabularies else [-1]))
        for name, array in interface.taken(given).items()
    }
    found = interface.rebuilt(exact(graph.quantised(CONFIG.numbers(False)))(taken)[0], given)
    with torch.no_grad():
        wanted = model(**example)
    for name, rows in found.items():
        if rows is not None:
            tensor = wanted[name].numpy()
            assert rows.shape == tensor.shape
            assert np.linalg.norm(rows - tensor) / np.linalg.norm(tensor) < 0.05
