"""What the explorer is asked and what it answers: unroll factors of every matmul."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from streamgen.formats import MX_GROUP

__all__ = ["Boundary", "LinearPlan", "LinearShape", "Plan"]


@dataclass(frozen=True, kw_only=True)
class LinearShape:
    """What the explorer knows of a matmul: y[T, n] = x[T, k] W^T; level = matmuls before it on a path."""

    name: str
    k: int
    n: int
    level: int
    group: int | None  # weights that share a scale (4-bit codes); None: 8-bit codes, one scale a row


@dataclass(frozen=True, kw_only=True)
class LinearPlan:
    """Unroll of one matmul, and the memory channel of each column."""

    columns: int = 1
    n_lanes: int = 1
    channels: tuple[int, ...] = ()

    @property
    def tile(self) -> int:
        """Output rows of one tile."""
        return self.columns * self.n_lanes


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The choice: factors by matmul, the feature padding they imply, and why, in words."""

    token_lanes: int
    feature_pad: int
    linears: Mapping[str, LinearPlan]
    io_channel: int
    channels: int
    reasons: tuple[str, ...]

    @property
    def multipliers(self) -> int:
        """Multipliers of all matmuls."""
        return sum(p.tile for p in self.linears.values()) * self.token_lanes * MX_GROUP


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """How the inputs and outputs of one group of several lie in memory.

    tensors: names of their tensors, by value. channels: by value, where it is not the plan's own channel.
    by_rows: outputs that another group reads: they lie row after row, as inputs do.
    """

    tensors: Mapping[str, str]
    channels: Mapping[str, int] = field(default_factory=dict)
    by_rows: frozenset[str] = frozenset()
