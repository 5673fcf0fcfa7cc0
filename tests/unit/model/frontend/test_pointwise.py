"""Pointwise calls of torch: each becomes one expression, which computes what torch computes, special values
too."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import streamgen
from streamgen.base.errors import UnsupportedOperationError
from streamgen.compiler.config import CompileConfig
from streamgen.model.frontend import import_module
from streamgen.model.graph.interpret import exact
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.operations import Constant, Expression
from streamgen.numbers.formats import round_f24

Call = Callable[..., torch.Tensor]
FEATURE = torch.linspace(-1.5, 1.5, 16)
ONE = torch.tensor(0.75)


def real(call: Call) -> Call:
    """Of a truth value, a number."""
    return lambda *x: call(*x).float()


def with_other(call: Call, other: torch.Tensor | float) -> Call:
    return lambda x: call(x, other).float()


# Of one value.
UNARY: dict[str, Call] = {
    **{name: real(getattr(torch, name)) for name in ("isnan", "isinf", "isfinite", "logical_not")},
    **{
        name: getattr(torch, name)
        for name in ("sign", "sgn", "floor", "ceil", "trunc", "fix", "round", "frac")
    },
    **{f"{f.__name__} number": with_other(f, 0.5) for f in (torch.eq, torch.ne, torch.lt)},
    **{f"{f.__name__} row": with_other(f, FEATURE) for f in (torch.le, torch.gt, torch.ge)},
    **{f"power {p}": lambda x, p=p: x**p for p in (3, 4, 7, 0.5, -0.5, 1.5, -1, -2, 0.25, 2.75)},
    "power of a number": lambda x: 2.5**x,
    "remainder": lambda x: x % 0.7,
    "negative remainder": lambda x: torch.remainder(x, -1.5),
    "fmod": lambda x: torch.fmod(x, 0.7),
    "floor_divide": lambda x: x // 0.5,
    "div floor": lambda x: torch.div(x, 0.5, rounding_mode="floor"),
    "div trunc": lambda x: torch.div(x, FEATURE + 4, rounding_mode="trunc"),
    "clamp rows": lambda x: torch.clamp(x, FEATURE - 1, FEATURE + 1),
    "clamp_min row": lambda x: torch.clamp_min(x, FEATURE),
    "maximum row": lambda x: torch.maximum(x, FEATURE),
    "xlogy number": lambda x: torch.xlogy(2.0, x),
    "heaviside": lambda x: torch.heaviside(x, ONE.to(x.dtype)),
    "logit": lambda x: torch.logit(x, 2.0**-6),
    "nan_to_num": torch.nan_to_num,
    "nan_to_num numbers": lambda x: torch.nan_to_num(x, 1.0, 2.0, -2.0),
    **{name: getattr(torch, name) for name in ("deg2rad", "rad2deg", "arcsin", "arctan", "arccosh")},
    "special_expm1": torch.special.expm1,
    "masked_fill": lambda x: x.masked_fill(x > 0.3, -7.0),
    "masked_fill infinity": lambda x: torch.exp(x.masked_fill(x > 0.3, -torch.inf)),
    "where numbers": lambda x: torch.where(x > 0, 1.0, -2.0),
    "where rows": lambda x: torch.where(FEATURE > 0, x, -x),
    "both": lambda x: real(lambda x: (x > -1) & ~(x > 1) | (x == 0))(x),
    "overloads for numbers": lambda x: torch.ops.aten.div.Scalar(torch.ops.aten.sub.Scalar(x, 2, 3), 4),
    "cast": lambda x: x.bool().float(),
    "in place": lambda x: x.clone().floor_().clamp_(FEATURE, None),
    "sum of roundings": lambda x: x.floor() + x.ceil() * 0.5,
    "gate": lambda x: x * (x + 3).clamp(0, 6).sqrt() / (1 + torch.exp(-x)),
}
# Of two values.
BINARY: dict[str, Call] = {
    **{name: real(getattr(torch, name)) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{f"logical_{name}": real(getattr(torch, f"logical_{name}")) for name in ("and", "or", "xor")},
    **{
        name: getattr(torch, name)
        for name in ("div", "maximum", "minimum", "fmax", "fmin", "remainder", "fmod")
    },
    **{name: getattr(torch, name) for name in ("hypot", "xlogy", "logaddexp", "logaddexp2", "atan2")},
    "copysign": lambda a, b: torch.where(a.isnan() | b.isnan(), 0.0, torch.copysign(a, b)),
    "clamp": lambda a, b: torch.clamp(a, min=b),
    "addcmul": lambda a, b: torch.addcmul(a, a, b, value=0.5),
    "addcdiv": lambda a, b: torch.addcdiv(a, a, b),
    "lerp": lambda a, b: torch.lerp(a, b, 0.3),
    "lerp value": lambda a, b: torch.lerp(a, b, a.abs()),
    "where": lambda a, b: torch.where(a > b, a, 2 * b),
    "max": torch.max,
    "mixed": lambda a, b: (a - b).abs() / (a.abs() + b.abs() + 1e-3),
}
CONDITIONED = {"logit", "power of a number", "logaddexp", "logaddexp2", "gate", "mixed"}  # sums of near terms


class _Called(nn.Module):
    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call

    def forward(self, *x: torch.Tensor) -> torch.Tensor:
        return self.call(*x)


def numbers(count: int, seed: int) -> np.ndarray:
    """f24 values [rows, 16]: of all middle sizes, whole ones and halves among them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 16)) * np.exp2(rng.integers(-6, 5, (count, 16)))
    return round_f24(np.where(rng.random(x.shape) < 0.3, np.rint(2 * x) / 2, x))


SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.5], np.float32)


def imported(call: Call, arity: int) -> LogicalGraph:
    """The import compares the reference of the graph with the module."""
    return import_module(_Called(call), tuple(torch.randn(3, 16) for _ in range(arity)))


def computed(graph: LogicalGraph, *inputs: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        outputs, _ = exact(graph)({i.name: x for i, x in zip(graph.inputs, inputs, strict=True)})
    (found,) = outputs.values()
    return found


def expected(call: Call, *inputs: np.ndarray) -> np.ndarray:
    return call(*(torch.from_numpy(x.astype(np.float64)) for x in inputs)).double().numpy()


CASES = [(name, call, 1) for name, call in UNARY.items()] + [(name, call, 2) for name, call in BINARY.items()]


@pytest.mark.parametrize(("name", "call", "arity"), CASES, ids=[name for name, *_ in CASES])
def test_calls_are_one_expression(name: str, call: Call, arity: int) -> None:
    graph = imported(call, arity)
    kinds = [type(operation.op) for operation in graph.operations if not isinstance(operation.op, Constant)]
    assert kinds == [Expression]
    a, b = numbers(64, 1), numbers(64, 2)
    b[:8] = a[:8]
    inputs = (a, b)[:arity]
    near = 2.0**-11 if name in CONDITIONED else 2.0**-13
    found, wanted = computed(graph, *inputs), expected(call, *inputs)
    with np.errstate(invalid="ignore"):
        difference = np.where(found == wanted, 0.0, np.abs(found - wanted))
    jumps = difference > near * np.abs(wanted) + 2.0**-13
    assert jumps.mean() < 0.01, (inputs[0][jumps], found[jumps], wanted[jumps])
    assert (np.isnan(found) == np.isnan(wanted)).all()
    special = SPECIAL if "power" not in name else np.where(-np.inf == SPECIAL, 4, SPECIAL)  # roots of it
    special = np.stack([np.repeat(special, 8).reshape(4, 16), np.tile(special, 8).reshape(4, 16)])[:arity]
    if name != "nan_to_num":  # whose greatest number is that of the format
        found, wanted = computed(graph, *special), expected(call, *special)
        np.testing.assert_allclose(found, wanted, rtol=2.0**-11, atol=2.0**-13)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: torch.where(x > 0, x, torch.nan), "one of its numbers is nan, which no expression holds"),
        (lambda x: torch.lgamma(x), "aten.lgamma.default"),
    ],
)
def test_refused_by_name(call: Call, message: str) -> None:
    with pytest.raises(UnsupportedOperationError) as raised:
        imported(call, 1)
    assert message in str(raised.value)


def test_values_that_others_read_stay_apart() -> None:
    def forked(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.floor(x)
        return y * 2, y.sin()

    graph = import_module(_Called(forked), torch.randn(3, 16))  # type: ignore[arg-type]
    assert [str(operation.op) for operation in graph.operations if isinstance(operation.op, Expression)] == [
        "expression[floor(a)]"
    ]


def test_diamonds_are_joined() -> None:
    graph = imported(lambda x: torch.where((y := x.floor()) > 0, y, y.sin()), 1)
    (operation,) = graph.operations
    assert str(operation.op) == "expression[t0 = floor(a); where(gt(t0, 0), t0, sin(t0))]"


class _Network(nn.Module):
    """Matmuls around expressions of their results, a parameter and an input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 16)
        self.bound = nn.Parameter(torch.rand(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        h = torch.where(h > self.bound, torch.log1p(h.abs()), h / (1 + h.abs()).sqrt())
        y = self.last(h)
        y = torch.where(y > x, y.floor() * 0.5, torch.sin(y) * x)
        return y.masked_fill(y > 3, -torch.inf)


@pytest.mark.slow
def test_a_whole_network(tmp_path: Path) -> None:
    """The accelerator that is written and loaded is the golden model, bit for bit."""
    torch.manual_seed(0)
    x = torch.randn(5, 16)
    accelerator = streamgen.compile(_Network(), (x,), CompileConfig(weights="w8"))
    accelerator.write(tmp_path / "folder")
    again = streamgen.load(tmp_path / "folder")
    given = x.numpy() * np.exp2(np.arange(5)[:, None] * 3).astype(np.float32)
    found = again.run(given)
    assert found.tobytes() == accelerator.golden(given).tobytes() == again.golden(given).tobytes()
