"""Rearranged features in a graph, and on the hardware of a whole module."""

import numpy as np
import pytest
import torch
from torch import nn

import streamgen
from streamgen.base.errors import GraphError
from streamgen.model.graph.interpret import exact, reference
from streamgen.model.graph.logical import Input, LogicalGraph, Operation
from streamgen.model.operations import Rearrange


def test_rearranged() -> None:
    op = Rearrange((2, -1, 0, 2), (0.25,))
    graph = LogicalGraph((Input("x", 3),), (Operation("y", op, ("x",)),), ("y",))
    x = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    for interpreter in (reference(graph), exact(graph)):
        assert interpreter({"x": x})[0]["y"].tolist() == [[3, 0.25, 1, 3], [6, 0.25, 4, 6]]


def test_refused() -> None:
    with pytest.raises(GraphError, match="place -2 is one of 1 numbers"):
        Rearrange((-2,), (1.0,))
    with pytest.raises(GraphError, match="0 features are put in order; 1 to 65536 are allowed"):
        Rearrange(())
    with pytest.raises(GraphError, match=r"rearrange\[1\] up to place 3 is given tokens x 3"):
        LogicalGraph((Input("x", 3),), (Operation("y", Rearrange((3,)), ("x",)),), ("y",))


class Turned(nn.Module):
    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return nn.functional.pad(torch.relu(x) + x.flip(0), (1, 0), value=0.5) * scale


@pytest.mark.slow
def test_on_hardware() -> None:
    """Inputs of rank 2 and 0; the result has its own shape, bit for bit that of the golden model."""
    x, scale = torch.randn(3, 4), torch.tensor(1.5)
    accelerator = streamgen.compile(Turned().eval(), (x, scale))
    found = accelerator.run(x.numpy(), scale.numpy())
    assert np.array_equal(found, accelerator.golden(x.numpy(), scale.numpy()))
    np.testing.assert_allclose(found, Turned()(x, scale).numpy(), rtol=1e-3, atol=1e-3)
