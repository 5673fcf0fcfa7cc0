"""A table of several estimates, the best first. Models that cannot be estimated are its last rows."""

from collections.abc import Callable, Sequence

from rich.table import Table

from streamgen.base.tables import rendered, table, width_of
from streamgen.compiler.plan.goals import GOALS
from streamgen.observe.estimate import Estimate, NoEstimate

SMALL = "small"  # goal of designs that are not planned
LEAST = 12  # characters of the names of models, if a line has no room for more
MOST = 4  # names of models take at most a line divided by this
CONTEXT = "context (tokens)"  # the column that a line without room for all of them does not have

Row = tuple[str, Estimate | NoEstimate]
"""The name of a model, and its estimate."""

_Column = tuple[str, Callable[[Estimate], str]]


def ranking(rows: Sequence[Row], *, width: int | None = None) -> str:
    """A table with a line for each estimate, sorted by the time of the goal. Estimates of different goals are
    sorted one goal after the other. The models that cannot be estimated follow, with the first line of the
    reason. width: characters of a line; by default the width of the terminal."""
    found = [(name, estimate) for name, estimate in rows if isinstance(estimate, Estimate)]
    missing = [(name, estimate) for name, estimate in rows if isinstance(estimate, NoEstimate)]
    goals = [*dict.fromkeys(estimate.plan.goal for _, estimate in found)]
    found.sort(key=lambda row: (goals.index(row[1].plan.goal), row[1].goal_milliseconds))
    line = width_of(width)
    places: list[Row] = [*found, *missing]
    left: list[tuple[str, Callable[[Row], str]]] = [("model", lambda row: row[0])]
    if len({estimate.board for _, estimate in places}) > 1:
        left.append(("board", lambda row: row[1].board))
    if len({estimate.clock_mhz for _, estimate in places}) > 1:
        left.append(("clock (MHz)", lambda row: f"{row[1].clock_mhz:g}"))
    right = _figures([estimate for _, estimate in found], len(goals))
    widths = [_longest([title, *map(text, places)]) for title, text in left[1:]]
    taken = {title: max(_longest([title]), *(len(text(e)) for _, e in found)) for title, text in right}

    def room() -> int:
        """Characters for the names of models. Two spaces lie before each other column, one at each end."""
        return line - 2 - sum(width + 2 for width in (*widths, *taken.values()))

    if room() < LEAST and taken.pop(CONTEXT, None) is not None:
        right = [column for column in right if column[0] != CONTEXT]
    texts = len(left) + (len(goals) > 1)
    size = max((len(part) for name, _ in places for part in (name, "model")), default=0)
    widths = [min(size, line // MOST, max(room(), LEAST)), *widths, *taken.values()]

    def sized(*titles: str) -> Table:
        """A table without rows. A column without a width takes the rest of the line."""
        empty = table(*titles, texts=texts)
        empty.padding = (0, 1, 0, 0)
        for column, width in zip(empty.columns, widths, strict=False):
            column.width = width
        return empty

    best = sized(*(title for title, _ in (*left, *right)))
    for name, estimate in found:
        cells = [text((name, estimate)) for _, text in left]
        best.add_row(*cells, *(text(estimate) for _, text in right))
    last = sized(*(title for title, _ in left), "no estimate, because")
    last.columns[-1].justify, last.columns[-1].width = "left", None
    last.show_header = not found
    for name, refusal in missing:
        reason = next(iter(refusal.reason.splitlines()), "")
        cells = [text((name, refusal)) for _, text in left]
        last.add_row(*cells, f"no estimate: {reason}" if found else reason)
    shown = [rendered([_title(places, goals)], width)]
    shown += [f"\n{rendered([best], width).strip(chr(10))}"] if found else []
    shown += [rendered([last], width).strip("\n")] if missing else []
    return "\n".join(shown)


def _longest(texts: Sequence[str]) -> int:
    """Characters of the longest word."""
    return max(len(word) for text in texts for word in text.split())


def _title(places: Sequence[Row], goals: Sequence[str]) -> str:
    """What the rows have in common, and what ranks them."""
    boards, clocks = {e.board for _, e in places}, {e.clock_mhz for _, e in places}
    where = f" on {boards.pop()}" if len(boards) == 1 else ""
    where += f" at {clocks.pop():g} MHz" if len(clocks) == 1 else ""
    if not goals:
        return f"No model can be estimated{where}."
    if len(goals) == 1:
        sentences = [f"Estimates{where}, ranked by the planned time of {_counted(*goals)}."]
    else:
        sentences = [f"Estimates{where}, ranked by the planned time of their goal."]
        sentences += [f"The goal {goal!r} is {_counted(goal)}." for goal in goals]
    prompts = {next(iter(e.first_tokens)) for _, e in places if isinstance(e, Estimate) and e.first_tokens}
    if len(prompts) == 1:
        sentences.append(f"The first token follows a prompt of {prompts.pop():,} tokens.")
    return "\n".join(sentences)


def _counted(goal: str) -> str:
    """What a goal counts, as a noun."""
    return "a step at position 0, or the largest pass" if goal == SMALL else GOALS[goal].text


def _figures(found: Sequence[Estimate], goals: int) -> list[_Column]:
    """Titles and texts of the columns of figures. A column without any text is left out."""
    steps = [e.steps for e in found if e.context]
    whole = all(e.steps[-1].position == e.context - 1 for e in found if e.context)
    start = "start" if all(run[0].position == 0 for run in steps) else "first position"
    prompts = {next(iter(e.first_tokens)) for e in found if e.first_tokens}

    def first(e: Estimate) -> str:
        for tokens, cycles in e.first_tokens.items():
            return f"{e.milliseconds(cycles):,.1f}" + (f" after {tokens:,}" if len(prompts) > 1 else "")
        return ""

    def last(e: Estimate) -> str:
        return f"{e.context if whole else e.steps[-1].position:,}" if e.context else ""

    columns: list[_Column] = [
        ("goal", lambda e: e.plan.goal if goals > 1 else ""),
        ("planned time (ms)", lambda e: _milliseconds(e.goal_milliseconds)),
        (f"tokens/s at {start}" if steps else "tokens/s", lambda e: f"{_speed(e, 0):,.0f}"),
        (
            f"tokens/s at {'end' if whole else 'last position'}",
            lambda e: f"{_speed(e, -1):,.0f}" if e.context else "",
        ),
        (CONTEXT if whole else "last position", last),
        ("first token (ms)", first),
        ("LUTs (%)", lambda e: f"{_share(e, 'lut'):.0f}"),
        ("DSPs (%)", lambda e: f"{_share(e, 'dsp'):.0f}"),
    ]
    return [(title, text) for title, text in columns if any(map(text, found))]


def _speed(estimate: Estimate, end: int) -> float:
    """Tokens per second of the first (0) or last (-1) step of a text, or of the largest pass."""
    if estimate.context:
        return estimate.tokens_per_second(estimate.steps[end])
    runs = estimate.headline
    return 1e3 * runs[0].tokens / estimate.milliseconds(sum(run.cycles for run in runs))


def _milliseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _share(estimate: Estimate, name: str) -> float:
    """Most that a group takes of a resource: a percentage of what the shell of the board leaves free."""
    reports = [group.resources for group in estimate.groups]
    return max(float(100 * getattr(r.total, name) / getattr(r.available, name)) for r in reports)
