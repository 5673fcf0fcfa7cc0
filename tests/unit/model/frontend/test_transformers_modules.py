"""Models of transformers that generate no text, as objects: encoders and classifiers of several families."""

import re
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from torch.utils import _pytree as pytree

from streamgen.base.errors import UnsupportedOperationError
from streamgen.model.frontend.any_module import import_any
from streamgen.model.graph.interpret import reference
from streamgen.model.nests import Interface
from streamgen.model.operations import Attention
from tests.shared.sequences import results_of
from tests.shared.transformers_encoders import SMALL, VOCABULARY, encoded, small

QUICK = ("Bert sequence", "Roberta")
FAMILIES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SMALL]


def arrays(given: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda t: t.detach().numpy(), given)


def require_near(found: Any, wanted: Any) -> None:
    """Results have the same names and shapes as those of the model, and nearly the same values."""
    assert type(found) is dict and found.keys() == wanted.keys()
    for ours, theirs in zip(pytree.tree_leaves(found), pytree.tree_leaves(arrays(dict(wanted))), strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_reference_is_eager(family: str) -> None:
    """Without an example, for texts of several lengths, several at once."""
    model = small(family)
    graph, interface = import_any(model, longest=12)
    windows = {o.op.window for _, o in graph.walk() if isinstance(o.op, Attention)}
    assert windows == ({None, 4} if "Modern" in family else {None})  # 3 tokens on both sides
    assert interface is not None and Interface.from_json(interface.to_json()) == interface
    for tokens, texts in ((1, 1), (5, 2), (12, 1)):
        ids = encoded(tokens, texts)["input_ids"]
        with torch.no_grad():
            require_near(results_of(reference(graph), graph, interface, (ids.numpy(),)), model(ids))


def test_a_dict_of_a_tokenizer() -> None:
    """Its names are the arguments; padding that its mask hides does not enter."""
    model = small("Bert sequence", num_hidden_layers=1)
    example = transformers.BatchEncoding(encoded(6, types=True))
    graph, interface = import_any(model, example, longest=8)
    assert interface is not None and interface.arguments == (
        {name: name for name in ("input_ids", "token_type_ids", "attention_mask")},
    )
    assert interface.masks["attention_mask"].pads
    given = encoded(7, types=True)
    with torch.no_grad():
        require_near(results_of(reference(graph), graph, interface, (arrays(given),)), model(**given))
    padded = arrays(encoded(7, 2, types=True))
    padded["attention_mask"] = np.array([[1] * 7, [1] * 4 + [0] * 3])
    parts = interface.without_padding((padded,))
    assert parts is not None and [part[0]["input_ids"].shape for part in parts] == [(1, 7), (1, 4)]
    holes = {**padded, "attention_mask": np.array([[1] * 7, [1, 0, 1, 1, 1, 1, 1]])}
    with pytest.raises(
        ValueError, match=r"'attention_mask'\[1, 2\] is 1; a mask is ones for the tokens of a s"
    ):
        interface.without_padding((holes,))
    with pytest.raises(ValueError, match="'input_ids' holds 50; ids are 0 to 49 there"):
        interface.taken(({**arrays(given), "input_ids": np.full((1, 7), VOCABULARY)},))
    with pytest.raises(TypeError, match=r"must be dict of input_ids, token_type_ids, attention_mask"):
        interface.taken(({"input_ids": np.ones((1, 7), int)},))


def test_hidden_states_and_arguments_in_order() -> None:
    """Tuples among the results stay tuples; rows of hidden tokens are NaN."""
    model = small("Bert", output_hidden_states=True, num_hidden_layers=1)
    ids = encoded(5)["input_ids"]
    graph, interface = import_any(model, (ids, torch.ones_like(ids)))
    assert interface is not None and interface.masks["attention_mask"].pads
    for mask in (torch.ones_like(ids), torch.tensor([[1, 1, 1, 1, 0]])):
        found = results_of(reference(graph), graph, interface, arrays((ids, mask)))
        assert isinstance(found["hidden_states"], tuple) and len(found["hidden_states"]) == 2
        with torch.no_grad():
            wanted = model(ids, mask)
        for rows in (wanted.last_hidden_state, *wanted.hidden_states):
            rows[mask == 0] = torch.nan
        require_near(found, wanted)


def test_ids_of_padding() -> None:
    """RoBERTa counts its positions over ids other than padding: padding is refused unless a mask hides it."""
    model = small("Roberta sequence", num_hidden_layers=1)
    graph, interface = import_any(model, encoded(4), longest=7)
    assert interface is not None and interface.padding == {"input_ids": (1,)}
    given = arrays(encoded(7))
    given["input_ids"][0, 5:] = 1
    message = "'input_ids'[0, 5] is 1, which the module takes for padding; sequences must be given without "
    with pytest.raises(ValueError, match=re.escape(message + "padding, or with a mask that hides it")):
        interface.taken((given,))
    given["attention_mask"][0, 5:] = 0
    (part,) = interface.without_padding((given,)) or ()
    with torch.no_grad():
        wanted = model(**{name: torch.from_numpy(array) for name, array in given.items()})
    require_near(results_of(reference(graph), graph, interface, part), wanted)
    drawn = interface.given({"input_ids": np.arange(100)})[0]
    assert 1 not in drawn and drawn.shape == (1, 100)
    example = encoded(4)
    example["input_ids"][0, 3] = 1
    with pytest.raises(
        ValueError, match="example of 'input_ids' holds the id 1, which the module takes for pad"
    ):
        import_any(model, example)


class Counting(nn.Module):
    """An encoder of one's own that counts its places over ids other than padding."""

    def __init__(self, padding: int | None, compared: int = 2) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table, self.places = nn.Embedding(20, 8, padding_idx=padding), nn.Embedding(16, 8)
        self.out, self.compared = nn.Linear(8, 3), compared

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        shown = words != self.compared
        x = self.table(words) + self.places(torch.cumsum(shown.int(), 1))
        return self.out((x * shown[..., None]).sum(1) / shown.sum(1, keepdim=True))


def test_a_module_of_ones_own_counts_as_well() -> None:
    words = torch.tensor([[5, 9, 0, 7], [4, 4, 1, 19]])
    module = Counting(2).eval()
    graph, interface = import_any(module, words)
    assert interface is not None and interface.padding == {"words": (2,)}
    found = results_of(reference(graph), graph, interface, (words.numpy(),))
    np.testing.assert_allclose(found, module(words).detach().numpy(), atol=1e-5)
    with pytest.raises(
        ValueError, match=r"'words'\[0, 1\] is 2, which the module takes for padding; sequences "
    ):
        interface.taken((np.array([[3, 2]]),))
    for other in (Counting(None), Counting(2, 3)):
        with pytest.raises(UnsupportedOperationError, match="cumsum"):
            import_any(other.eval(), words)


def test_a_body_that_is_causal() -> None:
    """GPT-2 without a head is no language model; it returns no cache."""
    config = transformers.GPT2Config(
        n_embd=32, n_layer=1, n_head=2, vocab_size=50, n_positions=16, bos_token_id=1, eos_token_id=2
    )
    model = transformers.GPT2Model(config).eval()
    graph, interface = import_any(model)
    assert interface is not None and interface.results == {"last_hidden_state": graph.outputs[0]}
    assert model.config.use_cache


class Headed(transformers.GPT2PreTrainedModel):
    """A causal language model without methods to generate."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.body = transformers.GPT2Model(config)
        self.head = nn.Linear(config.n_embd, config.vocab_size)

    def forward(self, input_ids: torch.Tensor) -> Any:
        return {"logits": self.head(self.body(input_ids).last_hidden_state)}


def test_logits_of_a_causal_model_make_a_language_model() -> None:
    config = transformers.GPT2Config(
        n_embd=32, n_layer=1, n_head=2, vocab_size=50, n_positions=16, bos_token_id=1, eos_token_id=2
    )
    graph, interface = import_any(Headed(config).eval())
    assert interface is None and graph.context == 16


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: transformers.MPNetModel(
                transformers.MPNetConfig(**{**SMALL["Bert"][2], "num_hidden_layers": 1})
            ),
            UnsupportedOperationError,
            "biases of scores, such as those of relative positions, cannot be compiled",
        ),
        (
            lambda: transformers.ViTModel(
                transformers.ViTConfig(
                    hidden_size=32,
                    num_hidden_layers=1,
                    num_attention_heads=2,
                    intermediate_size=32,
                    image_size=[16, 32],
                )
            ),
            TypeError,
            "example_inputs are missing: ViTModel takes pixel_values; a tensor for each input",
        ),
        (
            lambda: transformers.T5Model(
                transformers.T5Config(d_model=32, d_kv=16, num_layers=1, num_heads=2, d_ff=32, vocab_size=40)
            ),
            TypeError,
            "T5Model has an encoder beside a decoder; a dict with the inputs of both is needed",
        ),
    ],
)
def test_refused(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        import_any(make().eval())


def test_bad_examples() -> None:
    model = small("Bert sequence")
    with pytest.raises(TypeError, match="example_inputs have the key 3; the names of arguments are needed"):
        import_any(model, {3: torch.zeros(1, 2, dtype=torch.int64)})
    example = encoded(4)
    example["attention_mask"][0, 2] = 0
    with pytest.raises(
        ValueError, match=r"\(attention_mask\) hides the first token, or one in front of anot"
    ):
        import_any(model, example)
    with pytest.raises(ValueError, match="an id may be outside its table"):
        import_any(model, torch.full((1, 4), VOCABULARY))
