"""GroupNorm of [tokens, channels]: the norm kernel by groups; groups of several tokens are refused."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import streamgen
from streamgen.base.errors import UnsupportedOperationError
from streamgen.compiler.config import CompileConfig
from streamgen.model.frontend import by_line, import_module
from streamgen.model.graph.interpret import exact, reference

TOKENS, CHANNELS = 5, 24


class Called(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def group_norm(groups: int, seed: int = 0, channels: int = CHANNELS) -> nn.GroupNorm:
    """With weights and biases that differ from channel to channel."""
    module = nn.GroupNorm(groups, channels)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        module.weight.normal_(generator=generator)
        module.bias.normal_(generator=generator)
    return module.eval()


def without(parameter: str) -> nn.GroupNorm:
    """The same with one of both parameters."""
    module = group_norm(4)
    setattr(module, parameter, None)
    return module


MODULES = {
    **{f"{groups} groups": lambda groups=groups: group_norm(groups) for groups in (1, 8, 12)},
    "as made": lambda: nn.GroupNorm(4, CHANNELS),
    "without parameters": lambda: nn.GroupNorm(3, CHANNELS, affine=False, eps=0.1),
    "large epsilon": lambda: nn.GroupNorm(2, CHANNELS, eps=3.0),
    "weight alone": lambda: without("bias"),
    "bias alone": lambda: without("weight"),
    "function": lambda: Called(lambda x: functional.group_norm(x, 2)),
    "one position": lambda: Called(lambda x: functional.group_norm(x[..., None], 2)[..., 0]),
    "no power of two": lambda: nn.Sequential(nn.Linear(CHANNELS, 21), group_norm(3, channels=21)),
}


@pytest.mark.parametrize("name", MODULES)
def test_same_as_torch(name: str) -> None:
    """The reference to float32's roundings, golden to those of f24: 15 bits of fraction, once for each of the
    norm, the weight and the bias."""
    torch.manual_seed(1)
    module, x = MODULES[name]().eval(), torch.randn(TOKENS, CHANNELS)
    graph = import_module(module, x)
    with torch.no_grad():
        wanted = module.double()(x.double()).numpy()
    given = {graph.inputs[0].name: x.double().numpy()}
    (found,) = reference(graph)(given)[0].values()
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
    if "Linear" not in str(module):
        (golden,) = exact(graph)(given)[0].values()
        assert np.abs(golden - wanted).max() < 4 * 2**-16 * np.abs(wanted).max()


def test_weights_that_all_groups_share_are_the_norm_s_own() -> None:
    graph = import_module(nn.GroupNorm(4, CHANNELS), torch.randn(TOKENS, CHANNELS))
    assert [str(operation.op) for operation in graph.operations] == ["norm[layer, 24, 4 heads, bias]"]
    graph = import_module(group_norm(4), torch.randn(TOKENS, CHANNELS))
    assert [str(operation.op) for operation in graph.operations] == [
        *("norm[layer, 24, 4 heads]", "constant[24]", "mul", "constant[24]", "add"),
    ]


@pytest.mark.parametrize(
    ("module", "shape", "reason"),
    [
        (group_norm(4), (2, CHANNELS, 5), "its input [2, 24, 5] has several tokens in a group"),
        (group_norm(4), (2, CHANNELS, 5, 6), "its input [2, 24, 5, 6] has several tokens in a group"),
        (group_norm(4), (2, CHANNELS, 24), "its input [2, 24, 24] has several tokens in a group"),
        (
            nn.GroupNorm(2, CHANNELS, affine=False),
            (1, CHANNELS, 5),
            "its input [1, 24, 5] has several tokens in a group",
        ),
    ],
)
def test_refused_by_name(
    module: nn.Module, shape: tuple[int, ...], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Linear behind it needs rows of the last dimension, if these are too many for lines of a row."""
    monkeypatch.setattr(by_line, "MOST_WEIGHTS", 0)
    monkeypatch.setattr(by_line, "MOST_LINES", 1)
    module = nn.Sequential(module, nn.Linear(shape[-1], 3)).eval()
    with pytest.raises(UnsupportedOperationError) as error:
        import_module(module, torch.randn(shape))
    first, second, _ = str(error.value).splitlines()
    assert first == "1 operation is not supported: group_norm"
    assert f"aten.group_norm.default: {reason}" in second


@pytest.mark.parametrize("shape", [(2, CHANNELS, 5), (2, CHANNELS, 5, 6)])
def test_images_by_themselves_are_rows(shape: tuple[int, ...]) -> None:
    """Nothing else reads their last dimension, so all dimensions but the first are features."""
    graph = import_module(group_norm(4).eval(), torch.randn(shape))
    assert graph.features(graph.outputs[0]) == torch.Size(shape[1:]).numel()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["8 groups", "no power of two", "without parameters"])
def test_hardware(name: str) -> None:
    """The simulated Verilog is golden bit for bit; padding of rows does not reach a group."""
    torch.manual_seed(2)
    module = MODULES[name]().eval()
    x = torch.randn(TOKENS, CHANNELS)
    config = CompileConfig(name="groups", max_tokens=TOKENS, channels=2, multipliers=64, weights="w8")
    accelerator = streamgen.compile(module, x, config)
    for rows in (x[:1].numpy(), 100 * x.numpy(), np.zeros((2, CHANNELS), np.float32)):
        found = accelerator.run(rows)
        assert found.tobytes() == accelerator.golden(rows).tobytes() and np.isfinite(found).all()
