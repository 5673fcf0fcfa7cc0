"""Stored graphs: what is loaded is what was saved, shared arrays once; damaged files are told."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamgen.base.errors import CheckpointError
from streamgen.model.graph.interpret import exact, reference
from streamgen.model.graph.logical import Input, LogicalGraph, Operation, Operator
from streamgen.model.operations import Linear, Scalar
from streamgen.model.operations.storage import load_graph, save_graph
from streamgen.numbers.quantisation import GroupGrid, Numbers
from tests.shared.decoders import assembled, random_decoder, random_parts

IDS = np.random.default_rng(0).integers(0, 70, 12)


@pytest.mark.parametrize("changes", [{}, {"windows": (None, 4), "norm": "layer", "bias": True}])
def test_what_is_loaded_is_what_was_saved(tmp_path: Path, changes: dict[str, Any]) -> None:
    graph = random_decoder(**changes).quantised(Numbers(by_layer={"layers[[]1].*": "w8"}))
    save_graph(graph, tmp_path / "a.npz")
    found = load_graph(tmp_path / "a.npz")
    assert (str(found), found.form(), found.name) == (str(graph), graph.form(), graph.name)
    assert (found.context, found.requested) == (64, frozenset({"logits"}))
    for name, array in exact(graph)({"ids": IDS})[0].items():
        np.testing.assert_array_equal(exact(found)({"ids": IDS})[0][name], array)


def test_shared_arrays_are_stored_once(tmp_path: Path) -> None:
    """Floats and grids may be stored too."""
    parts = random_parts()
    tied, loose = tmp_path / "tied.npz", tmp_path / "loose.npz"
    save_graph(assembled(parts | {"head": Linear(parts["embedding"])}), tied)
    save_graph(assembled(parts), loose)
    assert loose.stat().st_size - tied.stat().st_size >= parts["embedding"].nbytes
    found = load_graph(tied)
    assert found.op("logits").weight is found.op("embedding").table
    grid = GroupGrid(np.ones((4, 32), np.uint8), *[np.ones((4, 1), np.float32)] * 2)
    linear = Linear(grid.dequantise().astype(np.float32), None, grid)
    graph = LogicalGraph((Input("x", 32),), (Operation("y", linear, ("x",), "a.py:1"),), ("y",))
    save_graph(graph, tied)
    x = np.ones((2, 32))
    np.testing.assert_array_equal(reference(load_graph(tied))({"x": x})[0]["y"], np.full((2, 4), 64.0))
    assert load_graph(tied).operations[0].where == "a.py:1"


def _tree(path: Path, tree: Any) -> None:
    np.savez(path, tree=np.frombuffer(json.dumps(tree).encode(), np.uint8))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def _flipped(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        place = archive.getinfo("array_0.npy").header_offset + 200
    data = bytearray(path.read_bytes())
    data[place] ^= 255
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        _cut,
        _flipped,
        lambda path: path.write_bytes(b"PK nothing"),
        lambda path: np.savez(path, other=np.zeros(3)),
        lambda path: _tree(path, {"Popen": {"args": "x"}}),
        lambda path: _tree(path, {"LogicalGraph": {"inputs": 1}}),
        lambda path: _tree(path, {"Scalar": {"function": "scale", "constant": 2.0}}),
        lambda path: _tree(path, {"Scalar": {"function": "none", "constant": 2.0}}),
        lambda path: _tree(path, {"Input": {"name": "x"}, "more": 1}),
        lambda path: _tree(path, {"array": "array_99"}),
    ],
)
def test_damaged_files(tmp_path: Path, damage: Any) -> None:
    path = tmp_path / "a.npz"
    save_graph(random_decoder().quantised(Numbers()), path)
    damage(path)
    with pytest.raises(CheckpointError) as caught:
        load_graph(path)
    assert str(caught.value).startswith(f"{path} is not a stored model: ")


def test_what_cannot_be_stored(tmp_path: Path) -> None:
    class Foreign(Scalar):
        pass

    op: Operator = Foreign("scale", 2.0)
    graph = LogicalGraph((Input("x", 3),), (Operation("y", op, ("x",)),), ("y",))
    with pytest.raises(TypeError, match="cannot be stored: graphs hold numbers, strings, arrays and known "):
        save_graph(graph, tmp_path / "a.npz")
