"""Every field and tensor of GGUF files, changed: a file gives what llama.cpp computes, or is refused.

Files are those of a converter, with random weights in float32. llama.cpp itself answers (the package
xllamacpp). A file that it refuses may be taken when the change says nothing: when the unchanged file gives
the same.
"""

import random
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from streamgen.base.errors import StreamgenError
from streamgen.model.frontend import load_decoder
from streamgen.model.graph.interpret import reference
from streamgen.model.graph.logical import LogicalGraph
from tests.unit.model.frontend.checkpoints import add_words
from tests.unit.model.frontend.families import family
from tests.unit.model.frontend.llama_cpp import LlamaCpp
from tests.unit.model.frontend.mutations import MISSING, mutations

CONTEXT, VOCABULARY, HIDDEN, FEATURES, HEADS, KV_HEADS, DIMS, TOKENS = 48, 71, 48, 72, 3, 1, 16, 40
BOUND = 5e-3  # of a logarithm: ggml's GELU and its exponentials are tables of half floats
SAMPLE = 24
COMMON: Mapping[str, Any] = {
    **{"context_length": CONTEXT, "embedding_length": HIDDEN, "feed_forward_length": FEATURES},
    **{"attention.head_count": HEADS, "vocab_size": VOCABULARY},
}
GROUPED = COMMON | {
    "attention.head_count_kv": KV_HEADS,
    "rope.freq_base": 700.0,
    "rope.dimension_count": DIMS,
}
RMS, LAYER = {"attention.layer_norm_rms_epsilon": 1e-6}, {"attention.layer_norm_epsilon": 1e-5}
WIDE = {"attention.key_length": 24, "attention.value_length": 24, "rope.dimension_count": 24}
ROPE = {"rope_type": "default", "rope_theta": 700.0}
SIZES = {
    **{
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": FEATURES,
        "num_hidden_layers": 2,
    },
    **{"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "max_position_embeddings": CONTEXT},
    **{"rope_parameters": ROPE, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
}
GEMMA = WIDE | {"attention.sliding_window": 5}
OF_GEMMA = {"head_dim": 24, "sliding_window": 5, "query_pre_attn_scalar": 24}
CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
LOCAL = {"rope_type": "default", "rope_theta": 10000.0}
FILES: dict[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    "llama": ("Llama", {"head_dim": DIMS, "attention_bias": False, "mlp_bias": False}, GROUPED | RMS),
    "qwen2": ("Qwen2", {}, GROUPED | RMS),
    "qwen3": ("Qwen3", {"head_dim": 24}, GROUPED | RMS | WIDE),
    "phi3": (
        "Phi3",
        {"sliding_window": None},
        GROUPED | RMS | {"rope.scaling.original_context_length": CONTEXT, "attention.sliding_window": 0},
    ),
    "gpt2": ("GPT2", {}, COMMON | LAYER),
    "starcoder2": ("Starcoder2", {"sliding_window": None, "norm_epsilon": 1e-5}, GROUPED | LAYER),
    "stablelm": (
        "StableLm",
        {"rope_parameters": ROPE | {"partial_rotary_factor": 0.75}, "use_qkv_bias": True},
        GROUPED | LAYER | {"rope.dimension_count": 12, "use_parallel_residual": False},
    ),
    "nemotron": (
        "Nemotron",
        {"rope_parameters": ROPE | {"partial_rotary_factor": 0.5}},
        GROUPED | LAYER | {"rope.dimension_count": 8, "rope.scaling.type": "none"},
    ),
    "gemma2": ("Gemma2", OF_GEMMA | CAPS, GROUPED | RMS | GEMMA | CAPS),
    "gemma3": (
        "Gemma3",
        OF_GEMMA
        | {"num_hidden_layers": 6, "rope_parameters": {"full_attention": ROPE, "sliding_attention": LOCAL}},
        GROUPED | RMS | GEMMA | {"rope.freq_base_swa": 10000.0},
    ),
}
VALUES: Mapping[str, tuple[Any, ...]] = {
    "rope.scaling.type": ("none", "linear", "yarn", "longrope", "nonsense"),
    "attention.scale": (0.0, 0.25, 0.5),
    "attention.sliding_window": (0, 48),  # smaller ones of a Mistral llama.cpp leaves out, against the model
    "attention.sliding_window_pattern": (2, 6),
    "rope.freq_base_swa": (10000.0, 500.0),
    "rope.dimension_count": (8, 16),
    "rope.scaling.factor": (0.0, 0.5, 1.0, 2.0),
    "rope.scaling.original_context_length": (16, 48),
    "attention.key_length": (8, 16, 24),
    "attention.value_length": (8, 16, 24),
    "attention.causal": (True, False),
    "use_parallel_residual": (True, False),
    "tensor_data_layout": ("Meta AI original pth", "jploski"),
}
OTHERS = (0, 2, 0.5, 1.0, True, False)
Case = tuple[str, str, Any]


def _known() -> Iterator[str]:
    """The fields of an architecture that llama.cpp's library knows, and one that nobody does."""
    for group in vars(gguf.Keys).values():
        if isinstance(group, type):
            for key in vars(group).values():
                if isinstance(key, str) and key.startswith("{arch}.") and "{" not in key[6:]:
                    yield key.removeprefix("{arch}.")
    yield "unknown_field"


def _cases(architecture: str) -> Iterator[Case]:
    fields = {"block_count": 2} | FILES[architecture][2]
    for key, value in fields.items():
        yield from ((architecture, key, other) for other in mutations(value))
    for key in dict.fromkeys(_known()):
        yield from ((architecture, key, other) for other in VALUES.get(key, OTHERS) if key not in fields)
    for change in ("dropped", "renamed", "ones", "zeros"):
        yield from ((architecture, f"tensor {change}", index) for index in range(30))
    for name in (
        *(
            "rope_freqs.weight",
            "rope_factors_long.weight",
            "output.bias",
            "blk.0.attn_q.bias",
            "blk.2.ffn_up.weight",
        ),
        *("blk.0.attn_output.bias", "blk.1.ffn_up.bias", "blk.1.ffn_down.bias", "blk.0.attn_q_norm.weight"),
        *(
            "blk.0.attn_q.scale",
            "blk.0.attn_norm.bias",
            "output_norm.bias",
            "token_types.weight",
            "mm.0.weight",
        ),
    ):
        yield from ((architecture, f"added {name}", value) for value in (0.0, 1.0, 3.0))


def write(path: Path, architecture: str, key: str = "", value: Any = None) -> None:
    """A file as llama.cpp's converter writes it, with one change."""
    name, own, fields = FILES[architecture]
    sizes = SIZES if architecture != "gpt2" else {}
    model = family(name, **sizes | own)
    count = model.config.num_hidden_layers
    fields = {"block_count": count} | fields
    if not key.startswith(("tensor ", "added ")):
        fields = {k: v for k, v in fields.items() if k != key} | ({} if value is MISSING else {key: value})
    writer = gguf.GGUFWriter(path, architecture)
    for field, held in fields.items():
        add = {
            **{
                bool: writer.add_bool,
                int: writer.add_uint32,
                float: writer.add_float32,
                str: writer.add_string,
            },
            **{list: writer.add_array, dict: None, type(None): None},
        }[type(held)]
        if field and add is not None:
            add(f"{architecture}.{field}", held)
    add_words(writer, VOCABULARY)
    tensors = _tensors(model, architecture, count)
    if key.startswith("tensor "):
        stems = sorted(tensors)
        chosen = stems[int(value) % len(stems)]
        array = tensors.pop(chosen)
        changed = {"ones": np.ones_like(array), "zeros": np.zeros_like(array)}.get(key.split()[1])
        if changed is not None:
            tensors[chosen] = changed
        elif key == "tensor renamed":
            tensors[chosen.replace(".weight", ".other").replace(".bias", ".others")] = array
    elif key.startswith("added "):
        added = key.removeprefix("added ")
        extents = {"output": VOCABULARY, "ffn_up": FEATURES, "rope_freqs": DIMS // 2, "attn_q_norm": DIMS}
        stem = added.removeprefix("blk.0.").removeprefix("blk.1.").rpartition(".")[0]
        size = HEADS * DIMS if stem == "attn_q" and added.endswith("bias") else extents.get(stem, HIDDEN)
        tensors.setdefault(added, np.full(1 if added.endswith("scale") else size, value, np.float32))
    for stem, array in tensors.items():
        writer.add_tensor(stem, np.ascontiguousarray(array))
    with closing(writer):  # also where a value cannot be written
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()


def _tensors(model: Any, architecture: str, count: int) -> dict[str, np.ndarray]:
    """The tensors of a model, as a converter lays them out."""
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[architecture], count)
    tensors = {}
    for full, parameter in model.named_parameters():
        stem, _, suffix = full.rpartition(".")
        ours = f"{names.get_name(stem)}.{suffix}"
        array = parameter.detach().numpy()
        if architecture == "gpt2" and full.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            array = array.T
        if (architecture.startswith("gemma") and "norm" in ours) or (
            architecture == "nemotron" and ours.endswith("norm.weight")
        ):
            array = array + 1
        if architecture == "llama" and ours.endswith(("attn_q.weight", "attn_k.weight")):
            array = array.reshape(-1, 2, DIMS // 2, HIDDEN).swapaxes(1, 2).reshape(array.shape)
        tensors[ours] = array
    return tensors


def verdict(case: Case, path: Path, oracle: LlamaCpp) -> str:
    """Of one changed file: right, refused, or why it is wrong."""
    try:
        write(path, *case)
    except (ValueError, TypeError, OverflowError, AttributeError, struct.error):  # no file holds such a value
        return "not written"
    try:
        graph = load_decoder(path)
    except StreamgenError:
        return "refused"
    except Exception as error:  # noqa: BLE001 - the kind of defect that is looked for
        return f"{type(error).__name__}: {error}"
    ids = np.random.default_rng(3).integers(3, VOCABULARY, min(TOKENS, graph.context))
    expected = oracle.logarithms(path, ids, VOCABULARY)
    if expected is None:  # a change that says nothing may be one that llama.cpp does not take
        write(path, case[0])
        expected = _logarithms(load_decoder(path), ids)
    error = np.abs(_logarithms(graph, ids) - expected).max()
    return "right" if error <= BOUND else f"{error:.1e} off"


def _logarithms(graph: LogicalGraph, ids: np.ndarray) -> np.ndarray:
    """Of the probabilities behind ids."""
    logits = reference(graph)({"ids": ids})[0]["logits"][-1]
    return np.asarray(torch.log_softmax(torch.from_numpy(logits), 0).numpy())


def _try(cases: list[Case], tmp_path: Path) -> None:
    """Counts, and an error that names every case that is wrong."""
    counts: Counter[str] = Counter()
    wrong, oracle = [], LlamaCpp()
    try:
        for case in cases:
            said = verdict(case, tmp_path / "model.gguf", oracle)
            counts[said if said in ("right", "refused", "not written") else "wrong"] += 1
            if said not in ("right", "refused", "not written"):
                wrong.append(f"{case}: {said}")
    finally:
        oracle.close()
    print(f"\n{len(cases)} changed files: {dict(counts)}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", FILES)
def test_a_file_of_a_converter(architecture: str, tmp_path: Path) -> None:
    oracle = LlamaCpp()
    try:
        assert verdict((architecture, "", None), tmp_path / "model.gguf", oracle) == "right"
    finally:
        oracle.close()


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "phi3", "stablelm", "nemotron"])
def test_a_file_without_a_head(architecture: str, tmp_path: Path) -> None:
    """The embedding is the head, but where llama.cpp wants a tensor of its own."""
    names = sorted(
        _tensors(family(FILES[architecture][0], **SIZES | FILES[architecture][1]), architecture, 2)
    )
    oracle, case = LlamaCpp(), (architecture, "tensor dropped", names.index("output.weight"))
    try:
        outcome = verdict(case, tmp_path / "model.gguf", oracle)
    finally:
        oracle.close()
    assert outcome == ("refused" if architecture in ("stablelm", "nemotron") else "right")


@pytest.mark.slow
def test_a_sample(tmp_path: Path, seed: int) -> None:
    cases = [case for architecture in FILES for case in _cases(architecture)]
    _try(random.Random(seed).sample(cases, SAMPLE), tmp_path)


@pytest.mark.campaign
@pytest.mark.parametrize("architecture", FILES)
def test_every_field_and_tensor(architecture: str, tmp_path: Path) -> None:
    _try(list(_cases(architecture)), tmp_path)
