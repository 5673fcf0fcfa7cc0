"""Every format of weights in whole designs: columns of their own, an engine, estimates and searches."""

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

import streamgen
from streamgen import cli
from streamgen.api.accelerator import Accelerator
from streamgen.api.search import Space
from streamgen.base.errors import GraphError
from streamgen.compiler.config import CompileConfig
from streamgen.kernels.matmul.matmul import ColumnParams
from streamgen.model.calibration import calibrated
from streamgen.model.frontend import import_module
from streamgen.model.graph.interpret import reference
from streamgen.numbers.weights import BYTES, FORMATS, WeightFormat
from tests.shared.accelerators import RESIDUAL, Residual
from tests.shared.decoders import TINY, compiled_model, tiny_decoder

FORMS = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
NARROW = [form.name for form in FORMATS.values() if form.is_narrow]
ENGINE = CompileConfig(
    name="engine", max_tokens=2, channels=2, multipliers=128, policy="shared", n_lanes=2, lanes=2
)


def module() -> torch.nn.Module:
    torch.manual_seed(3)
    return Residual().eval()


@cache
def with_columns(name: str) -> Accelerator:
    """Columns of their own for weights of a format; compiled once a process."""
    return streamgen.compile(module(), torch.zeros(2, 40), replace(RESIDUAL, weights=name))


@FORMS
def test_golden_is_near_the_reference(form: WeightFormat) -> None:
    """Weights as they are rounded, activations of 8 bits."""
    config = replace(RESIDUAL, weights=form.name)
    graph = import_module(module(), torch.zeros(2, 40)).quantised(config.numbers(False))
    x = np.random.default_rng(0).normal(size=(8, 40)).astype(np.float32)
    (meant,) = reference(graph, np.float64)({graph.inputs[0].name: x}, every_row=True)[0].values()
    found = with_columns(form.name).golden(x)
    assert np.abs(found - meant).max() <= 0.02 * np.abs(meant).max()


@pytest.mark.slow
@FORMS
def test_columns_of_their_own(form: WeightFormat) -> None:
    accelerator = with_columns(form.name)
    x = np.random.default_rng(1).normal(size=(5, 40)).astype(np.float32)
    np.testing.assert_array_equal(accelerator.run(x), accelerator.golden(x))
    accelerator.close()


@pytest.mark.slow
@FORMS
def test_an_engine_with_bytes_beside(form: WeightFormat) -> None:
    config = replace(ENGINE, weights=form.name, formats={"down": BYTES.name})
    accelerator = streamgen.compile(module(), torch.zeros(2, 40), config)
    (group,) = accelerator.groups
    columns = [node.params for node in group.program.graph.nodes if isinstance(node.params, ColumnParams)]
    assert {column.formats for column in columns} == {tuple(dict.fromkeys([form.name, BYTES.name]))}
    x = np.random.default_rng(2).normal(size=(3, 40)).astype(np.float32)
    np.testing.assert_array_equal(accelerator.run(x), accelerator.golden(x))
    accelerator.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NARROW if name != "w4"])
def test_a_language_model(name: str) -> None:
    """Layers in a narrow format, the head in bytes."""
    model = compiled_model(tiny_decoder(), replace(TINY, weights=name))
    ids = np.random.default_rng(0).integers(0, 64, 9)
    np.testing.assert_array_equal(model.logits(ids), model.golden.logits(ids))
    assert list(model.generate(ids[:5], 3)) == list(model.golden.generate(ids[:5], 3))
    model.close()


@FORMS
def test_estimates_and_searches_take_it(form: WeightFormat, capsys: pytest.CaptureFixture[str]) -> None:
    config = replace(RESIDUAL, weights=form.name)
    found = streamgen.estimate(module(), torch.zeros(2, 40), config)
    assert found.passes[0].cycles > 0
    assert cli.main(["estimate", "examples/mlp.py:mlp", "--weights", form.name, "--json"]) == 0
    assert '"cycles"' in capsys.readouterr().out
    space = Space(import_module(module(), torch.zeros(2, 40)), config, {})
    assert space.evaluate(space.default).tokens_per_second > 0
    assert space._weight_bits == 2 * 40 * 24 * form.code_bits


def test_bytes_of_memory_follow_the_codes() -> None:
    """Weights of a narrow format take fewer bytes than those of w8."""
    sizes = {}
    for name in FORMATS:
        buffers = with_columns(name).manifest.buffers
        sizes[name] = sum(buffer.bytes for buffer in buffers if buffer.file is not None)
    assert all(sizes[name] < 0.75 * sizes[BYTES.name] for name in NARROW)


def test_an_engine_has_one_narrow_format() -> None:
    """Several are refused there by name, and have columns of their own."""
    formats = dict(zip(("up", "down"), NARROW, strict=False))
    message = (
        f"an engine takes weights of one narrow format and w8, but its matmuls have {formats['up']} (up), "
        f"{formats['down']} (down). Give all matmuls one format, or give them columns of their own "
        "(policy='spatial')"
    )
    with pytest.raises(GraphError, match=re.escape(message)):
        streamgen.compile(module(), torch.zeros(2, 40), replace(ENGINE, formats=formats))
    accelerator = streamgen.compile(module(), torch.zeros(2, 40), replace(RESIDUAL, formats=formats))
    (group,) = accelerator.groups
    columns = [node.params for node in group.program.graph.nodes if isinstance(node.params, ColumnParams)]
    assert {column.formats for column in columns} == {(name,) for name in formats.values()}


@pytest.mark.parametrize("name", [name for name in NARROW if name != "w4"])
def test_calibration_says_what_it_rounds(name: str) -> None:
    graph = import_module(module(), torch.zeros(2, 40))
    text = {graph.inputs[0].name: np.ones((4, 40), np.float32)}
    with pytest.raises(ValueError, match=rf"^up is to be {name}; calibration rounds to w4: give the matmul"):
        calibrated(graph, [text], replace(RESIDUAL, weights=name).numbers(False))
