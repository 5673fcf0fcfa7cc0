"""The command `estimate`: estimates of several models, boards and clocks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import click

from streamgen.api.kept_estimates import EstimatedModel
from streamgen.base.progress import Progress
from streamgen.cli.messages import EXPECTED, message_of, option_names
from streamgen.cli.models import model_of
from streamgen.cli.options import config_of
from streamgen.observe.estimate import Estimate, NoEstimate
from streamgen.platform.boards import board_of


def estimates(
    sources: Sequence[str],
    boards: Sequence[str],
    clocks: Sequence[float],
    options: Mapping[str, Any],
    positions: Sequence[int],
    prompts: Sequence[int],
    progress: Progress,
    *,
    fresh: bool = False,
) -> list[tuple[str, Estimate | NoEstimate]]:
    """One estimate for each source, board and clock, in this order, with the source.

    Without `boards` or `clocks`, the `options` give the board or the clock. If one of several estimates
    fails, a `NoEstimate` with the reason takes its place. The error of a single estimate is raised. fresh:
    estimate again what is kept.
    """
    for board in boards:
        board_of(board)  # an unknown board is an error of the command line, not of a model
    base = config_of(options)
    places = [(board, clock) for board in boards or (base.board,) for clock in clocks or (base.clock_mhz,)]
    several = len(sources) * len(places) > 1
    context = click.get_current_context()
    names = option_names(context.command, [*(["--on"] if boards else []), *(["--at"] if clocks else [])])

    def of(source: str, model: EstimatedModel | Exception, board: Any, clock: float) -> Estimate | NoEstimate:
        try:
            if isinstance(model, Exception):
                raise model
            config = replace(base, board=board, clock_mhz=clock)
            return model.estimate(config, progress, positions=positions or None, prompts=prompts or None)
        except (*EXPECTED, click.ClickException) as error:
            if not several:
                raise
            name = board if isinstance(board, str) else board.name
            return NoEstimate(name=source, board=name, clock_mhz=clock, reason=message_of(error, names))

    found: dict[str, tuple[Any, Any] | Exception] = {}
    for source in sources:  # every source is checked before the first long estimate
        try:
            found[source] = model_of(source, progress, options)
        except (*EXPECTED, click.ClickException) as error:
            found[source] = error
    results: list[tuple[str, Estimate | NoEstimate]] = []
    for source in sources:
        given = found[source]
        model = given if isinstance(given, Exception) else EstimatedModel(*given, fresh=fresh)
        results += [(source, of(source, model, *place)) for place in places]
    return results
