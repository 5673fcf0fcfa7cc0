"""On which SLR each instance of a top lies, and what stands between SLRs.

Nodes lie where placement has put them, a FIFO at its reader; what stands around the graph lies at the memory.
An edge whose ends lie on different SLRs is a crossing of several instances (`streamgen.fifo.crossing`). Each
SLR with nodes has a descriptor bus and a tree of resets of its own, and what its nodes do comes to the
counters through registers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


def sender_name(name: str) -> str:
    """Instance at the source of a crossing that is called `name`."""
    return f"{name}_sender"


def relay_name(name: str, slr: str) -> str:
    """Instance on an SLR between the ends of a crossing."""
    return f"{name}_relay_{slr}"


@dataclass(frozen=True)
class Floorplan:
    """order: names of the SLRs as they lie beside one another. home: that of the memory. slrs: those of the
    nodes; of one that is not named, `home`."""

    order: tuple[str, ...] = ("SLR0",)
    home: str = "SLR0"
    slrs: Mapping[str, str] | None = None

    def of(self, node: str) -> str:
        """The SLR of a node."""
        return (self.slrs or {}).get(node, self.home)

    def used(self, nodes: Iterable[str]) -> tuple[str, ...]:
        """SLRs with some of these nodes, and that of the memory, which is the first."""
        found = {self.of(node) for node in nodes}
        return (self.home, *(slr for slr in self.order if slr in found and slr != self.home))

    def distance(self, source: str, target: str) -> int:
        """Boundaries between two SLRs."""
        return abs(self.order.index(source) - self.order.index(target))

    def between(self, source: str, target: str) -> tuple[str, ...]:
        """SLRs that are crossed on the way, in order."""
        first, last = self.order.index(source), self.order.index(target)
        step = 1 if last > first else -1
        return self.order[first + step : last : step] if first != last else ()

    def crossing(self, name: str, source: str, target: str) -> dict[str, str]:
        """The SLR of each instance of a crossing, from source to target."""
        relays = {relay_name(name, slr): slr for slr in self.between(source, target)}
        return {sender_name(name): source, **relays, name: target}
