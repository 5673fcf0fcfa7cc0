"""Models of which only the shapes are known: a config.json without weights, or modules on torch's meta
device.

A config.json of a well-known kind needs no torch (`plain_config`). Models of other kinds are built by
transformers and traced (`traced_shapes`); modules are traced too.
"""

from pathlib import Path
from typing import Any

from streamgen.base.errors import CheckpointError
from streamgen.base.turns import one_at_a_time
from streamgen.model.frontend.plain_config import plain_decoder
from streamgen.model.frontend.problems import config_problems, refuse
from streamgen.model.frontend.safetensors_file import read_config
from streamgen.model.graph.logical import LogicalGraph
from streamgen.text.sentences import is_sentence_encoder


@one_at_a_time
def shapes_of(
    model: Any, example_inputs: Any = None, longest: int = 1, context: int | None = None
) -> LogicalGraph:
    """The graph of a model for callers that need only shapes. The model is a GGUF file, a folder with
    config.json, with or without safetensors, a config.json, or a torch module, also on the meta device.

    A module of transformers on the meta device is built again from its config. Arguments and errors are those
    of `load_decoder`, `import_encoder`, `import_pretrained` and `import_any`. Also raises CheckpointError for
    a config.json of which transformers makes no model, ValueError for buffers on the meta device, and
    MissingToolError if torch or transformers is needed and not installed.
    """
    if not isinstance(model, (str, Path)):
        from streamgen.model.frontend.traced_shapes import shapes_of_module  # torch takes seconds to load

        return shapes_of_module(model, example_inputs, longest, context)
    path = Path(model)
    if path.suffix == ".json" or (path.is_dir() and not any(path.glob("*.safetensors"))):
        return _config_graph(path, longest, context)
    from streamgen.model.frontend.checkpoint import load_decoder
    from streamgen.model.frontend.encoder import import_encoder
    from streamgen.model.frontend.pretrained_modules import import_pretrained

    if is_sentence_encoder(path):
        return import_encoder(path, longest)[0]
    if path.is_dir() and (read := import_pretrained(path, example_inputs, longest, context)) is not None:
        return read[0]
    return load_decoder(path, context)


def _config_graph(path: Path, longest: int, context: int | None) -> LogicalGraph:
    """The model that a config.json, or the config.json in a folder, describes."""
    folder = path if path.is_dir() else path.parent
    if path.is_file() and path.name != "config.json":
        raise CheckpointError(f"{path} is not a GGUF file; a configuration must be named config.json")
    config = read_config(folder)
    refuse(folder, config_problems(config), vocabulary=config.get("vocab_size"))
    if (plain := plain_decoder(config, context, folder)) is not None:
        return plain
    from streamgen.model.frontend.traced_shapes import shapes_of_config

    return shapes_of_config(folder, context, longest)
