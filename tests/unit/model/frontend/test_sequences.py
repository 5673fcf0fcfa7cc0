"""Modules that reduce the tokens of a sequence, tell their places apart, or take a mask of padding."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree

import streamgen
from streamgen.base.errors import GraphError, ImportMismatchError, UnsupportedOperationError
from streamgen.model.frontend import by_line, import_any, joined
from streamgen.model.graph.interpret import exact, reference
from streamgen.model.nests import Interface
from streamgen.model.operations import Linear, PlaceRows, ReduceTokens, TokenRow
from tests.shared.sequences import results_of

Function = Callable[..., Any]
F, T = 8, 5


class Plain(nn.Module):
    """A function of tensors as a module, with a Linear, a table of 9 places and an Embedding."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.function = function
        self.linear = nn.Linear(F, F)
        self.table = nn.Parameter(torch.randn(1, 9, F))
        self.rows = nn.Embedding(9, F)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def require_same(module: nn.Module, graph: Any, interface: Any, given: tuple[torch.Tensor, ...]) -> None:
    """The graph's results are the module's: those of the reference nearly, of the golden model of a graph
    without floats within its roundings."""
    assert Interface.from_json(interface.to_json()) == interface
    arrays = [x.numpy() for x in given]
    with torch.no_grad():
        wanted = pytree.tree_leaves(module(*given))
    floats = any(isinstance(o.op, Linear) for o in graph.operations)
    interpreters = [(reference(graph), 1e-5)] + ([] if floats else [(exact(graph), 1e-3)])
    for interpreter, bound in interpreters:
        found = pytree.tree_leaves(results_of(interpreter, graph, interface, arrays))
        for ours, theirs in zip(found, wanted, strict=True):
            assert ours.shape == tuple(theirs.shape)
            np.testing.assert_allclose(ours, theirs.numpy(), rtol=bound, atol=bound)


POOLED: dict[str, Function] = {
    "mean": lambda m, x: functional.normalize(m.linear(x).mean(1), dim=-1),
    "sum": lambda m, x: m.linear(x).sum(1),
    "quotient": lambda m, x: x.sum(1) / x.shape[1],
    "kept": lambda m, x: m.linear(x.amax(1, keepdim=True)),
    "least": lambda m, x: x.min(1).values,
    "all": lambda m, x: x.mean((1, 2)),
    "norm": lambda m, x: x.norm(dim=1),
    "first": lambda m, x: torch.tanh(m.linear(m.linear(x)[:, 0])),
    "last": lambda m, x: m.linear(x[:, -1]),
    "several": lambda m, x: m.linear(torch.cat([x.mean(1)[:, :4], x.amax(1)[:, 4:]], -1)),
    "both": lambda m, x: (m.linear(x), x.mean(1), x[:, 0]),
    "weighted": lambda m, x: (x * torch.sigmoid(m.linear(x))).sum(1),
}


@pytest.mark.parametrize("name", POOLED)
def test_pooled(name: str) -> None:
    """Any number of tokens and of sequences."""
    module = Plain(POOLED[name]).eval()
    graph, interface = import_any(module, torch.randn(1, T, F))
    assert any(isinstance(o.op, ReduceTokens | TokenRow) for o in graph.operations)
    for shape in ((1, T, F), (1, 1, F), (3, 2, F), (2, 11, F)):
        require_same(module, graph, interface, (torch.randn(shape),))


def test_one_sequence() -> None:
    """The module has no batch; its result has one row."""
    module = Plain(lambda m, x: m.linear(x).mean(0))
    graph, interface = import_any(module, torch.randn(T, F))
    for tokens in (1, 4, 9):
        require_same(module, graph, interface, (torch.randn(tokens, F),))
    assert interface is not None
    with pytest.raises(ValueError, match=r"^input 'x' has 2 leading dimensions; the module has 1, of which"):
        interface.taken([np.zeros((2, 3, F), np.float32)])


