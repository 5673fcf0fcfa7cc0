"""Decoders of all families that transformers knows: its model is imported with the weights of a folder.

The classes of transformers define the meaning of a config.json, so no family is named here. Weights are read
only from safetensors, and code in the folder is never run.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from streamgen.base.errors import CheckpointError, StreamgenError, UnsupportedOperationError
from streamgen.base.extras import needed
from streamgen.model.frontend.checkpoint_files import file_problems
from streamgen.model.frontend.config_fields import unknown_fields
from streamgen.model.frontend.decoder import import_decoder, traced_context
from streamgen.model.frontend.problems import (
    WHOLE,
    config_problems,
    parts_of,
    refusal,
    refuse,
    tokenizer_problems,
    untied,
)
from streamgen.model.frontend.quiet import quiet
from streamgen.model.frontend.refusals import first_line
from streamgen.model.frontend.safetensors_file import TensorFolder, read_config
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.operations import Rotary

MADE_ANEW = (
    *("rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias"),
    *(".attention.bias", ".attention.masked_bias"),
)
"""Endings of the names of buffers that older versions of transformers stored and that no version reads."""

KINDS = {
    "missing_keys": "tensor {} is missing",
    "unexpected_keys": "tensor {} has no place in the model",
    "error_msgs": "{}",
}


def load_pretrained(folder: Path, context: int | None = None) -> LogicalGraph:
    """The decoder of a folder written by `save_pretrained`, for texts of up to `context` positions.

    CheckpointError names all tensors that are missing, of the wrong shape or type or without a place, code in
    the folder, and fields that transformers does not know. MissingToolError says how to install transformers.
    """
    with needed("a checkpoint of this family"):
        from transformers import AutoModelForCausalLM

    said = read_config(folder)
    model, problems = with_weights(AutoModelForCausalLM, folder, said)
    if any(problems):
        problems = [_unknown_class(said), *problems]
    return imported(model, folder, *problems, _untied(model), context=context, seen=whole_heads(said))


def with_weights(kind: Any, folder: Path, said: Mapping[str, Any]) -> tuple[Any, Sequence[Sequence[str]]]:
    """A model with the weights of a folder, in float32, and the problems with its config.json and with its
    tensors: missing ones, and those of the wrong shape or type or without a place.

    kind: a class of transformers that reads folders. said: the fields of the config.json. CheckpointError,
    with all problems so far, if transformers makes no model.
    """
    config, problems = open_config(folder, said, kind)
    try:
        with quiet():
            model, info = kind.from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except Exception as error:  # transformers documents no set of exceptions
        raise refusal(folder, problems, [unreadable(error)], vocabulary=said.get("vocab_size")) from error
    tensors, own = TensorFolder(folder), model.state_dict()
    prefix = f"{model.base_model_prefix}."  # tensors of the body may be named without it
    read = [n for n in tensors.shapes if n in own or f"{prefix}{n}" in own or n.removeprefix(prefix) in own]
    dropped = _dropped(model, tensors.shapes.keys() - {*read})
    return model, (problems, *tensor_problems(info), dropped, tensors.problems(read))


def _dropped(model: Any, names: Collection[str]) -> list[str]:
    """Tensors without a place that the class of the model makes transformers drop without a message. Masks
    and frequencies of a rotation are no problem, because the model computes them."""
    patterns = model._keys_to_ignore_on_load_unexpected or ()
    return [
        f"tensor {name} has no place in the model"
        for name in sorted(names)
        if any(re.search(pattern, name) for pattern in patterns) and not name.endswith(MADE_ANEW)
    ]


def _untied(model: Any) -> list[str]:
    """The problem of a separate head where the config says that it is tied; empty if there is none."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    head, body = (m.weight for m in (model.get_output_embeddings(), model.get_input_embeddings()))
    tied = getattr(model.config.get_text_config(decoder=True), "tie_word_embeddings", False)
    return [untied(names[id(head)], names[id(body)])] if tied and head is not body else []


def _unknown_class(said: Mapping[str, Any]) -> list[str]:
    """The problem of a config.json that names no class of transformers, or one that generates no texts."""
    import transformers

    named = said.get("architectures")
    names = [str(name) for name in named] if isinstance(named, list) else []
    known = [getattr(transformers, name, None) for name in names]
    if names and None not in known:
        others = [
            n for n, kind in zip(names, known, strict=True) if not getattr(kind, "can_generate", bool)()
        ]
        return [f"architectures names {', '.join(others)}, which generates no texts"] if others else []
    told = (
        f"architectures names {', '.join(names)}, which transformers lacks"
        if names
        else "architectures names no class"
    )
    return [f"{told}; the folder is read as a causal language model"]


