"""Find the accelerator or model of a command line: a written folder, a checkpoint, a Python function, or one
layer of a GGUF file."""

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import click

from streamgen.api.accelerator import Accelerator
from streamgen.api.compiling import compile, load
from streamgen.artifact.written import WRITTEN
from streamgen.base.progress import After, Progress
from streamgen.cli.calibration import calibrated_of
from streamgen.cli.options import (
    MODEL_OPTIONS,
    config_of,
    require_calibration,
    require_no_options,
    require_used,
)
from streamgen.text.tokenizer import Tokenizer
from streamgen.text.tokenizer_files import load_tokenizer

CHECKPOINT = "config.json"

EXAMPLE_TOKENS = 2  # tokens of the example input of a GGUF layer; torch.export needs more than one


def accelerator_of(
    source: str | None,
    gguf: str | None,
    layer: int,
    options: Mapping[str, Any],
    progress: Progress,
    after: After | None = None,
    **defaults: Any,
) -> Accelerator:
    """The accelerator that a command line names. It is compiled unless `source` is a written folder.

    options: all options of the command. defaults: fields of the configuration whose options are not given.
    Raises click's UsageError if the line names no source or two.
    """
    if (source is None) == (gguf is None):
        raise click.UsageError("give either SOURCE (see `streamgen --help`) or --gguf FILE")
    require_calibration(options)
    if options.get("calibrate") is not None:
        return calibrated_of(_checkpoint(source), options, progress, after)
    if gguf is not None:
        from streamgen.model.frontend import (  # torch takes seconds to load
            default_checkpoint,
            load_feed_forward,
        )

        progress("reading the checkpoint")
        block = load_feed_forward(default_checkpoint() if gguf == "default" else gguf, layer)
        config = config_of(options, name=f"feed_forward_{layer}", **defaults)
        return compile(block, block.example_inputs(EXAMPLE_TOKENS), config, progress, after=after)
    assert source is not None
    if is_written(source):
        require_no_options(source, options)
        require_used({name: "with a written folder" for name in MODEL_OPTIONS if name in options})
        return load(source, options.get("trust", ()), changed_files=options.get("changed_files", False))
    config = config_of(options, **defaults)
    model, inputs = model_of(source, progress, options)
    return compile(model, inputs, config, progress, tokenizer=tokenizer_of(options), after=after)


def is_written(source: str) -> bool:
    """Whether a source is the folder of a compiled accelerator."""
    return any(Path(source, name).is_file() for name in WRITTEN)


def tokenizer_of(options: Mapping[str, Any]) -> Tokenizer | None:
    """The tokenizer that --tokenizer names."""
    place = options.get("tokenizer")
    return None if place is None else load_tokenizer(place)


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
        from streamgen.model.frontend import default_checkpoint  # torch takes seconds to load

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


def _checkpoint(source: str | None) -> str | Path:
    """The file or folder of a language model. Raises click's UsageError for any other source."""
    if source == "default":
        from streamgen.model.frontend import default_checkpoint  # torch takes seconds to load

        return default_checkpoint()
    if source is None or not (Path(source).is_file() or Path(source, CHECKPOINT).is_file()):
        raise click.UsageError(
            "--calibrate needs a language model: a GGUF file, or a folder with config.json and safetensors"
        )
    return source


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
