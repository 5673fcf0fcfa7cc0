"""Decoders of all families that transformers knows: its model, with the weights of a folder, is imported.

Its classes say what a config.json means, so that nothing of a family stands here. Weights are read from
safetensors only, and code that a folder brings along is never run.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from streamgen.errors import CheckpointError
from streamgen.extras import needed
from streamgen.frontend.decoder import import_decoder, traced_context
from streamgen.frontend.problems import refuse
from streamgen.frontend.quiet import quiet
from streamgen.graph.logical import LogicalGraph

__all__ = ["attention_of", "load_pretrained", "tensor_problems", "vocabulary_size"]

KINDS = {
    "missing_keys": "tensor {} is missing",
    "unexpected_keys": "tensor {} has no place in the model",
    "error_msgs": "{}",
}


def load_pretrained(folder: Path, context: int | None = None) -> LogicalGraph:
    """The decoder of a folder as `save_pretrained` writes it, for texts of up to `context` positions.

    CheckpointError names all tensors that are missing, misshapen or without a place, code of the folder's own
    and what transformers does not know; MissingToolError says how to install it.
    """
    with needed("a checkpoint of this family"):
        from transformers import AutoConfig, AutoModelForCausalLM

    try:
        with quiet():
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
            config._attn_implementation = attention_of(config)
            model, info = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except CheckpointError:
        raise
    except Exception as error:  # transformers documents no set of exceptions
        raise CheckpointError(f"{folder}: transformers cannot read it: {error}") from error
    refuse(folder, tensor_problems(info), vocabulary=vocabulary_size(model))
    model.eval()
    return import_decoder(model, context=traced_context(model, context), name=folder.resolve().name)


def attention_of(config: Any) -> str:
    """The implementation that computes all that the config asks for: torch's own call knows no soft-caps."""
    return "eager" if getattr(config, "attn_logit_softcapping", None) else "sdpa"


def tensor_problems(info: Mapping[str, Any]) -> list[str]:
    """Every tensor that is not as the config says."""
    problems = [text.format(name) for kind, text in KINDS.items() for name in sorted(info[kind])]
    for name, found, wanted in sorted(info["mismatched_keys"]):
        problems.append(f"tensor {name} has shape {list(found)}; {list(wanted)} is needed")
    return problems


def vocabulary_size(model: Any) -> int:
    """Rows of a model's embedding."""
    size: int = model.config.get_text_config(decoder=True).vocab_size
    return size
