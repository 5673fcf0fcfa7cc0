"""Calls in parts: formulas of other calls, torch's own decompositions, sums at constant places."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everybody writes it
from torch.utils import _pytree as pytree

import streamgen
from streamgen.base.errors import ImportMismatchError, UnsupportedOperationError
from streamgen.model.frontend import import_any
from streamgen.model.frontend.chosen import MOST_CHOSEN
from streamgen.model.frontend.formulas import FORMULAS
from streamgen.model.frontend.orders import MOST_SORTED
from streamgen.model.graph.interpret import exact, reference
from streamgen.model.nests import Interface
from streamgen.numbers.quantisation import Numbers
from tests.shared.sequences import results_of
from tests.shared.small_modules import Plain

PLACES = torch.tensor([[0, 2, 2], [1, 1, 1]])
ROWS = torch.tensor([2, 0, 2])
EDGES = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]])


TABLE = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
LARGE_TABLE = torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
LIMITS = torch.tensor([-1.0, 0.0, 1.0])


def written(x: Tensor) -> Tensor:
    """A mask of the two greatest, written into zeros."""
    mask = torch.zeros_like(x, dtype=torch.bool)
    mask.scatter_(1, x.topk(2)[1], True)
    return x.masked_fill(~mask, 0.0)


def _put(x: Tensor, places: Any, value: Any) -> Tensor:
    x[places] = value
    return x


def seen_zeros(x: Tensor) -> Tensor:
    """Zeros that are changed while a view of them is read."""
    zeros = x.new_zeros(4)
    view = zeros[:2]
    zeros.copy_(x[0])
    return view + x[:, :2]


def neighbours(x: Tensor) -> Tensor:
    """A step of a graph network: the sum over edges."""
    return torch.zeros(3, 4).index_add(0, EDGES[1], x[EDGES[0]]) + x


CALLS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    # Places of elements.
    "argmax": (lambda x: x.argmax(), ((3, 4),)),
    "argmax_of_features": (lambda x: x.argmax(-1), ((3, 4),)),
    "argmax_of_tokens": (lambda x: x.argmax(0, keepdim=True), ((3, 4),)),
    "argmin": (lambda x: x.argmin(1), ((2, 3, 4),)),
    "argmax_of_equal": (lambda x: (x > -9).float().argmax(-1), ((3, 4),)),
    "argmax_as_float": (lambda x: x.argmax(-1).float() * 2, ((3, 4),)),
    "max": (lambda x: x.max(-1), ((3, 4),)),
    "min_place": (lambda x: x.min(0).indices, ((3, 4),)),
    "sort": (lambda x: x.sort(0, descending=True), ((5, 2),)),
    "sort_of_equal": (lambda x: x.round().sort(dim=-1, stable=True), ((2, 7),)),
    "argsort": (lambda x: x.argsort(-1), ((2, 6),)),
    "topk": (lambda x: x.topk(3), ((2, 7),)),
    "least_3": (lambda x: torch.topk(x, 3, largest=False), ((2, 7),)),
    "kthvalue": (lambda x: x.kthvalue(2, -1, keepdim=True), ((2, 5),)),
    "median": (lambda x: (x.median(), x.median(0)), ((4, 3),)),
    "quantile": (lambda x: x.quantile(0.3, -1), ((4, 6),)),
    "quantile_of_all": (lambda x: x.quantile(0.25, interpolation="nearest"), ((2, 3),)),
    "cummax": (lambda x: x.cummax(0), ((5, 3),)),
    "cummin": (lambda x: x.cummin(-1), ((2, 6),)),
    "places_of_nan": (lambda x: (x.log().argmax(-1), x.log().argmin(-1), x.log().max(-1)), ((3, 4),)),
    "sort_of_nan": (lambda x: x.log().sort(dim=-1, stable=True), ((3, 4),)),
    "descending_sort_of_nan": (lambda x: x.log().sort(dim=-1, stable=True, descending=True), ((3, 4),)),
    "median_of_nan": (lambda x: (x.log().median(-1), x.log().median()), ((3, 5),)),
    "quantiles": (lambda x: x.quantile(torch.tensor([0.2, 0.5, 0.9]), -1), ((4, 7),)),
    "quantiles_of_tokens": (lambda x: x.quantile(torch.tensor([0.2, 0.5]), 0, keepdim=True), ((4, 5),)),
    **{
        f"quantiles_{kind}": (
            lambda x, kind=kind: x.quantile(torch.tensor([0.2, 0.7]), -1, interpolation=kind),
            ((3, 6),),
        )
        for kind in ("lower", "higher", "midpoint", "nearest")
    },
    "quantile_beside_nan": (lambda x: x.log().quantile(torch.tensor(0.5), -1), ((3, 4),)),
    "nanquantile": (lambda x: x.log().nanquantile(0.3, -1, keepdim=True), ((4, 6),)),
    "nanmedian": (lambda x: (x.log().nanmedian(-1), x.log().nanmedian()), ((3, 5),)),
    "nanmedian_of_tokens": (lambda x: x.log().nanmedian(0, keepdim=True), ((5, 3),)),
    "mode": (lambda x: (x.round().mode(-1), x.round().mode(0, keepdim=True)), ((4, 6),)),
    # Truth values and counts.
    "isin": (lambda x: torch.isin(x, x[0, :2], invert=True), ((3, 4),)),
    "greater": (lambda x: x > 0.5, ((3, 4),)),
    "any": (lambda x: ((x > 1).any(), (x > 1).any(-1)), ((3, 4),)),
    "all": (lambda x: (x > -1).all(0), ((3, 4),)),
    "truths_as_integers": (lambda x: (x > 0).long(), ((3, 4),)),
    "count": (lambda x: (x > 0).sum(-1), ((3, 4),)),
    "count_nonzero": (lambda x: x.relu().count_nonzero(), ((3, 4),)),
    "isclose": (lambda a, b: torch.isclose(a, b, rtol=0.5), ((3, 4), (3, 4))),
    # Formulas.
    "inverse_of_erf": (lambda x: torch.erfinv(x / 2), ((3, 4),)),
    "angle": (torch.angle, ((3, 4),)),
    "histogram": (lambda x: (x.histc(5, -1, 1), x.histc(4), (0 * x).histc(3)), ((3, 4),)),
    "cosine_embedding": (
        lambda a, b: F.cosine_embedding_loss(a, b, torch.tensor([1, -1, 1]), margin=0.1),
        ((3, 4), (3, 4)),
    ),
    "hinge_embedding": (lambda x: F.hinge_embedding_loss(x, torch.tensor([1, -1, 1])), ((3,),)),
    "bessel": (lambda x: torch.i0(4 * x), ((3, 4),)),
    "logcumsumexp": (lambda x: x.logcumsumexp(-1), ((3, 6),)),
    "cdist": (lambda a, b: torch.cdist(a, b), ((3, 4), (5, 4))),
    "pdist": (F.pdist, ((4, 3),)),
    "power": (lambda a, b: a.abs() ** b, ((3, 4), (3, 4))),
    "negative_to_whole_powers": (lambda a, b: a ** (2 * b).round(), ((3, 4), (3, 4))),
    "power_of_a_third": (lambda x: (x * x) ** (1 / 3), ((3, 4),)),
    "power_of_0.3": (lambda x: x.abs() ** 0.3, ((3, 4),)),
    "norm_of_a_matrix": (lambda x: torch.linalg.norm(x, 1), ((3, 4),)),
    "product_with_integers": (lambda x: x * (x > 0).long(), ((3, 4),)),
    "power_17": (lambda x: x**17, ((3, 4),)),
    "two_decimals": (lambda x: x.round(decimals=2), ((3, 4),)),
    "bilinear": (lambda a, b, w: F.bilinear(a, b, w), ((3, 4), (3, 5), (2, 4, 5))),
    "addbmm": (lambda x, a, b: torch.addbmm(x, a, b, beta=0.5), ((3, 2), (4, 3, 5), (4, 5, 2))),
    # Torch's own decompositions.
    "softmax_of_tokens": (lambda x: x.softmax(0), ((3, 4),)),
    "softplus_with_threshold": (lambda x: F.softplus(x, beta=3.0, threshold=0.2), ((3, 4),)),
    "huber": (lambda a, b: F.huber_loss(a, b, delta=0.5), ((3, 4), (3, 4))),
    "cosine": (F.cosine_similarity, ((3, 4), (3, 4))),
    "cross_entropy": (lambda x: F.cross_entropy(x, torch.tensor([1, 0, 3])), ((3, 4),)),
    "addmm_with_factors": (lambda x, a, b: torch.addmm(x, a, b, alpha=2.0), ((3, 2), (3, 4), (4, 2))),
    "linear_of_values": (F.linear, ((3, 4), (2, 4), (2,))),
    "einsum": (lambda a, b: torch.einsum("ij,kj->ik", a, b), ((3, 4), (5, 4))),
    "instance_norm": (F.instance_norm, ((2, 3, 5),)),
    "norm_of_order_3": (lambda x: x.norm(3, -1), ((3, 4),)),
    "difference_of_rows": (lambda x: x.diff(dim=0), ((3, 4),)),
    "cross": (lambda a, b: torch.linalg.cross(a, b), ((2, 3), (2, 3))),
    # In place.
    "filled": (lambda x: x.clone().fill_(2.0) + x, ((3, 4),)),
    "zeroed": (lambda x: x.clone().zero_() + x, ((3, 4),)),
    "copied_into_zeros": (lambda x: x.new_zeros(4).copy_(x[0]) + x, ((3, 4),)),
    "copied": (lambda a, b: (a * 2).copy_(b) + a, ((3, 4), (4,))),
    # Constant places.
    "scatter_add": (lambda x: torch.scatter_add(x, 0, PLACES, x[:2] * 2), ((3, 3),)),
    "scatter_mean": (
        lambda x: x.scatter_reduce(0, PLACES, x[:2], "mean", include_self=False) + x,
        ((3, 3),),
    ),
    "scatter_greatest": (lambda x: x.scatter_reduce(0, PLACES, -x[:2], "amax"), ((3, 3),)),
    "scatter_product": (lambda x: x.scatter_reduce(1, PLACES, x[:2], "prod"), ((2, 3),)),
    "index_add": (lambda x, y: x.index_add(0, ROWS, y, alpha=0.5), ((3, 4), (3, 4))),
    "index_put": (lambda x, y: x.index_put((ROWS[:2],), y), ((3, 4), (2, 4))),
    "index_put_sums": (lambda x, y: x.index_put((ROWS,), y, accumulate=True), ((3, 4), (3, 4))),
    "neighbours": (neighbours, ((3, 4),)),
    # Places of run time.
    "gather": (lambda x: x.gather(1, x.argsort(1)), ((3, 5),)),
    "gather_of_tokens": (lambda x: x.gather(0, x.argsort(0)[:2]), ((3, 5),)),
    "gather_of_some_lines": (lambda x: x.gather(1, x[:2].argsort(1)[:, :3]), ((3, 5),)),
    "take": (lambda x: x.take(x.argmax()), ((3, 5),)),
    "take_along_dim": (lambda x: torch.take_along_dim(x, x.argmax(1, keepdim=True), 1), ((3, 5),)),
    "take_along_all": (lambda x: torch.take_along_dim(x, x.argmax()), ((3, 5),)),
    "take_along_others": (lambda x: torch.take_along_dim(x, x[:1].argsort(1), 1), ((3, 5),)),
    "index_select": (lambda x: x.index_select(1, x[0].argsort()), ((3, 5),)),
    "rows_by_places": (lambda x: x[x[:, 0].argsort()[:2]], ((3, 5),)),
    "elements_by_places": (lambda x: x[torch.arange(3), x.argmax(1)], ((3, 5),)),
    "columns_by_places": (lambda x: x[:, x[:, :2].argsort(0)[:2]], ((3, 5),)),
    "by_two_places": (lambda x: x[:, x[0, :, 0].argsort()[:2], x[0, 0].argsort()[:2]], ((2, 3, 4),)),
    "by_places_apart": (lambda x: x[x[:, 0, 0].argsort(), :, x[0, 0].argsort()[:2]], ((2, 3, 4),)),
    "one_hot": (lambda x: F.one_hot(x.argmax(1), 5), ((3, 5),)),
    "cast_to_truth_values": (lambda x: torch.where(~x.round().bool(), x, -x), ((3, 5),)),
    "truth_values_of_two_casts": (
        lambda x: (x.round().bool() & (x > -1).t().bool().t()) ^ (x > 1),
        ((3, 5),),
    ),
    "sum_of_one_hots": (lambda x: F.one_hot(x.topk(2)[1], 5).sum(1) * x, ((3, 5),)),
    "rows_of_a_table": (lambda x: F.embedding(x.argmax(1), TABLE), ((3, 5),)),
    "rows_of_a_codebook": (lambda x: TABLE[torch.cdist(x, TABLE).argmin(-1)], ((3, 4),)),
    "bucketize": (lambda x: torch.bucketize(x, LIMITS), ((3, 5),)),
    "rows_of_buckets": (lambda x: F.embedding(torch.bucketize(x, LIMITS), TABLE), ((3, 5),)),
    "searchsorted": (lambda x: torch.searchsorted(LIMITS, x, right=True), ((3, 5),)),
    "searchsorted_of_lines": (lambda x: torch.searchsorted(x.sort(1)[0], x), ((3, 5),)),
    "scatter": (lambda x: torch.full_like(x, -9.0).scatter(1, x.topk(2)[1], x.topk(2)[0]), ((3, 5),)),
    "scatter_into_infinite": (
        lambda x: torch.full_like(x, -torch.inf).scatter(1, x.topk(2)[1], x.topk(2)[0]).softmax(-1),
        ((3, 5),),
    ),
    "scatter_number": (lambda x: torch.zeros_like(x).scatter(-1, x.topk(2)[1], 1.0) * x, ((3, 5),)),
    "scatter_in_place": (written, ((3, 5),)),
    "scatter_into_value": (lambda x: (x * 2).scatter_(1, x.topk(2)[1], x), ((3, 5),)),
    "scatter_twice": (lambda x: x.scatter(1, (x > 0).long(), x * 2), ((3, 5),)),
    "scatter_add_by_values": (lambda x: x.scatter_add(0, (x > 0).long(), x), ((3, 5),)),
    "scatter_of_some_lines": (lambda x: x.scatter_add(1, (x[:2, :3] > 0).long(), x), ((3, 5),)),
    "scatter_number_added": (lambda x: x.scatter(1, (x > 0).long(), 0.5, reduce="add"), ((3, 5),)),
    **{
        f"scatter_{kind}_{include}": (
            lambda x, kind=kind, include=include: x.scatter_reduce(
                1, (x > 0).long(), x, kind, include_self=include
            ),
            ((3, 5),),
        )
        for kind in ("sum", "prod", "mean", "amax", "amin")
        for include in (True, False)
    },
    "index_add_by_values": (lambda x: x.index_add(1, x[0].argsort(), x, alpha=0.5), ((3, 5),)),
    "index_copy_by_values": (lambda x: x.index_copy(1, x[0].argsort()[:2], x[:, :2]), ((3, 5),)),
    "index_fill_by_values": (lambda x: x.index_fill(1, x[0].argsort()[:2], 3.0), ((3, 5),)),
    "masked_in_place": (lambda x: _put(x * 2, x < 0, 0.5), ((3, 5),)),
    "rows_in_place": (lambda x: _put(x * 2, x.argmax(0)[:3], 0.5), ((3, 5),)),
    "elements_in_place": (lambda x: _put(x * 2, (torch.arange(3), x.argmax(1)), 0.5), ((3, 5),)),
    "columns_in_place": (lambda x: _put(x * 2, (slice(None), x[0].argsort()[:3]), x[:, :3]), ((3, 5),)),
    "put_at_values": (lambda x: x.index_put((x.argmax(0),), x[:2, :1], accumulate=True), ((4, 2),)),
    "strided": (lambda x: x.as_strided((2, 2), (1, 3), 1), ((3, 3),)),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_values_of_torch(name: str) -> None:
    """Results have torch's shapes, types and values, in float64 and in the accelerator's numbers."""
    call, shapes = CALLS[name]
    generator = torch.Generator().manual_seed(3)
    # different multiples of 1/64 between -2 and 2, which f24 holds: comparisons come out as torch's
    inputs = []
    for shape in shapes:
        order = torch.randperm(count := torch.Size(shape).numel(), generator=generator)
        inputs.append(((order - 0.45 * count) * 4 / count).mul(64).round().div(64).reshape(shape))
    module = Plain(call).eval()
    graph, interface = import_any(module, inputs)
    assert interface is not None
    assert Interface.from_json(interface.to_json()) == interface
    wanted = pytree.tree_leaves(module(*inputs))
    given = [value.numpy() for value in inputs]
    for interpreter, bound in ((reference(graph), 1e-5), (exact(graph.quantised(Numbers())), 2e-3)):
        results = pytree.tree_leaves(results_of(interpreter, graph, interface, given))
        for found, tensor in zip(results, wanted, strict=True):
            assert found.shape == tuple(tensor.shape)
            assert (found.dtype.kind == "f") == tensor.is_floating_point()
            if not tensor.is_floating_point():
                assert found.dtype == tensor.numpy().dtype
                np.testing.assert_array_equal(found, tensor.numpy())
                continue
            np.testing.assert_allclose(found, tensor.double().numpy(), rtol=bound, atol=bound)


@pytest.mark.parametrize(
    ("call", "error", "reason"),
    [
        (lambda x: x.repeat(1, 20).sort(-1)[0], UnsupportedOperationError, f"at most {MOST_SORTED} can be"),
        (lambda x: x.long() + 1, UnsupportedOperationError, "integers that may be below 0"),
        (lambda x: (x > 0).sum(-1) * 70001, UnsupportedOperationError, "or places and numbers of elements"),
        (lambda x: (x > 0).byte(), UnsupportedOperationError, "torch.uint8"),
        (lambda x: torch.linalg.inv(x), UnsupportedOperationError, "linalg_inv"),
        (
            lambda x: x.repeat(1, 200).gather(1, x.argmax(1, True)),
            UnsupportedOperationError,
            f"among 800 elements at run time; at most {MOST_CHOSEN} can be",
        ),
        (lambda x: torch.searchsorted(x[0], x), UnsupportedOperationError, "that may not be in order"),
        (seen_zeros, UnsupportedOperationError, "into a constant in place"),
    ],
)
def test_refused(call: Callable[..., Any], error: type[Exception], reason: str) -> None:
    with pytest.raises(error) as caught:
        import_any(Plain(call).eval(), (torch.randn(4, 4),))
    assert reason in str(caught.value)


IDS = torch.tensor([[1, 0], [4, 2], [3, 3]])


@pytest.mark.parametrize(
    "call",
    [
        lambda x, ids: x.gather(1, ids),
        lambda x, ids: F.one_hot(ids, 5).sum(1) * x,
        lambda x, ids: (ids.unsqueeze(-1) == torch.arange(5)).float() * x.unsqueeze(1),
        lambda x, ids: x.scatter(1, ids, -x),
        lambda x, ids: x.scatter_add(1, ids, x),
        lambda x, ids: torch.take_along_dim(x, ids, 1),
    ],
)
def test_places_that_are_given(call: Callable[..., Any]) -> None:
    """Ids are places of elements, for any number of rows; ids above the last place are refused."""
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(3)).mul(64).round().div(64)
    graph, interface = import_any(Plain(call).eval(), (x, IDS))
    assert interface is not None and not interface.whole
    assert set(graph.vocabularies.values()) == {5}
    for rows in (3, 2):
        given = [x[:rows].numpy(), IDS[:rows].numpy()]
        found = results_of(exact(graph.quantised(Numbers())), graph, interface, given)
        wanted = call(x[:rows], IDS[:rows]).numpy()
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=2e-4)


def test_large_table_by_values() -> None:
    """Rows of a large table that places of run time choose are products with weights."""
    graph, interface = import_any(Plain(lambda x: LARGE_TABLE[x.argmax(-1)]).eval(), torch.randn(3, 64))
    assert interface is not None and not list(graph.matmuls())
    graph, _ = import_any(Plain(lambda x: F.embedding(x.argmax(-1), LARGE_TABLE)).eval(), torch.randn(3, 64))
    assert list(graph.matmuls())


def test_numbers_that_a_module_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The import check takes the numbers of the example if a module does not take random ones."""
    module = Plain(lambda x: x.argmax(-1) + F.binary_cross_entropy(x, x)).eval()
    chances = torch.tensor([[0.25, 0.5], [0.75, 0.125]])
    import_any(module, chances)
    monkeypatch.setitem(FORMULAS, torch.ops.aten.argmax.default, lambda x, dim: x.amin(dim))
    with pytest.raises(ImportMismatchError):
        import_any(module, chances)


