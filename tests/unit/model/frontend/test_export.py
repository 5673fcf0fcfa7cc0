"""streamgen.model.frontend.export: modules become graphs that compute the same, or one clear error."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from streamgen.base.errors import UnsupportedOperationError
from streamgen.gateware.functions import TITLES
from streamgen.model.frontend import import_module, joined
from streamgen.model.graph.interpret import reference
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.operations import Constant, Linear, Unary
from streamgen.numbers.quantisation import GroupGrid

HERE = Path(__file__)
MIXED = "an operation joins a row for all tokens of a sequence with rows for each of them"
JOINED = "an operation joins its result with one that has other tokens in its places"
WHOLE = "rows must stay whole: each row holds features of one token, and every token has one row"


class FeedForward(nn.Module):
    """Everything that is supported, in one forward."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 16, bias=False)
        self.up = nn.Linear(8, 16)
        self.act = nn.SiLU(inplace=True)
        self.drop = nn.Dropout(0.5)
        self.net = nn.Sequential(nn.Linear(16, 8), nn.ReLU(inplace=True), nn.Sigmoid())
        self.scale = nn.Parameter(torch.randn(1, 8))
        self.register_buffer("shift", torch.randn(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.drop(self.act(self.gate(x)) * self.up(x) + 1.5)
        z = self.net(y).contiguous() * self.scale + (self.shift * 2 + 1)
        z += x
        z.mul_(0.5)
        return functional.relu(z.reshape(-1, 8)).view(1, -1, 8)


def _where(text: str) -> str:
    """`file:line` of the line of this file that holds `text`."""
    lines = HERE.read_text().splitlines()
    return f"{HERE}:{next(n for n, line in enumerate(lines, 1) if text in line)}"


def _same(graph: LogicalGraph, module: nn.Module, *inputs: torch.Tensor) -> None:
    """The graph against the module, both in float64; constants are folded in float32, hence 1e-6."""
    with torch.no_grad():
        outputs = module.double()(*(x.double().clone() for x in inputs))
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    arrays = [x.double().numpy().reshape(-1, x.shape[-1]) for x in inputs]
    found, _ = reference(graph)(dict(zip((value.name for value in graph.inputs), arrays, strict=True)))
    for actual, expected in zip(found.values(), outputs, strict=True):
        assert np.allclose(actual, expected.numpy().reshape(actual.shape), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(8,), (5, 8), (2, 3, 8), (2, 1, 3, 8)])
def test_same_as_torch(shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    module, x = FeedForward().eval(), torch.randn(shape)
    _same(import_module(module, (x,)), module, x)


def test_text() -> None:
    graph = import_module(FeedForward().eval(), torch.randn(2, 8))
    lines = [line.partition("  # ")[0] for line in str(graph).splitlines()]
    assert lines == [
        "inputs x: 8",
        "gate: 16 = linear[8 -> 16](x)",
        "silu_: 16 = silu(gate)",
        "up: 16 = linear[8 -> 16, bias](x)",
        "mul: 16 = mul(silu_, up)",
        "add_constant: 16 = constant[16]()",
        "add: 16 = add(mul, add_constant)",
        "net_0: 8 = linear[16 -> 8, bias](add)",
        "relu_: 8 = relu(net_0)",
        "sigmoid: 8 = sigmoid(relu_)",
        "scale: 8 = constant[8]()",
        "mul_1: 8 = mul(sigmoid, scale)",
        "add_1: 8 = constant[8]()",
        "add_2: 8 = add(mul_1, add_1)",
        "add_: 8 = add(add_2, x)",
        "mul_: 8 = scale[0.5](add_)",
        "relu: 8 = relu(mul_)",
        "outputs relu",
    ]
    gate = graph.operations[0]
    assert gate.where == f"gate (Linear), {_where('self.act(self.gate(x)) * self.up(x)')}"


class InPlace(nn.Module):
    """A view made before a change in place sees the change; a value computed before does not."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x + 1
        before = y * 3
        view = y.view(-1, 8)
        functional.relu(y, inplace=True)
        return view + 1, before


def test_in_place() -> None:
    x = torch.randn(2, 3, 8)
    _same(import_module(InPlace(), (x,)), InPlace(), x)


class Activations(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.gelu(x) + functional.gelu(x * 0.5, approximate="tanh")
        return torch.tanh(x) * x.tanh_()


class Forward(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function
        self.scale = nn.Parameter(torch.linspace(0.5, 2, 8))
        self.register_buffer("state", torch.ones(8))

    def forward(self, *inputs: torch.Tensor):
        return self.function(self, *inputs)


def _copied(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Changes of a copy are not those of the tensor; those of a view are."""
    y = x * 2
    copy = y.clone()
    copy.mul_(3).neg_()
    y.view(1, -1, 8).sub_(1)
    return y + copy


def _halves(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Changes of a part of a tensor, seen by parts cut before."""
    y = x * 2
    first, second = y.chunk(2, -1)
    second.mul_(3)
    y[..., 2:6].relu_()
    return (first + second) @ m.scale.reshape(4, 2) + y[..., :2]


def _dead(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x.sum().sqrt()
    torch.sort(x + 1)
    return x * m.scale


@pytest.mark.parametrize(
    ("function", "ops"),
    [
        (lambda m, x: x - 1, ["constant[8]", "add"]),
        (lambda m, x: 1 - x, ["constant[8]", "scale[-1]", "add"]),
        (lambda m, x: -x, ["scale[-1]"]),
        (lambda m, x: x / 2, ["scale[0.5]"]),
        (lambda m, x: x / m.scale, ["constant[8]", "mul"]),
        (lambda m, x: m.scale - x, ["constant[8]", "scale[-1]", "add"]),
        (lambda m, x: torch.sub(x, x * 2, alpha=3), ["scale[2]", "scale[-3]", "add"]),
        (lambda m, x: torch.add(x, m.scale, alpha=0.5), ["constant[8]", "add"]),
        (lambda m, x: x**2 + x.square(), ["mul", "mul", "add"]),
        (lambda m, x: torch.relu(x).double().clone() * 2, ["relu", "scale[2]"]),
        (_copied, None),
        (_halves, None),
        (_dead, ["constant[8]", "mul"]),
        (lambda m, x: (x, torch.relu(x), x), ["relu", "scale[1]", "scale[1]"]),
    ],
)
def test_arithmetic(function, ops: list[str] | None) -> None:
    module, x = Forward(function), torch.randn(3, 8)
    graph = import_module(module, (x,))
    if ops is not None:
        assert [str(operation.op) for operation in graph.operations] == ops
    _same(graph, module, x)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda m, x: x / 0, "aten.div.Tensor: it divides by 0"),
        (lambda m, x: x + 0.044715 * x**3, "a cube must be part of a GELU: 0.5 * x * (1 + tanh("),
        (lambda m, x: x * torch.nan, "aten.mul.Tensor: it multiplies by nan"),
        (lambda m, x: x + torch.nan, "aten.add.Tensor: its other operand is nan; a finite number is needed"),
        (lambda m, x: torch.inf - x, "its other operand is inf; a finite number is needed"),
        (lambda m, x: x.short() * 1.5, "it casts floats to torch.int16"),
        (lambda m, x: x.neg_(), "aten.neg_.default: it changes an input or a parameter in place"),
    ],
)
def test_arithmetic_that_is_none(function, reason: str) -> None:
    with pytest.raises(UnsupportedOperationError) as caught:
        import_module(Forward(function), (torch.randn(3, 8),))
    assert reason in str(caught.value).splitlines()[1]


def test_activations() -> None:
    x = torch.randn(3, 8)
    graph = import_module(Activations(), (x,))
    _same(graph, Activations(), x)
    functions = [operation.op.function for operation in graph.operations if isinstance(operation.op, Unary)]
    assert functions == ["gelu", "gelu_tanh", "tanh", "tanh"]


class TwoInputs(nn.Module):
    @torch.no_grad()
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = a + b
        _unused = total * 5
        return torch.sigmoid(total), total * total


def test_two_inputs_two_outputs_without_grad() -> None:
    a, b = torch.randn(4, 8), torch.randn(4, 8).t().contiguous().t()
    graph = import_module(TwoInputs(), (a, b))
    _same(graph, TwoInputs(), a, b)
    assert [value.name for value in graph.inputs] == ["a", "b"]
    assert [str(operation.op) for operation in graph.operations] == ["add", "sigmoid", "mul"]


def test_shared_module_and_narrow_floats() -> None:
    """A Linear called twice gives two operations; bfloat16 weights come as the same numbers."""
    layer = nn.Linear(8, 8).to(torch.bfloat16)
    module = nn.Sequential(layer, layer)
    graph = import_module(module, torch.randn(3, 8, dtype=torch.bfloat16))
    linears = [operation.op for operation in graph.operations]
    assert all(isinstance(op, Linear) and op.weight.dtype == np.float32 for op in linears)
    assert len(linears) == len({operation.name for operation in graph.operations}) == 2
    assert np.array_equal(linears[0].weight, layer.weight.detach().float().numpy())


def test_folded_weight() -> None:
    """What depends on parameters alone is computed now."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 4))
            self.bias = nn.Parameter(torch.randn(1, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.linear(x, self.weight * 3, self.bias.reshape(8)) * torch.ones(8)

    module, x = Scaled(), torch.randn(2, 4)
    graph = import_module(module, x)
    assert [type(operation.op) for operation in graph.operations[:2]] == [Linear, Constant]
    _same(graph, module, x)


class Unsupported(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(8, 8), nn.AvgPool1d(2))
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.block(x)
        y = y.logcumsumexp(0) + 1
        z = torch.add(x, x, alpha=2)
        z = z + x.transpose(0, 1)
        z = z * torch.arange(8.0)[:, None]
        z = z * x[1:2]
        z = functional.linear(z, x)
        z = z + torch.rand(8)
        w = functional.softmax(x.view(4, 16), dim=-1)
        return y, z, w, self.drop(x), x.mul_(2)


def test_all_unsupported_operations_in_one_error() -> None:
    module = Unsupported()
    x = torch.ones(8, 8)
    with pytest.raises(UnsupportedOperationError) as caught:
        import_module(module, x)
    assert (x == 1).all(), "the example inputs are not changed"
    first, *problems, last = str(caught.value).splitlines()
    names = "avg_pool1d, logcumsumexp, transpose, slice and 4 more"
    assert first == f"8 operations are not supported: {names}"
    operations = list(caught.value.operations)
    more = "and 2 more in the error's `operations`"
    assert problems == [f"  {line}" for line in (*operations[:6], more)]
    root = "the module (Unsupported)"
    assert operations == [
        f"{place}: {problem}"
        for place, problem in (
            (f"block.1 (AvgPool1d), {_where('y = self.block(x)')}", "aten.avg_pool1d.default"),
            (f"{root}, {_where('y.logcumsumexp(0)')}", "aten.logcumsumexp.default"),
            (
                f"{root}, {_where('x.transpose(0, 1)')}",
                f"aten.transpose.int: {JOINED}",
            ),
            (f"{root}, {_where('x[1:2]')}", f"aten.slice.Tensor: {WHOLE}"),
            (f"{root}, {_where('+ torch.rand(8)')}", "aten.rand.default"),
            (
                f"{root}, {_where('x.view(4, 16)')}",
                f"aten.view.default: {WHOLE}",
            ),
            (
                f"drop (Dropout), {_where('self.drop(x), x.mul_(2)')}",
                "aten.dropout.default: it is in training mode; call module.eval() first",
            ),
            (
                f"{root}, {_where('self.drop(x), x.mul_(2)')}",
                "aten.mul_.Tensor: it changes an input or a parameter in place",
            ),
        )
    ]
    assert last.startswith(f"Supported: Linear and x @ W; embeddings of ids; {TITLES}; ")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda m, x: functional.linear(x, x), "its weight or bias is computed at run time"),
        (lambda m, x: x + x.view(8, 1, 8), "aten.view.default: an operation joins its result with one"),
        (lambda m, x: x * m.state.mul_(2), "it changes a parameter or a buffer in place"),
        (lambda m, x: x.view(8, 8).relu_() + 1, "it changes an input or a parameter in place"),
        (lambda m, x: x @ x.T, "aten.matmul.default: a product of two values must be scores of an attention"),
        (
            lambda m, x: m.scale @ x,
            "aten.matmul.default: the left operand must be a value, the right one a parameter",
        ),
        (lambda m, x: torch.cat([x, x.mean(0, True).expand_as(x)], 1), f"aten.cat.default: {MIXED}"),
        (lambda m, x: x + x.flip(0), "aten.flip.default: an operation joins its result"),
    ],
)
def test_unsupported(function, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined, "MOST_ELEMENTS", 0)  # as if the inputs were too large for one row
    with pytest.raises(UnsupportedOperationError, match=re.escape(message)) as caught:
        import_module(Forward(function), torch.randn(8, 8))
    assert str(caught.value).startswith("1 operation is not supported: ")
    assert f"{HERE}:" in str(caught.value)


def test_control_flow_on_values() -> None:
    said = "what it computes depends on a decision about values, which a graph cannot take"
    with pytest.raises(UnsupportedOperationError) as caught:
        import_module(Forward(lambda m, x: x + 1 if x.sum() > 0 else x), torch.randn(8, 8))
    assert re.fullmatch(rf"the module cannot be traced: {said} \(.*:\d+\)", str(caught.value))


def test_a_constant_beside_large_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined, "MOST_ELEMENTS", 0)
    with pytest.raises(
        UnsupportedOperationError, match="output 0 of the module does not depend on its inputs"
    ):
        import_module(Forward(lambda m, x: m.state + 1), torch.randn(8, 8))


@pytest.mark.parametrize(
    ("module", "inputs", "error", "message"),
    [
        (
            nn.Linear(8, 4),
            (torch.randn(2, 9),),
            ValueError,
            "the module does not run on inputs of shape [2, 9]: ",
        ),
        (nn.Linear(8, 4), (), ValueError, "no example inputs are given"),
        (
            nn.Linear(8, 4),
            (torch.randn(0, 8),),
            ValueError,
            "example input 0 has shape [0, 8]; it must hold ",
        ),
        (
            nn.Embedding(8, 4),
            (torch.tensor(1),),
            ValueError,
            "example input 0 has shape []; it must hold tokens",
        ),
        (
            nn.Linear(8, 4),
            (np.zeros((2, 8)),),
            TypeError,
            "example input 0 is ndarray; a torch.Tensor is needed",
        ),
        (
            nn.Linear(8, 4),
            (torch.ones(2, 8).bool(),),
            ValueError,
            "the module does not run on inputs of shape",
        ),
        (
            torch.relu,
            (torch.randn(2, 8),),
            TypeError,
            "module is builtin_function_or_method; a torch.nn.Module",
        ),
        (
            TwoInputs(),
            (torch.randn(2, 8), torch.randn(3, 8)),
            ValueError,
            "the module does not run on inputs of shape [2, 8], [3, 8]: The size of tensor a",
        ),
    ],
)
def test_bad_inputs(module, inputs, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        import_module(module, inputs)


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_weights_that_are_not_finite(value: str) -> None:
    module = nn.Sequential(nn.Linear(8, 4))
    with torch.no_grad():
        module[0].weight[2, 5] = float(value)
    with pytest.raises(ValueError) as caught:
        import_module(module, torch.randn(1, 8))
    assert str(caught.value) == f"0.weight[2, 5] is {value}; all must be finite"


def _gridded() -> nn.Linear:
    rng = np.random.default_rng(1)
    scale = rng.random((4, 2)).astype(np.float32)
    grid = GroupGrid(rng.integers(0, 16, (4, 64)).astype(np.uint8), scale, -7 * scale)
    linear = nn.Linear(64, 4)
    linear.weight = nn.Parameter(torch.from_numpy(grid.dequantise().astype(np.float32)))
    linear.weight_grid = grid
    return linear


def test_grid_is_kept() -> None:
    linear = _gridded()
    graph = import_module(nn.Sequential(linear, nn.ReLU()), torch.randn(2, 64))
    assert graph.operations[0].op.grid is linear.weight_grid
    assert "linear[64 -> 4, bias, grid of 32](input)" in str(graph)


def test_stale_grid() -> None:
    linear = _gridded()
    with torch.no_grad():
        linear.weight[0, 0] += 1e-3
    with pytest.raises(ValueError, match=r"^weight_grid of '0' does not match its weight any more; delete "):
        import_module(nn.Sequential(linear), torch.randn(2, 64))
    linear.weight_grid = "q4"
    with pytest.raises(TypeError, match=r"^weight_grid of '0' is str; a GroupGrid is needed$"):
        import_module(nn.Sequential(linear), torch.randn(2, 64))
