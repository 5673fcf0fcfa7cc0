"""Ids as inputs of modules that are no language models."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from streamgen.base.errors import UnsupportedOperationError
from streamgen.model.frontend import own_decoder, self_check
from streamgen.model.frontend.any_module import example_of, import_any
from streamgen.model.frontend.eager import called
from streamgen.model.graph.interpret import reference
from streamgen.model.nests import Interface
from tests.shared.networks_of_ids import NETWORKS, Categories, Category, Encoder, OneTable, ids
from tests.shared.sequences import results_of


def arrays(given: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda t: t.numpy(), given)


@pytest.mark.parametrize("name", NETWORKS)
def test_reference_is_eager(name: str) -> None:
    make, arguments = NETWORKS[name]
    module = make().eval()
    graph, interface = import_any(module, arguments(5))
    assert interface is not None and Interface.from_json(interface.to_json()) == interface
    for tokens in (1, 2, 7):
        given = arguments(tokens)
        taken = interface.taken(arrays(given))
        sequences = max((a.shape[0] for a in taken.values() if "encoder" in name), default=1)
        rows = {
            value.name: taken[value.name].reshape(sequences, -1, *[value.features] * (value.kind == "real"))
            for value in graph.inputs
        }
        passes = [reference(graph)({n: r[i] for n, r in rows.items()})[0] for i in range(sequences)]
        results = {n: np.concatenate([p[n] for p in passes]) for n in graph.outputs}
        with torch.no_grad():
            wanted = module(*given)
        rebuilt = interface.rebuilt(results, arrays(given))
        for ours, theirs in zip(pytree.tree_leaves(rebuilt), pytree.tree_leaves(wanted), strict=True):
            assert ours.shape == tuple(theirs.shape)
            np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-5)


def test_columns_are_inputs() -> None:
    graph, interface = import_any(Categories().eval(), (ids(4, 5, 3), torch.randn(5, 5)))
    assert [value.name for value in graph.inputs] == ["kinds_0", "kinds_1", "kinds_2", "numbers"]
    assert interface is not None
    assert interface.ids == {"kinds": {"kinds_0": 4, "kinds_1": 5, "kinds_2": 9}}
    interface.require_names(["kinds_0", "kinds_1", "kinds_2", "numbers"], graph.outputs)
    renamed = interface.renamed(
        {**{f"kinds_{i}": f"k{i}" for i in range(3)}, "numbers": "n", graph.outputs[0]: "y"}
    )
    assert renamed.ids == {"kinds": {"k0": 4, "k1": 5, "k2": 9}}
    large = {f"kinds_{i}": np.array([2**31, 3, 8]) for i in range(3)}
    kinds, numbers = interface.given({**large, "numbers": np.zeros((3, 5))})
    assert kinds.shape == (3, 3) and numbers.shape == (3, 5)
    assert (kinds < [4, 5, 9]).all()


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (np.array([[0, 0, 0], [3, 5, 0]]), ValueError, "'kinds' holds 5 in column 1; ids are 0 to 4 there"),
        (np.array([[-1, 0, 0]]), ValueError, "'kinds' holds -1 in column 0; ids are 0 to 3 there"),
        (np.zeros((2, 3)), TypeError, "'kinds' takes ids, which are integers; numpy's float64 is given"),
        (np.zeros((2, 3), bool), TypeError, "'kinds' takes ids, which are integers; numpy's bool is given"),
        (np.zeros((2, 4), int), ValueError, "its last dimensions must be (3,)"),
    ],
)
def test_wrong_ids(given: np.ndarray, error: type[Exception], message: str) -> None:
    _, interface = import_any(Categories().eval(), (ids(4, 5, 3), torch.randn(5, 5)))
    assert interface is not None
    with pytest.raises(error, match=re.escape(message)):
        interface.taken((given, np.zeros((len(given), 5), np.float32)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nothing": {"kinds": 4}}, "ids: expected names of inputs, each with columns"),
        ({"kinds": {}}, "ids: expected names of inputs, each with columns"),
        ({"kinds": {"kinds_0": -1, "kinds_1": 5, "kinds_2": 9}}, "ids: expected numbers of rows"),
        ({"kinds": {"kinds_0": 0, "kinds_1": 0, "kinds_2": 0}}, "ids: expected numbers of rows"),
        ({"kinds": {"kinds_0": 4}}, "trailing: expected the columns of ids"),
    ],
)
def test_wrong_files(change: Any, message: str) -> None:
    _, interface = import_any(Categories().eval(), (ids(4, 5, 3), torch.randn(5, 5)))
    assert interface is not None
    text = interface.to_json().replace('{"kinds": {"kinds_0": 4, "kinds_1": 5, "kinds_2": 9}}', str(change))
    with pytest.raises(ValueError, match=message):
        Interface.from_json(text.replace("'", '"'))


class Looked(nn.Module):
    """A table of any shape, looked up by a function."""

    def __init__(self, look: Any, *extents: int) -> None:
        super().__init__()
        self.look, self.table = look, nn.Parameter(torch.randn(300, *extents))

    def forward(self, kind: torch.Tensor) -> torch.Tensor:
        return self.look(self.table, kind)


@pytest.mark.parametrize(
    ("look", "extents"),
    [
        (lambda w, c: w[c], (3,)),
        (lambda w, c: w[c], ()),
        (lambda w, c: w[c], (2, 4)),
        (lambda w, c: w.index_select(0, c), (3,)),
        (lambda w, c: w[c.int().long()], (3,)),
    ],
)
def test_tables_of_any_shape(look: Any, extents: tuple[int, ...]) -> None:
    module, kinds = Looked(look, *extents).eval(), ids(300, 5)
    graph, interface = import_any(module, kinds)
    assert interface is not None
    computed = reference(graph)({"kind": kinds.numpy()})[0]
    rows = interface.rebuilt(computed, (kinds.numpy(),))
    assert rows.shape == (5, *extents) and np.array_equal(rows, module(kinds).detach().numpy())


class Offsets(OneTable):
    def forward(self, kinds: torch.Tensor) -> torch.Tensor:
        return super().forward(kinds + torch.tensor([0, 3, 6]))


class Returned(Category):
    def forward(self, kind: torch.Tensor) -> Any:
        return super().forward(kind), kind


class Tags(Encoder):
    """A score for each word."""

    def __init__(self) -> None:
        super().__init__(20)

    def forward(self, words: torch.Tensor) -> Any:  # type: ignore[override]
        return super().forward({"words": words})["tags"]


def test_an_encoder_that_makes_a_score_for_each_word() -> None:
    """For one text it may be meant as a language model, which must be causal."""
    with pytest.raises(UnsupportedOperationError, match=re.escape("an encoder, give ids of two texts")):
        import_any(Tags().eval(), ids(20, 1, 6))
    _, interface = import_any(Tags().eval(), ids(20, 2, 6))
    assert interface is not None and interface.ids == {"words": {"words": 20}}


@pytest.mark.parametrize(
    ("module", "given", "error", "message"),
    [
        (Offsets(), ids(3, 5, 3), UnsupportedOperationError, "if they are looked up in a table"),
        (
            Returned(),
            ids(7, 5),
            UnsupportedOperationError,
            "returns torch.int64; results are floats, truth values",
        ),
        (
            Looked(lambda w, c: w[c.to(torch.uint8).long()], 3),
            ids(300, 5),
            UnsupportedOperationError,
            "it casts ids to torch.uint8, which does not hold all of them",
        ),
        (
            Looked(lambda w, c: w[-c], 3),
            ids(300, 5),
            UnsupportedOperationError,
            "if they are looked up in a t",
        ),
        (
            Category(),
            ids(9, 2, 5),
            ValueError,
            "of shape [2, 5]: index out of range in self; an id may",
        ),
        (Category(), ids(7, 0, 5), ValueError, "example input 0 has shape [0, 5]; it must hold tokens"),
        (Category(), None, TypeError, "This module is none: the module makes 3 logits and 7 ids"),
        (OneTable(), None, TypeError, "This module is none: it does not run on 5 ids: "),
        (
            nn.Linear(8, 4),
            torch.ones(2, 8).bool(),
            ValueError,
            "does not run on inputs of shape [2, 8]",
        ),
        (nn.Linear(8, 4), torch.ones(2, 8).cfloat(), TypeError, "example input 0 is torch.complex64"),
    ],
)
def test_refused(module: nn.Module, given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        import_any(module.eval(), given)


def test_a_token_that_may_be_a_position_or_a_type() -> None:
    """A single 0 behind a single id says nothing; the module is read as it is."""

    class Typed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.types, self.out = nn.Embedding(9, 8), nn.Embedding(2, 8), nn.Linear(8, 3)

        def forward(self, words: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
            return self.out(self.words(words) + self.types(types))

    _, interface = import_any(Typed().eval(), (ids(9, 1, 1), torch.zeros(1, 1, dtype=torch.int64)))
    assert interface is not None and interface.ids.keys() == {"words", "types"}


def test_too_many_columns() -> None:
    wide = nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(2 * 65, 3)).eval()
    with pytest.raises(UnsupportedOperationError, match="at most 64 are allowed"):
        import_any(wide, ids(5, 2, 65))


@pytest.mark.parametrize("text", [False, True])
def test_the_check_tries_the_largest_ids(text: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A type of integers that is too narrow would show only there."""
    seen: list[int] = []
    place = own_decoder if text else self_check

    def watched(module: nn.Module, floats: Any, arguments: Any, keywords: Any) -> Any:
        seen.append(int(arguments[0].max()))
        return called(module, floats, arguments, keywords)

    monkeypatch.setattr(place, "called", watched)
    rows = 300
    head = nn.Linear(8, rows if text else 3)
    _, interface = import_any(nn.Sequential(nn.Embedding(rows, 8), head).eval(), ids(rows, 1, 4))
    assert (interface is None) == text
    assert seen and set(seen) == {rows - 1}