PLACED: dict[str, Function] = {
    "parameter": lambda m, x: m.linear(x + m.table[:, : x.shape[1]]),
    "lookup": lambda m, x: x + m.rows(torch.arange(x.shape[1])),
    "product": lambda m, x: x * torch.arange(1.0, x.shape[1] + 1)[:, None],
    "pooled": lambda m, x: (x + m.table[:, : x.shape[1]]).amax(1),
}


@pytest.mark.parametrize("name", PLACED)
def test_places(name: str) -> None:
    module = Plain(PLACED[name]).eval()
    graph, interface = import_any(module, torch.randn(1, T, F), longest=7)
    assert interface is not None and list(interface.places.values()) == [7]
    assert any(isinstance(o.op, PlaceRows) for o in graph.operations)
    for shape in ((1, 7, F), (1, 1, F), (3, 2, F)):
        require_same(module, graph, interface, (torch.randn(shape),))
    with pytest.raises(ValueError, match=r"^a sequence has 8 tokens; the model was compiled with 7 places,"):
        interface.taken([np.zeros((1, 8, F), np.float32)])


def test_places_of_a_fixed_number() -> None:
    """As in a transformer of images, whose table has a row for each patch."""
    module = Plain(lambda m, x: (m.linear(x) + m.table)[:, 0]).eval()
    graph, interface = import_any(module, torch.randn(1, 9, F))
    assert interface is not None and interface.only == {1: 9}
    for batch in (1, 3):
        require_same(module, graph, interface, (torch.randn(batch, 9, F),))


class Encoder(nn.Module):
    """Attention with a mask, and a mean over the tokens that it shows."""

    def __init__(self, *, pooled: bool = True, leaks: bool = False) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.rows, self.places = nn.Embedding(20, F), nn.Embedding(9, F)
        self.q, self.k, self.v = nn.Linear(F, F), nn.Linear(F, F), nn.Linear(F, F)
        self.pooled, self.leaks = pooled, leaks

    def forward(self, ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        x = self.rows(ids) + self.places(torch.arange(ids.shape[1]))
        q, k, v = (f(x).view(*ids.shape, 2, F // 2).transpose(1, 2) for f in (self.q, self.k, self.v))
        hidden = (1.0 - attention_mask[:, None, None, :].float()) * -1e9
        scores = q @ k.transpose(-2, -1) / math.sqrt(F // 2) + hidden
        x = x + (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape)
        if not self.pooled:
            return x
        shown = attention_mask.unsqueeze(-1).expand(x.shape).float()
        if self.leaks:
            return x.mean(1)
        return functional.normalize((x * shown).sum(1) / shown.sum(1).clamp(min=1e-9), p=2, dim=1)


ORDER = "a mask is ones for the tokens of a sequence, at least one, and zeros for padding behind them"


def drawn(*shape: int) -> torch.Tensor:
    return torch.randint(20, shape, generator=torch.Generator().manual_seed(5))


def test_mask_of_ones() -> None:
    module = Encoder().eval()
    graph, interface = import_any(module, (drawn(1, T), torch.ones(1, T, dtype=torch.int64)), longest=9)
    assert interface is not None and interface.masks["attention_mask"].pads
    assert "attention_mask" not in [value.name for value in graph.inputs]
    for shape in ((1, T), (1, 1), (3, 9)):
        require_same(module, graph, interface, (drawn(*shape), torch.ones(shape, dtype=torch.int64)))


def test_padding_is_left_out() -> None:
    """Each sequence is computed by itself, without the padding behind its tokens."""
    module = Encoder().eval()
    graph, interface = import_any(module, (drawn(1, T), torch.ones(1, T, dtype=torch.int64)), longest=9)
    assert interface is not None
    ids, mask = drawn(3, 4), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]])
    sequences = interface.without_padding((ids.numpy(), mask.numpy()))
    assert sequences is not None
    assert [given[0].shape for given in sequences] == [(1, 4), (1, 2), (1, 1)]
    found = [results_of(reference(graph), graph, interface, given) for given in sequences]
    np.testing.assert_allclose(np.concatenate(found), module(ids, mask).detach().numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([[1, 0, 1]], f"input 'attention_mask'[0, 2] is 1; {ORDER}"),
        ([[0, 0, 0]], f"input 'attention_mask'[0, 0] is 0; {ORDER}"),
        ([[1, 1, 2]], f"input 'attention_mask'[0, 2] is 2; {ORDER}"),
        ([[1, 1]], "input 'attention_mask' has shape (1, 2); (1, 3) is needed"),
    ],
)
def test_bad_masks(mask: list[list[int]], message: str) -> None:
    _, interface = import_any(Encoder().eval(), (drawn(1, T), torch.ones(1, T, dtype=torch.int64)))
    assert interface is not None
    with pytest.raises(ValueError) as caught:
        interface.without_padding((drawn(1, 3).numpy(), np.array(mask)))
    assert str(caught.value).startswith(message)


