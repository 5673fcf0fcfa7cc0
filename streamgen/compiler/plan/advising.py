"""What would help if a design does not fit: changes of the configuration, each tried before it is named.

If memory is short, formats of fewer bits, more channels, shorter contexts and other boards are tried: all
contents of memory must have a place, and there must be a plan. Otherwise each factor that the user fixed is
left to the plan, which says its own choice. A design without advice keeps the facts of its error ("What frees
room").
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from streamgen.base.errors import BudgetError, GraphError
from streamgen.base.wording import counted
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.plan.grouping import parts_of
from streamgen.compiler.plan.policy import limited, quantised
from streamgen.model.golden_text import is_language_model
from streamgen.model.graph.logical import LogicalGraph
from streamgen.platform.boards import BOARDS

FIXED = (
    *("n_lanes", "multipliers", "channels", "lanes", "attention_lanes", "cache_channels"),
    *("prefetch_beats", "context", "max_tokens"),
)
"""Fields that the plan chooses if the user does not."""

FORMATS = {"head", "weights"}
"""Fields that are formats of weights."""

Plans = Callable[[CompileConfig], CompileConfig]
"""A function from a configuration to that of its plan, in which a factor may still be None if a rule of a
small design decides it. Raises BudgetError without a plan."""


def advised(error: BudgetError, plain: LogicalGraph, asked: CompileConfig, plans: Plans) -> BudgetError:
    """The error with a last line that says what would help.

    plain: the graph before quantisation. asked: the configuration of the user.
    """
    if error.needed_bytes > error.available_bytes:
        tried, helpful = _in_memory(plain, asked, plans)
        hbm = asked.card.hbm
        cards = -(-error.needed_bytes // (hbm.channels * hbm.channel_bytes))
        none = f"Tried in vain: {'; '.join(tried)}\n" if tried else ""
        size = f"{error.needed_bytes / 1e9:,.1f} GB"
        needed = f"The design needs {size}, the memory of {counted(cards, 'such card')}"
        text = f"What helps: {'; '.join(helpful)}" if helpful else none + needed
    else:
        values = list(_without(asked, plans))
        if not values:
            return error
        text = f"What helps: {'; '.join(values)}"
    facts = [line for line in str(error).splitlines() if not line.startswith("What frees room: ")]
    return BudgetError(
        "\n".join([*facts, text]), needed_bytes=error.needed_bytes, available_bytes=error.available_bytes
    )


def _in_memory(plain: LogicalGraph, asked: CompileConfig, plans: Plans) -> tuple[list[str], list[str]]:
    """All changes that were tried, and those with which the design fits; of contexts, the longest one.
    Formats that the weights have already are not tried."""
    tried, helpful = [], []
    config, graph = limited(plain, asked)
    known = {_formats(quantised(graph, config))}
    shorter = False  # a shorter context helps
    for text, changes in _changes(plain, asked):
        if shorter and "context" in changes:
            continue
        config, graph = limited(plain, replace(asked, **changes))
        graph = quantised(graph, config)
        if changes.keys() <= FORMATS:
            if (formats := _formats(graph)) in known:
                continue
            known.add(formats)
        tried.append(text)
        config = replace(config, channels=config.channels or config.card.hbm.channels)
        try:
            for part in parts_of(graph, config):
                _ = part.derivation.largest
            plans(replace(asked, **changes))
        except (BudgetError, GraphError):
            continue
        helpful.append(text)
        shorter = shorter or "context" in changes
    return tried, helpful


def _formats(graph: LogicalGraph) -> tuple[str, ...]:
    return tuple(matmul.integers.format for _, matmul in graph.matmuls())


def _changes(plain: LogicalGraph, asked: CompileConfig) -> Iterator[tuple[str, dict[str, Any]]]:
    """Changes that free memory, in words and as fields of the configuration."""
    most = asked.card.hbm.channels
    if asked.channels is not None and asked.channels < most:
        yield f"channels={most}", {"channels": most}
    if is_language_model(plain):
        smaller: dict[str, Any] = {}
        for name in ("head", "weights"):
            if getattr(asked, name) != "w4":
                smaller[name] = "w4"
                yield " and ".join(f"{field}='w4'" for field in smaller), dict(smaller)
        context = (asked.context or asked.size("context")) // 2
        while context >= 256 and asked.context is not None:
            yield f"context={context}", {"context": context}
            context //= 2
    for name, board in BOARDS.items():
        if board.hbm.channels * board.hbm.channel_bytes > most * asked.card.hbm.channel_bytes:
            yield f"board={name!r}", {"board": name}


def _without(asked: CompileConfig, plans: Plans) -> Iterator[str]:
    """For each factor that the user fixed and that stands in the way: the value that the plan chooses."""
    for name in FIXED:
        if (value := getattr(asked, name)) is None:
            continue
        free: dict[str, Any] = {name: None}
        try:
            chosen = getattr(plans(replace(asked, **free)), name)
        except (BudgetError, GraphError, ValueError):
            continue
        yield f"leave out {name}={value}" if chosen is None else f"{name}={chosen} in place of {value}"