def test_examples_of_the_command_line() -> None:
    assert example_of((2, 3), ids=True).tolist() == [[0, 0, 0], [0, 0, 0]]


FORMULAS: dict[str, Any] = {
    "argmax": lambda y: y.argmax(-1),
    "topk": lambda y: y.topk(2),
    "sort": lambda y: y.sort(-1).values,
    "cummax": lambda y: y.cummax(-1).values,
    "median": lambda y: y.median(-1).values,
    "one_hot": lambda y: functional.one_hot(y.argmax(-1), 5).float(),
    "logcumsumexp": lambda y: y.logcumsumexp(-1),
    "quantile": lambda y: y.quantile(0.3, -1),
    "scatter": lambda y: torch.zeros_like(y).scatter(-1, y.topk(2).indices, 1.0),
    "cat": lambda y: torch.cat([y, y], -1),
    "flip": lambda y: y.flip(1),
    "transpose": lambda y: y.transpose(1, 2),
    "all": lambda y: y.var(),
}


class Formula(nn.Module):
    """A function of the rows of ids, which see those before them or not."""

    def __init__(self, function: Any, *, causal: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rows, self.linear, self.function, self.causal = (
            nn.Embedding(20, 8),
            nn.Linear(8, 5),
            function,
            causal,
        )

    def forward(self, ids: torch.Tensor) -> Any:
        x = self.rows(ids)
        if self.causal:
            hidden = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
            x = (x @ x.transpose(-1, -2)).masked_fill(hidden, -1e9).softmax(-1) @ x
        return self.function(self.linear(x))


WHOLE = ("flip", "transpose", "all")  # moves of whole inputs: of one shape, and not beside an attention


@pytest.mark.parametrize(
    ("name", "causal"),
    [(name, causal) for name in FORMULAS for causal in (False, True) if not (causal and name in WHOLE)],
)
def test_formulas_of_rows_of_ids(name: str, causal: bool) -> None:
    """Calls that are taken apart, in a module that may be a language model or not; moves of whole inputs."""
    module = Formula(FORMULAS[name], causal=causal).eval()
    shape = (2, 3) if name in WHOLE else (1, 6)
    graph, interface = import_any(module, ids(20, *shape))
    assert interface is not None
    given = (ids(20, *shape).flip(1),)
    with torch.no_grad():
        wanted = pytree.tree_leaves(module(*given))
    found = pytree.tree_leaves(results_of(reference(graph), graph, interface, arrays(given)))
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == tuple(theirs.shape)
        np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-5)


