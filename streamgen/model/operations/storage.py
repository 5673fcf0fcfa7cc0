"""Logical graphs as files: numpy arrays, one of them the rest as JSON.

Every class is written by its name and found in a list that is closed, so a file runs no code of others. A
class of a package outside is written with its module and looked up where whoever loads the file trusts it. An
array that several operations share (a tied head) is written once and is shared again.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from streamgen.base.errors import CheckpointError, GraphError
from streamgen.base.files import parsed, read_arrays, read_file
from streamgen.model import operations
from streamgen.model.graph.logical import Input, LogicalGraph, Operation, Operator, Repeat
from streamgen.model.graph.storage import class_name, trusted_class
from streamgen.numbers.quantisation import GroupGrid, QuantisedWeight

TREE = "tree"  # member of the file beside the arrays
_OPERATORS = (getattr(operations, name) for name in operations.__all__)
_CLASSES = {
    one.__name__: one
    for one in (
        *(one for one in _OPERATORS if isinstance(one, type) and issubclass(one, Operator)),
        *(GroupGrid, LogicalGraph, Operation, QuantisedWeight, Repeat, Input),
    )
}


def save_graph(graph: LogicalGraph, path: Path) -> None:
    """Write a file; OSError when it cannot be."""
    arrays: dict[int, tuple[str, np.ndarray]] = {}
    tree = np.frombuffer(json.dumps(_tree(graph, arrays)).encode(), np.uint8)
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **{TREE: tree, **dict(arrays.values())})


def load_graph(path: Path, content: bytes | None = None, trust: Collection[str] = ()) -> LogicalGraph:
    """What `save_graph` wrote. content: of the file, when it is read already. trust: packages of which it may
    use operations. CheckpointError for a file that is missing, damaged or none, or uses those of others."""
    try:
        arrays = read_arrays(read_file(path.parent, path.name) if content is None else content)
        found = _value(parsed(arrays.pop(TREE).tobytes()), arrays, trust)
        if not isinstance(found, LogicalGraph):
            raise TypeError(f"it holds a {type(found).__name__}")
        return found
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
        raise CheckpointError(f"{path} is no stored model: {error}") from error


def _tree(value: Any, arrays: dict[int, tuple[str, np.ndarray]]) -> Any:
    """A value as JSON; arrays go to `arrays`, by identity, with the names they get."""
    if isinstance(value, np.ndarray):
        name, _ = arrays.setdefault(id(value), (f"array_{len(arrays)}", value))
        return {"array": name}
    if is_dataclass(value) and (kind := _kind(type(value))) is not None:
        return {kind: {f.name: _tree(getattr(value, f.name), arrays) for f in fields(value)}}
    if isinstance(value, frozenset):
        return {"set": sorted(value)}
    if isinstance(value, tuple):
        return [_tree(one, arrays) for one in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{value!r} cannot be stored: graphs hold numbers, strings, arrays and known operations")


def _value(tree: Any, arrays: Mapping[str, np.ndarray], trust: Collection[str]) -> Any:
    """Inverse of `_tree`. KeyError, TypeError, ValueError or GraphError for another tree."""
    if isinstance(tree, list):
        return tuple(_value(one, arrays, trust) for one in tree)
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind == "array":
        return arrays[content]
    if kind == "set":
        return frozenset(content)
    return _class(kind, trust)(**{key: _value(one, arrays, trust) for key, one in content.items()})


def _kind(found: type) -> str | None:
    """How a class is written; None for one that cannot be."""
    if _CLASSES.get(found.__name__) is found:
        return found.__name__
    name = class_name(found)
    return name if issubclass(found, Operator) and "<locals>" not in name else None


def _class(kind: str, trust: Collection[str]) -> Any:
    """The class that is written so; of a package outside, GraphError unless it is trusted."""
    if ":" not in kind:
        return _CLASSES[kind]
    found = trusted_class(kind, trust, "the model")
    if not (isinstance(found, type) and issubclass(found, Operator)):
        raise TypeError(f"{kind} is no class of operations")
    return found
