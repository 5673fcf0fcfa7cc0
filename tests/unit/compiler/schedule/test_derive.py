"""Graphs of kernels that are derived: they compute what the logical graph says, bit for bit."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streamgen.base.errors import GraphError
from streamgen.compiler.schedule import Derivation, HardwarePlan, schedule
from streamgen.model import golden
from streamgen.model.frontend import import_decoder
from streamgen.model.graph.interpret import exact
from streamgen.model.graph.logical import Input, LogicalGraph, Operation, Repeat
from streamgen.model.operations import Attention, Cache, Unary
from streamgen.numbers.formats import round_f24
from streamgen.numbers.quantisation import Numbers
from streamgen.platform.boards import Channel
from tests.unit.compiler.schedule.features import FEATURES, post_norms, query_norms, windows
from tests.unit.compiler.schedule.small import (
    CHANNEL,
    CONTEXT,
    MODULES,
    check_decoder,
    check_module,
    finished,
    linear,
    module,
    small_model,
    small_plan,
)
from tests.unit.model.frontend.families import FAMILIES, family

PASSES = ((3, 4, 1, 1, 2, 1, 4), (1, 1, 4, 4, 4, 2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "choices"),
    [
        (small_plan(), {}),
        (small_plan(columns=4, lanes=4, kv_channels=4), {"numbers": {"weights": "w8"}}),
        (small_plan(n_lanes=1, lanes=8, kv_channels=2), {"head": "w4", "numbers": {"p_bits": 8}}),
        (small_plan(), {"numbers": {"group": 64, "scale_bits": 12, "minimum": False}}),
    ],
    ids=["w4", "w8", "w4 head", "groups of 64"],
)
@pytest.mark.parametrize("passes", PASSES)
def test_any_passes_give_the_same_logits(
    plan: HardwarePlan, choices: dict[str, Any], passes: tuple[int, ...]
) -> None:
    check_decoder(small_model(**choices), plan, passes)


@pytest.mark.slow
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
    check_decoder(small_model(**changes), small_plan(**plan))


@pytest.mark.slow
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
    plan = small_plan(columns=2 * channels, kv_channels=channels, attention_lanes=lanes, context=19)
    check_decoder(small_model(**{**changes, "context": 19}), plan, (3, 1, 4, 1, 2, 4, 4))


@pytest.mark.parametrize(("lanes", "caches"), [(1, 1), (1, 2), (2, 2), (4, 4)])
def test_keys_beside_values(lanes: int, caches: int) -> None:
    """Keys on some channels, values on as many others where there are any."""
    plan = small_plan(columns=8, kv_channels=4, cache_channels=caches, attention_lanes=lanes, context=19)
    model = small_model(context=19)
    check_decoder(model, plan, (3, 1, 4, 1, 2, 4, 4))
    graph = Derivation(model, plan, CHANNEL).largest
    found = {
        what: {t.channel for t in graph.tensors if t.role == "state" and t.node == f"load_{what}_x"}
        for what in ("keys", "values")
    }
    assert [len(one) for one in found.values()] == [caches, caches]
    assert caches == 4 or not found["keys"] & found["values"]


def test_groups_of_the_head_alone() -> None:
    """The longest operand, of weights without groups, is no multiple of those of the head."""
    numbers = {"group": 128, "by_layer": {"*": "w8", "logits": "w4"}}
    check_decoder(small_model(numbers=numbers, hidden=100, wide=200), small_plan())


def test_capped_scores_side_by_side() -> None:
    model = import_decoder(family("Gemma2")).quantised(Numbers(by_layer={"logits": "w8", "head": "w8"}))
    check_decoder(model, small_plan(kv_channels=2, attention_lanes=2), (3, 4, 4, 1, 2))


@pytest.mark.parametrize("name", FEATURES)
def test_features(name: str) -> None:
    check_decoder(FEATURES[name](small_model(layers=4)), small_plan())


@pytest.mark.parametrize(
    "name",
    [name if name in ("GPT2", "Gemma2") else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES],
)
def test_families(name: str) -> None:
    model = import_decoder(family(name)).quantised(Numbers(by_layer={"logits": "w8", "head": "w8"}))
    check_decoder(model, small_plan(), (3, 4, 4, 1, 2))


@pytest.mark.parametrize("lanes", [2, 4, 32])
def test_tables_of_eight_bits(lanes: int) -> None:
    numbers = {"by_layer": {"logits": "w8", "embedding": "w8", "*": "w8"}}
    check_decoder(small_model(numbers=numbers), small_plan(lanes=lanes))
    model = import_decoder(family("GPT2")).quantised(Numbers(by_layer={"*": "w8"}))  # positions too
    check_decoder(model, small_plan(lanes=lanes), (3, 4, 4, 1, 2))


def test_all_features_of_two_layers_in_turn() -> None:
    model = windows(post_norms(query_norms(small_model(layers=4, bias=True, wide=100))))
    check_decoder(model, small_plan(columns=4, n_lanes=4, lanes=4))
    derived = Derivation(model, small_plan(), CHANNEL)
    assert [(len(s.phases), s.walks) for s in derived.schedule.sections] == [(1, 1), (9, 2), (2, 1)]


@pytest.mark.parametrize(("tokens", "lanes"), [(1, 4), (3, 4), (8, 4), (3, 32)])
@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str, tokens: int, lanes: int) -> None:
    check_module(name, HardwarePlan(max_tokens=8, context=0, columns=4, n_lanes=2, lanes=lanes), tokens)


def test_a_cache_that_a_later_phase_reads() -> None:
    """Keys whose queries come a phase later go into the cache there."""
    model = module(
        ("a", linear(48, 48), "x"),
        ("c", Cache(3, 16), "a"),
        ("b", linear(48, 48), "a"),
        ("y", Attention(3, 3, 16, 0.25), "b", "c", "c"),
        outputs=("y",),
    )
    model = replace(model, context=8).quantised(Numbers())
    x = round_f24(np.random.default_rng(0).normal(size=(8, 48)).astype(np.float32))
    expected = exact(model)({"x": x})[0]["y"]
    derived, state = Derivation(model, small_plan(context=8, lanes=4), CHANNEL), {}
    found = []
    for position, tokens in ((0, 4), (4, 1), (5, 3)):
        graph = finished(derived.graph(tokens, position))
        given = np.zeros((tokens, 64), np.float32)
        given[:, :48] = x[position : position + tokens]
        outputs, _ = golden.run(graph, {"x": given}, state)
        found.append(outputs["y"])
    np.testing.assert_array_equal(np.concatenate(found)[:, :48], expected)


# What is refused.


def test_an_odd_number_of_columns() -> None:
    with pytest.raises(GraphError) as raised:
        Derivation(small_model(), small_plan(columns=3), CHANNEL)
    assert str(raised.value) == "columns of an engine must be even, not 3"


def test_formats_that_differ_side_by_side() -> None:
    """What reads one value takes a phase for each format; the operand is held from one to the next."""
    layers = {"layers[[]*[]].k": "w8", "layers[[]*[]].gate": "w8", "logits": "w8"}
    model = small_model(numbers={"by_layer": layers})
    phases = [phase.name for phase in schedule(model).phases]
    assert phases[2:8] == ["q+v", "k", "o", "gate", "up", "down"]
    check_decoder(model, small_plan())


def test_nested_repetitions() -> None:
    inner = LogicalGraph((Input("x", 64),), (Operation("y", Unary("relu"), ("x",)),), ("y",))
    outer = LogicalGraph((Input("x", 64),), (Operation("r", Repeat((inner, inner)), ("x",)),), ("r",))
    model = LogicalGraph(
        (Input("x", 64),),
        (Operation("a", Unary("relu"), ("x",)), Operation("r", Repeat((outer, outer)), ("a",))),
        ("r",),
    )
    with pytest.raises(GraphError) as raised:
        Derivation(model, small_plan(context=0), CHANNEL)
    assert str(raised.value) == "'r': a repetition inside a repetition cannot be scheduled"


def test_kernels_at_memory_have_the_channel_of_the_board() -> None:
    """Rate and latency, also of caches, tables and spills."""
    channel = Channel(0.5, 140)
    graph = Derivation(small_model(), small_plan(hold_bits=1), channel).largest
    found = {
        type(node.params).__name__: Channel(node.params.rate, node.params.latency)  # type: ignore[attr-defined]
        for node in graph.nodes
        if hasattr(node.params, "latency") and hasattr(node.params, "rate")
    }
    kinds = ("Load", "Store", "KvLoad", "KvStore", "RowsLoad", "SpillLoad", "SpillStore")
    assert found == dict.fromkeys((f"{kind}Params" for kind in kinds), channel)
