"""streamgen.model.frontend.causal_model: caches and positions are those that the model itself has."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streamgen.base.errors import UnsupportedOperationError
from streamgen.model.frontend import import_decoder, load_decoder, shapes_of
from streamgen.model.frontend.causal_model import CacheSizes, offset_of, positions_of, probe
from streamgen.model.graph.interpret import reference
from streamgen.model.graph.logical import LogicalGraph
from tests.unit.model.frontend.causal_classes import CONTEXT, VOCABULARY, config_of, model_of

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own
IDS = np.random.default_rng(1).integers(3, VOCABULARY - 2, 12)


def _require_as_eager(graph: LogicalGraph, model: Any) -> None:
    with torch.no_grad():
        eager = model(torch.as_tensor(IDS)[None]).logits[0].double().numpy()
    found = reference(graph)({"ids": IDS}, every_row=True)[0]["logits"]
    assert np.linalg.norm(found - eager) <= 1e-5 * np.linalg.norm(eager)


def test_positions_behind_the_padding_index() -> None:
    """Of a model whose own positions begin at 2, as many fewer are left."""
    model = model_of(config_of("xlm-roberta-xl"))
    assert model.config.pad_token_id == 1 and offset_of(model, 2) == 2
    graph = import_decoder(model)
    assert graph.context == CONTEXT - 2
    _require_as_eager(graph, model)


@pytest.mark.parametrize("kind", ["bart", "trocr"])
def test_positions_that_a_model_counts(kind: str) -> None:
    model = model_of(config_of(kind))
    assert offset_of(model, 2) == 0
    _require_as_eager(import_decoder(model), model)


def test_positions_that_are_not_consecutive() -> None:
    model = model_of(config_of("gpt2"))
    inner = model.forward

    def forward(input_ids: Any = None, position_ids: Any = None, **more: Any) -> Any:
        if position_ids is None:
            position_ids = 2 * torch.arange(input_ids.shape[1])[None]
        return inner(input_ids=input_ids, position_ids=position_ids, **more)

    model.forward = forward
    with pytest.raises(UnsupportedOperationError) as caught:
        import_decoder(model)
    assert str(caught.value) == (
        "the positions of GPT2LMHeadModel are not supported: without position_ids it computes something else "
        "than with 0, 1, 2 ... or any other consecutive numbers"
    )


def test_sizes_are_those_of_the_cache() -> None:
    """Of a cache with one head for all queries, whatever the configuration calls that."""
    config = config_of("gpt_bigcode")
    assert config.multi_query and config.num_key_value_heads != 1
    model = model_of(config)
    assert probe(model).sizes == 2 * (CacheSizes((1, 16), (1, 16)),)
    _require_as_eager(import_decoder(model), model)


def test_a_run_without_contents_leaves_the_model_as_it_is() -> None:
    model = model_of(config_of("llama"))
    before = {name: id(tensor) for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    probe(model)
    after = {name: id(tensor) for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    assert before == after


@pytest.mark.parametrize(
    ("kind", "positions"), [("llama", CONTEXT), ("whisper", CONTEXT), ("mpt", CONTEXT), ("bloom", None)]
)
def test_positions_of_a_configuration(kind: str, positions: int | None) -> None:
    assert positions_of(config_of(kind)) == positions


@pytest.mark.parametrize("kind", ["gptj", "gpt_neo", "megatron-bert"])
def test_folders_of_classes_with_one_attention(kind: str, tmp_path: Path) -> None:
    """They are opened with the implementation that they have."""
    model = model_of(config_of(kind))
    model.save_pretrained(tmp_path)
    _require_as_eager(load_decoder(tmp_path), model)


@pytest.mark.parametrize("kind", ["bert", "rembert"])
def test_norms_and_heads_at_both_ends(kind: str) -> None:
    """Names of what is before the layers differ from those behind."""
    model = model_of(config_of(kind))
    graph = import_decoder(model)
    names = [operation.name for operation in graph.operations]
    assert len(set(names)) == len(names) and {"norm", "norm_1"} & set(names)
    _require_as_eager(graph, model)


def test_layers_that_differ_are_all_seen_in_a_config(tmp_path: Path) -> None:
    """The first three layers are dense, so two of them say nothing of the rest."""
    config = config_of("glm4_moe")
    config.num_hidden_layers, config.first_k_dense_replace = 6, 3
    config.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedOperationError) as caught:
        shapes_of(tmp_path / "config.json")
    assert str(caught.value).splitlines()[:2] == [
        "mixture of experts is not supported yet: Glm4Moe, 6 layers",
        "  mixture of experts: in 3 layers, first in model.layers.3.mlp",
    ]
