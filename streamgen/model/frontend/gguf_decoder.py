"""The graph of a GGUF file of architecture llama.

llama.cpp rotates neighbouring pairs of features, and its converter orders the rows of q and k for that. This
reader reorders them into halves: weights, biases, codes, scales and minimums alike, so `Rotation.interleaved`
is False for every source. The llama3 scaling of frequencies is stored as divisors, in the tensor rope_freqs.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gguf import ReaderTensor

from streamgen.model.frontend.assembly import Rotation
from streamgen.model.frontend.gguf_fields import fields_of, other_fields, rope_of, rotated_of, sizes_of_fields
from streamgen.model.frontend.gguf_file import (
    MappedReader,
    changes_nothing,
    field_of,
    read_tensor,
    stored_matrix,
    unreadable_tensors,
)
from streamgen.model.frontend.llama import (
    Names,
    Sizes,
    Stored,
    Tensors,
    build_decoder,
    frequencies,
    linear_scaling,
)
from streamgen.model.frontend.metadata import Metadata
from streamgen.model.graph.logical import LogicalGraph

DIVISORS, EMBEDDING = "rope_freqs.weight", "token_embd.weight"
WINDOW = "attention.sliding_window"
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


def load_gguf_decoder(path: Path, reader: MappedReader) -> LogicalGraph:
    """The decoder of a file."""
    tensors = {tensor.name: tensor for tensor in reader.tensors if not changes_nothing(tensor)}
    name = field_of(path, reader, "general.name")
    fields = fields_of(path, reader)
    sizes = _sizes(path, fields, tensors)
    other_fields(path, reader, fields)

    def read(name: str) -> Stored:
        tensor = tensors[name]
        return stored_matrix(path, reader, tensor) if len(tensor.shape) == 2 else read_tensor(path, tensor)

    return build_decoder(
        name if isinstance(name, str) else path.stem,
        Tensors(
            path=path,
            shapes={name: tuple(int(n) for n in tensor.shape[::-1]) for name, tensor in tensors.items()},
            read=read,
            problems=lambda names: unreadable_tensors(tensors[name] for name in names),
        ),
        NAMES,
        sizes,
    )


def _sizes(path: Path, fields: Metadata, tensors: Mapping[str, ReaderTensor]) -> Sizes:
    sizes = sizes_of_fields(fields, norm="rms")
    window = fields.integer(WINDOW) if fields.get(WINDOW) else sizes.context
    fields.same("attention.scale", 0.0, sizes.scale)
    fields.same(
        "tensor_data_layout", "Meta AI original pth"
    )  # of older converters; the names of tensors tell
    rope, rotated = rope_of(fields, sizes, partial=True), rotated_of(fields, sizes)
    divisors = 1.0 if fields.broken else _divisors(path, fields, tensors, rotated // 2)
    turns = frequencies(rope["rope_theta"], rotated)
    scaled = linear_scaling(turns, rope.get("factor", 1.0)) / divisors
    if EMBEDDING in tensors:
        fields.same("vocab_size", int(tensors[EMBEDDING].shape[1]))
    return Sizes(
        hidden=sizes.hidden,
        features=sizes.features,
        layers=sizes.layers,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        context=sizes.context,
        epsilon=sizes.epsilon,
        function="silu",
        window=window if window < sizes.context else None,
        rotation=lambda: Rotation(scaled),
        problems=fields.problems,
        broken=fields.broken,
    )


def _divisors(
    path: Path, fields: Metadata, tensors: Mapping[str, ReaderTensor], count: int
) -> np.ndarray | float:
    """The divisors of the frequencies, float64; 1 if the file has none."""
    if DIVISORS not in tensors:
        return 1.0
    tensor = tensors[DIVISORS]
    if unread := unreadable_tensors([tensor]):
        fields.problems += unread
        return 1.0
    divisors = read_tensor(path, tensor).array.astype(np.float64)
    if divisors.shape != (count,) or (divisors <= 0).any():
        fields.problems.append(
            f"tensor {DIVISORS} has shape {list(divisors.shape)}; {[count]} is needed, "
            "and all divisors must be above 0"
        )
        return 1.0
    return divisors