def test_types_of_results() -> None:
    _, interface = import_any(Plain(lambda x: x > 0).eval(), (torch.randn(2, 4),))
    assert interface is not None
    assert list(interface.types.values()) == ["bool"]
    changed = interface.to_json().replace('"bool"', '"uint8"')
    with pytest.raises(ValueError, match=r"^interface\.types: expected names of results, each with 'bool', "):
        Interface.from_json(changed)


@pytest.mark.slow
def test_unused_arguments_and_constants_on_hardware(tmp_path: Any) -> None:
    module = Plain(lambda a, b: (a * 2, torch.full((2, 2), 0.5), b.new_zeros(3))).eval()
    given = [torch.ones(3, 4).numpy(), torch.ones(5).numpy()]
    accelerator = streamgen.compile(module, [torch.from_numpy(value) for value in given])
    accelerator.write(tmp_path / "design")
    for some in (accelerator, streamgen.load(tmp_path / "design")):
        doubled, halves, zeros = some.run(*given)
        assert (doubled == 2).all() and doubled.shape == (3, 4)
        assert (halves == 0.5).all() and halves.shape == (2, 2) and zeros.tolist() == [0, 0, 0]
        assert [value.shape for value in some.random_inputs(1, 0)] == [(3, 4), (5,)]


@pytest.mark.slow
def test_on_hardware(tmp_path: Any) -> None:
    """Integers and truth values leave the simulated hardware as torch gives them, from a folder, too."""
    module = Plain(lambda x: (x.topk(2), x.argmax(-1), x > 0.25)).eval()
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(5)).mul(16).round().div(16)
    accelerator = streamgen.compile(module, x)
    accelerator.write(tmp_path / "design")
    for some in (accelerator, streamgen.load(tmp_path / "design")):
        found = pytree.tree_leaves(some.run(x.numpy()))
        for array, tensor in zip(found, pytree.tree_leaves(module(x)), strict=True):
            np.testing.assert_array_equal(array, tensor.numpy())
            assert array.dtype == tensor.numpy().dtype
