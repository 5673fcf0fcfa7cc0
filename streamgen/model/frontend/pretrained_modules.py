"""Folders of models that generate no text: encoders and classifiers, as `save_pretrained` writes them.

The config.json names the class of transformers that defines the model (`architectures`), so no family is
named here. Weights are read only from safetensors, and code in the folder is never run.
"""

from pathlib import Path
from typing import Any

from streamgen.base.errors import CheckpointError, StreamgenError
from streamgen.base.turns import one_at_a_time
from streamgen.model.frontend.any_module import import_of_transformers
from streamgen.model.frontend.examples import Example
from streamgen.model.frontend.pretrained import not_finite, with_weights
from streamgen.model.frontend.problems import refuse
from streamgen.model.frontend.safetensors_file import read_config
from streamgen.model.frontend.transformers_modules import generates, own_example
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.nests import Interface

DECODER = "ForCausalLM"  # the end of the names of most classes that generate


@one_at_a_time
def import_pretrained(
    folder: str | Path, example_inputs: Any = None, longest: int = 1, context: int | None = None
) -> tuple[LogicalGraph, Interface | None] | None:
    """The graph of a folder and its interface, if its config.json names a class of transformers that does not
    generate texts; None for every other path, which `load_decoder` reads or refuses.

    example_inputs: as for `import_any`; None means ids [1, T] alone. longest: tokens of the longest sequence.
    Raises CheckpointError with all tensors that are missing, of the wrong shape or type, without a place or
    not finite, and with code and unknown fields; and the errors of `import_structured`.
    """
    folder = Path(folder)
    if (kind := class_of(folder)) is None:
        return None
    said = read_config(folder)
    model, problems = with_weights(kind, folder, said)
    refuse(folder, _own_code(said), *problems, not_finite(model))
    model.eval()
    try:
        example = own_example(model) if example_inputs is None else Example.of(example_inputs)
        given = example_inputs is not None
        return import_of_transformers(model, example, longest, context, given=given)
    except (TypeError, ValueError) as error:
        if isinstance(error, StreamgenError):
            raise
        raise CheckpointError(f"{folder}: {error}") from error


def class_of(folder: Path) -> Any:
    """The class of transformers that the config.json of a folder names, if it does not generate texts; None
    for a language model, without transformers, and if the config names no class that transformers has."""
    if not (folder / "config.json").is_file():
        return None
    said = read_config(folder)
    named = said.get("architectures")
    name = named[0] if isinstance(named, list) and len(named) == 1 else None
    if not isinstance(name, str) or name.endswith(DECODER) or said.get("quantization_config"):
        return None
    try:
        import transformers
    except ModuleNotFoundError:  # the reader of decoders says how to install it
        return None
    kind = getattr(transformers, name, None)
    known = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
    return kind if known and not generates(kind) else None


def _own_code(said: Any) -> list[str]:
    """The problem of a config.json that names code in the folder for its class."""
    named = said.get("auto_map")
    code = (
        [str(named[key]) for key in named if key.startswith("AutoModel")] if isinstance(named, dict) else []
    )
    return [f"auto_map names code in the checkpoint, {', '.join(code)}, which is never run"] if code else []
