"""Networks as first lessons write them: activations with numbers, flattened images, batch norms."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from streamgen.base.errors import UnsupportedOperationError
from streamgen.model.frontend import import_module, joined
from streamgen.model.frontend.any_module import import_any
from streamgen.model.graph.interpret import exact, reference
from streamgen.model.graph.logical import LogicalGraph
from streamgen.numbers.formats import round_f24

X = torch.cat([torch.linspace(-8, 8, 44), torch.tensor([-0.5, 0.5, 0.0, 6.0])]).reshape(3, 16)


class _Called(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x.clone())  # which it may change in place


def check(module: nn.Module, x: torch.Tensor, share: float = 2.0**-14) -> LogicalGraph:
    """Import a module; its float64 reference must equal torch, and its exact golden must be near it, by this
    share of the greatest result."""
    graph = import_module(module, x)
    (name,) = graph.outputs
    with torch.no_grad():
        wanted = module.double()(x.double()).numpy().reshape(len(x.reshape(-1, x.shape[-1])), -1)
    module.float()
    rows = x.reshape(-1, x.shape[-1]).numpy()
    inputs = {graph.inputs[0].name: rows.astype(np.float64)}
    np.testing.assert_allclose(reference(graph)(inputs)[0][name], wanted, rtol=1e-6, atol=1e-6)
    if any(operation.op.matmul for operation in graph.operations):
        return graph  # whose weights are not quantised yet
    found = exact(graph)({name: round_f24(rows) for name, rows in inputs.items()})[0][name]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=share * max(1, np.abs(wanted).max()))
    return graph


ACTIVATIONS: list[nn.Module] = [
    nn.CELU(),
    nn.CELU(0.7),
    nn.ELU(2.0),
    nn.ELU(0.3),
    nn.GLU(),
    nn.Hardshrink(),
    nn.Hardshrink(1.5),
    nn.Hardtanh(),
    nn.Hardtanh(-2.0, 0.25),
    nn.LeakyReLU(),
    nn.LeakyReLU(0.2, inplace=True),
    nn.LogSigmoid(),
    nn.Mish(inplace=True),
    nn.SELU(),
    nn.Softsign(),
    nn.Tanhshrink(),
    nn.PReLU(),
    nn.PReLU(16),
    nn.RReLU(),
    nn.ReLU6(),
    nn.Softplus(2.0, 15.0),
    nn.Softshrink(),
    nn.Threshold(0.5, 0.0),
    nn.Threshold(0.5, 0.5),
]


@pytest.mark.parametrize("module", ACTIVATIONS, ids=repr)
def test_activations(module: nn.Module) -> None:
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    check(_Called(module).eval(), X)


FUNCTIONALS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "clamp": lambda x: x.clamp(-1.0, 0.5),
    "clamp above": lambda x: x.clamp_(max=2),
    "clamp below": lambda x: torch.clamp_min(x, 0.25),
    "clamp by tensors": lambda x: torch.clamp(x, torch.tensor(-1.0), torch.tensor(1.0)),
    "maximum": lambda x: torch.maximum(x, torch.tensor(0.5)),
    "minimum": lambda x: torch.minimum(x, torch.tensor(0.5)),
    "no bounds": lambda x: x.clamp(-np.inf, np.inf),
    "relu6": functional.relu6,
    "relu6 in place": lambda x: functional.relu6(x, inplace=True),
    "celu in place": lambda x: functional.celu(x, 2.0, inplace=True),
    "threshold in place": lambda x: functional.threshold(x, 0.5, 0.0, inplace=True),
    "abs": torch.abs,
    "exp": lambda x: torch.exp(-x.abs()),
    "log": lambda x: torch.log(x.abs() + 0.5),
    "glu of the middle dimension": lambda x: functional.glu(x.reshape(3, 4, 4), dim=1).reshape(3, 8),
}


@pytest.mark.parametrize("name", FUNCTIONALS)
def test_functionals(name: str) -> None:
    check(_Called(FUNCTIONALS[name]), X)


REFUSED: list[tuple[Callable[[torch.Tensor], torch.Tensor], str]] = [
    (lambda x: x.clamp(min=float("nan")), "its min is nan; a finite number is needed"),
    (lambda x: functional.rrelu(x, training=True), "it is in training mode; call module.eval() first"),
    (
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127),
        "it rounds as in quantisation-aware training; give the module with its float layers",
    ),
]


@pytest.mark.parametrize(("function", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_others_are_refused_by_name(
    function: Callable[[torch.Tensor], torch.Tensor], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joined, "MOST_ELEMENTS", 0)  # as if the inputs were too large for one row
    with pytest.raises(UnsupportedOperationError) as caught:
        import_module(_Called(function), X)
    assert message in str(caught.value)


def test_a_logarithm_of_a_negative_number_is_not_a_number() -> None:
    graph = import_module(_Called(torch.log), X)
    inputs = {graph.inputs[0].name: X.numpy()}
    with np.errstate(all="ignore"):
        wanted = torch.log(X).numpy()
    for interpreter in (reference(graph), exact(graph)):
        found = interpreter(inputs)[0][graph.outputs[0]]
        np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
        np.testing.assert_array_equal(np.isneginf(found), np.isneginf(wanted))


def _mlp(features: int, *last: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(features, 12), nn.ReLU(), nn.Linear(12, 4), *last).eval()


SHAPED: dict[str, tuple[nn.Module, tuple[int, ...], dict[str, tuple[int, ...]]]] = {
    "grey images": (_mlp(30), (3, 1, 5, 6), {"input": (5, 6)}),
    "one grey image": (_mlp(30), (1, 1, 5, 6), {"input": (5, 6)}),
    "colours": (_mlp(90), (3, 3, 5, 6), {"input": (3, 5, 6)}),
    "a matrix for each": (_mlp(30), (3, 5, 6), {"input": (5, 6)}),
    "reshaped": (_Called(lambda x: x.view(x.size(0), -1) * 2), (3, 3, 5, 6), {"x": (3, 5, 6)}),
    "flattened later": (
        nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(90, 4)).eval(),
        (3, 3, 5, 6),
        {"input": (3, 5, 6)},
    ),
    "images made": (nn.Sequential(nn.Linear(8, 30), nn.Unflatten(1, (1, 5, 6))), (3, 8), {}),
    "one score": (_mlp(30, nn.Linear(4, 1), nn.Flatten(0)), (3, 1, 5, 6), {"input": (5, 6)}),
    "rows stay rows": (nn.Sequential(nn.Flatten(0, 1), nn.Linear(6, 4)), (3, 5, 6), {}),
}


@pytest.mark.parametrize("name", SHAPED)
def test_modules_take_and_give_their_own_shapes(name: str) -> None:
    module, shape, joined = SHAPED[name]
    graph, interface = import_any(module, torch.randn(shape))
    assert interface is not None
    assert {name: e for name, e in interface.trailing.items() if name not in graph.outputs} == joined
    for batch in {shape[0], shape[0] + 2}:
        x = torch.randn(batch, *shape[1:])
        rows = {n: a.reshape(-1, a.shape[-1]) for n, a in interface.taken((x.numpy(),)).items()}
        found = interface.rebuilt(reference(graph)(rows)[0], (x.numpy(),))
        with torch.no_grad():
            wanted = module(x).numpy()
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_values_have_the_names_of_their_modules() -> None:
    graph = import_module(_mlp(30), torch.randn(3, 1, 5, 6))
    assert [operation.name for operation in graph.operations] == ["m_1", "relu", "m_3"]
    assert [value.name for value in graph.inputs] == ["input"]


def test_two_inputs_of_different_ranks() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.of_image, self.of_label = nn.Linear(30, 4), nn.Linear(7, 4)

        def forward(self, image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.of_image(image.flatten(1)) + self.of_label(label))

    graph, interface = import_any(Both().eval(), (torch.randn(3, 5, 6), torch.randn(3, 7)))
    assert interface is not None and interface.trailing == {"image": (5, 6)}
    assert [value.features for value in graph.inputs] == [30, 7]


def test_the_refusal_is_that_of_the_reading_with_the_fewest_problems() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(30, 8), nn.Unflatten(1, (2, 4)), _Called(torch.lgamma))
    with pytest.raises(UnsupportedOperationError, match=r"^1 operation is not supported: lgamma"):
        import_any(module.eval(), torch.randn(3, 1, 5, 6))


def _trained(module: nn.Module, *shape: int) -> nn.Module:
    """A module with running statistics and weights that are not 0 and 1."""
    torch.manual_seed(1)
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.affine:
            nn.init.uniform_(part.weight, 0.5, 2.0)
            nn.init.normal_(part.bias)
    with torch.no_grad():
        for _ in range(20):
            module.train()(3 * torch.randn(shape) + 1)
    return module.eval()


class _OfChannels(nn.Module):
    """A batch norm of [B, C, T] between layers of [B, T, C]."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.up(x).transpose(1, 2)).transpose(1, 2))


