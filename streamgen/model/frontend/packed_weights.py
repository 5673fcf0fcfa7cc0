"""Folders whose matmuls GPTQ or AWQ have quantised to four bits; the import keeps their grids.

    weight[n, k] = scales[g, n] * (q[k, n] - zeros[g, n])        g = k // group_size

Each int32 holds eight codes, the first in the lowest bits. GPTQ (AutoGPTQ, GPTQModel) packs q along K and
zeros along N, and its first format stores zeros minus one. AWQ (AutoAWQ, "gemm") packs both along N, in the
order of `AWQ_ORDER`.
"""

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch

from streamgen.base.errors import CheckpointError
from streamgen.base.extras import needed
from streamgen.model.frontend.metadata import Metadata
from streamgen.model.frontend.pretrained import (
    imported,
    open_config,
    tensor_problems,
    unreadable,
    whole_heads,
)
from streamgen.model.frontend.problems import config_problems, refusal, untied
from streamgen.model.frontend.quiet import quiet
from streamgen.model.frontend.safetensors_file import TensorFolder
from streamgen.model.graph.logical import LogicalGraph
from streamgen.numbers.quantisation import GroupGrid

CODES = 8  # of an int32
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
GROUPS = (32, 64, 128)
INERT = frozenset(
    [
        *(
            "backend",
            "damp_percent",
            "damp_auto_increment",
            "exllama_config",
            "fuse_max_seq_len",
        ),  # for running the model
        *("do_fuse", "max_input_length", "model_seqlen", "modules_to_fuse", "use_cuda_fp16", "use_exllama"),
        *(
            "batch_size",
            "block_name_to_quantize",
            "cache_block_outputs",
            "dataset",
            "tokenizer",
        ),  # about the quantisation process
        *("meta", "model_file_base_name", "model_name_or_path", "module_name_preceding_first_block"),
        *("mse", "static_groups", "true_sequential", "quantizer", "uuid"),
        *(
            "lm_head",
            "modules_in_block_to_quantize",
            "modules_to_not_convert",
            "sym",
            "zero_point",
        ),  # the tensors show this
    ]
)
"""Fields of a quantization_config that change no result, or that the tensors show."""
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "pack_dtype": ("int32",),
    "version": ("gemm", "GEMM", "1", "2"),
    "weight_bits": (4,),
}
FORMATS = ("gptq", "gptq_v2", "gemm")
PARTS = ("qweight", "qzeros", "scales", "g_idx")


def load_packed(folder: Path, said: Mapping[str, Any], context: int | None = None) -> LogicalGraph:
    """The decoder of a folder, for texts of up to `context` positions. said: its config.json.

    Raises CheckpointError for other methods, widths, groups and orders, and for tensors that do not fit.
    """
    packing = _understood(folder, said)
    with needed("a checkpoint with packed weights"):
        from transformers import AutoModelForCausalLM
    tensors = TensorFolder(folder)
    config, problems = open_config(folder, said)
    try:
        with quiet():
            del config.quantization_config
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
    except Exception as error:  # transformers documents no set of exceptions
        raise refusal(folder, problems, [unreadable(error)], vocabulary=said.get("vocab_size")) from error
    grids: dict[str, GroupGrid | None] = {}
    damaged = []
    for stem in (name.removesuffix(".qweight") for name in tensors.shapes if name.endswith(".qweight")):
        try:
            grids[stem] = _grid(tensors, stem, *packing)
        except CheckpointError as error:
            grids[stem] = None
            damaged.append(str(error).removeprefix(f"{folder}: "))
    kinds = damaged, *_fill(model, tensors, grids)
    return imported(model, folder, problems, *kinds, context=context, seen=whole_heads(said))