def test_masks_that_cannot_be_left_out() -> None:
    """A result depends on hidden tokens: no padding is taken."""
    module = Encoder(leaks=True).eval()
    _, interface = import_any(module, (drawn(1, T), torch.ones(1, T, dtype=torch.int64)))
    assert interface is not None and not interface.masks["attention_mask"].pads
    ids = drawn(1, 3).numpy()
    assert interface.without_padding((ids, np.ones((1, 3), np.int64))) is None
    with pytest.raises(
        ValueError, match=r"^input 'attention_mask'\[0, 2\] is 0 and hides a token; padding can"
    ):
        interface.without_padding((ids, np.array([[1, 1, 0]])))


@pytest.mark.slow
def test_on_hardware(tmp_path: Path) -> None:
    """A batch with padding on the written Verilog, also of a loaded folder."""
    module, ones = Encoder().eval(), torch.ones(1, T, dtype=torch.int64)
    config = streamgen.CompileConfig(name="masked", max_tokens=6, weights="w8")
    accelerator = streamgen.compile(module, (drawn(1, T), ones), config)
    ids, mask = drawn(3, 4), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]])
    wanted = accelerator.golden(ids, mask)
    np.testing.assert_allclose(wanted, module(ids, mask).detach().numpy(), atol=0.05)
    assert np.array_equal(accelerator.run(ids, mask), wanted)
    loaded = streamgen.load(accelerator.write(tmp_path / "masked"))
    assert np.array_equal(loaded.run(ids[1:2, :2], mask[1:2, :2]), wanted[1:2])
    with pytest.raises(ValueError, match=r"^input 'attention_mask'\[0, 2\] is 1; a mask is ones for the tok"):
        loaded.run(ids[:1], torch.tensor([[1, 0, 1, 1]]))
    with pytest.raises(ValueError, match=r"^a sequence has 7 tokens; the model was compiled with 6 places"):
        loaded.run(drawn(1, 7), torch.ones(1, 7))


def test_an_example_that_hides_tokens() -> None:
    """Padding behind the tokens is left out; other hidden tokens are refused."""
    for mask in ([[0, 1, 1, 1, 1]], [[1, 0, 1, 1, 1]]):
        with pytest.raises(
            ValueError, match=r"^example input 1 \(attention_mask\) hides the first token, or one in front of"
        ):
            import_any(Encoder().eval(), (drawn(1, T), torch.tensor(mask)))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda m, x: m.linear(x).mean(0),
            "it reduces over some tokens, or over tokens of several sequences",
        ),
        (lambda m, x: m.linear(x).mean(1).squeeze(), "squeeze must name the dimension"),
    ],
)
def test_refused(function: Function, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined, "MOST_ELEMENTS", 0)  # as if the inputs were too large for one row
    monkeypatch.setattr(by_line, "MOST_WEIGHTS", 0)  # and tokens too many for lines of a row
    monkeypatch.setattr(by_line, "MOST_LINES", 1)
    with pytest.raises((UnsupportedOperationError, GraphError, ImportMismatchError)) as caught:
        import_any(Plain(function), torch.randn(2, T, F))
    assert message in str(caught.value)
