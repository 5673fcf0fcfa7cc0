"""model.frontend.module_kinds: what a module is, and what to do, in place of torch's private classes."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from streamgen.base.errors import UnsupportedOperationError
from streamgen.model.frontend import import_any

X = torch.ones(4, 8)
SCRIPT = "is TorchScript, which cannot be read; give the module from which torch.jit made it"
QUANTISED = "is a layer of torch's own quantisation; give the module with float layers, whose "
QUANTISED += "weights streamgen quantises itself"
META = (
    "is on the meta device, so it has no values; load the weights first. `estimate` accepts the module "
    "without values"
)


def _plain() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()


def _quantised() -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(_plain(), {nn.Linear}, dtype=torch.qint8)


def _trained() -> nn.Module:
    module = _plain().train()
    module.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")  # type: ignore[assignment]
    return torch.ao.quantization.prepare_qat(module)


def _on_another_device() -> nn.Module:
    module = _plain()
    with FakeTensorMode():
        weight = torch.empty(8, 8, device="cuda")
    module[0].weight = nn.Parameter(weight, requires_grad=False)  # type: ignore[index]
    return module


def _adapted() -> nn.Module:
    return type("PeftModelForCausalLM", (nn.Module,), {"__module__": "peft.peft_model"})()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.jit.script(_plain()), f"the module (RecursiveScriptModule) {SCRIPT}"),
        (lambda: torch.jit.trace(_plain(), X), f"the module (TopLevelTracedModule) {SCRIPT}"),
        (lambda: nn.Sequential(torch.jit.script(_plain())), f"0 (RecursiveScriptModule) {SCRIPT}"),
        (_quantised, f"0 (Linear) {QUANTISED}"),
        (_trained, f"0 (Linear) {QUANTISED}"),
        (lambda: _plain().to("meta"), f"0.weight {META}"),
        (
            _on_another_device,
            "0.weight is on cuda:0; weights are read from CPU memory: give module.cpu()",
        ),
        (
            _adapted,
            "PeftModelForCausalLM is a model with a PEFT adapter that is not merged into its weights; call "
            "model.merge_and_unload() first",
        ),
    ],
)
def test_modules_that_cannot_be_read(make: Callable[[], nn.Module], message: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that they are old
        module = make()
    with pytest.raises(UnsupportedOperationError) as caught:
        import_any(module, None if module.__module__.startswith("peft") else X)
    assert str(caught.value) == message


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return x * self.steps


def spectral_norm() -> nn.Module:
    """Its singular values are near one another, so that power iteration moves on for many calls."""
    linear = nn.Linear(8, 8)
    linear.weight.data = torch.diag(torch.linspace(1, 1.1, 8))
    return nn.Sequential(nn.utils.parametrizations.spectral_norm(linear))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            Counting().eval(),
            "the module changes in every call: attribute steps of the module (Counting). A graph has no "
            "state: its results may depend only on weights and inputs",
        ),
        (
            spectral_norm(),
            "the module changes in every call: buffer _u of 0.parametrizations.weight.0 (_SpectralNorm). It "
            "is in training mode; call module.eval() first",
        ),
    ],
)
def test_modules_that_change(module: nn.Module, message: str) -> None:
    with pytest.raises(UnsupportedOperationError) as caught:
        import_any(module, torch.randn(4, 8))
    assert str(caught.value) == message


def test_a_module_in_training_mode_that_changes_nothing_is_taken() -> None:
    graph, _ = import_any(nn.Sequential(nn.Linear(8, 8), nn.ReLU()).train(), X)
    assert len(graph.operations) == 2
