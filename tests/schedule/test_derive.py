"""Graphs of kernels that are derived: they compute what the logical graph says, bit for bit."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from streamgen import golden
from streamgen.contract import moves
from streamgen.errors import GraphError
from streamgen.frontend import import_decoder
from streamgen.graph import Graph
from streamgen.graph.interpret import exact
from streamgen.graph.logical import Input, LogicalGraph, Operation, Repeat
from streamgen.kernels.matmul.matmul import ColumnParams
from streamgen.kernels.moves.fit_rows import FitRowsParams
from streamgen.kernels.moves.route import RouteParams
from streamgen.kernels.moves.segments import SegmentsParams
from streamgen.kernels.moves.select import SelectParams
from streamgen.kernels.moves.take_rows import TakeRowsParams
from streamgen.lower import finish, insert_converters, insert_forks, place_constants, unfused_bits
from streamgen.memory import KvLoadParams, RowsLoadParams
from streamgen.numbers.formats import round_f24
from streamgen.numbers.quantisation import Numbers
from streamgen.operations import (
    Attention,
    Binary,
    Cache,
    Concat,
    Constant,
    Linear,
    Norm,
    Scalar,
    Slice,
    Unary,
)
from streamgen.schedule import Derivation, HardwarePlan, schedule
from tests.decoders import random_decoder
from tests.frontend.families import FAMILIES, family
from tests.schedule.features import FEATURES, post_norms, query_norms, windows

CONTEXT = 16
PASSES = ((3, 4, 1, 1, 2, 1, 4), (1, 1, 4, 4, 4, 2))
SMALL = {"hidden": 64, "head_dim": 16, "rotated": 16, "wide": 96, "vocabulary": 64, "context": CONTEXT}


def _plan(**changes: int) -> HardwarePlan:
    given = {"max_tokens": 4, "context": CONTEXT, "columns": 2, "n_lanes": 2, "lanes": 2}
    return HardwarePlan(**{**given, **changes})


def _model(head: str = "w8", numbers: dict[str, Any] | None = None, **changes: Any) -> LogicalGraph:
    numbers = {"by_layer": {"logits": head}, **(numbers or {})}
    return random_decoder(**{**SMALL, **changes}).quantised(Numbers(**numbers))


def _finished(graph: Graph) -> Graph:
    return place_constants(insert_converters(insert_forks(graph)))


def _check(model: LogicalGraph, plan: HardwarePlan, passes: tuple[int, ...] = (3, 4, 1, 2)) -> None:
    """Logits behind every pass of a text, and the greatest of them."""
    vocabulary = model.shapes["logits"].features
    ids = np.random.default_rng(1).integers(0, vocabulary, sum(passes))
    expected = exact(model)({"ids": ids}, every_row=True)[0]["logits"]
    derived = Derivation(model, plan, 0.6927)
    state: dict[str, np.ndarray] = {}
    position = 0
    for tokens in passes:
        graph = _finished(derived.graph(tokens, position))
        places = np.arange(position, position + tokens, dtype=np.uint32)
        given = {"ids": ids[places].astype(np.uint32), "positions": places}
        inputs = {t.name: given[t.name] for t in graph.tensors if t.role == "input"}
        outputs, _ = golden.run(graph, inputs, state)
        position += tokens
        np.testing.assert_array_equal(outputs["logits"][0, :vocabulary], expected[position - 1])
        assert outputs["best_indices"] == expected[position - 1].argmax()


@pytest.mark.parametrize(
    ("plan", "choices"),
    [
        (_plan(), {}),
        (_plan(columns=4, lanes=4, kv_channels=4), {"numbers": {"weights": "w8"}}),
        (_plan(n_lanes=1, lanes=8, kv_channels=2), {"head": "w4", "numbers": {"p_bits": 8}}),
        (_plan(), {"numbers": {"group": 64, "scale_bits": 12, "minimum": False}}),
    ],
    ids=["w4", "w8", "w4 head", "groups of 64"],
)
@pytest.mark.parametrize("passes", PASSES)
def test_any_passes_give_the_same_logits(
    plan: HardwarePlan, choices: dict[str, Any], passes: tuple[int, ...]
) -> None:
    _check(_model(**choices), plan, passes)


@pytest.mark.parametrize(
    ("changes", "plan"),
    [
        ({"vocabulary": 103, "hidden": 80, "wide": 200}, {"columns": 4, "n_lanes": 4, "lanes": 4}),
        ({"heads": 3, "kv_heads": 1}, {"columns": 4, "n_lanes": 4, "lanes": 4}),
        ({"heads": 3, "kv_heads": 3, "head_dim": 24}, {"columns": 4, "lanes": 8}),
        ({"heads": 3, "kv_heads": 3, "head_dim": 12, "rotated": 0}, {"lanes": 16}),
        ({"vocabulary": 103, "wide": 72, "bias": True}, {"columns": 32, "n_lanes": 2, "lanes": 16}),
        ({"interleaved": True, "norm": "layer"}, {"lanes": 8}),
        ({"heads": 3, "kv_heads": 3, "head_dim": 24, "rotated": 24}, {"lanes": 4}),
        ({"hidden": 48, "heads": 3, "kv_heads": 1, "head_dim": 24, "rotated": 12, "wide": 72}, {"lanes": 32}),
        ({"hidden": 100, "head_dim": 64, "rotated": 64, "vocabulary": 103, "norm": "layer"}, {"lanes": 32}),
        ({"head_dim": 12, "rotated": 10}, {"lanes": 4}),
        ({"head_dim": 12, "rotated": 12, "interleaved": True}, {"lanes": 4}),
        ({"bias": True, "function": "relu", "plus_one": True}, {}),
        ({"heads": 8, "kv_heads": 4, "head_dim": 8, "rotated": 0, "bias": True}, {"n_lanes": 4, "lanes": 8}),
        ({"heads": 4, "kv_heads": 4, "head_dim": 8, "rotated": 8}, {"n_lanes": 4}),
        ({"heads": 12, "kv_heads": 12, "head_dim": 8, "rotated": 0}, {"n_lanes": 16}),
        ({"layers": 1}, {}),
        ({"windows": (None, CONTEXT, CONTEXT + 5)}, {}),
    ],
    ids=str,
)
def test_any_sizes(changes: dict[str, Any], plan: dict[str, int]) -> None:
    _check(_model(**changes), _plan(**plan))


@pytest.mark.parametrize(
    ("lanes", "channels", "changes"),
    [
        (2, 2, {"heads": 3, "kv_heads": 3}),
        (2, 4, {"heads": 6, "kv_heads": 2, "windows": (None, 5)}),
        (4, 4, {"windows": (3,)}),
        (4, 8, {"heads": 5, "kv_heads": 1, "head_dim": 24, "rotated": 8}),
        (16, 16, {}),
    ],
    ids=str,
)
def test_positions_side_by_side(lanes: int, channels: int, changes: dict[str, Any]) -> None:
    """Contexts of all lengths up to one that is no multiple of lanes times channels."""
    plan = _plan(columns=2 * channels, kv_channels=channels, attention_lanes=lanes, context=19)
    _check(_model(**{**changes, "context": 19}), plan, (3, 1, 4, 1, 2, 4, 4))


@pytest.mark.parametrize(("lanes", "caches"), [(1, 1), (1, 2), (2, 2), (4, 4)])
def test_keys_beside_values(lanes: int, caches: int) -> None:
    """Keys on some channels, values on as many others where there are any."""
    plan = _plan(columns=8, kv_channels=4, cache_channels=caches, attention_lanes=lanes, context=19)
    model = _model(context=19)
    _check(model, plan, (3, 1, 4, 1, 2, 4, 4))
    graph = Derivation(model, plan, 0.6927).largest
    found = {
        what: {t.channel for t in graph.tensors if t.role == "state" and t.node == f"load_{what}_x"}
        for what in ("keys", "values")
    }
    assert [len(one) for one in found.values()] == [caches, caches]
    assert caches == 4 or not found["keys"] & found["values"]


def test_groups_of_the_head_alone() -> None:
    """The longest operand, of weights without groups, is no multiple of those of the head."""
    numbers = {"group": 128, "by_layer": {"*": "w8", "logits": "w4"}}
    _check(_model(numbers=numbers, hidden=100, wide=200), _plan())


@pytest.mark.parametrize("lanes", [2, 4])
def test_wide_tiles_wait_in_the_cache(lanes: int) -> None:
    """Behind a load of tiles of more than 2,048 bits is one place, behind others what a schedule asks."""
    sizes = {"head_dim": 128, "rotated": 0, "heads": 1, "kv_heads": 1}
    derived = Derivation(_model(**sizes), _plan(columns=8, kv_channels=4, attention_lanes=lanes), 0.6927)
    program, _ = finish(derived.graph, 1, 4, "conservative", CONTEXT, {"best": derived.requested})
    depths = {edge.source.node: edge.depth for edge in program.graph.edges}
    assert (depths["load_keys_x"] == depths["load_values_x"] == 1) == (lanes == 4)


def test_capped_scores_side_by_side() -> None:
    model = import_decoder(family("Gemma2")).quantised(Numbers(by_layer={"logits": "w8", "head": "w8"}))
    _check(model, _plan(kv_channels=2, attention_lanes=2), (3, 4, 4, 1, 2))


@pytest.mark.parametrize("name", FEATURES)
def test_features(name: str) -> None:
    _check(FEATURES[name](_model(layers=4)), _plan())


@pytest.mark.parametrize(
    "name",
    [name if name in ("GPT2", "Gemma2") else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES],
)
def test_families(name: str) -> None:
    model = import_decoder(family(name)).quantised(Numbers(by_layer={"logits": "w8", "head": "w8"}))
    _check(model, _plan(), (3, 4, 4, 1, 2))


@pytest.mark.parametrize("lanes", [2, 4, 32])
def test_tables_of_eight_bits(lanes: int) -> None:
    numbers = {"by_layer": {"logits": "w8", "embedding": "w8", "*": "w8"}}
    _check(_model(numbers=numbers), _plan(lanes=lanes))
    model = import_decoder(family("GPT2")).quantised(Numbers(by_layer={"*": "w8"}))  # positions too
    _check(model, _plan(lanes=lanes), (3, 4, 4, 1, 2))


def test_all_features_of_two_layers_in_turn() -> None:
    model = windows(post_norms(query_norms(_model(layers=4, bias=True, wide=100))))
    _check(model, _plan(columns=4, n_lanes=4, lanes=4))
    derived = Derivation(model, _plan(), 0.6927)
    assert [(len(s.phases), s.walks) for s in derived.schedule.sections] == [(1, 1), (9, 2), (2, 1)]


def test_layers_behind_the_last_whole_body() -> None:
    """They are walked once, and share hardware and caches with the body."""
    model = _model(layers=5, windows=(3, None))
    _check(model, _plan(columns=4, n_lanes=4, lanes=4))
    derived = Derivation(model, _plan(), 0.6927)
    assert [(len(s.phases), s.walks) for s in derived.schedule.sections] == [(1, 1), (9, 2), (6, 1)]
    whole = Derivation(_model(layers=4, windows=(3, None)), _plan(), 0.6927).graph(4, 12)
    graph = derived.graph(4, 12)
    names, of_whole = ({node.name for node in one.nodes} for one in (graph, whole))
    # The last rows of the layer behind are taken early.
    early = {"route_values", "take_last_layers4_attention", "take_last_layers_x"}
    assert names - of_whole == early and of_whole - names == {"take_last"}
    loads = [node for node in graph.nodes if isinstance(node.params, KvLoadParams)]
    assert len(loads) == 4 and all(load.params.layout.layers == 5 for load in loads)
    assert all([b["layer"] for b in load.bounds if b is not None] == [0, 1, 4] for load in loads)


@pytest.mark.parametrize(
    ("layers", "windows", "sections", "narrow"),
    [
        (2, (None,), [(1, 1), (5, 2), (2, 1)], ""),  # a loop of one walk is none
        (3, (None,), [(1, 1), (5, 2), (6, 1)], "layers2"),
        (6, (3, None), [(1, 1), (9, 2), (10, 1)], "layers5"),
        (3, (3, None), [(14, 1)], "layers2"),
    ],
    ids=str,
)
def test_last_rows_are_taken_early(
    layers: int, windows: tuple[int | None, ...], sections: list[tuple[int, int]], narrow: str
) -> None:
    """Behind the last attention one row of a pass is all that is needed, and of a pass before the last none:
    that gives nothing on but keys and values."""
    model = _model(layers=layers, windows=windows)
    _check(model, _plan(columns=4, n_lanes=4, lanes=4), (4, 3, 1, 4))
    derived = Derivation(model, _plan(), 0.6927)
    found = derived.schedule
    assert [(len(s.phases), s.walks) for s in found.sections] == sections
    made = {v.name for p in found.phases for one in p.steps for v in one.outputs if v.shape.rows == "one"}
    behind = ("o", "attention_sum", "feed_forward_norm", "gate", "up", "gated", "down", "feed_forward_sum")
    assert {name for name in made if name.startswith("layers")} == {f"{narrow}_{n}" for n in behind if narrow}
    build = partial(finish, derived.graph, 1, 4, "conservative", CONTEXT)
    program, _ = build({"best": derived.requested, "keep": derived.last})
    for variant, rests in (("best", set()), ("keep", {"logits", *(f"{narrow}_{n}" for n in behind)})):
        columns = [n for n in program.at(4, 0, variant).nodes if isinstance(n.params, ColumnParams)]
        works = {
            name for name, *at in zip(derived.phases, *(n.bounds for n in columns), strict=True) if any(at)
        }
        asked = {p.name for p in found.phases if p.matmuls and not rests & {m.name for m in p.matmuls}}
        assert works == asked


def test_last_rows_of_tiles() -> None:
    """Attention's last row is taken out of the tiles in which it comes, before any converter."""
    derived = Derivation(_model(layers=3), _plan(), 0.6927)
    graph = derived.largest
    (tile,) = {b["tile"] for b in graph.node("take_last_layers2_attention").bounds if b is not None}
    assert tile < 64 and 64 % tile == 0
    finished = insert_converters(insert_forks(graph))
    assert "convert_take_last_layers2_attention_i" not in finished.by_name


