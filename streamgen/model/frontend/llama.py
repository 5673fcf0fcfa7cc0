"""A Llama-type decoder from named tensors: every name and shape is checked, then the graph is built.

Both kinds of checkpoint use this builder, with sizes from their metadata and a reader of tensors. Tensors
that are missing, of the wrong shape or type, or without a place are reported together, before any weight is
read.

Frequencies of the rotation, in radians per position, float64, j < rotated / 2:

    f[j] = base ^ (-2 j / rotated)
    linear scaling:  f / factor
    llama3 scaling:  f / factor below `low` turns in the original context, f above `high`, between them the
                     mean weighted by (turns - low) / (high - low)       (as in the Llama 3.1 release)
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from streamgen.base.errors import CheckpointError
from streamgen.model.frontend.assembly import (
    AttentionParts,
    FeedForwardParts,
    LayerParts,
    Rotation,
    language_model,
)
from streamgen.model.frontend.problems import refuse, untied
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.operations import Linear, Norm
from streamgen.numbers.quantisation import GroupGrid
from streamgen.numbers.stored import StoredArray, StoredGrid

ROWS = 1024  # of two tensors that are compared at a time


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes in the metadata. rotation: called once all shapes are correct. problems: of the metadata.
    broken: some values cannot be used and others stand in for them, so only names are checked."""

    hidden: int
    features: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    epsilon: float
    function: str
    rotation: Callable[[], Rotation]
    window: int | None = None  # positions that a query sees, None: all
    vocabulary: int | None = None  # None: the rows of the embedding
    tied: bool | None = None  # None: tied unless the file has a head
    attention_bias: bool | None = None  # None: wherever the file has one
    feed_forward_bias: bool | None = None
    problems: Sequence[str] = ()
    broken: bool = False


@dataclass(frozen=True, kw_only=True)
class Names:
    """Names of tensors without `.weight`. layer: the prefix of a layer, where `{}` is its index and parts are
    appended.

    ignored: endings of the names of tensors without effect. interleaved: the rows of q and k are in
    neighbouring pairs.
    """

    embedding: str
    norm: str
    head: str
    layer: str
    parts: Mapping[str, str]
    ignored: Sequence[str]
    interleaved: bool


Grid = GroupGrid | StoredGrid[GroupGrid]
Stored = tuple[np.ndarray | StoredArray, Grid | None, str | None]


@dataclass(frozen=True, kw_only=True)
class Tensors:
    """The tensors of a checkpoint. read: returns the float32 array, which stays in its file if it is a
    matrix, the grid of a 4-bit tensor, and the format that the tensor asks for. problems: the reasons why the
    tensors of these names cannot be read."""

    path: Path
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], Stored]
    problems: Callable[[Iterable[str]], Sequence[str]] = lambda names: ()


def frequencies(base: float, rotated: int) -> np.ndarray:
    """float64 [rotated / 2], in radians per position."""
    return float(base) ** (-np.arange(0, rotated, 2, dtype=np.float64) / rotated)


def linear_scaling(f: np.ndarray, factor: float) -> np.ndarray:
    """Frequencies for positions that are `factor` times closer."""
    return f / factor


def llama3_scaling(f: np.ndarray, *, factor: float, low: float, high: float, context: float) -> np.ndarray:
    """Scale low frequencies and keep high ones; `context` is the context of the training."""
    turns = context * f / (2 * math.pi)
    weight = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return f * (weight + (1 - weight) / factor)


def build_decoder(name: str, tensors: Tensors, names: Names, sizes: Sizes) -> LogicalGraph:
    """The graph of the model; CheckpointError names every tensor that is missing, of the wrong shape or
    without a place."""
    return _Builder(tensors, names, sizes).build(name)


