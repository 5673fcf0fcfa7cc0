"""Encoders of sentences, as sentence-transformers writes them: a model of transformers, pooling, a norm.

The classes of transformers define the meaning of a config.json, so no family is named here. Weights are read
only from safetensors, and code in the folder is never run.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from streamgen.base.errors import CheckpointError
from streamgen.base.extras import needed
from streamgen.model.frontend.any_module import interface_of
from streamgen.model.frontend.export import import_structured
from streamgen.model.frontend.pretrained import not_finite, with_weights
from streamgen.model.frontend.problems import refuse
from streamgen.model.frontend.safetensors_file import read_config
from streamgen.model.frontend.transformers_modules import own_example
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.nests import Interface
from streamgen.text.sentences import MODULES

KIND = "sentence_transformers.models."
PREFIX = "pooling_mode_"
POOLINGS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mean_tokens": lambda x: x.mean(1),
    "max_tokens": lambda x: x.amax(1),
    "cls_token": lambda x: x[:, 0],
}
"""By the name in the configuration of a Pooling: a function from [texts, tokens, features] to rows."""
INERT = {"word_embedding_dimension", "include_prompt"}  # fields of a Pooling without effect on one text


class SentenceModule(torch.nn.Module):
    """Ids [texts, tokens] to a row for each text. Its texts have no padding, so it needs no mask."""

    def __init__(self, body: torch.nn.Module, pooling: str, *, normalised: bool) -> None:
        super().__init__()
        self.body, self.pooling, self.normalised = body, pooling, normalised

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """float32 [texts, features]."""
        y = POOLINGS[self.pooling](self.body(input_ids=ids).last_hidden_state)
        return torch.nn.functional.normalize(y, p=2, dim=-1) if self.normalised else y


def import_encoder(folder: str | Path, longest: int) -> tuple[LogicalGraph, Interface]:
    """The graph of an encoder for texts of up to `longest` tokens, and its interface: ids [texts, tokens] to
    rows [texts, features]. Raises the errors of `load_encoder` and `import_structured`."""
    module = load_encoder(Path(folder))
    imported = import_structured(module, own_example(module.body).arguments, longest=longest)
    return imported.graph, interface_of(imported)


def load_encoder(folder: Path) -> SentenceModule:
    """The module of a folder that sentence-transformers wrote.

    CheckpointError names parts of another kind than a transformer, a pooling of `POOLINGS` and a norm of
    length 1, tensors that are missing, without a place or not finite, code, and unknown fields.
    """
    with needed("an encoder of sentences"):
        from transformers import AutoModel

    pooling, normalised = _parts(folder)
    body, problems = with_weights(AutoModel, folder, read_config(folder))
    refuse(folder, *problems, not_finite(body))
    return SentenceModule(body, pooling, normalised=normalised).eval()


def _parts(folder: Path) -> tuple[str, bool]:
    """The pooling of a folder, and whether rows have length 1."""
    parts = _read(folder / MODULES)
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise CheckpointError(f"{folder / MODULES} holds no list of parts")
    kinds = [str(part.get("type")).removeprefix(KIND) for part in parts]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise CheckpointError(
            f"{folder / MODULES} has the parts {', '.join(kinds)}; Transformer, Pooling and perhaps "
            "Normalize are read"
        )
    if parts[0].get("path"):
        raise CheckpointError(f"{folder / MODULES}: its Transformer must lie in the folder itself")
    return _pooling(folder / str(parts[1].get("path")) / "config.json"), len(parts) == 3


def _pooling(file: Path) -> str:
    """The pooling that a file describes."""
    fields = _read(file)
    if not isinstance(fields, dict):
        raise CheckpointError(f"{file} holds no object")
    if unknown := [name for name in fields if name not in INERT and not name.startswith(PREFIX)]:
        raise CheckpointError(f"{file} has the field {unknown[0]}, which is not known")
    chosen = [name.removeprefix(PREFIX) for name, value in fields.items() if name not in INERT and value]
    if len(chosen) != 1 or chosen[0] not in POOLINGS:
        raise CheckpointError(
            f"{file} pools by {', '.join(chosen) or 'nothing'}; one of {', '.join(POOLINGS)} is read"
        )
    return chosen[0]


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
