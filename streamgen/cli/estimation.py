"""The command `estimate`: what models would do on boards, without compiling them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from streamgen.cli.options import config_of
from streamgen.cli.sources import model_of
from streamgen.estimation import estimate
from streamgen.observe.estimate import Estimate
from streamgen.progress import Progress

__all__ = ["estimates"]


def estimates(
    sources: Sequence[str],
    boards: Sequence[str],
    clocks: Sequence[float],
    options: Mapping[str, Any],
    positions: Sequence[int],
    prompts: Sequence[int],
    progress: Progress,
) -> list[Estimate]:
    """One for each source, board and clock; the options say those that are not given."""
    base = config_of(options)
    configs = [
        replace(base, board=board, clock_mhz=clock)
        for board in boards or (base.board,)
        for clock in clocks or (base.clock_mhz,)
    ]
    models = [(model_of(source, progress)) for source in sources]  # all are there before the first takes long
    return [
        estimate(model, inputs, config, progress, positions=positions or None, prompts=prompts or None)
        for model, inputs in models
        for config in configs
    ]
