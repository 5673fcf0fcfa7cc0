"""model.frontend.extents: what a module decides by the number of its tokens is found, and refused."""

import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from streamgen.base.errors import UnsupportedOperationError
from streamgen.model.frontend import import_module
from streamgen.model.frontend.export import import_structured
from streamgen.model.frontend.extents import decisions
from streamgen.model.graph.interpret import reference
from tests.shared.campaigns import sampled

HERE = Path(__file__)
H, TOKENS = 8, 4
Function = Callable[["Deciding", torch.Tensor, int], torch.Tensor]


class Deciding(nn.Module):
    """A layer, and what a function makes of its result and the number of tokens."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(H, H), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, self.layer(x), x.shape[0])


def _nested(module: Deciding, y: torch.Tensor, n: int) -> torch.Tensor:
    if n > 6:
        return torch.relu(y) if n % 5 == 0 else y
    return y


def _repeated(module: Deciding, y: torch.Tensor, n: int) -> torch.Tensor:
    for _ in range(n):
        y = module.layer(y)
    return y


FROZEN: dict[str, Function] = {
    "product": lambda m, y, n: y * n,
    "quotient": lambda m, y, n: y * (n // 8),
    "power": lambda m, y, n: y * math.sqrt(n),
    "greatest": lambda m, y, n: y * max(n, 8),
    "greatest, twice": lambda m, y, n: y * max(2 * n, 16),
    "polynomial": lambda m, y, n: y * ((n - 4) * (n - 5)),
    "above": lambda m, y, n: torch.relu(y) if n > 8 else y,
    "below": lambda m, y, n: torch.relu(y) if n < 3 else y,
    "one": lambda m, y, n: torch.relu(y) if n == 1 else y,
    "equal": lambda m, y, n: torch.relu(y) if n == 7 else y,
    "multiple": lambda m, y, n: torch.relu(y) if n % 7 == 0 else y,
    "far": lambda m, y, n: torch.relu(y) if n * H > 1000 * H else y,
    "looked up": lambda m, y, n: y * {4: 1.0, 5: 1.0}.get(n, 2.0),
    "list": lambda m, y, n: y * ([1.0] * 6 + [2.0] * 60)[n],
    "tensor": lambda m, y, n: y * torch.tensor([n // 8]),
    "repeated": _repeated,
    "nested": _nested,
    "between": lambda m, y, n: torch.relu(y) if 5 < n < 7 else y,
}


@pytest.mark.parametrize("name", FROZEN)
def test_refused(name: str) -> None:
    with pytest.raises(UnsupportedOperationError, match="depends on the extent of dimension 0 of its inputs"):
        import_module(Deciding(FROZEN[name]), torch.randn(TOKENS, H))


SHAPED: dict[str, tuple[Any, str, str]] = {
    "squeezed": (lambda y: y.squeeze(), "1-d", "2-d"),
    "one alone": (lambda y: (y, y[0] if len(y) == 1 else y), "(2-d, 1-d)", "(2-d, 2-d)"),
    "nested": (lambda y: y if len(y) > 1 else [y], "[2-d]", "2-d"),
}


@pytest.mark.parametrize("name", SHAPED)
def test_results_of_other_dimensions(name: str) -> None:
    """One token gives the same values, but not in the same form."""
    shape, one, more = SHAPED[name]
    with pytest.raises(UnsupportedOperationError) as caught:
        import_module(Deciding(lambda m, y, n: shape(y)), torch.randn(TOKENS, H))
    assert str(caught.value).startswith(
        f"with an extent of 1 of dimension 0 of its inputs, results are {one}; with 4 they are {more}: "
    )


def test_the_line_is_named() -> None:
    module = Deciding(FROZEN["multiple"])
    line = next(n for n, text in enumerate(HERE.read_text().splitlines(), 1) if '"multiple"' in text)
    message = (
        "the result of the module depends on the extent of dimension 0 of its inputs, read at "
        f"{HERE}:{line}: the result for 7 differs from the result for 4. A graph holds for any number of "
        "tokens, so only views and masks may depend on x.shape"
    )
    with pytest.raises(UnsupportedOperationError, match=f"^{re.escape(message)}$"):
        import_module(module, torch.randn(TOKENS, H))


@pytest.mark.parametrize(
    "function",
    [
        lambda m, y, n: y.reshape(n * H).reshape(n, H),
        lambda m, y, n: torch.relu(y) if n > 0 else y,
        lambda m, y, n: y * min(n, 1),
    ],
)
def test_what_makes_no_difference_is_taken(function: Function) -> None:
    import_module(Deciding(function), torch.randn(TOKENS, H))


class Two(nn.Module):
    """A layer over the sum of two inputs, the second of which says first how many tokens there are."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(H, H), function

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.layer(self.function(self, x, y.shape[0]) + y)


@pytest.mark.parametrize("name", ["above", "equal", "far"])
def test_any_of_several_inputs_decides(name: str) -> None:
    with pytest.raises(UnsupportedOperationError, match="depends on the extent of dimension 0 of its inputs"):
        import_module(Two(FROZEN[name]), torch.randn(2, TOKENS, H).unbind())


def test_several_inputs_alone_decide_nothing() -> None:
    leaves, spec = pytree.tree_flatten((tuple(torch.randn(2, 3, 5, H).unbind()), {}))
    assert decisions(Two(lambda m, x, n: x), leaves, spec, [0, 1]) == []


CASES = 200


@pytest.mark.parametrize("case", sampled(range(CASES), range(6)))
def test_what_is_imported_is_right_for_all_numbers(seed: int, case: int) -> None:
    """Random conditions on the number of tokens: refused, held to the example's number, or the same as torch
    for every number."""
    draw = random.Random(f"{seed} {case}")
    a, b = draw.randint(1, 40), draw.randint(1, 9)
    condition = draw.choice(
        (
            lambda n: n > a,
            lambda n: n == a,
            lambda n: n % b == 0,
            lambda n: n // b > 2,
            lambda n: a < n < a + b,
            lambda n: n * b > a * b,
            lambda n: min(n, a) == b,
            lambda n: n + a < b,
            lambda n: n >= 1,
        )
    )
    inner = draw.choice((condition, lambda n: n < a + b, lambda n: n != b))

    def function(module: Deciding, y: torch.Tensor, n: int) -> torch.Tensor:
        if condition(n):
            return torch.tanh(y) if inner(n) else y
        return y * 2

    module, example = Deciding(function), draw.randint(1, 12)
    try:
        imported = import_structured(module, torch.randn(example, H))
    except UnsupportedOperationError:
        return
    for tokens in (example,) if imported.whole else range(1, 60):
        x = torch.randn(tokens, H)
        rows = x.reshape(1, -1) if imported.whole else x
        (found,) = reference(imported.graph)({"x": rows.numpy()})[0].values()
        np.testing.assert_allclose(
            found.reshape(x.shape), module(x).detach().numpy(), rtol=1e-4, atol=1e-4, err_msg=str(tokens)
        )
