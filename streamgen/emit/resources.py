"""What a design promises to use, by kind of block, and whether a card has it."""

from streamgen.cost import Resources
from streamgen.emit.top import TopParams
from streamgen.errors import BudgetError

__all__ = ["promised", "require_fit"]

_NAMES = {"lut": "LUT", "ff": "FF", "dsp": "DSP", "bram": "BRAM", "uram": "URAM"}


def promised(top: TopParams) -> dict[str, Resources]:
    """Resources summed by kind of node; those of the FIFOs, and of what stands around the graph."""
    parts: dict[str, Resources] = {}

    def add(kind: str, resources: Resources) -> None:
        parts[kind] = parts[kind] + resources if kind in parts else resources

    for node in top.graph.nodes:
        bounds = next(b for b in node.bounds if b is not None)
        add(type(node.params).__name__.removesuffix("Params"), node.params.cost(bounds).resources)
    for k in range(len(top.graph.edges)):
        add("FIFOs", top.queue(k).resources)
    add("control and masters", top.shell)
    return parts


def require_fit(name: str, parts: dict[str, Resources], available: Resources) -> None:
    """BudgetError when the parts together need more than is available: names each resource that is short,
    by how much, and the blocks that need most of it."""
    total = sum(parts.values(), Resources(lut=0, ff=0))
    short = []
    for resource, text in _NAMES.items():
        need, have = getattr(total, resource), getattr(available, resource)
        if need > have:
            largest = max(parts, key=lambda part: getattr(parts[part], resource))
            share = getattr(parts[largest], resource) / need
            short.append(
                f"{_number(need)} {text} of {_number(have)}, {_number(need - have)} too many "
                f"({share:.0%} of them for {largest})"
            )
    if short:
        raise BudgetError(
            f"{name!r} does not fit the card: it needs {'; '.join(short)}. "
            "Lower CompileConfig.multipliers or token_lanes (logic, DSP), prefetch_beats or max_tokens "
            "(memory), or split the module"
        )


def _number(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")
