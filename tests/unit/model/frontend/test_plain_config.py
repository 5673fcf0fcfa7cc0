"""Graphs of config.json without torch: those that tracing the modules of transformers gives."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers

from streamgen.gateware.functions import CONFIGURED
from streamgen.model.frontend.plain_config import plain_decoder
from streamgen.model.frontend.traced_shapes import shapes_of_config
from streamgen.model.graph.logical import LogicalGraph, Repeat
from tests.unit.model.frontend.families import FAMILIES

GPT2 = {"model_type": "gpt2", **FAMILIES["GPT2"]}
QWEN2 = {"model_type": "qwen2", **FAMILIES["Qwen2"]}
GEMMA3 = {"model_type": "gemma3_text", **FAMILIES["Gemma3"]}
LLAMA = {"model_type": "llama", **FAMILIES["Llama"]}
MISTRAL = {"model_type": "mistral", **FAMILIES["Mistral"]}
CASES = {
    "gpt2": GPT2 | {"n_inner": None, "layer_norm_epsilon": 1e-3},
    "qwen2": QWEN2 | {"sliding_window": 5, "use_sliding_window": False, "rope_theta": 1e6},
    "gemma3": GEMMA3,
    "gemma3 all see all": GEMMA3 | {"sliding_window": 100, "layer_types": ["full_attention"] * 6},
    "llama": LLAMA,
    "mistral": MISTRAL,
    **{f"gpt2 {name}": GPT2 | {"activation_function": name} for name in CONFIGURED},
}


def _written(folder: Path, config: dict[str, Any]) -> Path:
    """A folder with the config, with what transformers itself would write beside it."""
    made = transformers.AutoConfig.for_model(**config).to_diff_dict() | config
    (folder / "config.json").write_text(json.dumps(made))
    return folder


def _near(value: Any) -> Any:
    """Frequencies are read off tables in tracing, to about nine digits."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    return tuple(map(_near, value)) if isinstance(value, tuple) else value


def _forms(graph: LogicalGraph) -> dict[str, Any]:
    """Of every operation what it is, layers apart."""
    return {
        path: (_near(operation.op.form()), operation.inputs)
        for path, operation in graph.walk()
        if not isinstance(operation.op, Repeat)
    }


@pytest.mark.parametrize(("name", "context"), [(name, 32) for name in CASES] + [("gpt2", None)])
def test_equal_to_what_is_traced(tmp_path: Path, name: str, context: int | None) -> None:
    folder = _written(tmp_path, CASES[name])
    found = plain_decoder(json.loads((folder / "config.json").read_text()), context, folder)
    expected = shapes_of_config(folder, context)
    assert found is not None
    assert _forms(found) == _forms(expected)
    assert (found.name, found.context, found.outputs, found.requested) == (
        *(expected.name, expected.context, expected.outputs, expected.requested),
    )
    if name not in ("llama", "mistral"):  # which are put together as their files are, in another order
        assert _near(found.form()) == _near(expected.form())


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        (GPT2, {"scale_attn_by_inverse_layer_idx": True}),
        (GPT2, {"n_head": 5}),
        (GPT2, {"n_layer": "two"}),
        (GPT2, {"something_new": 1}),
        (GPT2, {"activation_function": "swiglu"}),
        (QWEN2, {"use_sliding_window": True}),
        (QWEN2, {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}),
        (QWEN2, {"layer_types": ["sliding_attention"] * 2}),
        (QWEN2, {"num_key_value_heads": 2}),
        (GEMMA3, {"attention_bias": True}),
        (GEMMA3, {"attn_logit_softcapping": 1.0}),
        (GEMMA3, {"query_pre_attn_scalar": -1}),
        (GEMMA3, {"layer_types": ["full_attention"]}),
        (LLAMA, {"hidden_size": -1}),
        ({"model_type": "opt"}, {}),
        ({}, {}),
    ],
)
def test_what_asks_for_something_else_is_traced(
    tmp_path: Path, config: dict[str, Any], changes: dict[str, Any]
) -> None:
    assert plain_decoder({**config, **changes}, None, tmp_path) is None


def test_an_estimate_needs_no_torch(tmp_path: Path) -> None:
    """Nor transformers: which take seconds to load."""
    (tmp_path / "config.json").write_text(json.dumps(GPT2))
    script = (
        "import sys, streamgen\n"
        "config = streamgen.CompileConfig(max_tokens=4, context=32, channels=2, multipliers=128)\n"
        "print(streamgen.estimate(sys.argv[1], None, config).first_tokens)\n"
        "print({'torch', 'transformers'} & sys.modules.keys())\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "config.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1] == "set()"
