"""The place where an operation becomes kernels: what the operation finds there, and how it asks for kernels.

A site is one operation in one phase of a run of `tokens` tokens from a position on. The operation asks for
kernels with their bounds. It does not decide whether a kernel gets hardware of its own or shares it with
other phases, where streams come from, or whether they need converters (`streamgen.compiler.schedule`).
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Protocol, TypeVar

import numpy as np

from streamgen.artifact.kv_layout import KvLayout
from streamgen.contract import Bounds, KernelParams
from streamgen.itensor import ITensor
from streamgen.model.graph import Port
from streamgen.model.graph.late import LateArray
from streamgen.model.graph.logical import Operator, Shape
from streamgen.platform.boards import Channel

_Found = TypeVar("_Found")

HEAD_LANES = 16
"""The most elements of rows of heads per cycle. Attention is bound by positions: wider tokens would cost its
sums of values and the loads and stores of caches thousands of LUTs, and save no cycle."""


@dataclass(frozen=True)
class Stream:
    """A value in a phase: its source port, its order and its shape. by_rows: row after row, as in memory;
    otherwise in the order of a matmul's results."""

    port: Port
    itensor: ITensor
    shape: Shape
    by_rows: bool = True

    @property
    def extent(self) -> int:
        """The number of features of a row, padding included."""
        return self.itensor.shape[1]


@dataclass(frozen=True, eq=False)
class Fixed:
    """A constant in the order in which a kernel reads it: one array in the padded shape for each walk.

    prefetch, burst: of its load, in beats. channel: of its memory; None: the channel of constants.
    """

    itensor: ITensor
    data: Sequence[np.ndarray] | LateArray
    channel: int | None = None
    prefetch: int = 64
    burst: int = 16


@dataclass(frozen=True, kw_only=True, eq=False)
class Behind:
    """The contents behind a memory port of a kernel: a constant with its `data`, or a state, whose `buffer`
    several kernels may share."""

    port: str
    name: str
    channel: int
    itensor: ITensor
    data: np.ndarray | LateArray | None = None
    buffer: str | None = None


@dataclass(frozen=True)
class Codes:
    """Quantised rows: 8-bit codes and a scale for each head. tile: the number of features that come of all
    rows before the next features; None: whole rows."""

    x: Stream
    scale: Stream
    tile: int | None = None


@dataclass(frozen=True)
class MatmulOperand:
    """Quantised rows in the form for columns: groups of codes with their factors, and an exponent for each
    row."""

    x: Stream
    e: Stream


@dataclass(frozen=True)
class Kept:
    """Rows of a pass on their way into a cache, and the place of the rows of all positions.

    name: of the cache. layout, behind: of the codes and of the scales: their layouts in memory, and the
    contents behind the memory ports. pieces: the number of pieces of a row; the first pieces of all rows come
    before the second ones. layer, step: the layer in the cache, and the number of layers in a walk.
    """

    name: str
    rows: Codes
    layout: tuple[KvLayout, KvLayout]
    pieces: int
    layer: int
    step: int
    behind: tuple[Sequence[Behind], Sequence[Behind]]


Source = Stream | Fixed
Bound = Stream | Codes | Kept | MatmulOperand | np.ndarray
"""A value that an operation computes or reads in a phase; a constant stays an array, [1, features] for each
walk."""


class Site(Protocol):
    """See the module.

    name: of the operation. ops: the operation in each walk of the section. tokens: of the run. position: of
    the first token. context: positions that a text may have. source, most_source: rows of the source of the
    text, and the most that a source may have. lanes: elements that vector kernels take in a
    cycle (rows of heads: `head_lanes`). attention_lanes: positions of a cache that attention takes in a
    cycle. memory: a channel of the board. most: the most tokens of a run. quick: whether the fewest cycles of
    a row count, as in a design whose weights stay on the chip.
    """

    name: str
    ops: Sequence[Operator]
    tokens: int
    position: int
    context: int
    source: int
    most_source: int
    lanes: int
    attention_lanes: int
    memory: Channel
    most: int
    quick: bool

    @property
    def waits(self) -> bool:
        """Whether an operation of the phase joins the row of a sequence to rows of its tokens, which wait."""
        ...

    @property
    def extent(self) -> int:
        """The number of features of a row of the first result, padding included."""
        ...

    def rows(self, shape: Shape, lanes: int | None = None) -> ITensor:
        """The order of a value row after row; the features of `shape` include padding."""
        ...

    def count(self, shape: Shape) -> int:
        """The number of rows of a value."""
        ...

    def order(self, stream: Stream) -> ITensor:
        """The tiles of a stream for an elementwise operation: in the order of the stream, in tokens of the
        chosen width if possible."""
        ...

    def kernel(
        self,
        name: str,
        params: KernelParams,
        bounds: Bounds,
        *,
        steps: Mapping[str, int] | None = None,
        behind: Sequence[Behind] = (),
        unasked: Bounds | None = None,
        **inputs: Source,
    ) -> Mapping[str, Stream]:
        """Ask for a kernel; return its outputs by port. steps: bounds that grow from walk to walk. unasked:
        the changed bounds in a pass whose results after the last row are not requested."""
        ...

    def matmul(self, x: Bound) -> Stream:
        """The matmul of the operation (`Operator.matmul`), with its bias added. Its input is rows, or an
        operand that an earlier phase has quantised. Rows of the result are padded to whole tiles."""
        ...

    def fit(self, stream: Stream, extent: int, first: int = 0) -> Stream:
        """A stream whose rows have this length: shorter rows are filled with zeros, longer rows are cut.
        first: the first feature of the result; then first + extent features must be there."""
        ...

    def fixed(self, itensor: ITensor, walks: np.ndarray) -> Fixed:
        """A constant [1, features] for each walk, in the order of `itensor`."""
        ...

    def table(self, name: str, itensor: ITensor, data: np.ndarray | LateArray) -> Behind:
        """A table in memory behind the port `memory` of a kernel."""
        ...

    def numbers(self, name: str) -> Stream:
        """An input from the host: a number for each token."""
        ...

    def caches(
        self, width: int, dtype: str, heads: int, beside: KvLayout | None = None, *, source: int | None = None
    ) -> tuple[KvLayout, int, int, int]:
        """The layout of the operation's cache in memory, its first channel, its layer, and the layers of a
        walk. beside: other rows of the same positions. If these rows are few compared with those, they are on
        fewer channels, which differ for keys and values. source: of a source, 0 for keys and 1 for values;
        None for a cache of the text."""
        ...

    def once(self, key: Hashable, make: Callable[[], _Found]) -> _Found:
        """The result of `make`, computed once for all operations of the phase."""
        ...


def of_itensor(itensor: ITensor) -> dict[str, int]:
    """The params of elementwise kernels for a stream in this order."""
    return {"lanes": prod(itensor.element_shape), "max_tokens": itensor.token_count}


def of_stream(stream: Stream) -> dict[str, int]:
    """The params of elementwise kernels for a stream."""
    return of_itensor(stream.itensor)


def head_lanes(site: Site, *sizes: int) -> int:
    """Elements of rows of heads per cycle: those of the site, up to HEAD_LANES, if `sizes` are multiples of
    them."""
    return gcd(site.lanes, HEAD_LANES, *sizes)
