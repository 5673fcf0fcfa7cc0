"""Published shapes without values, which take no memory, and what plans of them need."""

import json
from pathlib import Path
from typing import Any

from streamgen.api.estimation import imported
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.plan.choosing import PlannedDesign, planned
from streamgen.compiler.plan.policy import limited, quantised
from streamgen.model.graph.logical import LogicalGraph

__all__ = ["PLAIN", "SIZES", "graph_of", "plan_of"]

PLAIN = CompileConfig(check_import=False)
SIZES: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 8192,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 4096,
    "tie_word_embeddings": False,
}


def graph_of(folder: Path, config: CompileConfig = PLAIN, **sizes: Any) -> tuple[LogicalGraph, LogicalGraph]:
    """The graph of a shape, as imported and quantised."""
    file = folder / "config.json"
    file.write_text(json.dumps({**SIZES, **sizes}))
    graph = imported(file, None, config)
    config, short = limited(graph, config)
    return graph, quantised(short, config)


def plan_of(folder: Path, config: CompileConfig = PLAIN, **sizes: Any) -> PlannedDesign:
    """The plan of a shape."""
    graph, ready = graph_of(folder, config, **sizes)
    known, _ = limited(graph, config)
    design, _ = planned(graph, ready, config, known, graph.context, lambda design: None)
    return design
