"""Resources of a design on the SLRs of its card: a chart for each kind of resource."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from streamgen.contract.cost import Resources
from streamgen.model.graph import kind_of
from streamgen.observe.alike import gathered, named
from streamgen.observe.drawing import COLOURS, role_of
from streamgen.observe.page.charts import Bar, Chart
from streamgen.observe.view import GroupView

RESOURCES = ("lut", "ff", "dsp", "bram", "uram")
MOST_BLOCKS = 15
SHELL, OTHERS = "shell", "other"


@dataclass(frozen=True, kw_only=True)
class Slrs(Chart):
    """regions: label, and for each role of blocks its colour, its share of the region in per cent, and its
    text. rows: label and bar of the largest blocks."""

    kind: str = "regions"
    regions: Sequence[tuple[str, Sequence[tuple[str, float, str]]]]
    rows: Sequence[tuple[str, Sequence[Bar]]]


def card(view: GroupView, slrs: Mapping[str, tuple[Resources, Resources]], shell: Resources) -> list[Slrs]:
    """A chart for each resource. slrs: used and offered of each SLR. shell: the blocks around the graph."""
    return [_regions(view, slrs, shell, name) for name in RESOURCES]


def _regions(
    view: GroupView, slrs: Mapping[str, tuple[Resources, Resources]], shell: Resources, name: str
) -> Slrs:
    unit, board = name.upper(), view.board
    blocks = list(_blocks(view, shell, name))
    regions = []
    for slr in reversed(board.slrs):
        used, offered = (float(getattr(part, name)) for part in slrs[slr.name])
        sums: dict[str, float] = {}
        for region, role, _, value in blocks:
            if region == slr.name:
                sums[role] = sums.get(role, 0.0) + value
        if (rest := used - sum(sums.values())) > 0.5:
            sums[OTHERS] = rest
        room = max(used, offered) or 1.0
        label = f"{slr.name}: {used:,.0f} of {offered:,.0f} {unit}, {100 * used / (offered or 1):.1f} %"
        parts = [(role, 100 * value / room, f"{value:,.0f} {unit}") for role, value in sums.items()]
        regions.append((label, parts))
    largest = sorted(blocks, key=lambda block: -block[3])[:MOST_BLOCKS]
    most = largest[0][3] if largest else 1.0
    total = sum(float(getattr(used, name)) for used, _ in slrs.values())
    named_roles = {**{role: words for role, (_, _, words) in COLOURS.items()}, SHELL: "control and masters"}
    return Slrs(
        title=unit,
        alt=f"{total:,.0f} {unit} on the {len(regions)} SLRs of {board.name}, and the {len(largest)} blocks "
        "that take the most. Equal blocks share a bar.",
        legend=[
            (f"role-{role}", words)
            for role, words in {**named_roles, OTHERS: "others"}.items()
            if any(part[0] == role for _, parts in regions for part in parts)
        ],
        regions=regions,
        rows=[
            (
                f"{label}, {region}",
                [Bar(colour=f"role-{role}", share=100 * value / most, text=f"{value:,.0f}")],
            )
            for region, role, label, value in largest
        ],
    )


def _blocks(view: GroupView, shell: Resources, name: str) -> Iterator[tuple[str, str, str, float]]:
    """SLR, role, name and resources of the blocks. Equal blocks of an SLR are one block."""
    for slr in view.board.slrs:
        nodes = [node for node in view.graph.nodes if view.slrs.get(node.name) == slr.name]
        for several in gathered(nodes, lambda n: n.name, lambda n: kind_of(n.params)):
            if value := sum(float(getattr(view.resources[n.name], name)) for n in several):
                yield slr.name, role_of(several[0]), named([n.name for n in several]), value
        if slr.name == view.board.hbm.slr and (value := float(getattr(shell, name))):
            yield slr.name, SHELL, "control and masters", value
