"""What is chosen before operations are bound: an engine that matmuls share, hardware that some have alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from streamgen.base.errors import GraphError
from streamgen.model.graph.plan import Boundary, LinearPlan, Plan
from streamgen.platform.boards import ULTRASCALE_PLUS, Fabric


@dataclass(frozen=True, kw_only=True)
class HardwarePlan:
    """What is built.

    max_tokens: of a run. context: positions. columns: of the engine, column c on channel c; 0: there is none.
    n_lanes: rows that a column computes side by side. lanes: elements a cycle between matmuls. kv_channels:
    over which caches are striped, a power of two. cache_channels: of these, those of keys, and as many of
    values; None: all. attention_lanes: positions of a cache a cycle, a divisor of them. prefetch: beats of
    the FIFO of each column's codes. fabric: of which it is built. own: unroll, widths and padding of the
    matmuls that have columns of their own. own_prefetch: as `prefetch`, of these. boundary: given when a
    model is a part of a larger one and meets the others in memory. hold_bits: of all holds on the chip,
    beyond which they go to memory; None: all stay.
    """

    max_tokens: int
    context: int
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
        """Tokens of a tile: those of a run are a multiple of it."""
        return 1 if self.own is None else self.own.token_lanes

    @property
    def alone(self) -> Mapping[str, LinearPlan]:
        """By path, the matmuls that have columns of their own."""
        return {} if self.own is None else self.own.linears

    @property
    def largest(self) -> int:
        """Tokens of the largest run."""
        return -(-self.max_tokens // self.token_lanes) * self.token_lanes

    @property
    def io_channel(self) -> int:
        """On which the host's tensors lie."""
        return 0 if self.own is None or self.columns else self.own.io_channel

    def constant_channel(self, number: int) -> int:
        """On which the constants of the n-th of their loads lie, or the n-th table of a phase:
        where columns are, one after the other from the last on, as scales of caches lie on the first."""
        return self.columns - 1 - number % self.columns if self.columns else self.io_channel

    def width(self, path: str) -> int | None:
        """Elements of a token of an input or an elementwise operation, where they are chosen."""
        return None if self.own is None else self.own.widths.get(path)
