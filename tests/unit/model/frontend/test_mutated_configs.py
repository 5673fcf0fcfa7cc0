"""Every field of every family's configuration, changed: a folder is what transformers computes, or refused.

The model is built of the changed config.json by transformers, with random weights, so that its tensors fit
whatever the config says.
"""

import dataclasses
import json
import random
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streamgen.base.errors import StreamgenError
from streamgen.model.frontend import load_decoder
from streamgen.model.graph.interpret import reference
from streamgen.model.graph.logical import LogicalGraph
from tests.unit.model.frontend.families import FAMILIES, PARTS, family, partly_rotating
from tests.unit.model.frontend.mutations import MISSING, ROTATIONS, mutations

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from transformers import AutoConfig, AutoModelForCausalLM

TOKENS, PASS = (
    40,
    23,
)  # more than every window and every original context here; a pass of so many, then the rest
BOUND = 1e-5
SAMPLE = 24
ADDED: dict[str, tuple[Any, ...]] = {
    "unknown_field": (None, False, 0, "none", True, 3, 0.5, "text", [1], {"a": 1}),
    "is_causal": (True, False),
    "rope_scaling": (None, *ROTATIONS),
    "rope_parameters": ROTATIONS,
    "rope_theta": (500.0, None),
    "partial_rotary_factor": (1.0, 0.5, None),
    "original_max_position_embeddings": (16, None),
    "sliding_window": (7, 0, None),
    "use_sliding_window": (True, False),
    "layer_types": (
        *(["full_attention"] * n for n in (1, 2, 4, 6)),
        *(["sliding_attention", "full_attention"] * n for n in (1, 2, 3)),
    ),
    "head_dim": (16, 24, 32),
    "attention_bias": (True, False),
    "mlp_bias": (True, False),
    "qk_norm": (True, False),
    "attn_logit_softcapping": (2.0, None),
    "final_logit_softcapping": (2.0, None),
    "query_pre_attn_scalar": (7,),
    "logits_scaling": (2.0,),
    "num_experts": (0, 4),
    "quantization": ({"bits": 4},),
    "no_rope_layers": ([0, 1], [1, 1]),
    "transformers_weights": ("other.safetensors",),
}
Case = tuple[str, str, Any]
NAMES = [*FAMILIES, *(f"part of {name}" for name in PARTS)]


@cache
def _base(name: str) -> dict[str, Any]:
    """The config.json of a family."""
    model = partly_rotating(name.removeprefix("part of ")) if name.startswith("part") else family(name)
    said: dict[str, Any] = json.loads(model.config.to_json_string(use_diff=False))
    return {key: value for key, value in said.items() if key != "transformers_version"}


def _cases(name: str) -> Iterator[Case]:
    said = _base(name)
    declared = dataclasses.fields(type(AutoConfig.for_model(said["model_type"])))
    values = {field.name: said.get(field.name) for field in declared} | said
    for key, value in values.items():
        if key != "model_type":
            yield from ((name, key, other) for other in mutations(value))
    for key, others in ADDED.items():
        yield from ((name, key, other) for other in others)


def _verdict(case: Case, place: Path) -> str:
    """Of one changed config.json: right, refused, or why it is wrong."""
    name, key, value = case
    said = {k: v for k, v in _base(name).items() if k != key} | ({} if value is MISSING else {key: value})
    (place / "config.json").write_text(json.dumps(said))
    torch.manual_seed(5)
    try:
        config = AutoConfig.from_pretrained(place)
        config._attn_implementation = "eager"
        built = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in built.parameters():
                parameter.copy_(torch.randn(parameter.shape) / parameter.shape[-1] ** 0.5)
        built.save_pretrained(place)
        (place / "config.json").write_text(json.dumps(said))
        model = AutoModelForCausalLM.from_pretrained(place, attn_implementation="eager", dtype=torch.float32)
        ids = np.random.default_rng(7).integers(0, config.get_text_config().vocab_size, TOKENS)
        with torch.no_grad():
            expected = model.eval()(torch.from_numpy(ids)[None], use_cache=False)[0][0].numpy()
        if not np.isfinite(expected).all():
            raise ArithmeticError("results are not finite")
    except Exception as error:  # noqa: BLE001 - transformers documents no set of exceptions
        failure = f"{type(error).__name__}: {error}"
        expected = None
    try:
        graph = load_decoder(place, TOKENS)
    except StreamgenError:
        return "refused"
    except Exception as error:  # noqa: BLE001 - the kind of defect that is looked for
        return f"{type(error).__name__}: {error}"
    if expected is None:
        return f"taken, where transformers fails: {failure}"
    error = _difference(graph, ids, expected)
    return "right" if error <= BOUND else f"{error:.1e} off"


def _difference(graph: LogicalGraph, ids: np.ndarray, expected: np.ndarray) -> float:
    """How far two passes are from eager, relative to the norm, as far as the context goes."""
    run, ids, expected = reference(graph), ids[: graph.context], expected[: graph.context]
    first, state = run({"ids": ids[:PASS]}, every_row=True)
    passes = [first["logits"]]
    if len(ids) > PASS:
        passes.append(run({"ids": ids[PASS:]}, position=PASS, state=state, every_row=True)[0]["logits"])
    distance = np.linalg.norm(np.concatenate(passes) - expected)
    norm = np.linalg.norm(expected)  # zero where a multiplier of the logits is zero
    return float(distance / norm if norm else distance)


def _try(cases: list[Case]) -> None:
    """Counts, and an error that names every case that is wrong."""
    counts: Counter[str] = Counter()
    wrong = []
    for case in cases:
        place = Path(tempfile.mkdtemp())
        try:
            verdict = _verdict(case, place)
        finally:
            shutil.rmtree(place)
        counts[verdict if verdict in ("right", "refused") else "wrong"] += 1
        if verdict not in ("right", "refused"):
            name, key, value = case
            wrong.append(f"{name}: {key} {'missing' if value is MISSING else repr(value)}: {verdict}")
    print(f"\n{len(cases)} changed configurations: {dict(counts)}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_a_sample(seed: int) -> None:
    cases = [case for name in NAMES for case in _cases(name)]
    _try(random.Random(seed).sample(cases, SAMPLE))


@pytest.mark.campaign
@pytest.mark.parametrize("name", NAMES)
def test_every_field(name: str) -> None:
    _try(list(_cases(name)))