def test_tensors_whole_count_once() -> None:
    """Layers use the same memory, however many there are, and the values of one are all there; who passes a
    tensor on makes none."""
    derived = [Derivation(_model(layers=n), _plan(), 0.6927) for n in (2, 3, 4, 7)]
    (bits,) = {unfused_bits(one.largest) for one in derived}
    made = [v for p in derived[0].schedule.sections[1].phases for one in p.steps for v in one.outputs]
    tokens = derived[0].plan.max_tokens
    values = sum(24 * tokens * v.shape.features for v in made if v.shape.rows == "tokens")
    assert values < bits < 4 * values  # codes of operands, scores, keys and values of the context beside them
    passing = SelectParams | RouteParams | SegmentsParams | FitRowsParams | TakeRowsParams
    passed = [n for one in derived for n in one.largest.nodes if isinstance(n.params, passing)]
    assert passed and all(moves(node.params) for node in passed)


def test_phases_of_a_decoder() -> None:
    derived = Derivation(_model(), _plan(), 0.6927)
    names = ("embedding", "attention_norm", "q+k+v", "o", "gate+up", "down", "last", "logits")
    assert derived.phases == names
    assert [(len(s.phases), s.walks) for s in derived.schedule.sections] == [(1, 1), (5, 2), (2, 1)]
    assert str(derived.schedule).splitlines()[:6] == [
        "section",
        "  phase 0, embedding",
        "    embedding = embedding[64 x 64](ids)",
        "section, walked 2 times",
        "  phase 1, attention_norm",
        "    attention_norm = norm[rms, 64](layers_x)",
    ]


