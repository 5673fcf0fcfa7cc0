"""Placement comes before sizing: kernels with the least FIFOs first, then these where they are read."""

from dataclasses import replace

import pytest

import streamgen
from streamgen.base.errors import BudgetError
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.lower import GraphBuilder, program
from streamgen.itensor import ITensor
from streamgen.kernels.elementwise import BinaryParams
from streamgen.model.graph import Graph
from streamgen.platform.boards import Board, board_of

ROWS = ITensor((1, 4), "f24", (2, 8), (1, 4), ((0,), (1,)))
U280 = board_of("u280")


def graph(channel: int = 1) -> Graph:
    b = GraphBuilder("double")
    x = b.load("x", ROWS, shape=(2, 32), channel=0)
    add = BinaryParams(operation="add", lanes=4, max_tokens=ROWS.token_count)
    b.store("y", b.kernel("add", add, {"itensor": ROWS}, i_a=x, i_b=x)["o"], shape=(2, 32), channel=channel)
    return b.build()


def filled(fill: float) -> Board:
    return replace(U280, name="small", fill=fill)


def test_nodes_are_placed_before_fifos_have_a_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    order = []
    size = program.size_fifos

    def sized(corners, *choices):
        order.append({edge.depth for edge in corners[0].edges})
        return size(corners, *choices)

    monkeypatch.setattr(program, "size_fifos", sized)
    (group,) = streamgen.assemble(graph(), CompileConfig(name="double", board=U280)).groups
    assert order == [{None}]
    assert group.design is not None
    placement = group.design.placement
    assert placement.slrs == group.program.regions.slrs
    assert set(placement.slrs) == {"control and masters", *(node.name for node in group.graph.nodes)}
    assert group.design.board is U280
    facts = group.design.manifest.board
    assert (facts.name, facts.channels, facts.channel_bytes) == ("u280", 32, 256 << 20)


def test_what_cannot_be_placed_is_not_sized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "size_fifos", None)
    with pytest.raises(
        BudgetError, match=r"^'double' does not fit the card: it needs .*\nA design may fill 1%"
    ):
        streamgen.assemble(graph(), CompileConfig(name="double", board=filled(0.01)))
    with pytest.raises(
        BudgetError, match=r"^'double' does not fit the card: it needs .*\nA design may fill 1%"
    ):
        streamgen.assemble(graph(), CompileConfig(name="double", fill=0.01))


def test_memory_that_is_too_small_is_found_before_sizing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "size_fifos", None)
    board = replace(U280, hbm=replace(U280.hbm, channel_bytes=8192))
    with pytest.raises(BudgetError, match=r"^'double' does not fit the memory of board 'u280'"):
        streamgen.assemble(graph(), CompileConfig(name="double", board=board))


def test_channels_are_those_of_the_board() -> None:
    with pytest.raises(BudgetError, match=r"^'double' uses memory channel 32; board 'u55c' has "):
        streamgen.assemble(graph(32), CompileConfig(name="double"))
