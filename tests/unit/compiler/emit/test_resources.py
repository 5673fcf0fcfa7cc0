"""What a design promises, and the refusal of one that does not fit, by its whole message."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from sim.memory import MEMORY
from streamgen.artifact.packing import MemoryLayout
from streamgen.base.errors import BudgetError
from streamgen.compiler.emit.resources import blocks, find_fit, links, promised
from streamgen.contract import Bounds
from streamgen.contract.cost import Cost, Resources
from streamgen.fifo.queue import QueueParams
from streamgen.itensor import ITensor
from streamgen.kernels.matmul.matmul import ColumnParams
from streamgen.model.graph import Edge, Node, Port, Tensor
from streamgen.platform.boards import Board, Slr
from streamgen.platform.boards.cards import U55C
from streamgen.platform.dma import LoadParams

ROW = ITensor((1, 16), "f24", (4,), (1,), ((0,), ()))
BIG = Resources(lut=10_000, ff=100_000, dsp=1000, bram=100, uram=100)
COLUMN = ColumnParams(
    t_lanes=1,
    n_lanes=2,
    formats=("w4",),
    group=32,
    scale_bits=8,
    minimum=True,
    max_k=64,
    max_n=4,
    max_t=1,
)
OF_COLUMN = {"t": 1, "k": 64, "n": 4, "format": "w4", "grouped": True}


@dataclass(frozen=True, kw_only=True)
class WidgetParams:
    """Promises whatever it is told to."""

    lut: int = 0
    dsp: int = 0
    bram: float = 0
    moves: bool = False
    held_bits: int = 0

    def inputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"i": ROW}

    def outputs(self, bounds: Bounds) -> Mapping[str, ITensor]:
        return {"o": ROW}

    def cost(self, bounds: Bounds) -> Cost:
        resources = Resources(lut=self.lut, ff=0, dsp=self.dsp, bram=self.bram)
        return Cost(resources=resources, ii=1.0, latency=1, cycles=5)


def board(fill: float = 0.5, **resources: float) -> Board:
    """Three SLRs with plenty of what is not named."""
    return replace(
        U55C,
        slrs=tuple(Slr(name=f"SLR{k}", resources=replace(BIG, **resources)) for k in range(3)),
        fill=fill,
    )


def top(
    nodes: Mapping[str, Any],
    edges: Iterable[tuple[str, str]] = (),
    depth: int = 2,
    tensors: tuple[Tensor, ...] = (),
) -> Any:
    """What is asked of a TopParams: 40 LUTs around nodes and FIFOs of 384 bits. Edges against the order of
    the alphabet are back edges."""
    bounds = {LoadParams: {"itensor": ROW, "offset": 0}, ColumnParams: OF_COLUMN}
    return SimpleNamespace(
        graph=SimpleNamespace(
            nodes=tuple(
                Node(name, params, (bounds.get(type(params), {}),)) for name, params in nodes.items()
            ),
            edges=tuple(Edge(Port(a, "o"), Port(b, "i"), depth, a >= b) for a, b in edges),
            tensors=tensors,
        ),
        queue=lambda k: QueueParams(bits=384, depth=depth),
        shell=Resources(lut=40, ff=0),
        targets=[SimpleNamespace(resources=Resources(lut=0, ff=0))] * len(nodes),
    )


def test_blocks_are_nodes_with_the_fifos_before_them() -> None:
    load = LoadParams(layout=MemoryLayout.of(ROW), max_tokens=4, **MEMORY)
    design = top({"x": load, "a": WidgetParams(lut=7), "b": WidgetParams(dsp=2)}, [("x", "a"), ("a", "b")])
    fifo = QueueParams(bits=384, depth=2).resources
    found = {block.name: block for block in blocks(design)}
    assert list(found) == ["control and masters", "x", "a", "b"]
    assert [name for name, block in found.items() if block.fixed] == ["control and masters", "x"]
    assert found["a"].resources == Resources(lut=7, ff=0) + fifo
    assert found["b"].kind == "Widget"
    kinds = promised(design)
    assert list(kinds) == ["Load", "Widget", "FIFOs", "control and masters"]
    assert kinds["FIFOs"] == fifo * 2
    assert kinds["Widget"] == Resources(lut=7, ff=0, dsp=2)
    together = sum(kinds.values(), Resources(lut=0, ff=0))
    assert sum((block.resources for block in found.values()), Resources(lut=0, ff=0)) == together


def test_links_are_streams_and_what_counters_see() -> None:
    design = top({"a": WidgetParams(), "b": WidgetParams()}, [("a", "b")])
    assert [(link.name, link.source, link.target, link.bits) for link in links(design)] == [
        ("a.o -> b.i", "a", "b", 386),
        ("counters of a", "a", "control and masters", 2),
        ("counters of b", "b", "control and masters", 4),
    ]


def test_what_fits_is_placed() -> None:
    design = top({"a": WidgetParams(lut=4000), "b": WidgetParams(lut=3000)}, [("a", "b")])
    fifo = QueueParams(bits=384, depth=2).resources
    assert set(find_fit("small", design, board()).slrs.values()) == {"SLR0", "SLR1"}
    assert find_fit("small", design, board(lut=20_000)).used["SLR0"] == Resources(lut=7040, ff=0) + fifo


def test_a_little_is_left_free_where_that_can_be() -> None:
    """Half of an SLR may be filled, and both widgets fill it; a tenth of it is left where they lie apart."""
    design = top({"a": WidgetParams(lut=4000), "b": WidgetParams(lut=2900)}, [("a", "b")])
    tight = board(lut=14_800)
    together = find_fit("small", design, tight)
    assert set(together.slrs.values()) == {"SLR0"} and together.used["SLR0"].lut > 0.45 * 14_800
    apart = find_fit("small", design, tight, spare=0.05)
    assert len(set(apart.slrs.values())) == 2
    assert all(used.lut <= 0.45 * 14_800 for used in apart.used.values())
    assert find_fit("small", design, tight, apart.slrs, spare=0.2).slrs == apart.slrs  # as it was placed
    for more in (0.4, 0.5, 0.6):  # else as fits at all, also where more would be left than may be filled
        assert find_fit("small", design, tight, spare=more).slrs == together.slrs


HEAD = "{!r} does not fit the card: it needs {}"
FILL = "A design may fill 50% of each SLR. In the best placement it takes"
SPLIT = "split the module, or lower converter_bits so that it becomes several accelerators"


def test_too_many_luts() -> None:
    nodes = {f"n{k}": WidgetParams(lut=k) for k in (100, 150, 200, 250, 300, 350, 3000)}
    with pytest.raises(BudgetError) as error:
        find_fit("big", top(nodes), board(lut=2000))
    head, fill, table, *slrs, everything, largest, alone, advice = str(error.value).splitlines()
    assert head in [HEAD.format("big", f"3,000 of 1,000 LUT in SLR{k}") for k in range(3)]
    assert fill == FILL
    assert table == "                  LUT             FF          DSP       BRAM       URAM"
    # the small ones have room on two of the three SLRs in several ways
    assert [line[:4] for line in slrs] == ["SLR0", "SLR1", "SLR2"]
    assert "3,000 of 1,000!    0 of 50,000     0 of 500    0 of 50    0 of 50" in "".join(slrs)
    assert everything == "all   4,390 of 3,000!   0 of 150,000   0 of 1,500   0 of 150   0 of 150"
    assert largest == (
        "most LUT: n3000 (Widget) 3,000, n350 (Widget) 350, n300 (Widget) 300, n250 (Widget) 250, "
        "n200 (Widget) 200, 3 more 290"
    )
    assert alone == "too large for any single SLR: n3000 (Widget)"
    assert advice == f"What frees room: {SPLIT}"


def test_too_many_multipliers() -> None:
    design = top({f"column_{k}": COLUMN for k in range(4)})
    with pytest.raises(BudgetError) as error:
        find_fit("wide", design, board(dsp=78))
    lines = str(error.value).splitlines()
    assert lines[0] in [HEAD.format("wide", f"78 of 39 DSP in SLR{k}") for k in range(3)]
    assert [lines[1], *lines[6:]] == [
        FILL,
        "all    3,540 of 15,000   4,552 of 150,000  156 of 117!   0 of 150   0 of 150",
        "most DSP: column_0 (Column) 39, column_1 (Column) 39, column_2 (Column) 39, column_3 (Column) 39",
        "What frees room: fewer multipliers or token_lanes (about 192 of the 256 multipliers fit); " + SPLIT,
    ]
    find_fit("three quarters of it", top({f"column_{k}": COLUMN for k in range(3)}), board(dsp=78))


def test_too_deep_prefetch() -> None:
    load = LoadParams(layout=MemoryLayout.of(ROW), max_tokens=4, prefetch=4096, **MEMORY)
    with pytest.raises(BudgetError) as error:
        find_fit("deep", top({"x": load, "y": load}), board(uram=20))
    assert str(error.value).splitlines() == [
        HEAD.format("deep", "16 of 10 URAM in SLR0"),
        FILL,
        "                 LUT                 FF          DSP       BRAM       URAM",
        "SLR0    539 of 5,000    1,216 of 50,000     0 of 500    0 of 50  16 of 10!",
        "SLR1      0 of 5,000        0 of 50,000     0 of 500    0 of 50    0 of 10",
        "SLR2      0 of 5,000        0 of 50,000     0 of 500    0 of 50    0 of 10",
        "all    539 of 15,000   1,216 of 150,000   0 of 1,500   0 of 150   16 of 30",
        "most URAM: x (Load) 8, y (Load) 8",
        f"What frees room: prefetch_beats=64 frees 16 URAM; {SPLIT}",
    ]
    shallow = replace(load, prefetch=64)
    find_fit("as advised", top({"x": shallow, "y": shallow}), board(uram=20))


def test_too_deep_fifos() -> None:
    design = top({"x": WidgetParams(), "y": WidgetParams(bram=3)}, [("x", "y")], depth=512)
    with pytest.raises(BudgetError) as error:
        find_fit("long", design, board(bram=12))
    assert str(error.value).splitlines()[-3:] == [
        "most BRAM: y (Widget) 8.5",
        "too large for any single SLR: y (Widget)",
        f"What frees room: a smaller max_tokens (FIFOs and layout converters take 5.5 BRAM); {SPLIT}",
    ]


def test_what_holds_tokens_shrinks_with_them() -> None:
    """Layout converters do, FIFOs too; rows of weights and rings of caches do not."""
    load = LoadParams(layout=MemoryLayout.of(ROW), max_tokens=4, prefetch=64, **MEMORY)
    nodes = {
        "a": load,
        "caches": WidgetParams(bram=16, held_bits=9),
        "rows": WidgetParams(bram=8, moves=True, held_bits=9),
        "turned": WidgetParams(bram=4, moves=True, held_bits=9),
    }
    constants = (Tensor("w", "constant", "a", (4,), 0),)
    design = top(nodes, [("a", "rows"), ("rows", "turned"), ("caches", "turned")], tensors=constants)
    with pytest.raises(BudgetError) as error:
        find_fit("held", design, board(bram=10))
    advice = f"What frees room: a smaller max_tokens (FIFOs and layout converters take 4 BRAM); {SPLIT}"
    assert str(error.value).splitlines()[-1] == advice


def test_too_many_values_held() -> None:
    """A back edge could be smaller; what is in memory already is named."""
    tensors = tuple(
        Tensor(f"{way}_y", "spill", "x", (4,), 0, buffer="spill_y") for way in ("spill", "reload")
    )
    design = top({"x": WidgetParams(), "y": WidgetParams(bram=3)}, [("y", "x")], 512, tensors)
    with pytest.raises(BudgetError) as error:
        find_fit("held", design, board(bram=10))
    *_, places, advice = str(error.value).splitlines()
    assert places == "values that wait in memory between phases: y"
    assert advice == (
        "What frees room: a smaller hold_bits (values that wait between phases take 5.5 BRAM); "
        f"a smaller max_tokens (FIFOs and layout converters take 5.5 BRAM); {SPLIT}"
    )


def test_caches_on_too_many_channels() -> None:
    """What loads and stores them could be less, and a text is not split."""
    load = LoadParams(layout=MemoryLayout.of(ROW), max_tokens=4, prefetch=64, **MEMORY)
    tensors = tuple(Tensor(f"keys_{k}", "state", "keys", (4,), k, port=f"memory_{k}") for k in range(2))
    design = top({"keys": load, "y": WidgetParams(lut=900)}, tensors=tensors)
    with pytest.raises(BudgetError) as error:
        find_fit("cached", design, board(lut=1000))
    lut = load.cost({"itensor": ROW, "offset": 0}).resources.lut
    assert str(error.value).splitlines()[-1] == (
        "What frees room: a smaller context or fewer cache_channels (loads and stores of caches take "
        f"{lut:g} LUT); smaller n_lanes or lanes, fewer channels, or a larger board"
    )


def test_blocks_stay_where_they_were_placed_if_that_fits() -> None:
    """Kernels are placed before FIFOs have a depth; when these need too much there, all are placed again."""
    design = top({"a": WidgetParams(lut=4000), "b": WidgetParams(lut=500)}, [("a", "b")], depth=64)
    slrs = {"control and masters": "SLR0", "a": "SLR0", "b": "SLR1"}
    assert find_fit("small", design, board(), slrs).slrs == slrs
    assert find_fit("small", design, board(lut=20_000), slrs).slrs == slrs
    full = slrs | {"b": "SLR0"}
    small = board(lut=9000)
    assert find_fit("small", design, small, slrs).slrs == slrs
    found = find_fit("small", design, small, full)
    assert found.slrs != full and found.fits(small)
