"""A decoder with quantised weights: what golden models compute with, what lowering arranges, what is stored.

The weights of all matmuls are integers (`quantisation`) by the path of their Linear: `layers[0].attention.q`,
`layers[0].feed_forward.down`, `head`. The decoder that goes with them has their shapes only.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from streamgen.errors import CheckpointError
from streamgen.graph.decoder import Attention, Decoder, DecoderLayer, GatedFeedForward, Norm, Rotary
from streamgen.graph.ops import Linear
from streamgen.quantisation import QuantisedWeight, quantise

__all__ = ["DecoderNumbers", "QuantisedDecoder", "quantise_decoder"]

TREE = "tree"  # member of the stored file beside the arrays


@dataclass(frozen=True, kw_only=True)
class DecoderNumbers:
    """The numbers that a decoder computes with.

    weights: "w4" or "w8" of all matmuls but the head. head: of the head. group, scale_bits, minimum: of w4
    (`quantisation.quantise`). p_bits: of the integers of the softmax, 8 to 16.
    """

    weights: str = "w4"
    head: str = "w8"
    group: int = 32
    scale_bits: int = 8
    minimum: bool = True
    p_bits: int = 12

    def __post_init__(self) -> None:
        for name, law, holds in (
            ("weights", "'w4' or 'w8'", self.weights in ("w4", "w8")),
            ("head", "'w4' or 'w8'", self.head in ("w4", "w8")),
            ("group", "32, 64 or 128", self.group in (32, 64, 128)),
            ("scale_bits", "8 to 16", 8 <= self.scale_bits <= 16),
            ("p_bits", "8 to 16", 8 <= self.p_bits <= 16),
        ):
            if not holds:
                raise ValueError(f"{type(self).__name__}.{name} is {getattr(self, name)!r}; allowed is {law}")


@dataclass(frozen=True, eq=False)
class QuantisedDecoder:
    """decoder: its matmuls have no values, only shapes and biases. weights: by the path of the Linear."""

    decoder: Decoder
    numbers: DecoderNumbers
    weights: Mapping[str, QuantisedWeight]

    def save(self, path: Path) -> None:
        """Write a file of numpy arrays, one of them the rest as JSON; OSError when it cannot be."""
        arrays: dict[str, np.ndarray] = {}
        tree = _tree([self.decoder, self.numbers, dict(self.weights)], "", arrays)
        arrays[TREE] = np.frombuffer(json.dumps(tree).encode(), np.uint8)
        with path.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

    @classmethod
    def load(cls, path: Path) -> "QuantisedDecoder":
        """What `save` wrote. CheckpointError for a file that is missing, damaged or none."""
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            decoder, numbers, weights = _value(json.loads(arrays.pop(TREE).tobytes()), arrays)
            return cls(decoder, numbers, weights)
        except (OSError, EOFError, BadZipFile, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} is no stored decoder: {error}") from error


def quantise_decoder(decoder: Decoder, numbers: DecoderNumbers | None = None) -> QuantisedDecoder:
    """Quantise all matmuls. ValueError names a weight that cannot be quantised."""
    numbers = numbers or DecoderNumbers()
    weights: dict[str, QuantisedWeight] = {}

    def one(path: str, linear: Linear) -> Linear:
        try:
            weights[path] = quantise(
                linear.weight,
                linear.grid,
                form=numbers.head if path == "head" else numbers.weights,
                group=numbers.group,
                scale_bits=numbers.scale_bits,
                minimum=numbers.minimum,
            )
        except ValueError as error:
            raise ValueError(f"weight of {path}: {error}") from error
        return _hollow(linear.weight.shape, linear.bias)

    layers = tuple(_layer(f"layers[{index}]", layer, one) for index, layer in enumerate(decoder.layers))
    hollow = replace(decoder, layers=layers, head=one("head", decoder.head))
    return QuantisedDecoder(hollow, numbers, weights)


def _layer(path: str, layer: DecoderLayer, one: Callable[[str, Linear], Linear]) -> DecoderLayer:
    def all_of(part: str, names: tuple[str, ...]) -> Any:
        block = getattr(layer, part)
        return replace(block, **{name: one(f"{path}.{part}.{name}", getattr(block, name)) for name in names})

    return replace(
        layer,
        attention=all_of("attention", ("q", "k", "v", "o")),
        feed_forward=all_of("feed_forward", ("gate", "up", "down")),
    )


def _hollow(shape: tuple[int, ...], bias: np.ndarray | None) -> Linear:
    """A Linear without values: NaN that takes no memory."""
    return Linear(np.broadcast_to(np.float32(np.nan), shape), bias)


_CLASSES = {
    one.__name__: one
    for one in (
        Attention,
        Decoder,
        DecoderLayer,
        DecoderNumbers,
        GatedFeedForward,
        Linear,
        Norm,
        QuantisedWeight,
        Rotary,
    )
}


def _tree(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """A value as JSON; arrays go to `arrays`, by path."""
    if isinstance(value, np.ndarray):
        if value.strides and not any(value.strides):
            return {"hollow": list(value.shape)}
        arrays[path] = value
        return {"array": path}
    if is_dataclass(value):
        names = [field.name for field in fields(value)]
        return {type(value).__name__: {n: _tree(getattr(value, n), f"{path}.{n}", arrays) for n in names}}
    if isinstance(value, dict):
        return {"dict": {key: _tree(one, f"{path}.{key}", arrays) for key, one in value.items()}}
    if isinstance(value, (list, tuple)):
        return [_tree(one, f"{path}.{index}", arrays) for index, one in enumerate(value)]
    return value


def _value(tree: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Inverse of `_tree`; lists become tuples. KeyError or TypeError for another tree."""
    if isinstance(tree, list):
        return tuple(_value(one, arrays) for one in tree)
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind == "array":
        return arrays[content]
    if kind == "hollow":
        return _hollow(tuple(content), None).weight
    found = {key: _value(one, arrays) for key, one in content.items()}
    return found if kind == "dict" else _CLASSES[kind](**found)