def _understood(folder: Path, config: Mapping[str, Any]) -> tuple[str, int, int]:
    """The method, the weights per group, and the number to add to stored zeros. Raises CheckpointError for
    unknown values, because the meaning of the tensors is then unknown."""
    said = config["quantization_config"]
    said = said if isinstance(said, Mapping) else {"quant_method": said}
    fields = Metadata(said.get)
    method, version = fields.get("quant_method"), fields.get("version")
    form = fields.get("checkpoint_format") or "gptq"
    laws = [
        ("quant_method", method, method in ("gptq", "awq"), "'gptq' and 'awq' are"),
        ("bits", fields.get("bits"), fields.get("bits") == 4, "4 is"),
        ("group_size", fields.get("group_size"), fields.get("group_size") in GROUPS, "32, 64 and 128 are"),
        ("desc_act", fields.get("desc_act"), not fields.get("desc_act"), "false is"),
        ("checkpoint_format", form, form in FORMATS, f"{' and '.join(map(repr, FORMATS))} are"),
        ("version", version, method != "awq" or str(version or "gemm").lower() == "gemm", "'gemm' is"),
    ]
    wrong = (
        f"quantization_config.{name} is {value!r}; only {law} supported"
        for name, value, holds, law in laws
        if not holds
    )
    problems = list(wrong)[: None if method in ("gptq", "awq") else 1]
    fields.asked |= INERT
    if not problems:
        problems = [f"quantization_config.{problem}" for problem in fields.unknown(said, NEUTRAL)]
    if problems:
        raise refusal(folder, config_problems(config), problems, vocabulary=config.get("vocab_size"))
    first = method == "gptq" and form != "gptq_v2"
    return str(method), int(said["group_size"]), int(first)


def _grid(tensors: TensorFolder, stem: str, method: str, group: int, begin: int) -> GroupGrid:
    """The grid of one matmul."""
    parts = PARTS[: 4 if f"{stem}.g_idx" in tensors.shapes else 3]
    missing = [part for part in parts if f"{stem}.{part}" not in tensors.shapes]
    if missing:
        raise CheckpointError(f"{tensors.folder}: tensor {stem}.{missing[0]} is missing")
    packed, zeros = (tensors.integers(f"{stem}.{part}") for part in parts[:2])
    scales = tensors.floats(f"{stem}.scales")
    for part in parts[:3]:
        if len(shape := tensors.shapes[f"{stem}.{part}"]) != 2:
            raise CheckpointError(
                f"{tensors.folder}: tensor {stem}.{part} has shape {list(shape)}; two dimensions are needed"
            )
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
        raise CheckpointError(f"{tensors.folder}: {stem}: the columns of a group are not consecutive")
    minimum = -scales * (zeros.astype(np.float32) + begin)
    return GroupGrid(np.ascontiguousarray(codes.T), *(np.ascontiguousarray(a.T) for a in (scales, minimum)))


def _along(packed: np.ndarray, axis: int, order: Any) -> np.ndarray:
    """Unpack integers that each hold eight neighbours along an axis in this order; returns uint8 codes."""
    shifted = [packed.view(np.uint32) >> 4 * place & 15 for place in range(CODES)]
    unpacked = np.stack([shifted[place] for place in np.argsort(order)], axis=axis + 1).astype(np.uint8)
    shape = list(packed.shape)
    shape[axis] *= CODES
    return unpacked.reshape(shape)


def _fill(model: Any, tensors: TensorFolder, grids: Mapping[str, GroupGrid | None]) -> list[list[str]]:
    """Give the model the tensors of the folder, and its matmuls their grids. If tensors do not fit, change
    nothing and return the problems. The grid of a damaged matmul is None and always fits."""
    inside = {f"{stem}.{part}" for stem in grids for part in PARTS}
    shapes = {name: shape for name, shape in tensors.shapes.items() if name not in inside}
    own = model.state_dict(keep_vars=True)
    for stem, grid in grids.items():
        name = f"{stem}.weight"
        as_asked = tuple(own[name].shape) if name in own else ()
        shapes[name] = as_asked if grid is None else grid.codes.shape
    given = {id(own[name]) for name in shapes if name in own}
    read = [name for name in shapes if name in own and name in tensors.shapes]
    problems = [
        *tensor_problems(
            {
                "missing_keys": {name for name in own if name not in shapes and id(own[name]) not in given},
                "unexpected_keys": shapes.keys() - own.keys(),
                "mismatched_keys": {
                    (name, shape, tuple(own[name].shape))
                    for name, shape in shapes.items()
                    if name in own and shape != tuple(own[name].shape)
                },
                "error_msgs": [],
            }
        ),
        tensors.problems(read),
    ]
    if any(problems):
        return problems
    state = {name: tensors.floats(name) for name in read}
    for first, second in combinations(read, 2):
        if own[first] is own[second] and not np.array_equal(state[first], state[second]):
            return [[untied(first, second)]]
    state |= {f"{stem}.weight": grid.dequantise().astype(np.float32) for stem, grid in grids.items() if grid}
    model.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()}, strict=False)
    for stem, grid in grids.items():
        model.get_submodule(stem).weight_grid = grid
    return []
