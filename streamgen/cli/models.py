"""Find the model of a command line: a checkpoint, a config.json, or what a Python function returns."""

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import click

from streamgen.artifact.written import WRITTEN
from streamgen.base.progress import Progress
from streamgen.cli.options import require_used

CHECKPOINT = "config.json"


def is_written(source: str) -> bool:
    """Whether a source is the folder of a compiled accelerator."""
    return any(Path(source, name).is_file() for name in WRITTEN)


def compiled_source(source: str) -> str | None:
    """The SOURCE of `streamgen compile` for the model of a source; None for a config.json without weights."""
    path = Path(source)
    folder = path.parent if path.suffix == ".json" else path
    if ":" in source or not (folder / CHECKPOINT).is_file():
        return source
    return str(folder) if any(folder.glob("*.safetensors")) else None


def model_of(
    source: str, progress: Progress, options: Mapping[str, Any] = MappingProxyType({})
) -> tuple[Any, Any]:
    """The arguments of `streamgen.compile`: a model or the path of a checkpoint, and example inputs.

    Raises click's UsageError for a source that is neither, and for options of Python sources with another.
    """
    if ":" not in source:
        needless = {name: "without a Python SOURCE" for name in ("checkpoint", "shapes") if name in options}
        require_used(needless)
    if source == "default":
        from streamgen.model.frontend import default_checkpoint

        return default_checkpoint(), None
    path = Path(source)
    if path.is_dir():
        if is_written(source):
            raise click.UsageError(f"{source} is already compiled; `streamgen report` shows it")
        if not (path / CHECKPOINT).is_file():
            raise click.UsageError(
                f"the folder {source} has neither a written accelerator nor a checkpoint with {CHECKPOINT}"
            )
        return source, None
    if ":" not in source:
        if not path.is_file():
            raise click.UsageError(
                f"{source!r} is not a folder, a GGUF file, a config.json or module:function"
            )
        return source, None
    progress(f"calling {source}")
    model, inputs = called(source)
    if options.get("shapes"):
        inputs = tuple(map(_example, options["shapes"]))
    if (file := options.get("checkpoint")) is not None:
        if not hasattr(model, "load_state_dict"):
            raise click.UsageError(f"--checkpoint needs a torch module; {source} is a {type(model).__name__}")
        from streamgen.model.frontend.state_dict import load_state  # torch takes seconds to load

        progress("reading the checkpoint")
        load_state(model, file)
    return model, inputs


def _example(shape: str) -> Any:
    """An example input of a shape that is written as 1,28,28, or as 1,16:ids."""
    from streamgen.model.frontend.any_module import example_of  # torch takes seconds to load

    numbers, _, kind = shape.partition(":")
    extents = [int(extent) if extent.strip().isdigit() else 0 for extent in numbers.split(",")]
    if not all(extents) or kind not in ("", "ids"):
        raise click.UsageError(
            f"--example-shape is {shape!r}; positive extents with commas are needed: 1,28,28, or 1,16:ids "
            "for an input of ids"
        )
    return example_of(extents, ids=kind == "ids")


def called(source: str) -> tuple[Any, Any]:
    """The model that `module:function` or `file.py:function` returns, or the module of that name, and its
    example inputs. Modules are set to evaluation, since nothing trains them here."""
    place, _, name = source.rpartition(":")
    if not place or not name:
        raise click.UsageError(f"{source!r} is not of the form module:function")
    factory = getattr(_module(place), name, None)
    if not callable(factory):
        raise click.UsageError(f"{place} has no function or module {name!r}")
    result = factory if hasattr(factory, "state_dict") and not isinstance(factory, type) else factory()
    model, inputs = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    if isinstance(model, tuple):
        raise TypeError(
            f"{source} returns {len(model)} values; it must return a model or (module, example inputs)"
        )
    return model.eval() if hasattr(model, "state_dict") else model, inputs


def _module(place: str) -> ModuleType:
    if place.endswith(".py"):
        path = Path(place).resolve()
        if not path.is_file():
            raise click.UsageError(f"there is no file {place}")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module  # classes of the file know their module by this name
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # the file runs any code
            del sys.modules[path.stem]
            raise click.UsageError(f"{place} cannot be imported: {_said(error, path)}") from error
        return module
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module in the current folder
    try:
        return importlib.import_module(place)
    except ImportError as error:
        raise click.UsageError(f"{place} cannot be imported: {error}") from error


def _said(error: Exception, path: Path) -> str:
    """What an error says, and the line of the file that it comes from."""
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)
    ]
    place = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {error}{place}"