BATCH_NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], list[str]]] = {
    "behind a Linear": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU()),
        (5, 6),
        ["linear[6 -> 8, bias]", "relu"],
    ),
    "without a bias": (
        lambda: nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8, eps=1e-2)),
        (5, 6),
        ["linear[6 -> 8, bias]"],
    ),
    "without weights": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, affine=False)),
        (5, 6),
        ["linear[6 -> 8, bias]"],
    ),
    "before a Linear": (
        lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 8)),
        (5, 6),
        ["constant[6]", "mul", "constant[6]", "add", "linear[6 -> 8, bias]"],
    ),
    "behind a function": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.BatchNorm1d(8)),
        (5, 6),
        ["linear[6 -> 8, bias]", "relu", "constant[8]", "mul", "constant[8]", "add"],
    ),
    "channels between tokens": (_OfChannels, (3, 5, 6), ["linear[6 -> 8, bias]", "relu"]),
    "images": (
        lambda: nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 4)),
        (5, 3, 2, 2),
        ["constant[12]", "mul", "constant[12]", "add", "linear[12 -> 4, bias]"],
    ),
    "sequences": (
        lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Flatten(), nn.Linear(12, 4)),
        (5, 3, 4),
        ["constant[12]", "mul", "constant[12]", "add", "linear[12 -> 4, bias]"],
    ),
}


