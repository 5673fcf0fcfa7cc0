"""The hardware plan, chosen before operations are bound: an engine that matmuls share, and columns that
belong to one matmul."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from streamgen.base.errors import GraphError
from streamgen.model.graph.plan import Boundary, LinearPlan, Plan
from streamgen.platform.boards import ULTRASCALE_PLUS, Fabric


@dataclass(frozen=True, kw_only=True)
class HardwarePlan:
    """The hardware of a model.

    max_tokens: largest number of tokens of a run. context: positions of a text. source: most rows of the
    source of a text; 0 for none. columns: columns of the
    engine, column c on channel c; 0 for no engine. n_lanes: rows that a column of the engine computes side by
    side. lanes: elements per cycle between matmuls. kv_channels: number of channels of all caches, a power of
    two. cache_channels: number of these channels for keys, and the same number for values; None for all.
    attention_lanes: positions of a cache per cycle; it divides the number of channels. prefetch: beats of
    codes in the prefetch FIFO of each column of the engine. fabric: fabric of the device. own: unroll, widths
    and padding of the matmuls with columns of their own. own_prefetch: `prefetch` of their columns. boundary:
    for a model that is a part of a larger one and exchanges values through memory. hold_bits: limit on the
    bits of all holds on the chip, beyond which holds go to memory; None for no limit.

    Raises GraphError for an odd number of columns.
    """

    max_tokens: int
    context: int
    source: int = 0
    columns: int = 0
    n_lanes: int = 1
    lanes: int
    kv_channels: int = 1
    cache_channels: int | None = None
    attention_lanes: int = 1
    prefetch: int = 512
    fabric: Fabric = ULTRASCALE_PLUS
    hold_bits: int | None = None
    own: Plan | None = None
    own_prefetch: int = 512
    boundary: Boundary = field(default_factory=lambda: Boundary(tensors={}))

    def __post_init__(self) -> None:
        if self.columns % 2:
            raise GraphError(f"columns of an engine must be even, not {self.columns}")

    @property
    def unit(self) -> int:
        """Output rows of a tile of the engine."""
        return self.columns * self.n_lanes

    @property
    def token_lanes(self) -> int:
        """Tokens of a tile. The tokens of a run are a multiple of it."""
        return 1 if self.own is None else self.own.token_lanes

    @property
    def alone(self) -> Mapping[str, LinearPlan]:
        """The matmuls with columns of their own, by path."""
        return {} if self.own is None else self.own.linears

    @property
    def resident(self) -> bool:
        """Whether the weights of all matmuls stay on the chip."""
        return self.own is not None and self.own.resident

    @property
    def largest(self) -> int:
        """Tokens of the largest run."""
        return -(-self.max_tokens // self.token_lanes) * self.token_lanes

    @property
    def io_channel(self) -> int:
        """The channel of the host's tensors."""
        return 0 if self.own is None or self.columns else self.own.io_channel

    def constant_channel(self, number: int) -> int:
        """The channel of the constants of the n-th load, or of the n-th table of a phase. With an engine,
        they take the channels of its columns in turn from the last one down, because the scales of caches lie
        on the first ones."""
        return self.columns - 1 - number % self.columns if self.columns else self.io_channel

    def width(self, path: str) -> int | None:
        """The chosen number of elements of a token of an input or an elementwise operation; None if the
        explorer did not choose it."""
        return None if self.own is None else self.own.widths.get(path)
