"""The SLR of each instance of a top, and the instances between SLRs.

Placement decides the SLR of a node. A FIFO lies with its reader. Everything around the graph lies at the
memory. An edge whose ends lie on different SLRs is a crossing of several instances
(`streamgen.fifo.crossing`). Each SLR with nodes has its own descriptor bus and its own tree of resets. The
activity of its nodes reaches the counters through registers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


def sender_name(name: str) -> str:
    """Name of the instance at the source of the crossing `name`."""
    return f"{name}_sender"


def relay_name(name: str, slr: str) -> str:
    """Name of the instance of the crossing `name` on an SLR between its ends."""
    return f"{name}_relay_{slr}"


@dataclass(frozen=True)
class Floorplan:
    """The SLRs of nodes. order: names of the SLRs in their physical order. home: SLR of the memory. slrs: SLR
    of each node; a node that is not in it lies on `home`."""

    order: tuple[str, ...] = ("SLR0",)
    home: str = "SLR0"
    slrs: Mapping[str, str] | None = None

    def of(self, node: str) -> str:
        """The SLR of a node."""
        return (self.slrs or {}).get(node, self.home)

    def used(self, nodes: Iterable[str]) -> tuple[str, ...]:
        """The SLR of the memory, then the other SLRs that have some of these nodes."""
        in_use = {self.of(node) for node in nodes}
        return (self.home, *(slr for slr in self.order if slr in in_use and slr != self.home))

    def distance(self, source: str, target: str) -> int:
        """Number of boundaries between two SLRs."""
        return abs(self.order.index(source) - self.order.index(target))

    def between(self, source: str, target: str) -> tuple[str, ...]:
        """SLRs on the way between two SLRs, in order, without the two."""
        first, last = self.order.index(source), self.order.index(target)
        step = 1 if last > first else -1
        return self.order[first + step : last : step] if first != last else ()

    def crossing(self, name: str, source: str, target: str) -> dict[str, str]:
        """The SLR of each instance of a crossing, from source to target."""
        relays = {relay_name(name, slr): slr for slr in self.between(source, target)}
        return {sender_name(name): source, **relays, name: target}