def test_what_phases_share() -> None:
    """Norms, sums and the quantiser are one instance each, matmuls columns; holds are back edges."""
    graph = Derivation(_model(), _plan(), 0.6927).graph(4, 12)
    kinds = [type(node.params).__name__.removesuffix("Params") for node in graph.nodes]
    counts = {kind: kinds.count(kind) for kind in ("Norm", "Quantise", "Column", "QuantiseRows", "Binary")}
    assert counts == {"Norm": 1, "Quantise": 1, "Column": 2, "QuantiseRows": 3, "Binary": 2}
    assert (kinds.count("Select"), kinds.count("Route"), kinds.count("TakeRows")) == (4, 3, 2)
    held = {edge.target.node: edge.depth for edge in graph.edges if edge.back}
    # a pass of 4 tokens: 64 features in tokens of 2 lanes; 96 in groups of 32, and an exponent a row
    assert held == {
        "attention_sum": 128,
        "route_layers_x": 128,
        "fork_operand": 12,
        "fork_exponents": 4,
    }


def test_runs_have_the_hardware_of_the_largest() -> None:
    derived = Derivation(_model(), _plan(), 0.6927)
    program, _ = finish(derived.graph, 1, 4, "conservative", CONTEXT, {"best": derived.requested})
    small = program.at(1, 0)
    assert [node.params for node in small.nodes] == [node.params for node in program.graph.nodes]
    rests = program.at(2, 3, "best").node("store_logits")
    assert all(bounds is None for bounds in rests.bounds)


