"""Tokens at places of run time, rows of a sequence beside its tokens, ids as numbers, casts to integers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from streamgen.base.errors import UnsupportedOperationError
from streamgen.model.frontend import by_line, import_any, joined
from streamgen.model.graph.interpret import exact, reference
from streamgen.model.operations import Linear
from tests.shared.framed_modules import SHAPES, TEXTS, of_transformers
from tests.shared.sequences import results_of

Function = Callable[..., Any]
F, T, ROWS = 8, 5, 40


class Given(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.function = function
        self.linear, self.score = nn.Linear(F, F), nn.Linear(F, 1)
        self.rows = nn.Embedding(ROWS, F)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def require_same(module: nn.Module, graph: Any, interface: Any, x: torch.Tensor) -> None:
    """The results of the reference are those of the module; so are those of the golden model without
    weights."""
    with torch.no_grad():
        wanted = pytree.tree_leaves(module(x))
    floats = any(isinstance(o.op, Linear) for o in graph.operations)
    for interpreter, bound in [(reference(graph), 1e-5)] + ([] if floats else [(exact(graph), 1e-3)]):
        found = pytree.tree_leaves(results_of(interpreter, graph, interface, [x.numpy()]))
        for ours, theirs in zip(found, wanted, strict=True):
            assert ours.shape == tuple(theirs.shape)
            np.testing.assert_allclose(ours, theirs.numpy(), rtol=bound, atol=bound)


def _at(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    return x[torch.arange(len(x)), place]


def _shown(ids: torch.Tensor) -> torch.Tensor:
    return (ids != 0).unsqueeze(-1).float()


BESIDE: dict[str, Function] = {
    "centred": lambda m, x: m.linear(x - x.mean(1, keepdim=True)),
    "standard": lambda m, x: (x - x.mean(1, True)) / ((x * x).mean(1, True) + 0.5).sqrt(),
    "excited": lambda m, x: x * torch.sigmoid(m.linear(x.mean(1))).unsqueeze(1),
    "attended": lambda m, x: (torch.softmax(m.score(x), 1) * x).sum(1),
    "first and last": lambda m, x: x[:, :1] * x + x[:, -1:],
    "row first": lambda m, x: torch.where(x.mean(1, True) > 0, x.amax(1, True), x),
}
"""A row of a sequence beside each of its tokens."""
FOUND: dict[str, Function] = {
    "greatest": lambda m, x: m.score(x).squeeze(-1).argmax(1),
    "least, of each feature": lambda m, x: x.argmin(1),
    "equal ones": lambda m, x: (x > 0).int().argmax(1),
    "row of the greatest": lambda m, x: _at(x, m.score(x).squeeze(-1).argmax(1)),
    "row by gather": lambda m, x: x.gather(1, x[..., :1].argmax(1, True).expand(-1, 1, F)),
    "from behind": lambda m, x: _at(x, (x[..., 0] > 0).sum(1) - 1),
    "place as a number": lambda m, x: x.argmax(1).float() * 0.5,
    "cast place": lambda m, x: _at(x, x[:, 0, 0].clamp(-1, 0).long()),
    "integers": lambda m, x: ((x * 3).long() == 1).float() + (x * 2).long(),
    "rows of a table": lambda m, x: m.rows((x[..., 0] * 9).clamp(0, 39).long()),
}
"""Places of tokens, and integers, which a module makes of its numbers."""
OF_IDS: dict[str, Function] = {
    "greatest id": lambda m, ids: m.linear(_at(m.rows(ids), ids.argmax(-1))),
    "first of one kind": lambda m, ids: _at(m.rows(ids), (ids == 7).int().argmax(-1)),
    "last but padding": lambda m, ids: _at(m.rows(ids), (ids != 0).sum(1) - 1),
    "last of GPT-2": lambda m, ids: _at(m.rows(ids), (torch.arange(ids.shape[1]) * (ids != 0)).argmax(-1)),
    "shown": lambda m, ids: (m.rows(ids) * _shown(ids)).sum(1) / _shown(ids).sum(1).clamp(min=1e-9),
    "hidden": lambda m, ids: m.rows(ids).masked_fill((ids == 7).unsqueeze(-1), 0.0).sum(1),
    "numbers": lambda m, ids: m.rows(ids) * ids.unsqueeze(-1).float() * 0.1,
    "other ids": lambda m, ids: (
        m.rows(ids) + m.rows((ids - 1).clamp(0, 39)) * m.rows(ids.masked_fill(ids == 7, 3))
    ),
    "count": lambda m, ids: (m.rows(ids).mean(1), (ids > 7).sum(1)),
}


@pytest.mark.parametrize("name", [*BESIDE, *FOUND])
def test_of_numbers(name: str) -> None:
    """Any number of tokens up to that of the example, and any number of sequences."""
    module = Given((BESIDE | FOUND)[name]).eval()
    x = torch.randn(2, T, F, generator=torch.Generator().manual_seed(5))
    graph, interface = import_any(module, x)
    for shape in ((2, T), (3, 2), (1, 3)):
        require_same(module, graph, interface, torch.randn(*shape, F))


@pytest.mark.parametrize("name", OF_IDS)
def test_of_ids(name: str) -> None:
    """Ids that occur several times, not at all, and padding among the others."""
    module = Given(OF_IDS[name]).eval()
    graph, interface = import_any(module, torch.tensor([[5, 7, 9, 7, 0], [1, 2, 3, 4, 39]]))
    for ids in ([[7, 7, 0, 39, 39]], [[1, 2, 3]], [[0, 0], [0, 7], [7, 0]]):
        require_same(module, graph, interface, torch.tensor(ids))


@pytest.mark.parametrize("family", TEXTS)
def test_texts(family: str) -> None:
    """Texts shorter than the example, with the id that ends a text twice, or not at all."""
    model, example = of_transformers(family, TEXTS)
    graph, interface = import_any(model, example)
    assert interface is not None
    for ids in ([[48, 3, 9, 49, 49, 4]], [[3, 49, 0, 49]], [[7, 4, 3]], [[49, 2, 0], [5, 49, 0]]):
        given = torch.tensor(ids)
        with torch.no_grad():
            wanted = model(given)
        found = results_of(reference(graph), graph, interface, [{"input_ids": given.numpy()}])
        for name, rows in found.items():
            np.testing.assert_allclose(rows, wanted[name].numpy(), atol=1e-4)


@pytest.mark.parametrize("family", ["CLIP", "SigLIP"])
def test_two_towers(family: str) -> None:
    """An image beside a text; the similarity of several of each is a product of their rows on the host."""
    model, example = of_transformers(family, SHAPES)
    many = {name: torch.cat([x, x]) for name, x in example.items()}
    with pytest.raises(UnsupportedOperationError, match="Give an example of one sequence"):
        import_any(model, many)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda m, ids: m.rows(ids) * (ids + 70000).unsqueeze(-1), "that may be below 0 or above"),
        (lambda m, ids: m.rows(ids) * m.rows.weight[ids - 1], "its places may be below 0 or above 65535"),
    ],
)
def test_refused_of_ids(function: Function, reason: str) -> None:
    with pytest.raises(UnsupportedOperationError, match=reason):
        import_any(Given(function).eval(), torch.tensor([[5, 7, 9], [1, 2, 3]]))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda m, x: x.long() * 2, "integers that may be below 0 or above 65535"),
        (lambda m, x: x.long() == 70001, "it compares integers with a number above 65536"),
        (lambda m, x: m.rows.weight[x[..., 0].long()], "its places may be below 0 or above 65535"),
    ],
)
def test_refused(function: Function, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined, "MOST_ELEMENTS", 0)  # as if the inputs were too large for one row
    monkeypatch.setattr(by_line, "MOST_WEIGHTS", 0)
    with pytest.raises(UnsupportedOperationError, match=reason):
        import_any(Given(function).eval(), torch.randn(2, T, F))