def not_finite(model: Any) -> list[str]:
    """Parameters with values that are not finite, each with the first such value."""
    problems = []
    for name, parameter in model.named_parameters():
        if not (finite := torch.isfinite(parameter)).all():
            position = torch.nonzero(~finite)[0].tolist()
            problems.append(f"tensor {name}{position} is {parameter[tuple(position)].item()}")
    return problems


def open_config(folder: Path, said: Mapping[str, Any], kind: Any = None) -> tuple[Any, list[str]]:
    """The configuration of transformers for a config.json, and the problems with it. kind: the class of the
    model, if it is known. CheckpointError if transformers makes no configuration."""
    from transformers import CONFIG_MAPPING, AutoConfig

    problems, vocabulary = [*config_problems(said), *file_problems(folder)], said.get("vocab_size")
    if said.get("model_type") not in CONFIG_MAPPING:
        refuse(folder, problems, vocabulary=vocabulary)
    try:
        with quiet():
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
            config._attn_implementation = attention_of(config, kind)
    except Exception as error:  # transformers documents no set of exceptions
        raise refusal(folder, problems, [unreadable(error)], vocabulary=vocabulary) from error
    return config, [*problems, *unknown_fields(type(config), said)]


def unreadable(error: Exception) -> str:
    """The reason why transformers cannot read a checkpoint."""
    said = (
        f"there is no {error}" if isinstance(error, KeyError) else first_line(error)
    )  # a KeyError says only the key
    return f"transformers cannot read it: {said}"


def imported(
    model: Any,
    path: Path,
    *problems: Sequence[str],
    context: int | None,
    name: str | None = None,
    seen: Callable[[LogicalGraph], Sequence[str]] = lambda graph: (),
) -> LogicalGraph:
    """The graph of a model of transformers with the weights of a checkpoint. If there are problems, one error
    names all of them: the problems found already, weights that are not finite, unsupported operations, and
    the tokenizer of another model.

    seen: returns what the checkpoint asks for and the graph does not have.
    """
    vocabulary: int = model.config.get_text_config(decoder=True).vocab_size
    graph: LogicalGraph | None = None
    unsupported: Sequence[str] = ()
    problems = *problems, not_finite(model.eval())
    try:
        graph = import_decoder(
            model, context=traced_context(model, context), name=name or path.resolve().name
        )
    except UnsupportedOperationError as error:
        told = str(error).partition("\nSupported: ")[0]
        unsupported = [line.strip() for line in told.splitlines()]
        if not any((*problems, tokenizer_problems(path, vocabulary))):
            raise
    except (StreamgenError, TypeError, ValueError) as error:  # an earlier problem may be the cause
        if not any(problems):
            raise (
                error if isinstance(error, StreamgenError) else CheckpointError(f"{path}: {error}")
            ) from error
    others = () if graph is None else seen(graph)
    refuse(path, *problems, others, unsupported, vocabulary=vocabulary)
    assert graph is not None
    return graph


def whole_heads(said: Mapping[str, Any]) -> Callable[[LogicalGraph], Sequence[str]]:
    """A check for `imported`: problems if the config rotates parts of heads and the graph whole heads."""

    def problems(graph: LogicalGraph) -> Sequence[str]:
        rotations = (operation.op for _, operation in graph.walk())
        whole = any(op.rotated == op.head_dim for op in rotations if isinstance(op, Rotary))
        return parts_of(said) if whole and said.get("model_type") not in WHOLE else ()

    return problems


def attention_of(config: Any, kind: Any = None) -> str:
    """The attention implementation that computes everything that the config asks for: torch's own call,
    unless there are soft-caps, which that call does not know, or the class does not support it."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    if not hasattr(kind, "_supports_sdpa"):  # an Auto class
        kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    capped = getattr(config, "attn_logit_softcapping", None)
    return "eager" if capped or not getattr(kind, "_supports_sdpa", True) else "sdpa"


def tensor_problems(info: Mapping[str, Any]) -> list[list[str]]:
    """Problems of tensors that differ from the config, grouped by kind."""
    problems = [[text.format(name) for name in sorted(info[kind])] for kind, text in KINDS.items()]
    others = [
        f"tensor {name} has shape {list(given)}; {list(wanted)} is needed"
        for name, given, wanted in sorted(info["mismatched_keys"])
    ]
    return [*problems, others]
