"""The meaning of the fields of a GGUF file: fields that every architecture has, and fields without effect.

The meaning is that of llama.cpp, whose converters write the files. A field that a file leaves out has
llama.cpp's default, not the default of the library that makes the model (src/llama-model.cpp,
src/llama-hparams.h).
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGUFReader

from streamgen.model.frontend.gguf_file import architecture_of, field_of
from streamgen.model.frontend.metadata import Metadata, says_nothing

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.sliding_window": (0,),
    "attn_logit_softcapping": (0.0,),
    "embedding_scale": (0.0, 1.0),
    "expert_count": (0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "rope.scaling.attn_factor": (1.0,),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.yarn_beta_fast": (32.0,),
    "rope.scaling.yarn_beta_slow": (1.0,),
    "rope.scaling.yarn_ext_factor": (1.0, -1.0),
}
"""Fields that have effectless values other than null, false, 0 and "none", with these values."""

DESCRIBING = re.compile(
    "GGUF[.]|general[.]|tokenizer[.]|split[.]"  # the file itself, its tokenizer (`text`), its parts
    "|quantize[.]|mradermacher[.]"  # who quantised the file, on which texts
)
"""Names of fields that have no effect on the results of the model."""

TYPE = "general.type"


def fields_of(path: Path, reader: GGUFReader) -> Metadata:
    """The fields of a file's own architecture, without their prefix."""
    return Metadata(lambda key: field_of(path, reader, key), prefix=f"{architecture_of(path, reader)}.")


def other_fields(path: Path, reader: GGUFReader, fields: Metadata) -> None:
    """Note the fields that nobody has asked for: those of the architecture that are not neutral, and those of
    another architecture that have an effect. Also note a file that does not hold a whole model."""
    fields.problems += fields.unknown(reader.fields, NEUTRAL)
    if (kind := field_of(path, reader, TYPE)) not in (None, "model"):
        fields.problems.append(f"{TYPE} is {kind!r}; 'model' is needed, a file with a whole model")
    for key in reader.fields:
        if key.startswith(fields.prefix) or DESCRIBING.match(key):
            continue
        if not says_nothing(value := field_of(path, reader, key)):
            fields.problems.append(f"{key} is {value!r}; fields of another architecture are not supported")


@dataclass(frozen=True, kw_only=True)
class GgufSizes:
    """The sizes in files of all architectures. epsilon: of norms. scale: of scores, unless an architecture
    has its own."""

    context: int
    hidden: int
    features: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float

    @property
    def scale(self) -> float:
        """llama.cpp's scale of scores."""
        return 1 / math.sqrt(self.head_dim)


def sizes_of_fields(fields: Metadata, *, norm: str) -> GgufSizes:
    """The sizes. norm: "rms" or "layer", which chooses the name of the field with the epsilon."""
    hidden, heads = fields.integer("embedding_length"), fields.integer("attention.head_count")
    head_dim = fields.integer("attention.key_length", max(1, hidden // heads))
    if not fields.broken:
        fields.same("attention.value_length", head_dim)
    return GgufSizes(
        context=fields.integer("context_length"),
        hidden=hidden,
        features=fields.integer("feed_forward_length"),
        layers=fields.integer("block_count"),
        heads=heads,
        kv_heads=fields.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        epsilon=fields.number("attention.layer_norm_rms_epsilon" if norm == "rms" else _LAYER_NORM),
    )


_LAYER_NORM = "attention.layer_norm_epsilon"


def rope_of(
    fields: Metadata, sizes: GgufSizes, *, partial: bool = False, yarn: bool = False
) -> dict[str, Any]:
    """The rotation as `rope_parameters` of transformers: its base and its scaling.

    partial: whether the model allows that only a part of each head rotates. yarn: whether the model computes
    that scaling too.
    """
    if not partial and not fields.broken:
        fields.same("rope.dimension_count", sizes.head_dim)
    scaling = fields.get("rope.scaling.type") or "linear"  # llama.cpp's default, with factor 1
    known = ("none", "linear", *(["yarn"] if yarn else []))
    if scaling not in known:
        fields.lack("rope.scaling.type", scaling, f"{', '.join(map(repr, known))} are")
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": fields.number("rope.freq_base", 10000.0)}
    factor = _factor(fields)
    fields.get("rope.scaling.finetuned")  # how the model was trained; llama.cpp prints it
    original = fields.get("rope.scaling.original_context_length")  # which only yarn reads
    if scaling == "linear" and factor != 1:
        rope |= {"rope_type": "linear", "factor": factor}
    elif scaling == "yarn":
        rope |= {"rope_type": "yarn", "factor": factor}
        rope["original_max_position_embeddings"] = original or sizes.context
    return rope | ({"partial_rotary_factor": rotated_of(fields, sizes) / sizes.head_dim} if partial else {})


def rotated_of(fields: Metadata, sizes: GgufSizes) -> int:
    """The number of features of a head that rotate."""
    rotated = fields.integer("rope.dimension_count", sizes.head_dim)
    if (rotated > sizes.head_dim or rotated % 2) and not fields.broken:
        fields.note(
            f"{fields.prefix}rope.dimension_count is {rotated}; an even number up to {sizes.head_dim} is "
            "needed"
        )
    return rotated


def _factor(fields: Metadata) -> float:
    """The factor by which positions are closer; 0 and 1 have no effect."""
    key = "rope.scaling.factor"
    older = fields.get("rope.scale_linear") or 1.0
    return fields.number(key, older) if fields.get(key) else float(older)
