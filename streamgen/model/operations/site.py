"""Where an operation becomes kernels: what it finds there, and how it says what it wants.

A site is one operation in one phase of a run of so many tokens from a position on. The operation asks for
kernels with their bounds; whether each gets hardware of its own or shares it with other phases, from where
streams come and whether they need converters is none of its business (`streamgen.compiler.schedule`).
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
from streamgen.model.graph.logical import Operator, Shape
from streamgen.platform.boards import Channel

_Found = TypeVar("_Found")

HEAD_LANES = 16
"""Elements a cycle of rows of heads, at most. Attention is bound by positions: wider tokens would cost its
sums of values and the loads and stores of caches thousands of LUTs, and save no cycle."""


@dataclass(frozen=True)
class Stream:
    """A value in a phase: the port it comes out of, its order and what it is. by_rows: row after row, as
    memory has it; else in the order of a matmul's results."""

    port: Port
    itensor: ITensor
    shape: Shape
    by_rows: bool = True

    @property
    def extent(self) -> int:
        """Features of a row with their padding."""
        return self.itensor.shape[1]


@dataclass(frozen=True, eq=False)
class Fixed:
    """A constant in the order in which a kernel reads it: an array in the padded shape for each walk.

    prefetch, burst: of its load, in beats. channel: of its memory; None: where constants lie.
    """

    itensor: ITensor
    data: Sequence[np.ndarray]
    channel: int | None = None
    prefetch: int = 64
    burst: int = 16


@dataclass(frozen=True, kw_only=True, eq=False)
class Behind:
    """What lies behind a memory port of a kernel: a constant with its `data`, or a state, whose `buffer`
    several kernels may share."""

    port: str
    name: str
    channel: int
    itensor: ITensor
    data: np.ndarray | None = None
    buffer: str | None = None


@dataclass(frozen=True)
class Codes:
    """Quantised rows: codes of 8 bits and a scale for each head. tile: features that come together, those of
    all rows before the next ones; None: whole rows."""

    x: Stream
    scale: Stream
    tile: int | None = None


@dataclass(frozen=True)
class MatmulOperand:
    """Quantised rows as columns take them: groups of codes with their factors, an exponent for each row."""

    x: Stream
    e: Stream


@dataclass(frozen=True)
class Kept:
    """Rows of a pass on their way into a cache, and where those of all positions lie.

    name: of the cache. layout, behind: of the codes and of the scales: how they lie in memory, and what is
    behind the memory ports. pieces: in which rows come, the first ones of all before the second ones. layer,
    step: the layer there, the layers of a walk.
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
"""What an operation makes or reads in a phase; a constant stays an array, [1, features] for each walk."""


class Site(Protocol):
    """See above.

    name: of the operation. ops: what it does, in each walk of the section. tokens: of the run. position: of
    the first of them. context: positions that a text may have. lanes: elements that vector kernels take in a
    cycle (rows of heads: `head_lanes`). attention_lanes: positions of a cache that attention takes in a
    cycle. memory: a channel of the board.
    """

    name: str
    ops: Sequence[Operator]
    tokens: int
    position: int
    context: int
    lanes: int
    attention_lanes: int
    memory: Channel

    @property
    def extent(self) -> int:
        """Features of a row of the first result, with their padding."""
        ...

    def rows(self, shape: Shape, lanes: int | None = None) -> ITensor:
        """A value row after row; the features of `shape` are those with padding."""
        ...

    def count(self, shape: Shape) -> int:
        """Rows of a value."""
        ...

    def order(self, stream: Stream) -> ITensor:
        """The tiles of a stream as an elementwise operation takes them: in that order, in tokens as wide as
        is chosen where they can be."""
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
        """Ask for a kernel; its outputs by port. steps: bounds that grow from walk to walk. unasked: bounds
        that are others in a pass behind whose last row nothing is asked."""
        ...

    def matmul(self, x: Bound) -> Stream:
        """The matmul of the operation (`Operator.matmul`), its bias added: of rows, or of an operand that an
        earlier phase has quantised. Rows of the result are padded to whole tiles."""
        ...

    def fit(self, stream: Stream, extent: int, first: int = 0) -> Stream:
        """A stream whose rows have this length: zeros follow where they are shorter, or their ends go.
        first: the feature with which they begin; then first + extent features must be there."""
        ...

    def fixed(self, itensor: ITensor, walks: np.ndarray) -> Fixed:
        """A constant [1, features] for each walk, in the order of `itensor`."""
        ...

    def table(self, name: str, itensor: ITensor, data: np.ndarray) -> Behind:
        """A table in memory behind the port `memory` of a kernel."""
        ...

    def numbers(self, name: str) -> Stream:
        """An input of the host: a number for each token."""
        ...

    def caches(
        self, width: int, dtype: str, heads: int, beside: KvLayout | None = None
    ) -> tuple[KvLayout, int, int, int]:
        """How the cache of the operation lies in memory, its first channel, its layer there, and the layers
        of a walk. beside: other rows of the same positions; where these rows are few beside them, they lie
        on fewer channels, others for keys than for values."""
        ...

    def once(self, key: Hashable, make: Callable[[], _Found]) -> _Found:
        """What `make` gives, made once for all operations of the phase."""
        ...


def of_itensor(itensor: ITensor) -> dict[str, int]:
    """What elementwise kernels of such a stream are made for."""
    return {"lanes": prod(itensor.element_shape), "max_tokens": itensor.token_count}


def of_stream(stream: Stream) -> dict[str, int]:
    """The same of a stream."""
    return of_itensor(stream.itensor)


def head_lanes(site: Site, *sizes: int) -> int:
    """Elements a cycle of rows of heads: those of the site, up to HEAD_LANES, where `sizes` are multiples."""
    return gcd(site.lanes, HEAD_LANES, *sizes)