# Modules: rows of numbers in and out, all tokens of a sequence in one run.

RNG = np.random.default_rng(0)


def _linear(n: int, k: int, bias: bool = True) -> Linear:
    weight = (RNG.normal(size=(n, k)) / np.sqrt(k)).astype(np.float32)
    return Linear(weight, RNG.normal(size=n).astype(np.float32) if bias else None)


def _layer_norm(k: int) -> Norm:
    weight, bias = RNG.normal(size=(2, k)).astype(np.float32)
    return Norm("layer", weight, 1e-5, bias)


def _module(*operations: tuple[Any, ...], outputs: tuple[str, ...], features: int = 48) -> LogicalGraph:
    found = tuple(Operation(name, op, inputs) for name, op, *inputs in ((*o[:2], *o[2:]) for o in operations))
    return LogicalGraph((Input("x", features),), found, outputs)


def _block(causal: bool = False) -> LogicalGraph:
    H = 48
    return _module(
        ("n", _layer_norm(H), "x"),
        ("q", _linear(H, H), "n"),
        ("k", _linear(H, H), "n"),
        ("v", _linear(H, H, bias=False), "n"),
        ("a", Attention(3, 3, 16, 0.25, causal=causal), "q", "k", "v"),
        ("o", _linear(H, H), "a"),
        ("s", Binary("add"), "x", "o"),
        ("m", _layer_norm(H), "s"),
        ("f", _linear(100, H), "m"),
        ("g", Unary("gelu"), "f"),
        ("d", _linear(H, 100), "g"),
        ("y", Binary("add"), "s", "d"),
        outputs=("y",),
    )


