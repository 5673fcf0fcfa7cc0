"""What is chosen for an accelerator whose matmuls share one engine."""

from dataclasses import dataclass

from streamgen.boards import ULTRASCALE_PLUS, Fabric

__all__ = ["EnginePlan"]


@dataclass(frozen=True, kw_only=True)
class EnginePlan:
    """What is built.

    max_tokens: of a run. context: positions. columns: of the engine, column c on channel c. n_lanes: rows
    that a column computes side by side. lanes: elements a cycle between matmuls. kv_channels: over which
    caches are striped, a power of two. prefetch: beats of the FIFO of each column's codes. fabric: of which
    it is built.
    """

    max_tokens: int
    context: int
    columns: int
    n_lanes: int
    lanes: int
    kv_channels: int = 1
    prefetch: int = 512
    fabric: Fabric = ULTRASCALE_PLUS

    @property
    def unit(self) -> int:
        """Output rows of a tile of the engine."""
        return self.columns * self.n_lanes
