"""The graph of a GGUF file of architecture llama.

llama.cpp rotates neighbouring pairs of features, and its converter lays the rows of q and k out for that.
They come back in halves here: weights, biases, codes, scales and minimums alike, so `Rotation.interleaved`
is False whatever the source. llama3 scaling of frequencies is stored as divisors, the tensor rope_freqs.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gguf import GGUFReader, ReaderTensor

from streamgen.frontend.assembly import Rotation
from streamgen.frontend.gguf_file import field_of, read_tensor, unreadable_tensors
from streamgen.frontend.llama import Names, Sizes, Tensors, build_decoder, frequencies, linear_scaling
from streamgen.frontend.metadata import Metadata
from streamgen.graph.logical import LogicalGraph

__all__ = ["load_gguf_decoder"]

# Features of relatives that would change results in silence.
FOREIGN = (
    "llama.attention.clamp_kqv",
    "llama.attention.scale",
    "llama.attn_logit_softcapping",
    "llama.embedding_scale",
    "llama.final_logit_softcapping",
    "llama.logit_scale",
    "llama.residual_scale",
)
DIVISORS = "rope_freqs.weight"
WINDOW = "llama.attention.sliding_window"
NAMES = Names(
    embedding="token_embd",
    norm="output_norm",
    head="output",
    layer="blk.{}.",
    parts={
        "attention_norm": "attn_norm",
        "q": "attn_q",
        "k": "attn_k",
        "v": "attn_v",
        "o": "attn_output",
        "feed_forward_norm": "ffn_norm",
        "gate": "ffn_gate",
        "up": "ffn_up",
        "down": "ffn_down",
    },
    ignored=(DIVISORS,),
    interleaved=True,
)


def load_gguf_decoder(path: Path, reader: GGUFReader) -> LogicalGraph:
    """The decoder of a file."""
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    name = field_of(path, reader, "general.name")
    metadata = Metadata(lambda key: field_of(path, reader, key))
    return build_decoder(
        name if isinstance(name, str) else path.stem,
        Tensors(
            path=path,
            shapes={name: tuple(int(n) for n in tensor.shape[::-1]) for name, tensor in tensors.items()},
            read=lambda name: read_tensor(path, tensors[name]),
            problems=lambda names: unreadable_tensors(tensors[name] for name in names),
        ),
        NAMES,
        _sizes(path, metadata, tensors),
    )


def _sizes(path: Path, metadata: Metadata, tensors: dict[str, ReaderTensor]) -> Sizes:
    hidden = metadata.integer("llama.embedding_length")
    heads = metadata.integer("llama.attention.head_count")
    head_dim = metadata.integer("llama.attention.key_length", max(1, hidden // heads))
    if metadata.integer("llama.attention.value_length", head_dim) != head_dim:
        metadata.lack(
            "llama.attention.value_length",
            metadata.get("llama.attention.value_length"),
            f"it must be that of keys, {head_dim}",
        )
    context = metadata.integer("llama.context_length")
    if experts := metadata.get("llama.expert_count"):
        metadata.lack("llama.expert_count", experts, "dense feed-forward blocks are")
    window = metadata.integer(WINDOW) if metadata.get(WINDOW) else context
    for key in FOREIGN:
        if metadata.get(key):
            metadata.lack(key, metadata.get(key), "a Llama decoder has no such factor, bound or cap")
    scaling = metadata.get("llama.rope.scaling.type") or "linear"  # llama.cpp's default, with factor 1
    if scaling not in ("none", "linear"):
        metadata.lack("llama.rope.scaling.type", scaling, f"'none', 'linear' and the divisors {DIVISORS} are")
    base = metadata.number("llama.rope.freq_base", 10000.0)
    older = metadata.number("llama.rope.scale_linear", 1.0)
    factor = metadata.number("llama.rope.scaling.factor", older) if scaling == "linear" else 1.0
    rotated = metadata.integer("llama.rope.dimension_count", head_dim)
    if (rotated > head_dim or rotated % 2) and not metadata.broken:
        metadata.note(f"llama.rope.dimension_count is {rotated}; an even number up to {head_dim} is needed")
    divisors = 1.0 if metadata.broken else _divisors(path, metadata, tensors, rotated // 2)
    return Sizes(
        hidden=hidden,
        features=metadata.integer("llama.feed_forward_length"),
        layers=metadata.integer("llama.block_count"),
        heads=heads,
        kv_heads=metadata.integer("llama.attention.head_count_kv", heads),
        head_dim=head_dim,
        context=context,
        epsilon=metadata.number("llama.attention.layer_norm_rms_epsilon"),
        function="silu",
        window=window if window < context else None,
        rotation=lambda: Rotation(linear_scaling(frequencies(base, rotated), factor) / divisors),
        problems=metadata.problems,
        broken=metadata.broken,
    )


def _divisors(
    path: Path, metadata: Metadata, tensors: Mapping[str, ReaderTensor], count: int
) -> np.ndarray | float:
    """What frequencies are divided by, 1 where the file says nothing; float64."""
    if DIVISORS not in tensors:
        return 1.0
    tensor = tensors[DIVISORS]
    if unread := unreadable_tensors([tensor]):
        metadata.problems += unread
        return 1.0
    found = read_tensor(path, tensor).array.astype(np.float64)
    if found.shape != (count,) or (found <= 0).any():
        metadata.problems.append(
            f"tensor {DIVISORS} has shape {list(found.shape)}; {[count]} divisors above 0 are needed"
        )
        return 1.0
    return found