@pytest.mark.parametrize("name", BATCH_NORMS)
def test_batch_norms(name: str) -> None:
    make, shape, operations = BATCH_NORMS[name]
    module = _trained(make(), *shape)
    x = torch.randn(shape)
    graph, interface = import_any(module, x)
    assert interface is not None
    assert [str(operation.op) for operation in graph.operations] == operations
    rows = {n: a.reshape(-1, a.shape[-1]) for n, a in interface.taken((x.numpy(),)).items()}
    found = interface.rebuilt(reference(graph)(rows)[0], (x.numpy(),))
    np.testing.assert_allclose(found, module(x).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_a_linear_that_others_read_keeps_its_weights() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.up(x)
            return self.norm(y) + y

    check(_trained(Twice(), 5, 6), torch.randn(5, 6))


@pytest.mark.parametrize(
    ("module", "shape", "message"),
    [
        (nn.BatchNorm1d(6), (5, 6), "it is in training mode; call module.eval() first"),
        (
            nn.Sequential(nn.BatchNorm1d(70), nn.Linear(4, 4)).eval(),
            (5, 70, 4),
            "the channels of its input [5, 70, 4], dimension 1, are tokens; channels must be features",
        ),
    ],
)
def test_batch_norms_are_refused(module: nn.Module, shape: tuple[int, ...], message: str) -> None:
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    if isinstance(module, nn.Sequential):
        module[0].running_mean.normal_()
    with pytest.raises(UnsupportedOperationError) as caught:
        import_any(module, torch.randn(shape))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "module", [nn.LogSoftmax(dim=-1), nn.LogSoftmax(dim=1), nn.Softmin(dim=-1), nn.Softmax(dim=1)], ids=repr
)
def test_softmaxes_of_rows(module: nn.Module) -> None:
    check(module, X)
    check(module, 40 * X)  # softmax of which underflows


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16])
def test_modules_of_other_floats(kind: torch.dtype) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 8), nn.LeakyReLU(), nn.BatchNorm1d(8), nn.LogSoftmax(-1))
    graph = import_module(module.eval().to(kind), torch.randn(3, 8).to(kind))
    operations = [
        "linear[8 -> 8, bias]",
        "leaky[0.01]",
        "constant[8]",
        "mul",
        "constant[8]",
        "add",
        "log_softmax",
    ]
    assert [str(operation.op) for operation in graph.operations] == operations


def test_buffers_and_leading_dimensions_of_any_number() -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.linspace(-1, 1, 8))
            self.up = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.up(x - self.mean)

    for lead in ((), (2,), (2, 3), (2, 1, 3, 2)):
        graph, interface = import_any(Centred().eval(), torch.randn(*lead, 3, 8))
        assert interface is not None and interface.leading == {graph.outputs[0]: None}