class OneRow(nn.Module):
    """A row by number, which fewer ids do not have."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rows = nn.Embedding(20, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return functional.embedding(torch.tensor([5]), self.rows(ids))


def test_a_row_that_fewer_ids_do_not_have() -> None:
    module = OneRow().eval()
    graph, interface = import_any(module, ids(20, 6))
    assert interface is not None
    given = (ids(20, 6).flip(0),)
    found = results_of(reference(graph), graph, interface, arrays(given))
    np.testing.assert_allclose(found, module(*given).detach().numpy(), atol=1e-5)


class Bags(nn.Module):
    """Sums, means and maxima of rows; the second bag leaves an id out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.sums = nn.EmbeddingBag(20, 8, mode="sum")
        self.means = nn.EmbeddingBag(9, 8, mode="mean", padding_idx=2)
        self.most = nn.EmbeddingBag(9, 8, mode="max")

    def forward(self, words: torch.Tensor, kinds: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        rows = self.sums(words, per_sample_weights=weights), self.means(kinds), self.most(kinds[:, :2])
        return torch.cat(rows, -1)


class Pieces(nn.Module):
    """Bags of one list of ids, from given places on."""

    def __init__(self, *starts: int, last: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bag = nn.EmbeddingBag(20, 8, mode="sum", include_last_offset=last)
        self.register_buffer("starts", torch.tensor(starts))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.bag(words, self.starts)
        return rows


@pytest.mark.parametrize(
    ("module", "given"),
    [
        (Bags(), lambda n: (ids(20, n, 3), ids(9, n, 4), torch.rand(n, 3))),
        (Pieces(0, 4, 8), lambda n: (ids(20, 12),)),
        (Pieces(0, 3, 6, 9, 12, last=True), lambda n: (ids(20, 12),)),
    ],
)
def test_bags(module: nn.Module, given: Any) -> None:
    graph, interface = import_any(module.eval(), given(4))
    assert interface is not None
    for bags in (4, 7):
        arguments = given(bags)
        with torch.no_grad():
            wanted = module(*arguments).numpy()
        found = results_of(reference(graph), graph, interface, arrays(arguments))
        np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("starts", [(0, 2, 8), (0, 4, 4), (0, 4, 8, 12)])
def test_bags_of_different_sizes_are_refused(starts: tuple[int, ...]) -> None:
    with pytest.raises(
        UnsupportedOperationError, match="its bags must hold as many ids each, such as the rows"
    ):
        import_any(Pieces(*starts).eval(), ids(20, 12))


class Ignores(nn.Module):
    """Looks up one of three columns, and takes ids that it does not use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rows = nn.Embedding(20, 8)

    def forward(self, kinds: torch.Tensor, types: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.rows(kinds[:, 1]) + x


def test_ids_that_no_result_depends_on() -> None:
    module = Ignores().eval()
    example = ids(20, 4, 3), ids(20, 4), torch.randn(4, 8)
    graph, interface = import_any(module, example)
    assert interface is not None and Interface.from_json(interface.to_json()) == interface
    assert [value.name for value in graph.inputs] == ["kinds_1", "x"]
    assert interface.ids == {"kinds": {"kinds_0": 0, "kinds_1": 20, "kinds_2": 0}}
    assert interface.unused == {"types": 1}
    interface.require_names(["kinds_1", "x"], graph.outputs)
    interface.renamed({"kinds_1": "k", "x": "y", graph.outputs[0]: "z"}).require_names(["k", "y"], ["z"])
    given = torch.tensor([[99, 3, -1]] * 5), torch.full((5,), 1000), torch.randn(5, 8)
    found = results_of(reference(graph), graph, interface, arrays(given))
    np.testing.assert_allclose(found, (module.rows(given[0][:, 1]) + given[2]).detach().numpy(), atol=1e-6)
    kinds, types, x = interface.given({"kinds_1": np.array([3, 25]), "x": np.zeros((2, 8), np.float32)})
    assert kinds.tolist() == [[0, 3, 0], [0, 5, 0]] and len(types) == len(x) == 2
