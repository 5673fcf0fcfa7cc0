"""Networks as people write them: any number of rows, golden near torch; Linears and products within rows."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from streamgen.base.errors import UnsupportedOperationError
from streamgen.model.frontend import by_line, import_any, reductions
from streamgen.model.graph.interpret import exact, reference
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.nests import Interface
from streamgen.model.operations import Linear
from streamgen.numbers.quantisation import GroupGrid, Numbers
from tests.shared.own_models import NETWORKS, built, example
from tests.shared.sequences import results_of

N, D = 5, 4


@pytest.mark.parametrize("name", NETWORKS)
def test_near_torch(name: str) -> None:
    """In float64 and with 8-bit weights, for other numbers of rows than the example's."""
    module = built(name)
    graph, interface = import_any(module, example(name, 3))
    assert interface is not None
    assert interface.whole == (name == "graph_network")
    for rows in (3, 4):
        given = example(name, rows)
        with torch.no_grad():
            wanted = pytree.tree_leaves(module(*given))
        arrays = [value.numpy() for value in given]
        for interpreter, bound in (
            (reference(graph), 1e-5),
            (exact(graph.quantised(Numbers(weights="w8"))), 0.05),
        ):
            found = pytree.tree_leaves(results_of(interpreter, graph, interface, arrays))
            for ours, theirs in zip(found, wanted, strict=True):
                assert ours.shape == tuple(theirs.shape)
                assert np.abs(ours - theirs.numpy()).max() <= bound * max(1, theirs.abs().max())


class Columns(nn.Module):
    """Columns of a row, from a Linear, through a function, to a Linear."""

    def __init__(self, function: Callable[["Columns", Tensor], Tensor], columns: int = N) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.columns = columns
        self.into, self.each = nn.Linear(6, columns * D), nn.Linear(D, 3)
        self.stacked = nn.Parameter(torch.randn(columns, D, 3))
        self.between = nn.Parameter(torch.randn(columns, columns))
        self.attention = nn.MultiheadAttention(D, 2, batch_first=True)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.into(x)).view(-1, self.columns, D)
        return self.function(self, y).flatten(1)


def _read(module: nn.Module) -> tuple[LogicalGraph, Interface]:
    graph, interface = import_any(module.eval(), torch.randn(3, 6))
    assert interface is not None and not interface.whole
    return graph, interface


@pytest.mark.parametrize(
    ("function", "matmuls"),
    [
        (lambda m, y: m.each(y), 1),
        (lambda m, y: m.each(y.flip(1)[:, ::2]), 1),
        (lambda m, y: y @ m.each.weight.T, 1),
        (lambda m, y: torch.einsum("bnd,nde->bne", y, m.stacked), 1),
        (lambda m, y: torch.bmm(y.transpose(0, 1), m.stacked).transpose(0, 1), 1),
        (lambda m, y: torch.einsum("bd,nde->bne", y[:, 0], m.stacked), 1),
        (lambda m, y: m.between @ y, 1),
        (lambda m, y: m.between.softmax(-1) @ m.each(y), 2),
        (lambda m, y: m.each(torch.cat([y, torch.relu(y[:, :1])], 1)), N + 5),
        (lambda m, y: torch.bmm(y, y.mT), 0),
        (lambda m, y: torch.triu(torch.bmm(y, y.mT)), 0),
        (lambda m, y: (y[:, None] * y[:, :, None]).sum(-1), 1),  # read as always: two Linears of some rows
        (lambda m, y: torch.softmax(y @ y.mT / 2, -1) @ y, 0),
        (lambda m, y: nn.functional.scaled_dot_product_attention(y, y, y), 0),
        (lambda m, y: nn.functional.scaled_dot_product_attention(y, y, y, is_causal=True), 0),
        (lambda m, y: nn.functional.scaled_dot_product_attention(y, y, y, attn_mask=m.between), 0),
        (lambda m, y: m.attention(y, y, y)[0], 3),  # of q, k, v; of q to scale it; of the result
    ],
)
def test_lines_within_rows(function: Callable[[Columns, Tensor], Tensor], matmuls: int) -> None:
    """matmuls: besides the first; those of columns are one if they are of one value, else one for each."""
    graph, interface = _read(module := Columns(function))
    assert sum(isinstance(o.op, Linear) for o in graph.operations) == 1 + matmuls
    x = torch.randn(2, 6, dtype=torch.float64)
    with torch.no_grad():
        wanted = module.double()(x).numpy()
    (found,) = pytree.tree_leaves(results_of(reference(graph), graph, interface, [x.numpy()]))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_large_columns_have_a_matmul_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without zeros, and with one array of weights."""
    monkeypatch.setattr(by_line, "MOST_WEIGHTS", 0)
    graph, _ = _read(Columns(lambda m, y: m.each(y)))
    linears = [o.op for o in graph.operations if isinstance(o.op, Linear)]
    each = [op for op in linears if op.extents == (3, D)]
    assert len(each) == N
    assert len({id(op.floats) for op in each}) == 1


def test_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_line, "MOST_WEIGHTS", 0)
    monkeypatch.setattr(by_line, "MOST_LINES", 4)
    with pytest.raises(UnsupportedOperationError) as caught:
        _read(Columns(lambda m, y: m.each(y)))
    assert "rows must stay whole" in str(caught.value)
    monkeypatch.setattr(reductions, "MOST_WITHIN", N * N * D - 1)
    with pytest.raises(UnsupportedOperationError) as caught:
        _read(Columns(lambda m, y: m.into(torch.bmm(y, y.mT).flatten(1)[:, :6])))
    assert "a product of two values must be scores" in str(caught.value)


def test_weights_on_a_grid_keep_it() -> None:
    """Each column has a Linear of the codes that the module gives."""
    module = Columns(lambda m, y: m.each(y))
    rng = np.random.default_rng(0)
    scale = rng.uniform(0.01, 0.1, (3, 1)).astype(np.float32)
    grid = GroupGrid(rng.integers(0, 16, (3, D)).astype(np.uint8), scale, -7 * scale)
    module.each.weight.data = torch.from_numpy(grid.dequantise().astype(np.float32))
    module.each.weight_grid = grid
    graph, _ = _read(module)
    grids = [o.op.grid for o in graph.operations if isinstance(o.op, Linear) and o.op.grid is not None]
    assert len(grids) == N and all(each is grid for each in grids)
