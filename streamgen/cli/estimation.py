"""The command `estimate`: what models would do on boards, without compiling them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from streamgen.cli.options import config_of
from streamgen.cli.sources import called
from streamgen.estimation import estimate
from streamgen.observe.estimate import Estimate
from streamgen.progress import Progress

__all__ = ["estimates", "model_of"]


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


def model_of(source: str, progress: Progress) -> tuple[Any, Any]:
    """What `streamgen.estimate` takes; click's UsageError when a source is nothing of that."""
    if source == "default":
        from streamgen.frontend import default_checkpoint  # torch takes seconds to load

        return default_checkpoint(), None
    path = Path(source)
    if path.is_file() and ":" not in source:
        return path, None
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise click.UsageError(
                f"{source} holds no config.json; `streamgen report` shows what is compiled"
            )
        return path, None
    if ":" not in source:
        raise click.UsageError(
            f"{source!r} is neither a GGUF file, nor a config.json, nor a folder with one, nor module:factory"
        )
    progress(f"calling {source}")
    return called(source)
