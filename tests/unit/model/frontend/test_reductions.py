"""Reductions of torch: their values, in float64 and on the hardware's arithmetic, and what is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from streamgen.base.errors import UnsupportedOperationError
from streamgen.gateware.functions import FUNCTIONS
from streamgen.model.frontend import import_any
from streamgen.model.frontend.export import import_structured
from streamgen.model.graph.interpret import exact, reference
from streamgen.model.operations import Norm, Reduce
from tests.shared.sequences import results_of


class Plain(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


def require_same(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Any:
    """The graph, whose results must be torch's: the reference nearly, the golden model within roundings."""
    generator = torch.Generator().manual_seed(2)
    inputs = tuple(torch.randn(shape, generator=generator) for shape in shapes)
    graph, interface = import_any(Plain(function), inputs)
    assert interface is not None
    given = [value.numpy() for value in inputs]
    for interpreter, bound in ((reference(graph), 1e-5), (exact(graph), 1e-3)):
        results = pytree.tree_leaves(results_of(interpreter, graph, interface, given))
        for found, wanted in zip(results, pytree.tree_leaves(function(*inputs)), strict=True):
            assert found.shape == tuple(wanted.shape)
            np.testing.assert_allclose(found, wanted.double().numpy(), rtol=bound, atol=bound)
    return graph


ALL_DIMS = [None, 0, 1, -1, (0, 2), (0, 1, 2)]


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", ALL_DIMS)
@pytest.mark.parametrize("name", ["sum", "mean", "amax", "amin"])
def test_over_any_dimensions(name: str, dim: Any, keepdim: bool) -> None:
    given = {} if dim is None else {"dim": dim, "keepdim": keepdim}
    require_same(lambda x: getattr(torch, name)(x, **given), (2, 3, 4))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.var(-1),
        lambda x: x.var(0, correction=0, keepdim=True),
        lambda x: x.var(),
        lambda x: torch.var_mean(x, -1),
        lambda x: tuple(torch.aminmax(x, dim=0)),
        lambda x: x.max(1)[0],
        lambda x: x.min(0).values,
        lambda x: x.prod(-1),
        lambda x: x.prod(),
        lambda x: x.logsumexp(-1),
        lambda x: x.cumsum(-1),
        lambda x: x.cumsum(0),
        lambda x: x.cumprod(1),
        lambda x: torch.linalg.vector_norm(x, 1, -1),
        lambda x: x.norm(torch.inf, 0),
        lambda x: torch.linalg.vector_norm(x, -torch.inf),
        lambda x: nn.functional.mse_loss(x, x.flip(0)),
        lambda x: nn.functional.l1_loss(x, x.flip(1), reduction="sum"),
        lambda x: x[:, :3].trace(),
        lambda x: x - x.mean(0),
        lambda x: x - x.mean(-1, keepdim=True),
        lambda x: (x - x.mean(-1, keepdim=True)).relu(),
        lambda x: (x * x).mean(-1),
        lambda x: x.mean(-1, keepdim=True) * x + 1,
        lambda x: x @ x.T,
        lambda x: x.T @ x,
        lambda x: x @ x[0],
        lambda x: torch.outer(x[0], x[1]),
        lambda x: x.sum_to_size(1, 4),
    ],
)
def test_values(function: Callable[..., Any]) -> None:
    require_same(function, (3, 4))


def test_products_of_inputs() -> None:
    require_same(torch.matmul, (2, 3, 4), (4, 5))
    require_same(torch.bmm, (2, 3, 4), (2, 4, 2))
    require_same(torch.dot, (6,), (6,))
    require_same(torch.mv, (3, 4), (4,))


def test_features_are_reduced_for_any_number_of_tokens() -> None:
    imported = import_structured(Plain(lambda x: x.sum(-1, keepdim=True) * x), (torch.randn(5, 8),))
    assert not imported.whole
    assert [o.op for o in imported.graph.operations if isinstance(o.op, Reduce)] == [Reduce("sum", 8)]


def test_heads_are_reduced_side_by_side() -> None:
    graph = require_same(lambda x: x.view(-1, 2, 4).amax(-1), (5, 8))
    assert [str(o.op) for o in graph.operations] == ["max[4]"]


def test_norms_stay_norms() -> None:
    """A mean that is part of a norm is not computed by itself."""
    graph = require_same(lambda x: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5), (3, 8))
    assert [type(o.op) for o in graph.operations] == [Norm]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: torch.linalg.norm(x, 2), "it is a norm of matrices"),
        (lambda x: x[:, 4:].sum(), "it reduces no elements"),
    ],
)
def test_refused(function: Callable[..., Any], reason: str) -> None:
    with pytest.raises(UnsupportedOperationError) as caught:
        import_any(Plain(function), (torch.randn(3, 4),))
    assert reason in str(caught.value)


@pytest.mark.parametrize("function", [lambda x: x.std(-1), lambda x: torch.linalg.vector_norm(x, 2, -1)])
def test_roots(function: Callable[..., Any]) -> None:
    """A root is computed where there is a unit for it."""
    if "sqrt" in FUNCTIONS:
        require_same(function, (3, 8))
        return
    with pytest.raises(UnsupportedOperationError, match="it needs the function sqrt of each element"):
        import_any(Plain(function), (torch.randn(3, 8),))
