"""Language models that are too large for the memory of a board: one error, before any hardware or file."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import streamgen
from streamgen.base.errors import BudgetError
from streamgen.cli import main
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.lower import program
from streamgen.compiler.plan import advising
from streamgen.model.graph.logical import LogicalGraph
from streamgen.platform import boards
from streamgen.platform.boards import Board, board_of
from tests.shared.decoders import random_decoder
from tests.unit.model.frontend.checkpoints import llama

SIZES = {"hidden": 64, "head_dim": 16, "rotated": 16, "wide": 96, "vocabulary": 4099}


@pytest.fixture(autouse=True)
def _nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if FIFO depths or Verilog are computed."""
    monkeypatch.setattr(program, "size_fifos", None)
    monkeypatch.setattr(sys.modules[streamgen.compile.__module__], "emit", None)


def _board(channel_bytes: int) -> Board:
    u280 = board_of("u280")
    return replace(u280, name="small", hbm=replace(u280.hbm, channel_bytes=channel_bytes))


def _refused(graph: LogicalGraph, channel_bytes: int, **changes: Any) -> list[str]:
    sizes: dict[str, Any] = {"max_tokens": 4, "context": 64, "channels": 2, "n_lanes": 2, "lanes": 2}
    sizes |= {"weights": "w8", **changes}
    config = CompileConfig(name="full", board=_board(channel_bytes), **sizes)
    with pytest.raises(BudgetError) as error:
        streamgen.compile(graph, config=config)
    with pytest.raises(BudgetError) as estimated:
        streamgen.estimate(graph, None, config)
    assert str(estimated.value) == str(error.value)
    return str(error.value).splitlines()


def test_a_table_of_embeddings_that_all_channels_do_not_hold() -> None:
    first, _, *rows, _, _ = _refused(random_decoder(**SIZES), 256 << 10, formats={"embedding": "f24"})
    assert first.startswith("'full' does not fit the memory of board 'small': it needs ")
    assert first.endswith(" bytes; 2 channels of 262,144 bytes have 524,288")
    assert [row.split()[0] for row in rows] == ["0", "1"]


def test_tables_weights_and_caches_that_are_too_much_for_their_channels() -> None:
    """The embeddings alone fit. A table shows the required bytes of each channel."""
    room = 440 << 10
    first, head, *rows, largest, advice = _refused(random_decoder(**SIZES, layers=4), room)
    assert first.endswith(f" bytes; 2 channels of {room:,} bytes have {2 * room:,}")
    parts = ("weights", "caches", "inputs, outputs", "table, status", "all", "over by")
    assert head.split() == " ".join(("channel", *parts)).split()
    for row in rows:
        _, *uses, everything, over = (int(cell.replace(",", "")) for cell in row.split())
        assert sum(uses) == everything == room + over and over > 0
    assert largest.startswith("largest there: weights_")
    assert advice.startswith("What helps: channels=32; board='u55c'")


def test_advice_names_the_longest_context_that_helps() -> None:
    """And no format that the weights have already."""
    graph = replace(random_decoder(**SIZES), context=8192)
    advice = _refused(graph, 1 << 20, context=8192, weights="w4", head="w4")[-1]
    boards = "board='u55c'; board='u280'; board='u50'; board='vu47p'"
    assert advice == f"What helps: channels=32; context=1024; {boards}"


def test_what_does_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advising, "BOARDS", {})
    *_, tried, needed = _refused(random_decoder(**SIZES, layers=4), 16 << 10, weights="w4")
    assert tried == "Tried in vain: channels=32; head='w4'"
    assert re.fullmatch(r"The design needs 0\.\d GB, the memory of \d+ such cards", needed)


def test_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    llama().save_pretrained(tmp_path / "model")
    monkeypatch.setitem(boards.BOARDS, "small", _board(16 << 10))
    given = [str(tmp_path / "model"), "--board", "small", "--channels", "2", "--max-tokens", "4"]
    assert main(["compile", *given, "--context", "32", "-o", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert "does not fit the memory of board 'small'" in said and "channel  weights" in said
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
