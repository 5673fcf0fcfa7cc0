"""Passes know operations by their traits: classes that they have never heard of get the same hardware."""

from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
import pytest

from streamgen.compiler.budget import is_network
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.plan.grouping import parts_of
from streamgen.compiler.schedule import Derivation
from streamgen.itensor import broadcast
from streamgen.kernels.elementwise import BINARY_OPERATIONS, BinaryParams
from streamgen.kernels.norm.norm import NormParams
from streamgen.model.golden_text import vocabulary_of
from streamgen.model.graph.logical import Exact, LogicalGraph, Operator, Shape
from streamgen.model.graph.run import Run
from streamgen.model.operations import Concat, LastRow, Norm, Softmax, TopK
from streamgen.model.operations.site import Site, Stream, of_itensor
from streamgen.numbers.formats import round_f24
from streamgen.numbers.quantisation import Numbers
from tests.unit.compiler.schedule.small import (
    CHANNEL,
    MODULES,
    check_graph,
    linear,
    module,
    small_model,
    small_plan,
)


@dataclass(frozen=True)
class Foreign(Operator):
    """An operation that says what another one says, and is not of its class."""

    inner: Operator

    def __getattribute__(self, name: str) -> Any:
        if name == "inner" or name.startswith("__"):
            return object.__getattribute__(self, name)
        return getattr(self.inner, name)

    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        return self.inner.shapes(*inputs)

    def reference(self, run: Run, *inputs: np.ndarray) -> Any:
        return self.inner.reference(run, *inputs)

    def exact(self) -> Exact:
        return self.inner.exact()

    def __str__(self) -> str:
        return str(self.inner)


def foreign(graph: LogicalGraph) -> LogicalGraph:
    return graph.map(lambda path, operation: Foreign(operation.op))


@pytest.mark.parametrize("changes", [{}, {"windows": (3, None)}, {"layers": 3, "rotated": 0}], ids=str)
@pytest.mark.parametrize("columns", [2, 4])
def test_a_decoder_of_foreign_operations(columns: int, changes: dict[str, Any]) -> None:
    model, plan = small_model(**changes), small_plan(columns=columns, n_lanes=4, lanes=4)
    own, other = (Derivation(one, plan, CHANNEL) for one in (model, foreign(model)))
    assert str(other.schedule) == str(own.schedule)
    assert str(other.binding) == str(own.binding)
    assert str(other.largest) == str(own.largest)
    assert (other.last, other.requested, other.spilled) == (own.last, own.requested, own.spilled)
    assert own.last and vocabulary_of(foreign(model)) == vocabulary_of(model)


@pytest.mark.parametrize(
    ("name", "policy"), [(name, policy) for name in MODULES for policy in ("spatial", "shared", "mixed")]
)
def test_plans_of_foreign_operations(name: str, policy: Any) -> None:
    model = MODULES[name].quantised(Numbers())
    config = CompileConfig(name="dut", max_tokens=4, policy=policy, multipliers=512, channels=4)
    assert is_network(foreign(model)) == is_network(model)
    own, other = (parts_of(one, config) for one in (model, foreign(model)))
    assert [part.plan for part in other] == [part.plan for part in own]
    graphs = zip(own, other, strict=True)
    assert all(str(a.derivation.largest) == str(b.derivation.largest) for a, b in graphs)


def test_attention_is_as_wide_for_foreign_operations() -> None:
    model = small_model()
    config = CompileConfig(name="dut", max_tokens=4, context=16, multipliers=1024, channels=8)
    (own,), (other,) = (parts_of(one, config) for one in (model, foreign(model)))
    assert own.plan == other.plan and own.plan.attention_lanes > 1


@dataclass(frozen=True, eq=False)
class GroupNorm(Operator):
    """Normalises groups of features of a row, each by itself, with a factor for each feature: two kernels."""

    groups: int
    weight: np.ndarray
    row_wise = True

    @property
    def _norm(self) -> Norm:
        ones = np.ones(len(self.weight) // self.groups, np.float32)
        return Norm("layer", ones, 1e-5, heads=self.groups)

    def shapes(self, *inputs: Shape) -> tuple[Shape, ...]:
        return inputs

    def reference(self, run: Run, *inputs: np.ndarray) -> np.ndarray:
        found: np.ndarray = self._norm.reference(run, *inputs) * self.weight
        return found

    def exact(self) -> Exact:
        norm, weight, multiply = self._norm.exact(), round_f24(self.weight), BINARY_OPERATIONS["multiply"]
        return lambda run, x: multiply.golden(norm(run, x), weight[None]).astype(np.float32)

    def bind(self, site: Site, *inputs: Stream) -> tuple[Stream, ...]:
        (x,) = inputs
        assert x.extent == len(self.weight)
        rows, k = site.count(x.shape) * self.groups, x.extent // self.groups
        lanes = gcd(site.lanes, k)
        order = site.rows(Shape(k, "one"), lanes)
        params = NormParams(kind="layer", bias=False, plus_one=False, lanes=lanes, max_k=k, max_rows=rows)
        bounds = {"t": rows, "k": k, "valid_k": k, "epsilon": 1e-5, "heads": self.groups}
        ones = site.fixed(order, np.ones((len(site.ops), 1, k), np.float32))
        y = site.kernel(f"{site.name}_norm", params, bounds, i=x, i_weight=ones)["o"]
        weights = np.stack([round_f24(op.weight)[None] for op in site.ops])  # type: ignore[attr-defined]
        b = broadcast(y.itensor)
        times = BinaryParams(operation="multiply", **of_itensor(y.itensor))
        factors = site.fixed(b, weights)
        found = site.kernel(site.name, times, {"itensor": y.itensor, "b": b}, i_a=y, i_b=factors)
        return (found["o"],)

    def __str__(self) -> str:
        return f"group_norm[{self.groups} x {len(self.weight) // self.groups}]"


def _group_norm(groups: int, features: int) -> GroupNorm:
    return GroupNorm(groups, np.random.default_rng(2).normal(size=features).astype(np.float32))


@pytest.mark.parametrize("tokens", [1, 3])
def test_an_operation_of_a_package_outside(tokens: int) -> None:
    """It says nothing of padding, so it gets none, between matmuls that pad."""
    graph = module(
        ("a", linear(40, 48), "x"), ("g", _group_norm(5, 40), "a"), ("y", linear(20, 40), "g"), outputs=("y",)
    )
    assert not is_network(graph)
    check_graph(graph, small_plan(context=0), tokens)


@pytest.mark.parametrize("tokens", [1, 3])
def test_last_rows_go_through_what_works_by_rows(tokens: int) -> None:
    """Behind the input every value has one row."""
    graph = module(
        ("a", linear(40, 48), "x"),
        ("s", Softmax(), "a"),
        ("c", Concat((40, 40)), "s", "a"),
        ("g", _group_norm(5, 80), "c"),
        ("t", TopK(6), "g"),
        ("y", LastRow(), "t_values"),
        ("at", LastRow(), "t_indices"),
        outputs=("y", "at"),
    )
    plan = small_plan(context=0)
    found = Derivation(graph.quantised(Numbers()), plan, CHANNEL).schedule
    made = {v.name: v.shape.rows for p in found.phases for step in p.steps for v in step.outputs}
    assert {*made.values()} == {"one"} and {"last_x", "a", "s", "c", "g", "t_values"} <= made.keys()
    check_graph(graph, plan, tokens)
