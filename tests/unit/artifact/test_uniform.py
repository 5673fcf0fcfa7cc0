"""Weights that are one number everywhere are packed once; what is packed is what it would be otherwise."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest

import streamgen
from streamgen.compiler.config import CompileConfig
from streamgen.model.graph.logical import Input, LogicalGraph, Operation
from streamgen.model.operations import Binary, Embedding, Linear
from streamgen.numbers.quantisation import is_uniform, quantise
from tests.shared.campaigns import sampled

CONFIG = CompileConfig(name="uniform", channels=2, multipliers=128, policy="shared", max_tokens=2)


def gated(wide: int, factor: float, filled: bool) -> LogicalGraph:
    """Two matmuls that meet, then a third; weights of one number each, as arrays or as views."""

    def linear(rows: int, columns: int, value: float) -> Linear:
        shapes = (rows, columns), (rows,)
        views = [np.broadcast_to(np.float32(value), shape) for shape in shapes]
        return Linear(*(view.copy() if filled else view for view in views))

    return LogicalGraph(
        (Input("x", 64),),
        (
            Operation("gate", linear(wide, 64, 0.5), ("x",)),
            Operation("up", linear(wide, 64, factor), ("x",)),
            Operation("gated", Binary("relu_mul"), ("gate", "up")),
            Operation("down", linear(64, wide, -0.25), ("gated",)),
        ),
        ("down",),
    )


@pytest.mark.slow
@pytest.mark.parametrize(("wide", "factor"), sampled(product((96, 97), (0.5, 0.75)), [(97, 0.5)]))
def test_the_same_weights_in_memory(tmp_path: Path, wide: int, factor: float) -> None:
    """Rows that columns share evenly or not; matmuls that are alike or not."""
    written = []
    for filled in (False, True):
        graph, place = gated(wide, factor, filled), tmp_path / str(filled)
        assert all(is_uniform(graph.op(name).weight) != filled for name in ("gate", "up", "down"))
        streamgen.compile(graph, None, CONFIG).write(place)
        written.append({file.name: file.read_bytes() for file in place.rglob("*weights*")})
    assert written[0]
    assert written[0] == written[1]


@pytest.mark.parametrize("extent", [64, 80])
def test_tables(extent: int) -> None:
    """Codes of a uniform table; the scale of the row behind it is NaN either way."""
    stored = []
    for table in (np.broadcast_to(np.float32(0.5), (100, 64)), np.full((100, 64), 0.5, np.float32)):
        rows = Embedding(quantise(table, form="w8"))
        stored.append((rows._stored("i8", extent)[0], rows._stored("f24", 1)[0]))
    for one, other in zip(*stored, strict=True):
        assert one.shape == other.shape
        assert np.array_equal(one[:-1], other[:-1])
    assert all(np.isnan(scale[-1]).all() for _, scale in stored)
