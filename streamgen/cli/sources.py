"""Where an accelerator comes from: a written folder, a Python factory, a layer of a GGUF file."""

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from streamgen.cli.options import config_of, require_no_options
from streamgen.compiler import Accelerator, compile, load
from streamgen.config import CompileConfig
from streamgen.decoder import CONFIG, open_decoder
from streamgen.progress import Progress
from streamgen.report import Report

__all__ = ["accelerator_of", "report_of"]

EXAMPLE_TOKENS = 2  # of the example input of a GGUF layer; torch.export wants to see more than one


def accelerator_of(
    source: str | None, gguf: str | None, layer: int, options: Mapping[str, Any], progress: Progress
) -> Accelerator:
    """The accelerator that a command line names; compiled unless `source` is a written folder.

    options: those of the command. click's UsageError when the line names none, or two.
    """
    if (source is None) == (gguf is None):
        raise click.UsageError("name either a SOURCE (a folder or module:factory) or --gguf FILE")
    if gguf is not None:
        from streamgen.frontend import default_checkpoint, load_feed_forward  # torch takes seconds to load

        progress("reading the checkpoint")
        block = load_feed_forward(default_checkpoint() if gguf == "default" else gguf, layer)
        return compile(
            block,
            block.example_inputs(EXAMPLE_TOKENS),
            config_of(CompileConfig, options, name=f"feed_forward_{layer}"),
            progress=progress,
        )
    assert source is not None
    if Path(source).is_dir():
        require_no_options(CompileConfig, source, options)
        return load(source)
    progress(f"calling {source}")
    module, example_inputs = _called(source)
    return compile(module, example_inputs, config_of(CompileConfig, options), progress=progress)


def report_of(
    source: str | None, gguf: str | None, layer: int, options: Mapping[str, Any], progress: Progress
) -> Report:
    """The report of the accelerator that a command line names, which may be a written decoder too."""
    if source is not None and gguf is None and Path(source, CONFIG).is_file():
        require_no_options(CompileConfig, source, options)
        progress("lowering the model")
        return open_decoder(source).report()
    return accelerator_of(source, gguf, layer, options, progress).report()


def _called(source: str) -> tuple[Any, Any]:
    """What the factory `module:function` or `file.py:function` returns."""
    place, colon, name = source.rpartition(":")
    if not colon or not place or not name:
        raise click.UsageError(f"{source!r} is neither a folder nor module:factory")
    factory = getattr(_module(place), name, None)
    if not callable(factory):
        raise click.UsageError(f"{place} has no function {name!r}")
    result = factory()
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(f"{source} must return (module, example inputs), not {type(result).__name__}")
    return result


def _module(place: str) -> ModuleType:
    if place.endswith(".py"):
        path = Path(place).resolve()
        if not path.is_file():
            raise click.UsageError(f"there is no file {place}")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module  # classes of the file know their module by this name
        spec.loader.exec_module(module)
        return module
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module in the current folder
    try:
        return importlib.import_module(place)
    except ImportError as error:
        raise click.UsageError(f"{place} cannot be imported: {error}") from error
