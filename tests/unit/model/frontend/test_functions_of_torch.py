"""The table of functions of one variable: how torch spells each, and what configurations call it."""

import inspect
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers.activations import ACT2FN

from streamgen.gateware.functions import CONFIGURED, FUNCTIONS, TITLES
from streamgen.model.frontend import import_module
from streamgen.model.frontend.trace import SPELLINGS, Unsupported, function_of
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.operations import Unary
from tests.shared.spellings import torch_function

X = torch.linspace(-8, 8, 48).reshape(3, 16)


class _Called(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x.clone())  # which it may change in place


def _functions(graph: LogicalGraph) -> list[str]:
    return [operation.op.function for operation in graph.operations if isinstance(operation.op, Unary)]


@pytest.mark.parametrize(
    ("name", "spelling"), [(name, call) for name, function in FUNCTIONS.items() for call in function.torch]
)
def test_every_spelling_is_imported(name: str, spelling: str) -> None:
    """The importer compares what it makes with the module, too."""
    module = _Called(torch_function(FUNCTIONS[name], spelling))
    assert _functions(import_module(module, X)) == [name]


@pytest.mark.parametrize("name", [name for name, f in FUNCTIONS.items() if hasattr(nn, f.title)])
def test_modules_and_functionals_are_imported(name: str) -> None:
    """A title is the name of the class in torch.nn."""
    function = FUNCTIONS[name]
    make, call = getattr(nn, function.title), getattr(functional, function.title.lower())
    known = inspect.signature(make).parameters
    arguments = {name: value for name, value in function.arguments.items() if name in known}
    module = make(**arguments)
    assert _functions(import_module(nn.Sequential(nn.Linear(16, 16), module).eval(), X)) == [name]
    module = _Called(lambda x: call(x, **arguments))
    assert _functions(import_module(module, X)) == [name]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_references_are_those_of_torch(name: str) -> None:
    x = torch.cat([X.reshape(-1).double(), torch.tensor([0.0, -1000.0, 1000.0, -30.0])])
    expected = torch_function(FUNCTIONS[name])(x).numpy()
    with np.errstate(all="raise", under="ignore"):
        found = FUNCTIONS[name].reference(x.numpy())
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


NAMED = [
    (name, argument) for name, f in FUNCTIONS.items() for argument in f.arguments if argument == "approximate"
]


@pytest.mark.parametrize(("name", "argument"), NAMED)
def test_other_arguments_are_refused_by_name(name: str, argument: str) -> None:
    known = [
        function.arguments[argument] for function in FUNCTIONS.values() if argument in function.arguments
    ]
    node = SimpleNamespace(target=torch.ops.aten.gelu.default, args=(), kwargs={argument: "other"})
    with pytest.raises(Unsupported, match=f"^its {argument} is other; only {known[0]} and {known[1]} can be"):
        function_of(node)  # type: ignore[arg-type]


def test_a_call_computes_one_function_by_its_arguments() -> None:
    for functions in SPELLINGS.values():
        assert len({tuple(function.arguments.items()) for function in functions}) == len(functions)
        assert len({tuple(function.arguments) for function in functions}) == 1


def test_titles() -> None:
    assert TITLES.startswith("ReLU, Sigmoid, SiLU, Tanh, GELU")
    assert len(set(TITLES.split(", "))) == len(TITLES.split(", "))


@pytest.mark.parametrize("alias", CONFIGURED)
def test_configurations_call_it_so(alias: str) -> None:
    expected = ACT2FN[alias](X.double()).numpy()
    found = FUNCTIONS[CONFIGURED[alias]].reference(X.double().numpy())
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_no_name_is_two_functions() -> None:
    assert len(CONFIGURED) == sum(len(function.configuration) for function in FUNCTIONS.values())
