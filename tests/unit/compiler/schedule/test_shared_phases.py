"""What derived graphs are made of: phases, what they share, where tables lie, which rows go no further."""

from functools import partial

import pytest

from streamgen.compiler.lower import finish, insert_converters, insert_forks, unfused_bits
from streamgen.compiler.schedule import Derivation
from streamgen.contract import moves
from streamgen.kernels.matmul.matmul import ColumnParams
from streamgen.kernels.memory import KvLoadParams, RowsLoadParams
from streamgen.kernels.moves.fit_rows import FitRowsParams
from streamgen.kernels.moves.route import RouteParams
from streamgen.kernels.moves.segments import SegmentsParams
from streamgen.kernels.moves.select import SelectParams
from streamgen.kernels.moves.take_rows import TakeRowsParams
from streamgen.model.frontend import import_decoder
from streamgen.model.graph import Graph
from streamgen.numbers.quantisation import Numbers
from tests.unit.compiler.schedule.small import CHANNEL, CONTEXT, check_decoder, small_model, small_plan
from tests.unit.model.frontend.families import family


def test_phases_of_a_decoder() -> None:
    derived = Derivation(small_model(), small_plan(), CHANNEL)
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
    graph = Derivation(small_model(), small_plan(), CHANNEL).graph(4, 12)
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


def test_layers_behind_the_last_whole_body() -> None:
    """They are walked once, and share hardware and caches with the body."""
    model = small_model(layers=5, windows=(3, None))
    check_decoder(model, small_plan(columns=4, n_lanes=4, lanes=4))
    derived = Derivation(model, small_plan(), CHANNEL)
    assert [(len(s.phases), s.walks) for s in derived.schedule.sections] == [(1, 1), (9, 2), (6, 1)]
    whole = Derivation(small_model(layers=4, windows=(3, None)), small_plan(), CHANNEL).graph(4, 12)
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
    model = small_model(layers=layers, windows=windows)
    check_decoder(model, small_plan(columns=4, n_lanes=4, lanes=4), (4, 3, 1, 4))
    derived = Derivation(model, small_plan(), CHANNEL)
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
    derived = Derivation(small_model(layers=3), small_plan(), CHANNEL)
    graph = derived.largest
    (tile,) = {b["tile"] for b in graph.node("take_last_layers2_attention").bounds if b is not None}
    assert tile < 64 and 64 % tile == 0
    finished = insert_converters(insert_forks(graph))
    assert "convert_take_last_layers2_attention_i" not in finished.by_name


def test_tensors_whole_count_once() -> None:
    """Layers use the same memory, however many there are, and the values of one are all there; who passes a
    tensor on makes none."""
    derived = [Derivation(small_model(layers=n), small_plan(), CHANNEL) for n in (2, 3, 4, 7)]
    (bits,) = {unfused_bits(one.largest) for one in derived}
    made = [v for p in derived[0].schedule.sections[1].phases for one in p.steps for v in one.outputs]
    tokens = derived[0].plan.max_tokens
    values = sum(24 * tokens * v.shape.features for v in made if v.shape.rows == "tokens")
    assert values < bits < 4 * values  # codes of operands, scores, keys and values of the context beside them
    passing = SelectParams | RouteParams | SegmentsParams | FitRowsParams | TakeRowsParams
    passed = [n for one in derived for n in one.largest.nodes if isinstance(n.params, passing)]
    assert passed and all(moves(node.params) for node in passed)


def test_runs_have_the_hardware_of_the_largest() -> None:
    derived = Derivation(small_model(), small_plan(), CHANNEL)
    program, _ = finish(derived.graph, 1, 4, "conservative", CONTEXT, {"best": derived.requested})
    small = program.at(1, 0)
    assert [node.params for node in small.nodes] == [node.params for node in program.graph.nodes]
    rests = program.at(2, 3, "best").node("store_logits")
    assert all(bounds is None for bounds in rests.bounds)


@pytest.mark.parametrize("lanes", [2, 4])
def test_wide_tiles_wait_in_the_cache(lanes: int) -> None:
    """Behind a load of tiles of more than 2,048 bits is one place, behind others what a schedule asks."""
    sizes = {"head_dim": 128, "rotated": 0, "heads": 1, "kv_heads": 1}
    derived = Derivation(
        small_model(**sizes), small_plan(columns=8, kv_channels=4, attention_lanes=lanes), CHANNEL
    )
    program, _ = finish(derived.graph, 1, 4, "conservative", CONTEXT, {"best": derived.requested})
    depths = {edge.source.node: edge.depth for edge in program.graph.edges}
    assert (depths["load_keys_x"] == depths["load_values_x"] == 1) == (lanes == 4)


def _row_loads(graph: Graph) -> dict[str, RowsLoadParams]:
    return {node.name: node.params for node in graph.nodes if isinstance(node.params, RowsLoadParams)}


def _channels(graph: Graph) -> dict[str, int]:
    loads = _row_loads(graph)
    return {tensor.node: tensor.channel for tensor in graph.tensors if tensor.node in loads}


def test_tables_that_are_read_at_once_lie_apart() -> None:
    """Codes and scales of one together; loads of wide rows have a deeper FIFO."""
    learned = import_decoder(family("GPT2")).quantised(Numbers(by_layer={"logits": "w8"}))
    for columns in (2, 4):
        graph = Derivation(learned, small_plan(columns=columns), CHANNEL).largest
        assert _channels(graph) == {"embedding": columns - 1, "position_rows": columns - 2}
    model = small_model(numbers={"by_layer": {"logits": "w8", "embedding": "w8"}})
    for columns in (2, 4):
        graph = Derivation(model, small_plan(columns=columns), CHANNEL).largest
        loads = _row_loads(graph)
        last = columns - 1
        assert _channels(graph) == {"embedding_codes": last, "embedding_scale": last, "rotations": last}
        assert {(load.prefetch, load.burst) for load in loads.values()} == {(64, 16)}
    wide = _row_loads(Derivation(small_model(hidden=1024), small_plan(lanes=16), CHANNEL).largest)[
        "embedding"
    ]
    assert (wide.row_beats, wide.prefetch, wide.burst) == (64, 128, 64)
