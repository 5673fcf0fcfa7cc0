"""Families whose scores have a bias by distance (ALiBi): equal to eager, pass by pass, and from a folder."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from streamgen.base.errors import CheckpointError
from streamgen.model.frontend import import_decoder
from streamgen.model.frontend.pretrained import load_pretrained
from streamgen.model.operations import Attention
from tests.shared.decoders import stepper
from tests.unit.model.frontend.families import BY_DISTANCE, CONTEXT, VOCABULARY, family, stepper_of

PASSES = (9, 1, 1, 6, 1)
PUBLISHED: dict[str, dict[str, Any]] = {
    "Bloom": {
        **{"attention_softmax_in_fp32": True, "bias_dropout_fusion": True, "masked_softmax_fusion": True},
        **{"n_inner": None, "offset_alibi": 100, "pretraining_tp": 1, "skip_bias_add": True},
        **{"skip_bias_add_qkv": False, "unk_token_id": 0},
    },
    "Falcon": {"apply_residual_connection_post_layernorm": False, "new_decoder_architecture": False},
    "Mpt": {
        **{"embedding_fraction": 1.0, "init_device": "cpu", "learned_pos_emb": True, "logit_scale": None},
        **{"no_bias": True, "norm_type": "low_precision_layernorm", "verbose": 0, "emb_pdrop": 0},
        "attn_config": {
            **{"alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0, "clip_qkv": None},
            **{"attn_type": "multihead_attention", "attn_uses_sequence_id": False, "prefix_lm": False},
            **{"qk_ln": False, "softmax_scale": None},
        },
    },
}
"""Fields of the config.json of bloom-560m, falcon-rw-1b and mpt-7b."""


def _require_equal(graph: Any, model: Any) -> None:
    attentions = [o.op for _, o in graph.walk() if isinstance(o.op, Attention)]
    assert attentions and all(op.distances == CONTEXT for op in attentions)
    step, eager = stepper(graph), stepper_of(model)
    ids, done = np.random.default_rng(1).integers(0, VOCABULARY, sum(PASSES)), 0
    for tokens in PASSES:
        given = ids[done : done + tokens]
        found, expected = step(given), eager(given)
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
        done += tokens


@pytest.mark.parametrize("name", BY_DISTANCE)
def test_alibi_as_eager(name: str) -> None:
    model = family(name, **BY_DISTANCE[name])
    _require_equal(import_decoder(model, context=CONTEXT), model)


@pytest.mark.parametrize("name", BY_DISTANCE)
def test_alibi_of_a_folder(name: str, tmp_path: Path) -> None:
    """With the fields of published checkpoints; an unknown field is refused."""
    model = family(name, **BY_DISTANCE[name])
    model.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, **PUBLISHED[name]}))
    read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    _require_equal(load_pretrained(tmp_path, context=CONTEXT), read)
    file.write_text(json.dumps({**config, "clip_of_scores": 3.0}))
    with pytest.raises(CheckpointError, match="clip_of_scores"):
        load_pretrained(tmp_path, context=CONTEXT)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("logit_scale", 0.1), ("norm_type", "rmsnorm"), ("no_bias", False)),
        *(("alibi_bias_max", 16), ("alibi", False), ("prefix_lm", True), ("qk_ln", True)),
    ],
)
def test_fields_of_mpt_that_its_class_does_not_read(field: str, value: Any, tmp_path: Path) -> None:
    """The class computes the same for any value, so only its own value is right."""
    family("Mpt", **BY_DISTANCE["Mpt"]).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    inner = {**config["attn_config"], field: value}
    changed = {"attn_config": inner} if field in config["attn_config"] else {field: value}
    file.write_text(json.dumps({**config, **changed}))
    with pytest.raises(CheckpointError, match=field):
        load_pretrained(tmp_path, context=CONTEXT)
