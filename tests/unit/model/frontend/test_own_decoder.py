"""Language models of one's own, without a cache in their code."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import streamgen
from streamgen.base.errors import ImportMismatchError, UnsupportedOperationError
from streamgen.model.frontend import import_any
from streamgen.model.frontend.own_decoder import logits_of
from streamgen.model.golden_text import GoldenModel, is_language_model
from streamgen.model.graph.interpret import reference
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.operations import Attention, Cache, Norm
from streamgen.numbers.quantisation import Numbers
from tests.shared.own_models import STYLES, built, others, shaped, style

LENGTHS = (1, 2, 3, 9, 16)
WINDOW = 6  # of the style with windows


def _graph(name: str) -> LogicalGraph:
    ids = shaped(name, torch.zeros(6, dtype=torch.int64))
    graph, interface = import_any(built(name), (ids, *others(name, 6)))
    assert interface is None
    return graph


def _eager(name: str, model: nn.Module, ids: np.ndarray) -> np.ndarray:
    """Logits [T, vocabulary] or, where the model gives no others, those behind the last of the ids."""
    with torch.no_grad():
        logits = logits_of(model(shaped(name, torch.from_numpy(ids)), *others(name, len(ids))))
    rows: np.ndarray = logits.reshape(-1, logits.shape[-1]).double().numpy()
    return rows


@pytest.mark.parametrize("name", STYLES)
def test_style(name: str) -> None:
    """The float reference is within 1e-5 of torch; golden text is the same in one pass and in steps."""
    graph, model = _graph(name), built(name)
    random = np.random.default_rng(0)
    assert is_language_model(graph)
    assert graph.context == (style(name).CONTEXT or 2048)
    run = reference(graph)
    for length in LENGTHS:
        ids = random.integers(style(name).VOCABULARY, size=length)
        wanted = _eager(name, model, ids)
        results, _ = run({"ids": ids}, every_row=True, outputs=(graph.outputs[0],))
        computed = results[graph.outputs[0]][-len(wanted) :]
        assert np.abs(computed - wanted).max() <= 1e-5 * np.abs(wanted).max()
    golden = GoldenModel(graph.quantised(Numbers()))
    ids = random.integers(style(name).VOCABULARY, size=7)
    in_one = golden.logits(ids)
    session = golden.session()
    assert np.array_equal(in_one, np.concatenate([session.logits(ids[i : i + 1]) for i in range(7)]))
    assert np.array_equal(in_one, golden.logits(ids, pass_tokens=3))


def test_windows_and_groups_are_found() -> None:
    layers = [o.op for path, o in _graph("windows_and_caps").walk() if isinstance(o.op, Attention)]
    assert [op.window for op in layers] == [WINDOW, None, WINDOW, None]
    assert {(op.heads, op.kv_heads, op.soft_cap) for op in layers} == {(4, 2, 20.0)}
    (op,) = {o.op for path, o in _graph("einsum_rearrange").walk() if isinstance(o.op, Cache)}
    assert (op.heads, op.head_dim) == (1, 8)


def test_ids_need_no_example() -> None:
    """Nor does a module whose first dimension is tokens, for which [1, T] would be T texts."""
    for name in ("gpt_in_one_file", "attention_module", "encoder_layers"):
        assert import_any(built(name))[0].form() == _graph(name).form()


class Tiny(nn.Module):
    """A decoder of one layer, with parts that a test puts in place of the right ones."""

    def __init__(
        self,
        mask: Callable[[int], torch.Tensor] = lambda t: torch.ones(t, t).tril().bool(),
        positions: Callable[[int], torch.Tensor] = torch.arange,
        ending: Callable[["Tiny", torch.Tensor], Any] = lambda self, x: self.head(x),
        beginning: Callable[[torch.Tensor], torch.Tensor] = lambda ids: ids,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.places = nn.Embedding(11, 16), nn.Embedding(12, 16)
        self.qkv, self.head = nn.Linear(16, 48), nn.Linear(16, 11)
        self.mask, self.positions, self.ending, self.beginning = mask, positions, ending, beginning

    def forward(self, ids: torch.Tensor) -> Any:
        t = ids.shape[1]
        x = self.tokens(self.beginning(ids)) + self.places(self.positions(t))
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask(t))
        return self.ending(self, x + y.transpose(1, 2).flatten(2))


def _imported(model: nn.Module) -> LogicalGraph:
    return import_any(model.eval(), torch.zeros(1, 6, dtype=torch.int64))[0]


def test_tiny_is_taken() -> None:
    assert _imported(Tiny()).context == 12


@pytest.mark.parametrize(
    "ending",
    [
        lambda self, x: (self.head(x), None),
        lambda self, x: {"logits": self.head(x), "hidden": x},
        lambda self, x: self.head(x[:, -1]),
        lambda self, x: self.head(x[:, -1:]),
        lambda self, x: self.head(x[:, [-1], :]),
        lambda self, x: self.head(x)[0],
        lambda self, x: self.head(x).float().view(-1, 11),
        lambda self, x: torch.tanh(self.head(x[:, -1]) / 30.0) * 30.0,
        lambda self, x: self.head(functional.rms_norm(x, (16,))[:, -1, :] * 2),
    ],
)
def test_ending(ending: Any) -> None:
    model = Tiny(ending=ending)
    graph, ids = _imported(model), torch.tensor([[3, 1, 7, 7]])
    with torch.no_grad():
        wanted = logits_of(model(ids)).reshape(-1, 11)[-1].double().numpy()
    computed, _ = reference(graph)({"ids": ids[0].numpy()}, outputs=(graph.outputs[0],))
    assert np.abs(computed[graph.outputs[0]][-1] - wanted).max() <= 1e-5 * np.abs(wanted).max()
    assert is_language_model(graph)


@pytest.mark.parametrize(
    "model, error, message",
    [
        (Tiny(mask=lambda t: torch.ones(t, t).bool()), UnsupportedOperationError, "a token depends on later"),
        (Tiny(mask=lambda t: torch.ones(t, t).tril(1).bool()), UnsupportedOperationError, "must be causal"),
        (Tiny(positions=lambda t: torch.arange(t).flip(0)), UnsupportedOperationError, "positions 0, 1, 2"),
        (Tiny(positions=lambda t: torch.arange(t) * 11 // t), UnsupportedOperationError, "positions 0, 1, 2"),
        (Tiny(ending=lambda self, x: self.head(x.mean(1))), UnsupportedOperationError, "aten.mean.dim"),
        (
            Tiny(ending=lambda self, x: self.head(x / x.shape[1])),
            UnsupportedOperationError,
            "number of tokens",
        ),
        (
            Tiny(ending=lambda self, x: self.head(x[:, 0])),
            UnsupportedOperationError,
            "each row holds features of one token",
        ),
        (
            Tiny(ending=lambda self, x: self.head(x[:, :-1])),
            ValueError,
            "does not run on 5 ids as a language model: it makes logits for 4 of 5 ids",
        ),
        (
            Tiny(ending=lambda self, x: self.head(x).flip(1)),
            UnsupportedOperationError,
            "in the order of the ids",
        ),
        (Tiny(ending=lambda self, x: (self.head(x), x)), TypeError, "returns 2 tensors"),
        (Tiny(beginning=lambda ids: ids + 20), UnsupportedOperationError, "ids can be looked up"),
        (Tiny(mask=lambda t: torch.ones(6, 6).tril().bool()), ValueError, "does not run on 5 ids"),
    ],
    ids=[
        "sees all",
        "looks ahead by one",
        "positions backwards",
        "positions stretched",
        "mean of tokens",
        "number of tokens",
        "first token",
        "a token less",
        "logits backwards",
        "two results",
        "other ids",
        "a mask of one size",
    ],
)
def test_refused(model: nn.Module, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        _imported(model)


@pytest.mark.parametrize("tokens", [1, 3, 6])
def test_rows_in_place_of_logits(tokens: int) -> None:
    """A module without a head is no language model; it computes a row for each token."""
    torch.manual_seed(0)
    model = Tiny(ending=lambda self, x: x).eval()
    graph, interface = import_any(model, torch.zeros(1, 6, dtype=torch.int64))
    assert interface is not None and not is_language_model(graph)
    ids = torch.randint(0, 11, (1, tokens))
    taken = interface.taken((ids.numpy(),))
    outputs, _ = reference(graph)({name: rows.reshape(-1) for name, rows in taken.items()})
    with torch.no_grad():
        wanted = model(ids).numpy()
    assert np.abs(interface.rebuilt(outputs, (ids.numpy(),)) - wanted).max() <= 1e-5 * np.abs(wanted).max()


def _from_the_end(t: int) -> torch.Tensor:
    """The slope of a bias that counts keys from the last one, as MPT does."""
    return 0.3 * (torch.arange(t) - t + 1)


def test_a_bias_that_counts_from_the_end_is_taken() -> None:
    """It adds a number to a whole row of scores, which changes no share. The import compares the logits."""
    hidden = torch.finfo(torch.float32).min
    mask = lambda t: _from_the_end(t) + torch.full((t, t), hidden).triu(1)  # noqa: E731
    graph = _imported(Tiny(mask=mask))
    (op,) = [o.op for _, o in graph.walk() if isinstance(o.op, Attention)]
    assert op.distances == graph.context


@pytest.mark.parametrize(
    "changed",
    [
        lambda x: x.transpose(1, 2) + _from_the_end(x.shape[1]),
        lambda x: x.transpose(1, 2) * _from_the_end(x.shape[1]),
        lambda x: x.transpose(1, 2) - _from_the_end(x.shape[1]),
        lambda x: torch.maximum(x.transpose(1, 2), _from_the_end(x.shape[1])),
    ],
)
def test_such_numbers_are_refused_elsewhere(changed: Callable[[torch.Tensor], torch.Tensor]) -> None:
    ending = lambda self, x: self.head(changed(x).transpose(1, 2))  # noqa: E731
    with pytest.raises(UnsupportedOperationError, match="table"):
        _imported(Tiny(ending=ending))


class Decides(Tiny):
    """Above 8 tokens it computes something else."""

    def forward(self, ids: torch.Tensor) -> Any:
        x: torch.Tensor = super().forward(ids)
        return x * 2 if ids.shape[1] > 8 else x * 1


def test_decision_by_the_number_of_tokens() -> None:
    with pytest.raises(UnsupportedOperationError, match="it depends on the number of tokens"):
        _imported(Decides())


class DecidesOnce(Tiny):
    """With 9 tokens it computes something else than with all other numbers."""

    def forward(self, ids: torch.Tensor) -> Any:
        x: torch.Tensor = super().forward(ids)
        return x * 2 if ids.shape[1] == 9 else x * 1


def test_decision_for_one_number_of_tokens() -> None:
    """Both exports are alike; the check of the import tries the lengths by which a module decides."""
    with pytest.raises(ImportMismatchError, match="with 9 tokens at position 0"):
        _imported(DecidesOnce())


class Remembers(Tiny):
    """A buffer keeps something from call to call. reads: whether it is read before it is written."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(1, 8, 16))
        self.reads = reads

    def forward(self, ids: torch.Tensor) -> Any:
        x = self.tokens(ids)
        before = self.state[:, : ids.shape[1]] * 0.5 if self.reads else 0.0
        self.state[:, : ids.shape[1]] = x
        return self.head(x + before)


