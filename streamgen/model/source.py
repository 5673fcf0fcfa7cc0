"""The source of a text: the rows that its attentions read, as the golden model and the accelerator hold them.

A source comes as matrices: keys and values of each layer in turn, float32 [rows, heads · head_dim]. Both hold
them as the codes that a cache of a text has (`operations.exact_attention`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streamgen.artifact.kv_layout import KvLayout
from streamgen.base.errors import GraphError
from streamgen.kernels.attention.row_codes import join_scale
from streamgen.kernels.memory import KvLoadParams
from streamgen.model.graph import Graph
from streamgen.model.graph.heads import AttentionHeads
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.graph.run import State
from streamgen.model.operations.exact_attention import HeadCodes, quantise_heads
from streamgen.model.operations.source_attention import KINDS, PARTS, source_name
from streamgen.numbers.formats import round_f24

NO_SOURCE = "a source is given, but the model reads none"


@dataclass(frozen=True)
class SourceLayers:
    """The attentions of a language model over its source. paths: in their order. heads, head_dim: of a row of
    keys and of values. most: rows that a source may have."""

    paths: tuple[str, ...]
    heads: int
    head_dim: int
    most: int

    @classmethod
    def of(cls, graph: LogicalGraph) -> "SourceLayers | None":
        """Those of a graph; None if it reads no source. Raises GraphError if layers differ in their heads."""
        found: list[tuple[str, AttentionHeads]] = []
        for path, operation in graph.walk():
            if operation.op.reads_source:
                assert operation.op.attention is not None
                found.append((path, operation.op.attention))
        if not found:
            return None
        sizes = {(op.kv_heads, op.head_dim) for _, op in found}
        if len(sizes) > 1:
            several = " and ".join(f"{heads} heads of {size}" for heads, size in sorted(sizes))
            raise GraphError(f"attentions over one source must have equal heads; they have {several}")
        if graph.source < 1:
            raise GraphError(f"the graph reads a source of {graph.source} rows; at least 1 is needed")
        return cls(tuple(path for path, _ in found), *sizes.pop(), graph.source)

    @property
    def features(self) -> int:
        """Features of a row of keys or of values."""
        return self.heads * self.head_dim

    def checked(self, rows: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Keys and values of each layer in turn, as arrays. Raises ValueError for another number of them, for
        other shapes, and for more rows than a source may have."""
        arrays = [np.asarray(array) for array in rows]
        wanted = 2 * len(self.paths)
        if len(arrays) != wanted:
            raise ValueError(
                f"the source has {len(arrays)} arrays; {wanted} are needed, keys and values of each of "
                f"{len(self.paths)} layers"
            )
        count = len(arrays[0]) if arrays[0].ndim else 0
        for number, array in enumerate(arrays):
            if array.shape != (count, self.features) or not 1 <= count <= self.most:
                raise ValueError(
                    f"array {number} of the source has shape {list(array.shape)}; [rows, {self.features}] "
                    f"with 1 to {self.most} rows is needed, equal for all arrays"
                )
        return arrays


@dataclass(frozen=True, eq=False)
class TextSource:
    """The source of a text. layers: of its model. arrays: keys and values of each layer in turn, f24 values
    [rows, features]."""

    layers: SourceLayers
    arrays: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, layers: SourceLayers, rows: Sequence[np.ndarray]) -> "TextSource":
        """Rounds the arrays; see `SourceLayers.checked` for errors."""
        return cls(layers, tuple(round_f24(array) for array in layers.checked(rows)))

    @property
    def rows(self) -> int:
        """The number of its rows."""
        return len(self.arrays[0])

    @cached_property
    def codes(self) -> list[tuple[HeadCodes, ...]]:
        """Keys and values of each layer, quantised."""
        quantised = [quantise_heads(array, self.layers.heads) for array in self.arrays]
        return list(zip(quantised[::2], quantised[1::2], strict=True))

    @property
    def floats(self) -> State:
        """The state of the text before its first pass, for the reference interpreter."""
        pairs = zip(self.arrays[::2], self.arrays[1::2], strict=True)
        return dict(zip(self.layers.paths, pairs, strict=True))

    @property
    def state(self) -> State:
        """The state of the text before its first pass, for the exact interpreter."""
        return dict(zip(self.layers.paths, self.codes, strict=True))

    def images(self, graph: Graph) -> Mapping[str, bytes]:
        """The contents of the caches of the source in the memory of a design, by buffer."""
        layouts = _layouts(graph)
        images = {}
        for kind in range(len(KINDS)):
            several = [layer[kind] for layer in self.codes]
            scales = [join_scale(codes.m, codes.e).T[None] for codes in several]
            for part, arrays in zip(PARTS, ([codes.codes for codes in several], scales), strict=True):
                layout = layouts[f"{source_name(kind, part)}_0"]
                whole = np.zeros(
                    (layout.layers, layout.heads, layout.positions, layout.width), arrays[0].dtype
                )
                whole[:, :, : self.rows] = np.stack(arrays)
                for channel, image in enumerate(layout.pack(whole)):
                    images[f"{source_name(kind, part)}_{channel}"] = image
        return images


def _layouts(graph: Graph) -> dict[str, KvLayout]:
    """The layouts of caches that the host writes, by buffer."""
    return {
        tensor.place: params.layout
        for tensor in graph.tensors
        if isinstance(params := graph.node(tensor.node).params, KvLoadParams) and not params.max_new
    }


def require_source(layers: SourceLayers | None, source: TextSource | None) -> None:
    """Raise ValueError if a model needs a source that is not given, or is given one that it does not read."""
    if layers is not None and source is None:
        raise ValueError(
            f"the text needs a source: keys and values of {len(layers.paths)} layers, each [rows, "
            f"{layers.features}] with up to {layers.most} rows"
        )
    if layers is None and source is not None:
        raise ValueError(NO_SOURCE)
