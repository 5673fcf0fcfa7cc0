"""The promised resources of a design, block by block, and the check that the card has room for them.

A block is a node of the graph with the FIFOs before it, or everything around the graph. `require_fit` rejects
a design that has no placement within the share of each SLR that may be filled.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from operator import add

from amaranth.utils import bits_for

from streamgen.base.errors import BudgetError
from streamgen.compiler.emit.placement import Block, Link, Placement, place, placed
from streamgen.compiler.emit.top import TopParams
from streamgen.contract import copies, held_bits, least_prefetch, memory_ports, moves, multipliers
from streamgen.contract.cost import Resources
from streamgen.model.graph import Node
from streamgen.numbers.formats import MX_GROUP
from streamgen.platform.boards import Board
from streamgen.platform.capacity import RESOURCES, number, short_of, usage

SHELL = "control and masters"
_NOTHING = Resources(lut=0, ff=0)
_SPLIT = "split the module, or lower converter_bits so that it becomes several accelerators"
_LESS = "smaller n_lanes or lanes, fewer channels, or a larger board"
_HANDSHAKE = 2  # wires of a stream beside its payload: valid, and backwards the signal of a free place
_LARGEST = 5  # blocks that an error names for each resource


def promised(top: TopParams) -> dict[str, Resources]:
    """Resources by kind of node, of all FIFOs, and of everything around the graph."""
    parts: dict[str, Resources] = {}
    for node in top.graph.nodes:
        kind = _kind(node)
        parts[kind] = parts.get(kind, _NOTHING) + _cost(node)
    collectors = reduce(add, (target.resources for target in top.targets))
    for k in range(len(top.graph.edges)):
        parts["FIFOs"] = parts.get("FIFOs", _NOTHING) + top.queue(k).resources
    return parts | {SHELL: top.shell + collectors}


def blocks(top: TopParams) -> list[Block]:
    """The blocks to place: each node with the FIFOs before it and the collector of its descriptors, and one
    block for everything around the graph. That block, loads and stores lie at the memory."""
    before = {node.name: target.resources for node, target in zip(top.graph.nodes, top.targets, strict=True)}
    for k, edge in enumerate(top.graph.edges):
        target = edge.target.node
        before[target] += top.queue(k).resources
    around = Block(name=SHELL, kind=SHELL, resources=top.shell, fixed=True)
    return [
        around,
        *(
            Block(
                name=node.name,
                kind=_kind(node),
                resources=_cost(node) + before[node.name],
                fixed=bool(memory_ports(node.params)),
            )
            for node in top.graph.nodes
        ),
    ]


def links(top: TopParams) -> list[Link]:
    """The wires of streams between blocks, and the wires from a node and its FIFOs to the counters. All ways
    of a fork are one net, because they cross a boundary together (`lower.forks`)."""
    streams = []
    forks = {node.name for node in top.graph.nodes if copies(node.params)}
    watched = {node.name: 2 for node in top.graph.nodes}
    for k, edge in enumerate(top.graph.edges):
        ends = edge.source.node, edge.target.node
        net = ends[0] if ends[0] in forks else None
        streams.append(Link(edge.name, *ends, top.queue(k).bits + _HANDSHAKE, net=net))
        watched[edge.target.node] += bits_for(edge.depth or 1)
    return streams + [Link(f"counters of {name}", name, SHELL, bits, False) for name, bits in watched.items()]


def find_fit(
    name: str, top: TopParams, board: Board, slrs: Mapping[str, str] | None = None, spare: float = 0.0
) -> Placement:
    """A placement of the design. slrs: SLR of each block, used if it fits. spare: share of each SLR to leave
    free, if possible.

    Raises BudgetError if no placement is within the limits. The message has a table of the resources that are
    needed, placed and allowed, the largest blocks of each resource that is short, and what would help.
    """
    parts = blocks(top)
    if slrs and (placement := placed(parts, links(top), board, slrs)).fits(board):
        return placement
    if 0 < spare < board.fill:
        roomy = replace(board, fill=board.fill - spare)
        if (placement := place(parts, links(top), roomy)).fits(roomy):
            return placement
    return _fitting(name, top, board, place(parts, links(top), board))


def require_fit(name: str, top: TopParams, board: Board) -> Placement:
    """The placement for which the design was built. Raises the BudgetError of `find_fit` if it does not
    fit."""
    parts, of = blocks(top), top.floorplan.of
    return _fitting(name, top, board, placed(parts, links(top), board, {p.name: of(p.name) for p in parts}))


def _fitting(name: str, top: TopParams, board: Board, placement: Placement) -> Placement:
    if placement.fits(board):
        return placement
    parts, short = blocks(top), short_of(placement.used, board)
    lines = [
        f"{name!r} does not fit the card: it needs {placement.shortage(board)}",
        f"A design may fill {board.fill:.0%} of each SLR. In the best placement it takes",
        usage(placement.used, board),
        *_wires(placement, board),
        *(_largest_of(parts, resource) for resource in short),
        *_too_large(parts, board),
        *_in_memory(top),
        f"What frees room: {'; '.join(_advice(top, parts, short, board))}",
    ]
    raise BudgetError("\n".join(lines))


def _wires(placement: Placement, board: Board) -> list[str]:
    """A line about the boundaries with too many wires."""
    limit = int(board.room)
    pairs = [f"{a.name} and {b.name}" for a, b in pairwise(board.slrs)]
    counts = zip(pairs, placement.wires, strict=True)
    over = [f"{count:,} between {pair}" for pair, count in counts if count > limit]
    return [f"wires that cross SLRs: {', '.join(over)}; at most {limit:,} may cross"] if over else []


def _largest_of(parts: Sequence[Block], resource: str) -> str:
    """A line about the blocks that need the most of a resource."""
    need = {block.name: (getattr(block.resources, resource), block.kind) for block in parts}
    largest = sorted((name for name in need if need[name][0]), key=lambda name: (-need[name][0], name))
    named = ", ".join(f"{name} ({need[name][1]}) {number(need[name][0])}" for name in largest[:_LARGEST])
    rest = sum(need[name][0] for name in largest[_LARGEST:])
    more = f", {len(largest) - _LARGEST} more {number(rest)}" if len(largest) > _LARGEST else ""
    return f"most {RESOURCES[resource]}: {named}{more}"


def _too_large(parts: Sequence[Block], board: Board) -> list[str]:
    """A line about the blocks that are too large for every SLR."""
    limits = [slr.resources * board.fill for slr in board.slrs]
    names = [
        f"{block.name} ({block.kind})"
        for block in parts
        if all(
            any(getattr(block.resources, resource) > getattr(limit, resource) for resource in RESOURCES)
            for limit in limits
        )
    ]
    return [f"too large for any single SLR: {', '.join(names)}"] if names else []


def _in_memory(top: TopParams) -> list[str]:
    """A line about the values that wait in memory between phases."""
    names = [t.place.removeprefix("spill_") for t in top.graph.tensors if t.role == "spill"]
    return [f"values that wait in memory between phases: {', '.join(dict.fromkeys(names))}"] if names else []


def _advice(top: TopParams, parts: Sequence[Block], short: Sequence[str], board: Board) -> list[str]:
    """Changes of the configuration that free resources that are short, with the resources that they free."""
    advice = []
    limit, total = board.resources * board.fill, reduce(add, (block.resources for block in parts))
    columns = [node for node in top.graph.nodes if multipliers(node.params)]
    built = sum(multipliers(node.params) for node in columns)
    matmuls = reduce(add, map(_cost, columns), _NOTHING)
    # Nearly everything in the graph shrinks with the multipliers; the blocks around the graph do not.
    shares = [
        (getattr(limit, r) - getattr(top.shell, r)) / (getattr(total, r) - getattr(top.shell, r))
        for r in short
        if getattr(matmuls, r) >= 0.1 * getattr(total, r)
    ]
    if shares and min(shares) < 1:
        fit = max(0, int(built * min(shares))) // MX_GROUP * MX_GROUP
        advice.append(f"fewer multipliers or token_lanes (about {fit:,} of the {built:,} multipliers fit)")
    for text, changed in (
        ("prefetch_beats=64 frees {}", _without_prefetch(top)),
        ("a smaller hold_bits (values that wait between phases take {})", _without_holds(top)),
        ("a smaller max_tokens (FIFOs and layout converters take {})", _without_buffers(top)),
        (
            "a smaller context or fewer cache_channels (loads and stores of caches take {})",
            _without(top, _caches(top)),
        ),
    ):
        freed = [(r, getattr(total, r) - getattr(changed, r)) for r in short]
        gains = [
            f"{number(amount)} {RESOURCES[r]}" for r, amount in freed if amount >= 0.02 * getattr(total, r)
        ]
        if gains:
            advice.append(text.format(" and ".join(gains)))
    return [*advice, _LESS if _caches(top) else _SPLIT]  # a language model has one accelerator


def _caches(top: TopParams) -> set[str]:
    """Nodes that load and store state."""
    return {tensor.node for tensor in top.graph.tensors if tensor.role == "state"}


def _without(top: TopParams, names: Collection[str]) -> Resources:
    """All resources without some nodes."""
    left_out = (_cost(node) for node in top.graph.nodes if node.name in names)
    return reduce(add, (block.resources for block in blocks(top))) + -1 * reduce(add, left_out, _NOTHING)


def _without_prefetch(top: TopParams) -> Resources:
    """All resources with the smallest prefetch FIFOs."""
    total = reduce(add, (block.resources for block in blocks(top)))
    for node in top.graph.nodes:
        if (least := least_prefetch(node.params)) != node.params:
            total += _cost(replace(node, params=least)) + _cost(node) * -1
    return total


def _without_holds(top: TopParams) -> Resources:
    """All resources without back edges."""
    held = (top.queue(k).resources for k, edge in enumerate(top.graph.edges) if edge.back)
    return reduce(add, (block.resources for block in blocks(top))) + -1 * reduce(add, held, _NOTHING)


def _without_buffers(top: TopParams) -> Resources:
    """All resources without FIFOs, and without layout converters except those of constants."""
    constants = {tensor.node for tensor in top.graph.tensors if tensor.role == "constant"}
    fed = {edge.target.node for edge in top.graph.edges if edge.source.node not in constants}
    nodes = (node for node in top.graph.nodes if node.name in fed)
    converters = {node.name for node in nodes if moves(node.params) and held_bits(node.params)}
    queues = (top.queue(k).resources for k in range(len(top.graph.edges)))
    return _without(top, converters) + -1 * reduce(add, queues, _NOTHING)


def _kind(node: Node) -> str:
    return type(node.params).__name__.removesuffix("Params")


def _cost(node: Node) -> Resources:
    bounds = next(b for b in node.bounds if b is not None)
    return node.params.cost(bounds).resources