def _layers() -> Repeat:
    """Two layers of a matmul each."""

    def layer() -> LogicalGraph:
        return _module(("a", _linear(48, 48), "x"), ("y", Unary("relu"), "a"), outputs=("y",))

    return Repeat((layer(), layer()))


MODULES = {
    "repetitions of an input and of one another": _module(
        ("r", _layers(), "x"), ("s", _layers(), "r"), outputs=("s", "r")
    ),
    "parts of rows": _module(
        ("a", _linear(40, 48), "x"),
        ("low", Slice(0, 20), "a"),
        ("high", Slice(20, 20), "a"),
        ("odd", Slice(33, 7), "a"),
        ("turned", Concat((20, 20)), "high", "low"),
        ("all", Concat((7, 40, 20)), "odd", "turned", "low"),
        ("b", _linear(30, 67), "all"),
        outputs=("turned", "all", "b"),
    ),
    "block": _block(),
    "causal block": _block(causal=True),
    "two outputs": _module(
        ("a", _linear(40, 48), "x"),
        ("b", Scalar("scale", 0.5), "a"),
        ("c", _linear(24, 40), "a"),
        outputs=("b", "c"),
    ),
    "constants": _module(
        ("w", Constant(RNG.normal(size=48).astype(np.float32))),
        ("p", Binary("mul"), "x", "w"),
        ("a", _linear(33, 48), "p"),
        ("t", Scalar("soft_cap", 2.0), "a"),
        outputs=("t",),
    ),
    "matmuls in a row": _module(
        ("a", _linear(64, 48), "x"), ("b", _linear(64, 64), "a"), ("c", _linear(7, 64), "b"), outputs=("c",)
    ),
}


@pytest.mark.parametrize(("tokens", "lanes"), [(1, 4), (3, 4), (8, 4), (3, 32)])
@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str, tokens: int, lanes: int) -> None:
    model = MODULES[name].quantised(Numbers())
    plan = HardwarePlan(max_tokens=8, context=0, columns=4, n_lanes=2, lanes=lanes)
    graph = _finished(Derivation(model, plan, 0.6927).graph(tokens, 0))
    x = round_f24(np.random.default_rng(tokens).normal(size=(tokens, 48)).astype(np.float32))
    expected, _ = exact(model)({"x": x})
    (tensor,) = (t for t in graph.tensors if t.role == "input")
    streams = (it for p in range(graph.phases) for it in graph.node(tensor.node).outputs(p).values())
    given = np.zeros(next(streams).shape, np.float32)
    given[:, :48] = x
    outputs, _ = golden.run(graph, {"x": given})
    for output, value in expected.items():
        np.testing.assert_array_equal(outputs[output][:, : value.shape[1]], value)


