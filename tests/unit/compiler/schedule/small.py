"""Small models and plans; what is derived of them computes what the logical graph says, bit for bit."""

from typing import Any

import numpy as np

from streamgen.compiler.lower import insert_converters, insert_forks, place_constants
from streamgen.compiler.schedule import Derivation, HardwarePlan
from streamgen.model import golden
from streamgen.model.graph import Graph
from streamgen.model.graph.interpret import exact
from streamgen.model.graph.logical import Input, LogicalGraph, Operation, Repeat
from streamgen.model.operations import Attention, Binary, Concat, Constant, Linear, Norm, Scalar, Slice, Unary
from streamgen.numbers.formats import round_f24
from streamgen.numbers.quantisation import Numbers
from streamgen.platform.boards import Channel
from tests.shared.decoders import random_decoder

__all__ = [
    "CHANNEL",
    "CONTEXT",
    "MODULES",
    "check_decoder",
    "check_graph",
    "check_module",
    "finished",
    "linear",
    "module",
    "small_model",
    "small_plan",
]

CHANNEL = Channel(0.6927, 100)

CONTEXT = 16
SMALL = {"hidden": 64, "head_dim": 16, "rotated": 16, "wide": 96, "vocabulary": 64, "context": CONTEXT}
RNG = np.random.default_rng(0)


def small_plan(**changes: int) -> HardwarePlan:
    given = {"max_tokens": 4, "context": CONTEXT, "columns": 2, "n_lanes": 2, "lanes": 2}
    return HardwarePlan(**{**given, **changes})


def small_model(head: str = "w8", numbers: dict[str, Any] | None = None, **changes: Any) -> LogicalGraph:
    numbers = {"by_layer": {"logits": head}, **(numbers or {})}
    return random_decoder(**{**SMALL, **changes}).quantised(Numbers(**numbers))


def finished(graph: Graph) -> Graph:
    """With converters, forks and constants, as golden runs it."""
    return place_constants(insert_converters(insert_forks(graph)))


def check_decoder(model: LogicalGraph, plan: HardwarePlan, passes: tuple[int, ...] = (3, 4, 1, 2)) -> None:
    """Logits behind every pass of a text, and the greatest of them."""
    vocabulary = model.shapes["logits"].features
    ids = np.random.default_rng(1).integers(0, vocabulary, sum(passes))
    expected = exact(model)({"ids": ids}, every_row=True)[0]["logits"]
    derived = Derivation(model, plan, CHANNEL)
    state: dict[str, np.ndarray] = {}
    position = 0
    for tokens in passes:
        graph = finished(derived.graph(tokens, position))
        places = np.arange(position, position + tokens, dtype=np.uint32)
        given = {"ids": ids[places].astype(np.uint32), "positions": places}
        inputs = {t.name: given[t.name] for t in graph.tensors if t.role == "input"}
        outputs, _ = golden.run(graph, inputs, state)
        position += tokens
        np.testing.assert_array_equal(outputs["logits"][0, :vocabulary], expected[position - 1])
        assert outputs["best_indices"] == expected[position - 1].argmax()


def linear(n: int, k: int, bias: bool = True) -> Linear:
    weight = (RNG.normal(size=(n, k)) / np.sqrt(k)).astype(np.float32)
    return Linear(weight, RNG.normal(size=n).astype(np.float32) if bias else None)


def _layer_norm(k: int) -> Norm:
    weight, bias = RNG.normal(size=(2, k)).astype(np.float32)
    return Norm("layer", weight, 1e-5, bias)


def module(*operations: tuple[Any, ...], outputs: tuple[str, ...], features: int = 48) -> LogicalGraph:
    found = tuple(Operation(name, op, inputs) for name, op, *inputs in ((*o[:2], *o[2:]) for o in operations))
    return LogicalGraph((Input("x", features),), found, outputs)


def check_module(name: str, plan: HardwarePlan, tokens: int) -> None:
    """One of `MODULES`, all tokens of a sequence in one run."""
    check_graph(MODULES[name], plan, tokens)


def check_graph(logical: LogicalGraph, plan: HardwarePlan, tokens: int) -> None:
    """The same of a graph of `module`."""
    model = logical.quantised(Numbers())
    graph = finished(Derivation(model, plan, CHANNEL).graph(tokens, 0))
    x = round_f24(np.random.default_rng(tokens).normal(size=(tokens, 48)).astype(np.float32))
    expected, _ = exact(model)({"x": x})
    (tensor,) = (t for t in graph.tensors if t.role == "input")
    streams = (it for p in range(graph.phases) for it in graph.node(tensor.node).outputs(p).values())
    given = np.zeros(next(streams).shape, np.float32)
    given[:, :48] = x
    outputs, _ = golden.run(graph, {"x": given})
    for output, value in expected.items():
        np.testing.assert_array_equal(outputs[output][:, : value.shape[1]], value)


def _block(causal: bool = False) -> LogicalGraph:
    H = 48
    return module(
        ("n", _layer_norm(H), "x"),
        ("q", linear(H, H), "n"),
        ("k", linear(H, H), "n"),
        ("v", linear(H, H, bias=False), "n"),
        ("a", Attention(3, 3, 16, 0.25, causal=causal), "q", "k", "v"),
        ("o", linear(H, H), "a"),
        ("s", Binary("add"), "x", "o"),
        ("m", _layer_norm(H), "s"),
        ("f", linear(100, H), "m"),
        ("g", Unary("gelu"), "f"),
        ("d", linear(H, 100), "g"),
        ("y", Binary("add"), "s", "d"),
        outputs=("y",),
    )


def _layers() -> Repeat:
    """Two layers of a matmul each."""

    def layer() -> LogicalGraph:
        return module(("a", linear(48, 48), "x"), ("y", Unary("relu"), "a"), outputs=("y",))

    return Repeat((layer(), layer()))


MODULES = {
    "repetitions of an input and of one another": module(
        ("r", _layers(), "x"), ("s", _layers(), "r"), outputs=("s", "r")
    ),
    "parts of rows": module(
        ("a", linear(40, 48), "x"),
        ("low", Slice(0, 20), "a"),
        ("high", Slice(20, 20), "a"),
        ("odd", Slice(33, 7), "a"),
        ("turned", Concat((20, 20)), "high", "low"),
        ("all", Concat((7, 40, 20)), "odd", "turned", "low"),
        ("b", linear(30, 67), "all"),
        outputs=("turned", "all", "b"),
    ),
    "block": _block(),
    "causal block": _block(causal=True),
    "two outputs": module(
        ("a", linear(40, 48), "x"),
        ("b", Scalar("scale", 0.5), "a"),
        ("c", linear(24, 40), "a"),
        outputs=("b", "c"),
    ),
    "constants": module(
        ("w", Constant(RNG.normal(size=48).astype(np.float32))),
        ("p", Binary("mul"), "x", "w"),
        ("a", linear(33, 48), "p"),
        ("t", Scalar("soft_cap", 2.0), "a"),
        outputs=("t",),
    ),
    "matmuls in a row": module(
        ("a", linear(64, 48), "x"), ("b", linear(64, 64), "a"), ("c", linear(7, 64), "b"), outputs=("c",)
    ),
}
