"""Folders whose matmuls GPTQ or AWQ have quantised to four bits: their grids are kept.

    weight[n, k] = scales[g, n] * (q[k, n] - zeros[g, n])        g = k // group_size

Eight codes lie in an int32, the first in the lowest bits: GPTQ (AutoGPTQ, GPTQModel) packs q along K and
zeros along N, and its first format has zeros less one; AWQ (AutoAWQ, "gemm") packs both along N, in the order
of `AWQ_ORDER`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from streamgen.errors import CheckpointError
from streamgen.extras import needed
from streamgen.frontend.decoder import import_decoder, traced_context
from streamgen.frontend.pretrained import attention_of, tensor_problems, vocabulary_size
from streamgen.frontend.problems import refuse
from streamgen.frontend.quiet import quiet
from streamgen.frontend.safetensors_file import FLOATS, TensorFolder
from streamgen.graph.logical import LogicalGraph
from streamgen.numbers.quantisation import GroupGrid

__all__ = ["load_packed"]

CODES = 8  # of an int32
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
GROUPS = (32, 64, 128)
PARTS = ("qweight", "qzeros", "scales", "g_idx")
INTEGERS = ("I32", "I64")


def load_packed(folder: Path, said: Any, context: int | None = None) -> LogicalGraph:
    """The decoder of a folder, for texts of up to `context` positions. said: its quantization_config.

    CheckpointError for other methods, widths, groups and orders, and for tensors that do not fit.
    """
    place = folder / "config.json"
    method, group, begin = _understood(place, said)
    with needed("a checkpoint with packed weights"):
        from transformers import AutoConfig, AutoModelForCausalLM
    tensors = TensorFolder(folder, (*FLOATS, *INTEGERS))
    try:
        with quiet():
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
            del config.quantization_config
            config._attn_implementation = attention_of(config)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
    except Exception as error:  # transformers documents no set of exceptions
        raise CheckpointError(f"{folder}: transformers cannot read it: {error}") from error
    grids = {
        stem: _grid(tensors, stem, method, group, begin)
        for stem in (name.removesuffix(".qweight") for name in tensors.shapes if name.endswith(".qweight"))
    }
    _fill(folder, model, tensors, grids)
    model.eval()
    return import_decoder(model, context=traced_context(model, context), name=folder.resolve().name)


def _understood(place: Path, said: Any) -> tuple[str, int, int]:
    """Method, weights of a group, and what is added to stored zeros."""
    said = said if isinstance(said, Mapping) else {"quant_method": said}
    method, version = said.get("quant_method"), said.get("version", "gemm")
    laws = [
        ("quant_method", method, method in ("gptq", "awq"), "'gptq' and 'awq' are"),
        ("bits", said.get("bits"), said.get("bits") == 4, "4 is"),
        ("group_size", said.get("group_size"), said.get("group_size") in GROUPS, "32, 64 and 128 are"),
        ("desc_act", said.get("desc_act"), not said.get("desc_act"), "columns in their own order are"),
        ("version", version, method != "awq" or str(version).lower() == "gemm", "'gemm' is"),
    ]
    wrong = (
        f"quantization_config.{name} is {value!r}; only {law} supported"
        for name, value, holds, law in laws
        if not holds
    )
    refuse(place, list(wrong)[: None if method in ("gptq", "awq") else 1])
    first = method == "gptq" and said.get("checkpoint_format", "gptq") != "gptq_v2"
    return str(method), int(said["group_size"]), int(first)


def _grid(tensors: TensorFolder, stem: str, method: str, group: int, begin: int) -> GroupGrid:
    """The grid of one matmul."""
    parts = PARTS[: 4 if f"{stem}.g_idx" in tensors.shapes else 3]
    missing = [part for part in parts if f"{stem}.{part}" not in tensors.shapes]
    if missing:
        raise CheckpointError(f"{tensors.folder}: tensor {stem}.{missing[0]} is missing")
    packed, zeros = (tensors.integers(f"{stem}.{part}") for part in parts[:2])
    scales = tensors.floats(f"{stem}.scales")
    if method == "awq":
        codes, zeros = _along(packed, 1, AWQ_ORDER), _along(zeros, 1, AWQ_ORDER)
    else:
        codes, zeros = _along(packed, 0, range(CODES)), _along(zeros, 1, range(CODES))
    K, N = codes.shape
    if K % group or zeros.shape != (K // group, N) or scales.shape != zeros.shape:
        raise CheckpointError(
            f"{tensors.folder}: {stem}: codes of [{K}, {N}] in groups of {group} have zeros "
            f"{list(zeros.shape)} and scales {list(scales.shape)}"
        )
    if len(parts) == 4 and not np.array_equal(tensors.integers(f"{stem}.g_idx"), np.arange(K) // group):
        raise CheckpointError(f"{tensors.folder}: {stem}: columns of a group do not follow one another")
    minimum = -scales * (zeros.astype(np.float32) + begin)
    return GroupGrid(np.ascontiguousarray(codes.T), *(np.ascontiguousarray(a.T) for a in (scales, minimum)))


def _along(packed: np.ndarray, axis: int, order: Any) -> np.ndarray:
    """Codes, uint8, of integers that hold eight neighbours along an axis in this order."""
    shifted = [packed.view(np.uint32) >> 4 * place & 15 for place in range(CODES)]
    found = np.stack([shifted[place] for place in np.argsort(order)], axis=axis + 1).astype(np.uint8)
    shape = list(packed.shape)
    shape[axis] *= CODES
    return found.reshape(shape)


def _fill(folder: Path, model: Any, tensors: TensorFolder, grids: Mapping[str, GroupGrid]) -> None:
    """Give the model the tensors of the folder, and its matmuls their grids."""
    inside = {f"{stem}.{part}" for stem in grids for part in PARTS}
    state = {name: tensors.floats(name) for name in tensors.shapes if name not in inside}
    state |= {f"{stem}.weight": grid.dequantise().astype(np.float32) for stem, grid in grids.items()}
    own = model.state_dict(keep_vars=True)
    given = {id(own[name]) for name in state if name in own}
    problems = tensor_problems(
        {
            "missing_keys": {name for name in own if name not in state and id(own[name]) not in given},
            "unexpected_keys": state.keys() - own.keys(),
            "mismatched_keys": {
                (name, array.shape, tuple(own[name].shape))
                for name, array in state.items()
                if name in own and array.shape != tuple(own[name].shape)
            },
            "error_msgs": [],
        }
    )
    refuse(folder, problems, vocabulary=vocabulary_size(model))
    model.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()}, strict=False)
    for stem, grid in grids.items():
        model.get_submodule(stem).weight_grid = grid