def test_a_cache_that_a_later_phase_reads() -> None:
    """Keys whose queries come a phase later go into the cache there."""
    model = _module(
        ("a", _linear(48, 48), "x"),
        ("c", Cache(3, 16), "a"),
        ("b", _linear(48, 48), "a"),
        ("y", Attention(3, 3, 16, 0.25), "b", "c", "c"),
        outputs=("y",),
    )
    model = replace(model, context=8).quantised(Numbers())
    x = round_f24(np.random.default_rng(0).normal(size=(8, 48)).astype(np.float32))
    expected = exact(model)({"x": x})[0]["y"]
    derived, state = Derivation(model, _plan(context=8, lanes=4), 0.6927), {}
    found = []
    for position, tokens in ((0, 4), (4, 1), (5, 3)):
        graph = _finished(derived.graph(tokens, position))
        given = np.zeros((tokens, 64), np.float32)
        given[:, :48] = x[position : position + tokens]
        outputs, _ = golden.run(graph, {"x": given}, state)
        found.append(outputs["y"])
    np.testing.assert_array_equal(np.concatenate(found)[:, :48], expected)


# What is refused.


def test_an_odd_number_of_columns() -> None:
    with pytest.raises(GraphError) as raised:
        Derivation(_model(), _plan(columns=3), 0.6927)
    assert str(raised.value) == "columns of an engine must be even, not 3"


def test_formats_that_differ_side_by_side() -> None:
    """What reads one value takes a phase for each format; the operand is held from one to the next."""
    layers = {"layers[[]*[]].k": "w8", "layers[[]*[]].gate": "w8", "logits": "w8"}
    model = _model(numbers={"by_layer": layers})
    phases = [phase.name for phase in schedule(model).phases]
    assert phases[2:8] == ["q+v", "k", "o", "gate", "up", "down"]
    _check(model, _plan())


def test_nested_repetitions() -> None:
    inner = LogicalGraph((Input("x", 64),), (Operation("y", Unary("relu"), ("x",)),), ("y",))
    outer = LogicalGraph((Input("x", 64),), (Operation("r", Repeat((inner, inner)), ("x",)),), ("r",))
    model = LogicalGraph(
        (Input("x", 64),),
        (Operation("a", Unary("relu"), ("x",)), Operation("r", Repeat((outer, outer)), ("a",))),
        ("r",),
    )
    with pytest.raises(GraphError) as raised:
        Derivation(model, _plan(context=0), 0.6927)
    assert str(raised.value) == "'r': a repetition inside of one is not scheduled"


def _row_loads(graph: Graph) -> dict[str, RowsLoadParams]:
    return {node.name: node.params for node in graph.nodes if isinstance(node.params, RowsLoadParams)}


def _channels(graph: Graph) -> dict[str, int]:
    loads = _row_loads(graph)
    return {tensor.node: tensor.channel for tensor in graph.tensors if tensor.node in loads}


def test_tables_that_are_read_at_once_lie_apart() -> None:
    """Codes and scales of one together; loads of wide rows have a deeper FIFO."""
    learned = import_decoder(family("GPT2")).quantised(Numbers(by_layer={"logits": "w8"}))
    for columns in (2, 4):
        graph = Derivation(learned, _plan(columns=columns), 0.6927).largest
        assert _channels(graph) == {"embedding": columns - 1, "position_rows": columns - 2}
    model = _model(numbers={"by_layer": {"logits": "w8", "embedding": "w8"}})
    for columns in (2, 4):
        graph = Derivation(model, _plan(columns=columns), 0.6927).largest
        loads = _row_loads(graph)
        last = columns - 1
        assert _channels(graph) == {"embedding_codes": last, "embedding_scale": last, "rotations": last}
        assert {(load.prefetch, load.burst) for load in loads.values()} == {(64, 16)}
    wide = _row_loads(Derivation(_model(hidden=1024), _plan(lanes=16), 0.6927).largest)["embedding"]
    assert (wide.row_beats, wide.prefetch, wide.burst) == (64, 128, 64)