def needed_shapes(names: Names, sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors of a checkpoint with these sizes."""
    return _Builder(Tensors(path=Path(), shapes={}, read=_nothing), names, sizes).needed()


def _nothing(name: str) -> Stored:
    raise AssertionError(f"{name} is not read")


class _Builder:
    def __init__(self, tensors: Tensors, names: Names, sizes: Sizes) -> None:
        self.tensors = tensors
        self.names = names
        self.sizes = sizes
        self.path = tensors.path
        self.unread: list[str] = []
        has_head = f"{names.head}.weight" in tensors.shapes
        self.tied = not has_head if sizes.tied is None else sizes.tied

    def build(self, name: str) -> LogicalGraph:
        sizes, names = self.sizes, self.names
        self._check()
        rotation = sizes.rotation()
        embedding, grid, asked = self._read(f"{names.embedding}.weight")
        head = Linear(embedding, None, grid, asked) if self.tied else self._linear(names.head)
        layers = [self._layer(index, rotation) for index in range(sizes.layers)]
        norm = self._norm(names.norm)
        refuse(self.path, self.unread, vocabulary=self._vocabulary)
        return language_model(name, embedding, layers, norm, head, sizes.context)

    def _read(self, name: str) -> Stored:
        """Read a tensor; zeros for one that cannot be read, so that all of these are reported together."""
        try:
            return self.tensors.read(name)
        except CheckpointError as error:
            self.unread.append(str(error).removeprefix(f"{self.path}: "))
            return np.zeros(self.tensors.shapes[name], np.float32), None, None

    def _untied(self) -> list[str]:
        """The problem of a head of its own where the metadata ties it to the embedding; empty if there is
        none."""
        names, shapes = self.names, self.tensors.shapes
        both = f"{names.head}.weight", f"{names.embedding}.weight"
        if not self.sizes.tied or not shapes.keys() >= {*both} or self.tensors.problems(both):
            return []
        head, embedding = (self._read(name)[0] for name in both)
        if self.unread or head.shape != embedding.shape:
            return [] if self.unread else [untied(*both)]
        parts = (slice(first, first + ROWS) for first in range(0, len(head), ROWS))
        return [] if all(np.array_equal(head[rows], embedding[rows]) for rows in parts) else [untied(*both)]

    def _check(self) -> None:
        sizes, names, shapes = self.sizes, self.names, self.tensors.shapes
        said = list(sizes.problems)
        layer = re.compile(re.escape(names.layer).replace(re.escape("{}"), "([0-9]+)"))
        layers = len({matched[1] for name in shapes if (matched := layer.match(name))})
        if sizes.heads % sizes.kv_heads and not sizes.broken:
            said.append(f"{sizes.heads} query heads cannot share {sizes.kv_heads} key heads evenly")
        if layers != sizes.layers and not sizes.broken:
            first = f"{names.layer.format(0)}{names.parts['q']}.weight"
            said.append(
                f"the metadata says {sizes.layers} layers; the file has {layers} (tensors like {first})"
            )
        self.sizes = replace(
            sizes, layers=layers
        )  # otherwise every tensor of a missing layer would be a problem
        needed = self.needed()
        missing = [name for name in needed if name not in shapes]
        known = {} if sizes.broken else needed
        others = {name: shape for name, shape in known.items() if shapes.get(name, shape) != shape}
        ignored = (*names.ignored, f"{names.head}.weight") if self.tied else tuple(names.ignored)
        foreign = [name for name in shapes if name not in needed and not name.endswith(ignored)]
        refuse(
            self.path,
            said,
            [
                f"tensor {name} has shape {list(shapes[name])}; {list(shape)} is needed"
                for name, shape in others.items()
            ],
            [
                f"tensor {name} is missing" + (f"; its shape is {list(known[name])}" if known else "")
                for name in missing
            ],
            self.tensors.problems([name for name in needed if name in shapes]),
            self._untied(),
            [f"tensor {name} has no place in a decoder of {layers} layers" for name in foreign],
            vocabulary=self._vocabulary if f"{names.embedding}.weight" in shapes else sizes.vocabulary,
        )

    @property
    def _vocabulary(self) -> int:
        stated = self.sizes.vocabulary
        shape = self.tensors.shapes.get(f"{self.names.embedding}.weight", (1,))
        return shape[0] if stated is None else stated

    def needed(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of all tensors that the sizes need."""
        sizes, names, shapes = self.sizes, self.names, self.tensors.shapes
        vocabulary = self._vocabulary
        needed: dict[str, tuple[int, ...]] = {
            f"{names.embedding}.weight": (vocabulary, sizes.hidden),
            f"{names.norm}.weight": (sizes.hidden,),
        }
        if not self.tied:
            needed[f"{names.head}.weight"] = (vocabulary, sizes.hidden)
        heads, kv = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        linears = {
            "q": (heads, sizes.hidden),
            "k": (kv, sizes.hidden),
            "v": (kv, sizes.hidden),
            "o": (sizes.hidden, heads),
            "gate": (sizes.features, sizes.hidden),
            "up": (sizes.features, sizes.hidden),
            "down": (sizes.hidden, sizes.features),
        }
        for index in range(sizes.layers):
            prefix = names.layer.format(index)
            for part in ("attention_norm", "feed_forward_norm"):
                needed[f"{prefix}{names.parts[part]}.weight"] = (sizes.hidden,)
            for part, needed_shape in linears.items():
                linear = f"{prefix}{names.parts[part]}"
                needed[f"{linear}.weight"] = needed_shape
                stated = sizes.attention_bias if part in ("q", "k", "v", "o") else sizes.feed_forward_bias
                if f"{linear}.bias" in shapes if stated is None else stated:
                    needed[f"{linear}.bias"] = needed_shape[:1]
        return needed

    def _layer(self, index: int, rotation: Rotation) -> LayerParts:
        sizes = self.sizes
        parts = {part: f"{self.names.layer.format(index)}{name}" for part, name in self.names.parts.items()}

        def order(heads: int) -> np.ndarray | None:
            return _halves(heads, sizes.head_dim, rotation.rotated) if self.names.interleaved else None

        return LayerParts(
            attention_norm=self._norm(parts["attention_norm"]),
            attention=AttentionParts(
                heads=sizes.heads,
                kv_heads=sizes.kv_heads,
                head_dim=sizes.head_dim,
                scale=1 / math.sqrt(sizes.head_dim),
                q=self._linear(parts["q"], order(sizes.heads)),
                k=self._linear(parts["k"], order(sizes.kv_heads)),
                v=self._linear(parts["v"]),
                o=self._linear(parts["o"]),
                rotation=rotation,
                window=sizes.window,
            ),
            feed_forward_norm=self._norm(parts["feed_forward_norm"]),
            feed_forward=FeedForwardParts(
                gate=self._linear(parts["gate"]),
                up=self._linear(parts["up"]),
                down=self._linear(parts["down"]),
                function=sizes.function,
            ),
        )

    def _norm(self, name: str) -> Norm:
        return Norm("rms", self._vector(f"{name}.weight"), self.sizes.epsilon)

    def _vector(self, name: str) -> np.ndarray:
        """A tensor of one dimension, in memory."""
        return np.asarray(self._read(name)[0])

    def _linear(self, name: str, order: np.ndarray | None = None) -> Linear:
        """A Linear whose rows are in the given order: those of weight, bias and grid alike."""
        weight, grid, asked = self._read(f"{name}.weight")
        has_bias = f"{name}.bias" in self.tensors.shapes
        bias = self._vector(f"{name}.bias") if has_bias else None
        if order is not None:
            weight = weight.taken(order) if isinstance(weight, StoredArray) else weight[order]
            bias, grid = None if bias is None else bias[order], grid and grid.taken(order)
        return Linear(weight, bias, grid, asked)


def _halves(heads: int, head_dim: int, rotated: int) -> np.ndarray:
    """The order of rows that turns pairs of neighbours (2j, 2j + 1) into halves (j, j + rotated / 2)."""
    dims = np.arange(head_dim)
    dims[:rotated] = np.concatenate([np.arange(0, rotated, 2), np.arange(1, rotated, 2)])
    return (np.arange(heads)[:, None] * head_dim + dims).reshape(-1)
