"""Logical graphs as files: numpy arrays, one of which holds everything else as JSON.

Every class is written by its name and looked up in a closed list, so loading a file runs no foreign code. A
class of another package is written with its module and is looked up only if the caller trusts the package. An
array that several operations share (a tied head) is written once and shared again when loaded. Weights of a
written model are records of their places in the weight files of its folder (`artifact.packed`).
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from streamgen.artifact.packed import RECORDS, PackedFloats, PackedTable, PackedWeight, WeightFiles
from streamgen.base.errors import CheckpointError, GraphError
from streamgen.base.files import parsed, read_arrays, read_file
from streamgen.gateware.pointwise import Formula
from streamgen.model import operations
from streamgen.model.graph.logical import Input, LogicalGraph, Operation, Operator, Repeat
from streamgen.model.graph.storage import class_name, trusted_class
from streamgen.numbers.quantisation import GroupGrid, QuantisedWeight

TREE = "tree"  # member of the file beside the arrays
_OPERATORS = (getattr(operations, name) for name in operations.__all__)
_CLASSES = {
    kind.__name__: kind
    for kind in (
        *(kind for kind in _OPERATORS if isinstance(kind, type) and issubclass(kind, Operator)),
        *(Formula, GroupGrid, LogicalGraph, Operation, QuantisedWeight, Repeat, Input),
        *RECORDS,
    )
}


def save_graph(graph: LogicalGraph, path: Path) -> None:
    """Write a file; OSError if that fails."""
    arrays: dict[int, tuple[str, np.ndarray]] = {}
    tree = np.frombuffer(json.dumps(_tree(graph, arrays)).encode(), np.uint8)
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **{TREE: tree, **dict(arrays.values())})


def load_graph(
    path: Path,
    content: bytes | None = None,
    trust: Collection[str] = (),
    files: WeightFiles | None = None,
) -> LogicalGraph:
    """The graph that `save_graph` wrote. content: of the file, if already read. trust: packages whose
    operations may be used. files: weight files of its folder, from which weights are then read.
    CheckpointError for a file that is missing, damaged or not a graph, or that uses operations of other
    packages."""
    try:
        arrays = read_arrays(read_file(path.parent, path.name) if content is None else content)
        graph = _TreeReader(arrays, trust, files).value(parsed(arrays.pop(TREE).tobytes()))
        if not isinstance(graph, LogicalGraph):
            raise TypeError(f"it holds a {type(graph).__name__}")
        return graph
    except (
        *(
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            IndexError,
            RecursionError,
            ArithmeticError,
            GraphError,
        ),
    ) as error:
        raise CheckpointError(f"{path} is not a stored model: {error}") from error


def _tree(value: Any, arrays: dict[int, tuple[str, np.ndarray]]) -> Any:
    """A value as JSON; arrays are added to `arrays`, by identity, with their names."""
    if isinstance(value, np.ndarray):
        name, _ = arrays.setdefault(id(value), (f"array_{len(arrays)}", value))
        return {"array": name}
    if is_dataclass(value) and (kind := _kind(type(value))) is not None:
        return {
            kind: {
                f.name: _tree(getattr(value, f.name), arrays)
                for f in fields(value)
                if f.metadata.get("stored", True)
            }
        }
    if isinstance(value, frozenset):
        return {"set": sorted(value)}
    if isinstance(value, tuple):
        return [_tree(element, arrays) for element in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{value!r} cannot be stored: graphs hold numbers, strings, arrays and known operations")


class _TreeReader:
    """Inverse of `_tree`."""

    def __init__(
        self, arrays: Mapping[str, np.ndarray], trust: Collection[str], files: WeightFiles | None
    ) -> None:
        self._arrays, self._trust, self._files = arrays, trust, files

    def value(self, tree: Any) -> Any:
        """The value of a tree. Raises KeyError, TypeError, ValueError or GraphError for a wrong tree."""
        if isinstance(tree, list):
            return tuple(map(self.value, tree))
        if not isinstance(tree, dict):
            return tree
        ((kind, content),) = tree.items()
        if kind == "array":
            return self._arrays[content]
        if kind == "set":
            return frozenset(content)
        made = _class(kind, self._trust)(**{key: self.value(element) for key, element in content.items()})
        if isinstance(made, PackedWeight | PackedTable | PackedFloats):
            return replace(made, files=self._files)
        return made


def _kind(kind: type) -> str | None:
    """The written name of a class; None if the class cannot be written."""
    if _CLASSES.get(kind.__name__) is kind:
        return kind.__name__
    name = class_name(kind)
    return name if issubclass(kind, Operator) and "<locals>" not in name else None


def _class(kind: str, trust: Collection[str]) -> Any:
    """The class of a written name; for a class of another package, GraphError unless it is trusted."""
    if ":" not in kind:
        return _CLASSES[kind]
    operation_class = trusted_class(kind, trust, "the model")
    if not (isinstance(operation_class, type) and issubclass(operation_class, Operator)):
        raise TypeError(f"{kind} is not a class of operations")
    return operation_class
