"""Changes of a configuration, field by field: what the campaigns of readers try."""

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["MISSING", "ROTATIONS", "mutations"]

MISSING = object()
"""Stands for a field that is left out."""

FUNCTIONS = (
    "gelu",
    "gelu_new",
    "gelu_pytorch_tanh",
    "relu",
    "relu2",
    "silu",
    "tanh",
    "sigmoid",
    "mish",
    "none",
)
ROTATIONS: tuple[Mapping[str, Any], ...] = (
    {"rope_type": "default", "rope_theta": 700.0},
    {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
    {"type": "linear", "factor": 4.0},
    {"rope_type": "linear", "factor": 1.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 16},
    {
        **{"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0},
        **{"high_freq_factor": 4.0, "original_max_position_embeddings": 16},
    },
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.0},
    {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0},
    {"rope_type": "longrope", "factor": 4.0, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
    {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    {"rope_type": "proportional", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    {"rope_type": "default", "factor": 8.0},
    {"rope_type": "nonsense"},
    {"rope_type": "default", "rope_theta": 10000.0, "unknown_factor": 2.0},
)


def mutations(value: Any) -> Iterator[Any]:
    """Other values of a field: flipped, larger and smaller, enumerated, of another kind, null, left out."""
    yield MISSING
    yield None
    if isinstance(value, bool):
        yield not value
        yield int(value)
    elif isinstance(value, int):
        yield from (0, 1, 2 * value, value + 1, value - 1, -1, float(value), str(value))
    elif isinstance(value, float):
        yield from (0.0, 1.0, 2 * value + 0.125, value / 2, -1.0, str(value))
    elif isinstance(value, str):
        yield from (name for name in FUNCTIONS if name != value)
    elif isinstance(value, list):
        yield from (value[::-1], value[:-1], [*value, *value], [])
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            rest = {name: other for name, other in value.items() if name != key}
            yield from (rest if other is MISSING else rest | {key: other} for other in mutations(inner))
        yield dict(value) | {"unknown_inner": 3}
    else:  # nothing is said: anything may be
        yield from (False, True, 1, 3, 0.5, "none", "nonsense")
