"""Values in a nest of tuples, lists and dicts, whose leaves are names or None."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from streamgen.base.errors import GraphError


def require_plain(nest: Any, what: str) -> None:
    """Raise GraphError for a nest of other types than tuples, lists and dicts."""
    if type(nest) in (tuple, list):
        for part in nest:
            require_plain(part, what)
    elif type(nest) is dict:
        for name, part in nest.items():
            if not isinstance(name, str):
                raise GraphError(f"{what} have the key {name!r} in a dict; texts are needed")
            require_plain(part, what)
    elif nest is not None and not isinstance(nest, str):
        raise GraphError(f"{what} hold a {type(nest).__name__}; tuples, lists and dicts of tensors are kept")


def names_of(nest: Any) -> Iterator[str]:
    if isinstance(nest, str):
        yield nest
    elif isinstance(nest, (tuple, list)):
        for part in nest:
            yield from names_of(part)
    elif isinstance(nest, dict):
        for part in nest.values():
            yield from names_of(part)


def pairs_of(nest: Any, value: Any, where: str) -> Iterator[tuple[str, np.ndarray]]:
    """Names with the values at their places; TypeError for a value with another nest."""
    if isinstance(nest, str):
        yield nest, value
    elif isinstance(nest, (tuple, list)):
        if not isinstance(value, (tuple, list)) or len(value) != len(nest):
            raise TypeError(f"{where} must be {type(nest).__name__} of {len(nest)}; {_told(value)} is given")
        for index, (part, one) in enumerate(zip(nest, value, strict=True)):
            yield from pairs_of(part, one, f"{where}[{index}]")
    elif isinstance(nest, dict):
        if not isinstance(value, dict) or value.keys() != nest.keys():
            raise TypeError(f"{where} must be dict of {', '.join(nest)}; {_told(value)} is given")
        for name, part in nest.items():
            yield from pairs_of(part, value[name], f"{where}[{name!r}]")


def _told(value: Any) -> str:
    if isinstance(value, dict):
        return f"dict of {', '.join(map(str, value))}"
    return (
        f"{type(value).__name__} of {len(value)}"
        if isinstance(value, (tuple, list))
        else type(value).__name__
    )


def filled(nest: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(nest, str):
        return values[nest]
    if isinstance(nest, (tuple, list)):
        return type(nest)(filled(part, values) for part in nest)
    if isinstance(nest, dict):
        return {name: filled(part, values) for name, part in nest.items()}
    return None


def tagged(nest: Any) -> Any:
    """A nest as JSON: lists stay lists, tuples are {"tuple": [...]}, dicts are {"dict": {...}}."""
    if isinstance(nest, tuple):
        return {"tuple": [tagged(part) for part in nest]}
    if isinstance(nest, list):
        return [tagged(part) for part in nest]
    return {"dict": {name: tagged(part) for name, part in nest.items()}} if isinstance(nest, dict) else nest


def untagged(tree: Any, where: str) -> Any:
    if isinstance(tree, list):
        return [untagged(part, f"{where}[{i}]") for i, part in enumerate(tree)]
    if isinstance(tree, dict):
        kind, content = next(iter(tree.items()), ("", None))
        if len(tree) == 1 and kind == "tuple" and isinstance(content, list):
            return tuple(untagged(part, f"{where}[{i}]") for i, part in enumerate(content))
        if len(tree) == 1 and kind == "dict" and isinstance(content, dict):
            return {name: untagged(part, f"{where}[{name!r}]") for name, part in content.items()}
        raise ValueError(f"{where}: expected a tuple or a dict, not an object of {', '.join(tree)}")
    if tree is not None and not isinstance(tree, str):
        raise ValueError(f"{where}: expected a name, not {tree!r}")
    return tree
