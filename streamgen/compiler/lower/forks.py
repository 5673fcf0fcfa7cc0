"""Split forks whose readers lie on several SLRs, so that their tokens cross each boundary only once.

    fork -> a, b, c, d, e           a lies with the fork, b and c on SLR1, d and e on SLR2
    becomes
    fork -> a, fork_SLR1            fork_SLR1 -> b, c, fork_SLR2            fork_SLR2 -> d, e

Every SLR with two or more readers gets its own fork. One of the readers may be the fork of the next SLR.
"""

from dataclasses import replace
from typing import Any

from streamgen.contract import copies
from streamgen.model.graph import Edge, Graph, Node, Port, Regions, verify


def branch_forks(graph: Graph, regions: Regions) -> tuple[Graph, Regions]:
    """The graph with a fork on every SLR that needs one, and the SLRs of all its nodes."""
    slrs = dict(regions.slrs)
    nodes: list[Node] = []
    sources: dict[Port, Port] = {}  # new source of each reader of a fork
    trunks: list[Edge] = []
    for node in graph.nodes:
        branches = {}
        if copies(node.params) and node.name in slrs:
            readers = [edge.target for edge in graph.outputs_of(node.name)]
            branches = _branches(node.name, readers, regions)
        if len(branches) < 2:
            nodes.append(node)
            continue
        for name, (slr, targets) in branches.items():
            params: Any = node.params
            nodes.append(replace(node, name=name, params=replace(params, ways=len(targets))))
            slrs[name] = slr
            for way, target in enumerate(targets):
                sources[target] = Port(name, f"o_{way}")
                if target not in readers:
                    trunks.append(Edge(sources[target], target))
    if not trunks:
        return graph, regions
    edges = [replace(e, source=sources[e.target]) if e.target in sources else e for e in graph.edges]
    branched = verify(replace(graph, nodes=tuple(nodes), edges=(*edges, *trunks)))
    return branched, replace(regions, slrs=slrs)


def _branches(name: str, readers: list[Port], regions: Regions) -> dict[str, tuple[str, list[Port]]]:
    """The forks that replace the fork `name`, sources first: SLR and readers of each."""
    order, home = regions.order, regions.slrs[name]
    at = order.index(home)
    forks: dict[str, tuple[str, list[Port]]] = {}
    beyond: list[Port] = []
    for side in (order[:at], order[:at:-1]):  # from the farthest inwards
        farther: list[Port] = []
        for slr in side:
            here = [target for target in readers if regions.slrs[target.node] == slr] + farther
            farther = here
            if len(here) > 1:
                forks = {f"{name}_{slr}": (slr, here), **forks}
                farther = [Port(f"{name}_{slr}", "i")]
        beyond += farther
    here = [target for target in readers if regions.slrs[target.node] == home]
    return {name: (home, here + beyond), **forks}
