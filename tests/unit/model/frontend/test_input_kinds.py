"""Truth values and integers as inputs that are numbers: no ids, no masks of padding."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import streamgen
from streamgen.base.errors import UnsupportedOperationError
from streamgen.model.frontend import import_any
from streamgen.model.graph.interpret import reference
from streamgen.model.nests import Interface
from tests.shared.sequences import results_of

F, N = 8, 5
Draw = Callable[[torch.Generator], torch.Tensor]


class Function(nn.Module):
    """A function of two or three tensors, with a Linear and a table."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.rows, self.function = nn.Linear(F, F), nn.Embedding(10, F), function

    def forward(self, x: torch.Tensor, given: torch.Tensor, more: torch.Tensor | None = None) -> Any:
        return self.function(self, x, given) if more is None else self.function(self, x, given, more)


def floats(*shape: int) -> Draw:
    return lambda generator: torch.randn(shape, generator=generator)


def truths(*shape: int) -> Draw:
    return lambda generator: torch.rand(shape, generator=generator) > 0.4


def graphs(*shape: int) -> Draw:
    """Adjacency, with edges from each node to itself."""
    return lambda generator: truths(*shape)(generator) | torch.eye(shape[-1], dtype=torch.bool)


def whole(low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Draw:
    return lambda generator: torch.randint(low, high, shape, generator=generator, dtype=dtype)


def attended(m: Function, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    y = m.linear(x)
    return (y @ y.mT).masked_fill(~seen, -1e9).softmax(-1) @ y


BOOL, INT = {"given": "bool"}, {"given": "int64"}

CASES: dict[str, tuple[Callable[..., Any], tuple[Draw, ...], dict[str, str]]] = {
    # a function, its inputs, and the types of those that are numbers
    "features": (lambda m, x, g: torch.where(g, m.linear(x), x), (floats(4, F), truths(4, F)), BOOL),
    "tokens": (lambda m, x, g: m.linear(x) * g[..., None], (floats(1, 4, F), truths(1, 4)), BOOL),
    "logic": (
        lambda m, a, b: (a & ~b, a.any(-1), b.sum(-1)),
        (truths(4, F), truths(4, F)),
        {"x": "bool"} | BOOL,
    ),
    "neighbours": (attended, (floats(N, F), graphs(N, N)), BOOL),
    "sum of neighbours": (lambda m, x, g: g.float() @ m.linear(x), (floats(N, F), whole(0, 2, N, N)), INT),
    "compared": (lambda m, x, g: torch.where(g > 10, x, -x), (floats(6, F), whole(-20, 40, 6, F)), INT),
    "scaled": (
        lambda m, x, g: x + g / 9,
        (floats(6, F), whole(-20, 40, 6, F, dtype=torch.int32)),
        {"given": "int32"},
    ),
    "bytes": (
        lambda m, x, g: m.linear(g.float() / 255) + x,
        (floats(4, F), whole(0, 256, 4, F, dtype=torch.uint8)),
        {"given": "uint8"},
    ),
    "signed bytes": (
        lambda m, x, g: x * g,
        (floats(4, F), whole(-128, 128, 4, F, dtype=torch.int8)),
        {"given": "int8"},
    ),
    "beside ids": (
        lambda m, ids, age: m.rows(ids) * (age / 100)[..., None],
        (whole(0, 10, 1, 6), whole(18, 90, 1, 6)),
        INT,
    ),
    "all three": (
        lambda m, ids, x, flag: m.rows(ids) + torch.where(flag, x, 0.0),
        (whole(0, 10, 6), floats(6, F), truths(6, F)),
        {"more": "bool"},
    ),
    "in a mean": (
        lambda m, x, g: (m.linear(x) * g[..., None]).mean(1),
        (floats(1, 4, F), whole(0, 2, 1, 4)),
        INT,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_reference_is_eager(name: str) -> None:
    function, draws, kinds = CASES[name]
    module, generator = Function(function).eval(), torch.Generator().manual_seed(1)
    graph, interface = import_any(module, tuple(draw(generator) for draw in draws))
    assert interface is not None and Interface.from_json(interface.to_json()) == interface
    assert interface.kinds == kinds
    for _ in range(2):
        given = [draw(generator) for draw in draws]
        found = pytree.tree_leaves(results_of(reference(graph), graph, interface, [x.numpy() for x in given]))
        with torch.no_grad():
            wanted = pytree.tree_leaves(module(*given))
        for ours, theirs in zip(found, wanted, strict=True):
            assert ours.shape == tuple(theirs.shape)
            np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-5)


def test_random_arguments() -> None:
    """`simulate` draws truth values and integers for them."""
    for name in ("tokens", "scaled", "bytes"):
        function, draws, kinds = CASES[name]
        generator = torch.Generator().manual_seed(1)
        graph, interface = import_any(Function(function).eval(), tuple(draw(generator) for draw in draws))
        assert interface is not None
        random = np.random.default_rng(0)
        drawn = interface.given({v.name: random.normal(size=(4, v.features)) for v in graph.inputs})
        assert drawn[1].dtype == np.dtype(kinds["given"]) and len(np.unique(drawn[1])) > 1
        assert interface.taken(drawn).keys() == {"x", "given"}


@pytest.mark.parametrize(
    ("name", "given", "error", "message"),
    [
        ("compared", np.full((6, F), 1.5), TypeError, "input 'given' takes int64; numpy's float64 is given"),
        (
            "compared",
            np.full((6, F), 70000),
            ValueError,
            "[0, 0] is 70000; integers from -65536 to 655",
        ),
        ("bytes", np.full((6, F), -1), ValueError, "[0, 0] is -1; integers from 0 to 255 are need"),
        ("features", np.full((6, F), 2), ValueError, "[0, 0] is 2; truth values are needed"),
    ],
)
def test_wrong_numbers(name: str, given: np.ndarray, error: type[Exception], message: str) -> None:
    function, draws, _ = CASES[name]
    generator = torch.Generator().manual_seed(1)
    _, interface = import_any(Function(function).eval(), tuple(draw(generator) for draw in draws))
    assert interface is not None
    with pytest.raises(error, match=re.escape(message)):
        interface.taken((np.zeros((6, F), np.float32), given))


def test_arithmetic_of_integers_is_refused() -> None:
    module = Function(lambda m, x, g: x + (g * 3 // 4).float())
    with pytest.raises(UnsupportedOperationError, match="it computes with integers that may be below 0"):
        import_any(module.eval(), (torch.randn(4, F), torch.randint(9, (4, F))))


@pytest.mark.slow
def test_on_hardware(tmp_path: Path) -> None:
    """Truth values and bytes on the written Verilog, also of a loaded folder."""
    config = streamgen.CompileConfig(name="kinds", max_tokens=6, weights="w8", goal="small")
    for name in ("tokens", "bytes"):
        function, draws, _ = CASES[name]
        module, generator = Function(function).eval(), torch.Generator().manual_seed(1)
        given = tuple(draw(generator) for draw in draws)
        accelerator = streamgen.compile(module, given, config)
        wanted = accelerator.golden(*given)
        with torch.no_grad():
            np.testing.assert_allclose(wanted, module(*given).numpy(), atol=0.05)
        loaded = streamgen.load(accelerator.write(tmp_path / name.replace(" ", "_")))
        assert accelerator.run(*given).tobytes() == wanted.tobytes() == loaded.run(*given).tobytes()