def test_state_of_earlier_calls_is_never_read() -> None:
    """What a buffer holds before a call would count as zeros, though the next call reads other numbers."""
    assert _imported(Remembers(reads=False)).context == 8
    with pytest.raises(UnsupportedOperationError, match="that this call of the module has not written"):
        _imported(Remembers(reads=True))


class Fills(Tiny):
    """It fills a tensor in place, some of it or all."""

    def __init__(self, made: Callable[[torch.Tensor], torch.Tensor], whole: bool) -> None:
        super().__init__()
        self.made, self.whole = made, whole

    def forward(self, ids: torch.Tensor) -> Any:
        x = self.tokens(ids)
        y = self.made(x)
        y[..., 0::2] = x[..., 1::2]
        if self.whole:
            y[..., 1::2] = -x[..., 0::2]
        return self.head(x + y)


@pytest.mark.parametrize(
    "made",
    [torch.empty_like, torch.zeros_like, lambda x: torch.zeros(x.shape), lambda x: x.new_empty(x.shape)],
)
def test_tensors_filled_in_place(made: Any) -> None:
    assert _imported(Fills(made, whole=True)).context == 2048
    with pytest.raises(UnsupportedOperationError, match="that this call of the module has not written"):
        _imported(Fills(made, whole=False))


def test_a_cache_without_a_mask() -> None:
    model = built("cache_buffers")
    model.causal_mask.fill_(True)
    with pytest.raises(UnsupportedOperationError, match="Give its attention a causal mask"):
        import_any(model, (torch.zeros(1, 6, dtype=torch.int64), torch.arange(6)))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((torch.zeros(6, 4, dtype=torch.int64),), ValueError, "ids have shape [6, 4]; one text is needed"),
        ((torch.zeros(0, dtype=torch.int64),), ValueError, "ids have shape [0]; one text is needed"),
        ((torch.zeros(1, 6, dtype=torch.int64), torch.ones(6)), ValueError, "only positions of the ids"),
        ((torch.tensor([[1, 11]]),), ValueError, "the example holds the id 11; ids are 0 to 10"),
        ((torch.tensor([[1, -1]]),), ValueError, "the example holds the id -1; ids are 0 to 10"),
        ((torch.zeros(1, 6, dtype=torch.int64), torch.arange(1, 7)), ValueError, "only positions of the ids"),
        ((torch.zeros(1, 6, dtype=torch.int64), [1]), ValueError, "an argument after the ids is list"),
    ],
)
def test_examples_that_are_no_text(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        import_any(Tiny().eval(), arguments)


def test_training_mode() -> None:
    model = built("gpt_in_one_file").train()
    with pytest.raises(UnsupportedOperationError, match=r"call module\.eval"):
        import_any(model, torch.zeros(1, 6, dtype=torch.int64))
    assert model.training


def test_fewer_positions_are_wanted() -> None:
    graph, _ = import_any(built("gpt_in_one_file"), torch.zeros(1, 6, dtype=torch.int64), context=9)
    assert graph.context == 9


def test_shapes_are_enough_for_an_estimate() -> None:
    with torch.device("meta"):
        model = style("textbook_chapter").GPTModel(style("textbook_chapter").CONFIG)
    for layer in model.trf_blocks:
        layer.att.mask = torch.triu(torch.ones(20, 20), diagonal=1)
    estimate = streamgen.estimate(model.eval(), torch.zeros(1, 6, dtype=torch.int64))
    assert estimate.passes


@pytest.mark.parametrize(
    "norm",
    [
        lambda g, x: (
            g * (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True, correction=0) + 1e-5)
        ),
        lambda g, x: (
            (x - x.mean(-1, True)) * g * torch.rsqrt((x - x.mean(-1, True)).square().mean(-1, True) + 1e-5)
        ),
    ],
)
def test_weights_before_the_division_of_a_norm(norm: Callable[..., torch.Tensor]) -> None:
    weight = torch.rand(16) + 0.5
    graph = _imported(Tiny(ending=lambda self, x: self.head(norm(weight, x))))
    (op,) = (o.op for _, o in graph.walk() if isinstance(o.op, Norm))
    assert op.kind == "layer" and np.array_equal(op.weight, weight.numpy())


def _scaled_norm(factor: Callable[[torch.Tensor], torch.Tensor]) -> Tiny:
    """A norm with a factor before its division."""

    def ending(self: Tiny, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = factor(centred) * centred
        return self.head(scaled / torch.sqrt(x.var(-1, keepdim=True, correction=0) + 1e-5))

    return Tiny(ending=ending)


@pytest.mark.parametrize(
    "factor", [lambda x: x[..., :1], lambda x: torch.arange(1.0, 1.0 + x.shape[1])[:, None]]
)
def test_a_norm_with_a_factor_by_token_or_position_is_computed_step_by_step(factor: Any) -> None:
    """The import compares golden with torch."""
    graph = _imported(_scaled_norm(factor))
    last = [operation.op for _, operation in graph.walk()][-8:]
    assert not any(isinstance(op, Norm) for op in last)


def test_a_module_that_crops_its_ids() -> None:
    """It has as many positions as it takes ids whole."""
    graph = _imported(Tiny())

    class Cropped(Tiny):
        def forward(self, ids: torch.Tensor) -> Any:
            return super().forward(ids[:, -12:])

    assert graph.context == 12
    assert _imported(Cropped()).form() == graph.form()
