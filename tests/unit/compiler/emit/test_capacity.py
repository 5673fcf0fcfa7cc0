"""Buffers that a channel does not hold are refused, by the whole message."""

from dataclasses import replace

import pytest

from streamgen.artifact.manifest import Buffer
from streamgen.base.errors import BudgetError
from streamgen.platform.boards import board_of
from streamgen.platform.capacity import StoredTable, require_room, require_tables

MB = 1 << 20
BOARD = replace(board_of("u280"), hbm=replace(board_of("u280").hbm, channel_bytes=16 * MB, channels=4))


def buffers(*sizes: tuple[str, str, int, int]) -> list[Buffer]:
    return [Buffer(name=n, role=role, channel=c, bytes=size) for n, role, c, size in sizes]


def test_what_fits_to_the_byte() -> None:
    require_room("a", buffers(("table", "table", 0, 64), ("w", "weights", 0, 16 * MB - 4096)), BOARD)


def test_every_buffer_takes_whole_pages() -> None:
    with pytest.raises(BudgetError, match=r" 16,781,312 +4,096\n"):
        require_room("a", buffers(("table", "table", 0, 64), ("w", "weights", 0, 16 * MB - 4032)), BOARD)


def test_the_table_names_what_is_over() -> None:
    needed = buffers(
        ("table", "table", 0, 1024),
        ("status", "status", 0, 128),
        ("x", "input", 1, 4 * MB),
        ("k", "state", 1, 12 * MB),
        ("weights_1", "weights", 1, 8 * MB),
        ("weights_2", "weights", 2, 20 * MB),
    )
    with pytest.raises(BudgetError) as error:
        require_room("a", needed, BOARD)
    assert str(error.value).splitlines() == [
        "'a' does not fit the memory of board 'u280': a channel has 16,777,216 bytes",
        "channel     weights      caches  inputs, outputs  table, status         all    over by",
        "      1   8,388,608  12,582,912        4,194,304              0  25,165,824  8,388,608",
        "      2  20,971,520           0                0              0  20,971,520  4,194,304",
        "largest there: weights_2 (channel 2) 20,971,520, k (channel 1) 12,582,912, "
        "weights_1 (channel 1) 8,388,608, x (channel 1) 4,194,304",
        "What would help: more channels (3 are in use, all bytes need 3 at least); weights of fewer bits; "
        "a smaller context; a smaller max_tokens; a board whose channels are larger",
    ]


def _tables(**sizes: tuple[int, str]) -> dict[str, StoredTable]:
    """Of 32,768 rows; sizes: features and format."""
    return {
        path: StoredTable(rows=1 << 15, row_bytes={"f24": 4 * size, "w8": size + 64}, format=form)
        for path, (size, form) in sizes.items()
    }


def test_tables_that_no_channel_holds() -> None:
    require_tables("a", _tables(embedding=(448, "w8")), BOARD, together=True)
    with pytest.raises(BudgetError) as error:
        require_tables("a", _tables(embedding=(384, "w8"), position_rows=(64, "f24")), BOARD, together=True)
    assert str(error.value).splitlines() == [
        "'a' does not fit the memory of board 'u280': a channel has 16,777,216 bytes; all tables lie in one",
        "table          format    rows  bytes a row         all    over by",
        "embedding      w8      32,768          448  14,680,064",
        "position_rows  f24     32,768          256   8,388,608",
        "all                                         23,068,672  6,291,456",
        "What would help: formats={'position_rows': 'w8'} and a board whose channels are larger",
    ]


def test_tables_that_fit_in_eight_bits() -> None:
    with pytest.raises(BudgetError, match=r"\nWhat would help: formats={'embedding': 'w8'}$"):
        require_tables("a", _tables(embedding=(256, "f24"), position_rows=(64, "w8")), BOARD, together=True)


def test_tables_each_in_a_channel() -> None:
    require_tables("a", _tables(embedding=(384, "w8"), position_rows=(64, "f24")), BOARD, together=False)
    sizes = {"embedding": (512, "w8"), "position_rows": (160, "f24"), "types": (64, "f24")}
    with pytest.raises(BudgetError) as error:
        require_tables("a", _tables(**sizes), BOARD, together=False)
    assert str(error.value).splitlines() == [
        "'a' does not fit the memory of board 'u280': a channel has 16,777,216 bytes; a table lies in one",
        "table          format    rows  bytes a row         all    over by",
        "embedding      w8      32,768          576  18,874,368  2,097,152",
        "position_rows  f24     32,768          640  20,971,520  4,194,304",
        "What would help: formats={'position_rows': 'w8'} and a board whose channels are larger",
    ]


def test_a_channel_that_the_board_has_not() -> None:
    with pytest.raises(BudgetError) as error:
        require_room("a", buffers(("w", "weights", 4, 64)), BOARD)
    assert str(error.value) == "'a' uses memory channel 4; board 'u280' has channels 0 to 3"


def test_spills_have_a_column_where_there_are_any() -> None:
    with pytest.raises(BudgetError) as error:
        require_room("a", buffers(("x", "spill", 1, 300 * MB), ("y", "output", 1, MB)), BOARD)
    _, head, row, _, advice = str(error.value).splitlines()
    assert head.split() == ["channel", "weights", "caches", "spills", *head.split()[4:]]
    assert row.split()[:4] == ["1", "0", "0", f"{300 * MB:,}"]
    assert advice == (
        "What would help: a smaller max_tokens; a larger hold_bits, with which less goes through memory; "
        "a board whose channels are larger"
    )
