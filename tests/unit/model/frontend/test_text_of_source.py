"""Modules that write a text about a source: the two graphs, and their refusals."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from streamgen.base.errors import UnsupportedOperationError
from streamgen.model.frontend.any_module import interface_of
from streamgen.model.frontend.text_of_source import TwoParts, import_text_of_source
from streamgen.model.graph.interpret import reference
from streamgen.model.operations import SourceAttention
from streamgen.model.source import SourceLayers, TextSource
from tests.shared.sourced_modules import Captioner, TorchDecoder, Translator, from_transformers

IDS, ROWS = torch.tensor([[3, 1, 4, 1]]), torch.zeros(1, 7, 24)


def _cases() -> dict[str, tuple[torch.nn.Module, Any, int | str]]:
    torch.manual_seed(0)
    words = torch.tensor([[5, 9, 2, 6, 5, 3]])
    return {
        "features": (Captioner(), (IDS, torch.randn(1, 7, 24)), 0),
        "key heads of several query heads": (Captioner(kv_heads=2), (IDS, torch.randn(1, 7, 24)), 0),
        "torch": (TorchDecoder(), (IDS, torch.randn(1, 9, 32)), "ids"),
        "encoder before": (Translator(), (words, IDS), 1),
        "keywords": (Translator(), {"source": words, "ids": IDS}, "ids"),
        "as many rows as heads": (Captioner(), (IDS, torch.randn(1, 4, 24)), 0),
        **from_transformers(),
    }


def _logits(parts: TwoParts, source: torch.Tensor, ids: torch.Tensor) -> np.ndarray:
    """Logits of the two graphs."""
    layers, interface = SourceLayers.of(parts.text), interface_of(parts.source)
    assert layers is not None
    given = (source.numpy(),)
    kinds = {value.name: value.kind for value in parts.source.graph.inputs}
    taken = {
        name: rows.reshape(-1) if kinds[name] == "ids" else rows.reshape(-1, rows.shape[-1])
        for name, rows in interface.taken(given).items()
    }
    results, _ = reference(parts.source.graph)(taken)
    rows = [array.reshape(-1, array.shape[-1]) for array in interface.rebuilt(results, given)]
    held = TextSource(layers, tuple(layers.checked(rows)))
    found, _ = reference(parts.text)({"ids": ids[0].numpy()}, state=held.floats, every_row=True)
    return found["logits"]


@pytest.mark.parametrize("name", _cases())
def test_logits_are_those_of_the_module(name: str) -> None:
    """The import compares both, too, for other texts and lengths."""
    module, example, text = _cases()[name]
    parts = import_text_of_source(module.eval(), example, text, 40)
    ids = torch.tensor([[7, 3, 9, 2, 4, 4, 8, 5, 11]])
    leaves, spec = torch.utils._pytree.tree_flatten(example)
    (source,) = [leaf for leaf in leaves if leaf is not _text(example, text)]
    given = torch.utils._pytree.tree_unflatten([leaf if leaf is source else ids for leaf in leaves], spec)
    with torch.no_grad():
        wanted = module(**given) if isinstance(given, dict) else module(*given)
    rows = getattr(wanted, "logits", wanted)[0].numpy()
    np.testing.assert_allclose(_logits(parts, source, ids), rows, atol=2e-4 * np.abs(rows).max())


class Masked(torch.nn.Module):
    """torch.nn.Transformer, called with all of its masks."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.rows = torch.nn.Embedding(20, 16), torch.nn.Embedding(22, 16)
        self.both = torch.nn.Transformer(16, 2, 1, 1, 32, batch_first=batch_first)
        self.head = torch.nn.Linear(16, 22)

    def forward(self, src: Any, trg: Any, src_mask: Any, trg_mask: Any, src_pad: Any, trg_pad: Any) -> Any:
        masks = src_mask, trg_mask, None, src_pad, trg_pad, src_pad
        return self.head(self.both(self.words(src), self.rows(trg), *masks))


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("rows", [7, 4])
@pytest.mark.parametrize("batch_first", [True, False])
def test_masks_are_made_for_each_text(batch_first: bool, rows: int) -> None:
    """Of scores and of padding, as often as the module takes one; also if text and source are of one
    length."""
    module = Masked(batch_first=batch_first).eval()
    source = torch.tensor([[5, 9, 2, 6, 5, 3, 11]])[:, :rows]

    def arguments(ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        none = [torch.zeros(shape, dtype=torch.bool) for shape in ((rows, rows), (1, rows), ids.shape)]
        own = (source, ids) if batch_first else (source.T, ids.T)
        return (*own, none[0], causal, none[1], none[2])

    parts = import_text_of_source(module, arguments(IDS), "trg", 40)
    ids = torch.tensor([[7, 3, 9, 2, 4, 4, 8, 5, 11]])
    with torch.no_grad():
        wanted = module(*arguments(ids)).reshape(ids.shape[1], -1).numpy()
    found = _logits(parts, source if batch_first else source.T, ids)
    np.testing.assert_allclose(found, wanted, atol=2e-4 * np.abs(wanted).max())


def test_masks_with_padding_are_refused() -> None:
    source, pad = torch.tensor([[5, 9, 2, 6]]), torch.tensor([[False, False, False, True]])
    causal = torch.ones(4, 4, dtype=torch.bool).triu(1)
    example = (source, IDS, torch.zeros(4, 4, dtype=torch.bool), causal, pad, ~pad & False)
    with pytest.raises(
        ValueError, match=r"^the argument 'src_pad' hides tokens; an example of a text and a s"
    ):
        import_text_of_source(Masked(batch_first=True).eval(), example, "trg", 40)


class Deciding(torch.nn.Module):
    """A captioner whose features depend on the number of rows by a function."""

    def __init__(self, function: Callable[[torch.Tensor, int], torch.Tensor]) -> None:
        super().__init__()
        self.captioner, self.layer, self.function = Captioner(), torch.nn.Linear(24, 24), function

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.captioner(ids, self.function(self.layer(x), x.shape[1]))


DECISIONS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "above": lambda y, n: torch.tanh(y) if n > 20 else y * 2,
    "equal": lambda y, n: torch.tanh(y) if n == 5 else y * 2,
    "multiple": lambda y, n: torch.tanh(y) if n % 4 == 0 else y * 2,
    "product": lambda y, n: y * n,
    "quotient": lambda y, n: y * (1 + n // 20),
}


@pytest.mark.parametrize("name", DECISIONS)
def test_what_the_source_decides_by_its_rows_holds_for_the_example_alone(name: str) -> None:
    torch.manual_seed(0)
    module = Deciding(DECISIONS[name]).eval()
    parts = import_text_of_source(module, (IDS, torch.randn(1, 24, 24)), 0, 40)
    x = torch.randn(1, 24, 24)
    with torch.no_grad():
        wanted = module(IDS, x)[0].numpy()
    np.testing.assert_allclose(_logits(parts, x, IDS), wanted, atol=2e-4 * np.abs(wanted).max())
    for rows in range(1, 24):
        with pytest.raises(ValueError, match="fixes dimension 1 at 24"):
            _logits(parts, x[:, :rows], IDS)


def _text(example: Any, text: int | str) -> torch.Tensor:
    """The text of an example."""
    return example[0 if text == "ids" and isinstance(example, tuple) else text]


def test_key_heads_that_several_query_heads_share_are_stored_once() -> None:
    module, example, text = _cases()["key heads of several query heads"]
    graph = import_text_of_source(module.eval(), example, text).text
    ops = [o.op for _, o in graph.walk() if isinstance(o.op, SourceAttention)]
    assert [(op.heads, op.kv_heads) for op in ops] == [(4, 2)] * 2
    assert graph.source == 7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("added", "the text can read its source only as keys and values of an attention"),
        ("masked", "each token must see all rows of the source, with scores that have no soft-cap"),
    ],
)
def test_other_uses_of_the_source_are_refused(change: str, message: str) -> None:
    torch.manual_seed(0)
    module = Captioner(change=change).eval()
    with pytest.raises(UnsupportedOperationError, match=message):
        import_text_of_source(module, (IDS, torch.randn(1, 7, 24)), 0)


@pytest.mark.parametrize(
    ("example", "text", "kind", "message"),
    [
        ((IDS, torch.zeros(1, 7, 24)), 2, ValueError, r"^text is 2; the example has 2 positional arguments$"),
        (
            (IDS, torch.zeros(1, 7, 24)),
            "words",
            ValueError,
            r"^text is 'words'; the example has the arguments",
        ),
        (
            (IDS, torch.zeros(1, 7, 24)),
            1,
            TypeError,
            r"^the argument 1, the text, is a tensor of torch.float32",
        ),
        ((IDS, None), 0, ValueError, r"^the example has no other tensor than the text"),
    ],
)
def test_wrong_arguments(example: Any, text: int | str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        import_text_of_source(Captioner().eval(), example, text)
