"""Modules of any shapes: inputs that are one row, results of rank 0, and the list of small modules."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from streamgen.base.errors import GraphError, UnsupportedOperationError
from streamgen.model.frontend import import_any
from streamgen.model.frontend.export import import_structured
from streamgen.model.graph.interpret import reference
from streamgen.model.nests import Interface
from tests.shared.sequences import results_of
from tests.shared.small_modules import MODULES, Plain


def computed(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Any:
    """The results of the graph, nested as in torch."""
    graph, interface = import_any(module, inputs)
    assert interface is not None
    assert Interface.from_json(interface.to_json()) == interface
    return results_of(reference(graph), graph, interface, [value.numpy() for value in inputs])


def inputs_of(name: str) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(shape, generator=generator) for shape in MODULES[name][1])


@pytest.mark.parametrize("name", MODULES)
def test_small_modules_are_right_or_refused(name: str) -> None:
    """A result has the shape and the values of torch's, or an error says why there is none."""
    inputs = inputs_of(name)
    module = Plain(MODULES[name][0]).eval()
    try:
        results = pytree.tree_leaves(computed(module, inputs))
    except (UnsupportedOperationError, GraphError):
        return
    except ValueError as error:
        assert re.match("no example inputs|example input 0 has shape", str(error)), error
        return
    for found, wanted in zip(results, pytree.tree_leaves(module(*inputs)), strict=True):
        assert found.shape == tuple(wanted.shape)
        np.testing.assert_allclose(found, wanted.double().numpy(), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (1, 3, 2, 2)])
def test_ranks(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    found = computed(Plain(lambda x: (x.relu(), x * 2)), (x,))
    assert [result.shape for result in found] == [shape, shape]
    np.testing.assert_allclose(found[1], 2 * x.numpy(), rtol=1e-6)


def test_squeezed_to_rank_0() -> None:
    assert computed(Plain(torch.squeeze), (torch.ones(1),)).shape == ()


def test_only_the_shape_of_the_example() -> None:
    """A graph of whole inputs holds for their shapes alone, and says so."""
    module = Plain(lambda x: x.cumsum(0))
    imported = import_structured(module, (torch.randn(3, 4),))
    assert imported.whole
    _, interface = import_any(module, (torch.randn(3, 4),))
    assert interface is not None
    with pytest.raises(ValueError, match=r"^input 'inputs_0' has shape \(2, 4\); the module was compiled "):
        interface.taken([np.zeros((2, 4), np.float32)])
    with pytest.raises(ValueError, match=r"^tokens is 2; the inputs of the module are one row$"):
        interface.given({"inputs_0": np.zeros((2, 12), np.float32)})
    assert interface.given({"inputs_0": np.zeros((1, 12), np.float32)})[0].shape == (3, 4)


def test_tokens_come_before_whole_inputs() -> None:
    """What can be computed token by token is."""
    assert not import_structured(Plain(torch.tanh), (torch.randn(3, 4),)).whole


def test_a_change_of_a_whole_input_is_seen() -> None:
    with pytest.raises(UnsupportedOperationError, match="changes an input or a parameter in place"):
        import_any(Plain(lambda x: x.t().neg_() + torch.eye(3, 3)), (torch.randn(3, 3),))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x[:, 4:], "a result holds no elements"),
        (lambda x: x[:, 4:].relu(), "its result holds no elements"),
        (lambda x: x.nonzero(), "the shape of its result depends on values"),
    ],
)
def test_refused(function: Callable[..., Any], reason: str) -> None:
    with pytest.raises(UnsupportedOperationError) as caught:
        import_any(Plain(function), (torch.randn(3, 4),))
    assert reason in str(caught.value)


UNUSED: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], list[str]]] = {
    "the last": (lambda a, b: a * 2, ((3, 4), (3, 5)), ["inputs_1"]),
    "all but one": (lambda a, b, c: b + 1, ((2, 3), (2, 3), (2, 3)), ["inputs_0", "inputs_2"]),
    "read for its shape": (lambda a, b: a.expand_as(b), ((1, 4), (3, 4)), ["inputs_1"]),
    "beside a constant": (lambda a, b: (a + 1, torch.full((2, 2), 0.5)), ((3, 4), (5,)), ["inputs_1"]),
    "none, of a constant": (torch.ones_like, ((3, 4),), []),
    "the second, of constants": (lambda a, b: (a.new_zeros(3), b.new_ones(2)), ((3, 4), (2,)), ["inputs_1"]),
}


@pytest.mark.parametrize("name", UNUSED)
def test_arguments_that_no_result_depends_on(name: str) -> None:
    """They are arguments of a run and no inputs of the design."""
    call, shapes, unused = UNUSED[name]
    inputs = tuple(torch.randn(shape) for shape in shapes)
    module = Plain(call).eval()
    graph, interface = import_any(module, inputs)
    assert interface is not None and sorted(interface.unused) == unused
    assert {value.name for value in graph.inputs}.isdisjoint(unused)
    interface.require_names([value.name for value in graph.inputs], graph.outputs)
    results, wanted = pytree.tree_leaves(computed(module, inputs)), pytree.tree_leaves(module(*inputs))
    for found, tensor in zip(results, wanted, strict=True):
        np.testing.assert_allclose(found, tensor.numpy(), rtol=1e-6)
    given = interface.given(
        {value.name: np.zeros((1 if interface.whole else 3, value.features)) for value in graph.inputs}
    )
    assert len(given) == len(shapes)
    assert interface.taken(given).keys() == {value.name for value in graph.inputs}
