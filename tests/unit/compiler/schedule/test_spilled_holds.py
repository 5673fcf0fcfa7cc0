"""Holds that go through memory: which, where their values lie, and that they are what was held."""

import pytest

from streamgen.compiler.lower import finish
from streamgen.compiler.schedule import Derivation, HardwarePlan
from streamgen.compiler.schedule.spill import chosen
from streamgen.itensor import ITensor, same_stream
from streamgen.kernels.memory import SpillLoadParams, SpillStoreParams
from streamgen.model.graph import Graph
from streamgen.model.graph.logical import Input, LogicalGraph, Operation, Repeat
from streamgen.numbers.quantisation import Numbers
from tests.unit.compiler.schedule.features import FEATURES
from tests.unit.compiler.schedule.small import (
    CHANNEL,
    CONTEXT,
    MODULES,
    check_decoder,
    check_module,
    finished,
    linear,
    small_model,
    small_plan,
)

ALL = {"hold_bits": 0}


def _spills(graph: Graph) -> dict[str, tuple[list[int], list[int]]]:
    """By buffer, the places that are written and those that are read, in the order of a run; checks that what
    is read there was written before, in the same order."""
    found: dict[str, tuple[list[int], list[int]]] = {}
    lying: dict[tuple[str, int], ITensor] = {}
    tensors = {tensor.node: tensor.place for tensor in graph.tensors if tensor.role == "spill"}
    for phase, walk in graph.steps():
        for node in graph.nodes:
            bounds = node.at(phase, walk)
            if node.name not in tensors or bounds is None:
                continue
            buffer, place = tensors[node.name], bounds["place"]
            written, read = found.setdefault(buffer, ([], []))
            if isinstance(node.params, SpillStoreParams):
                written.append(place)
                lying[buffer, place] = bounds["itensor"]
            else:
                assert isinstance(node.params, SpillLoadParams)
                assert same_stream(lying[buffer, place], bounds["itensor"])
                read.append(place)
    return found


def test_the_largest_go_first() -> None:
    bits = {"a": 5, "b": 20, "c": 20, "d": 1}
    assert [chosen(bits, allowed) for allowed in (46, 45, 26, 25, 6, 5, 1, 0)] == [
        *((), ("b",), ("b",), ("b", "c")),
        *(("b", "c"), ("b", "c", "a"), ("b", "c", "a"), ("b", "c", "a", "d")),
    ]


def test_what_budgets_leave_on_the_chip() -> None:
    """Of the model's four holds, 12 tokens of 280 bits and 4 of 16 beside two of 128 tokens of 48."""
    for allowed, spilled in (
        (None, {}),
        (15712, {}),
        (15711, {"layers_x": 1}),
        (9567, {"layers_x": 1, "layers_x_kept": 0}),
        (3423, {"layers_x": 1, "layers_x_kept": 0, "operand": 1}),
        (63, {"layers_x": 1, "layers_x_kept": 0, "operand": 1, "exponents": 0}),
    ):
        assert Derivation(small_model(), small_plan(hold_bits=allowed), CHANNEL).spilled == spilled


def test_words_are_held_instead() -> None:
    """A word of a bit for every value; every other back edge is gone."""
    graph = Derivation(small_model(), small_plan(**ALL), CHANNEL).graph(4, 12)
    assert {(str(edge.source), str(edge.target), edge.depth) for edge in graph.edges if edge.back} == {
        (f"spill_{name}.o_stored", f"reload_{name}.i_stored", 1)
        for name in ("layers_x", "layers_x_kept", "operand", "exponents")
    }
    places = _spills(graph)
    assert places["spill_layers_x"] == ([0, 1, 2],) * 2  # before the walks, and of two walks
    assert places["spill_layers_x_kept"] == ([0, 1, 2, 3],) * 2  # what two sums of a walk read
    assert places["spill_operand"] == ([*range(9)],) * 2  # of four matmuls a walk, and of the logits
    assert graph.node("reload_operand").steps == {"place": 4}


def test_what_several_columns_read_is_forked_in_their_order() -> None:
    """As behind a hold: a converter stands before the fork, once."""
    for hold_bits in (None, 0):
        graph = finished(
            Derivation(small_model(), small_plan(columns=4, hold_bits=hold_bits), CHANNEL).graph(4, 12)
        )
        found = [name for name in graph.by_name if name.startswith("convert_") and name.endswith("_i_x")]
        assert not found
        assert f"convert_fork_{'' if hold_bits is None else 'reload_'}operand_i" in graph.by_name


@pytest.mark.parametrize("name", FEATURES)
def test_features(name: str) -> None:
    """Values in places of their own, each of them written once and read once."""
    model = FEATURES[name](small_model(layers=4))
    check_decoder(model, small_plan(**ALL), (3, 4, 1))
    for written, read in _spills(Derivation(model, small_plan(**ALL), CHANNEL).largest).values():
        assert written == read == [*range(len(written))]


@pytest.mark.parametrize("hold_bits", [0, 3000, 9000])
def test_any_share_of_the_holds(hold_bits: int) -> None:
    check_decoder(small_model(), small_plan(columns=4, n_lanes=1, lanes=8, hold_bits=hold_bits), (4, 1))


@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str) -> None:
    model = MODULES[name].quantised(Numbers())
    plan = HardwarePlan(max_tokens=8, context=0, columns=4, n_lanes=2, lanes=4, hold_bits=0)
    assert Derivation(model, plan, CHANNEL).spilled
    check_module(name, plan, 3)


def _repeated(*names: str) -> Repeat:
    """Two layers of some matmuls."""

    def layer() -> LogicalGraph:
        pairs = zip(("x", *names), names, strict=False)
        return LogicalGraph(
            (Input("x", 48),),
            tuple(Operation(name, linear(48, 48), (before,)) for before, name in pairs),
            (names[-1],),
        )

    return Repeat((layer(), layer()))


def test_a_hold_of_uneven_walks_stays() -> None:
    """Operands of one matmul a walk and of two: their places would not grow evenly."""
    operations = (Operation("r", _repeated("a"), ("x",)), Operation("s", _repeated("a", "b"), ("r",)))
    model = LogicalGraph((Input("x", 48),), operations, ("s",)).quantised(Numbers())
    plan = HardwarePlan(max_tokens=8, context=0, columns=4, n_lanes=2, lanes=4, hold_bits=0)
    derived = Derivation(model, plan, CHANNEL)
    held = {edge.target.node for edge in derived.largest.edges if edge.back}
    assert {"fork_operand", "fork_exponents"} <= held and len(derived.spilled) == 2
    assert _spills(derived.graph(3, 0))


def test_runs_have_the_hardware_of_the_largest() -> None:
    """Values of smaller runs lie where those of the largest would."""
    derived = Derivation(small_model(), small_plan(**ALL), CHANNEL)
    program, _ = finish(derived.graph, 1, 4, "conservative", CONTEXT, {"best": derived.requested})
    small = program.at(1, 0)
    assert [node.params for node in small.nodes] == [node.params for node in program.graph.nodes]
    assert [(t.name, t.itensor) for t in small.tensors if t.role == "spill"] == [
        (t.name, t.itensor) for t in program.graph.tensors if t.role == "spill"
    ]
    assert _spills(small) == _spills(program.graph)
