"""Buffers that a channel does not hold are refused, by the whole message."""

from dataclasses import replace

import pytest

from streamgen.artifact.manifest import Buffer
from streamgen.base.errors import BudgetError
from streamgen.platform.boards import board_of
from streamgen.platform.capacity import require_room

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
    assert (error.value.needed_bytes, error.value.available_bytes) == (44 * MB + 8192, 64 * MB)
    assert str(error.value).splitlines() == [
        "'a' does not fit the memory of board 'u280': it needs 46,145,536 bytes; 4 channels of 16,777,216 "
        "bytes have 67,108,864, but 2 channels would be too full",
        "channel     weights      caches  inputs, outputs  table, status         all    over by",
        "      1   8,388,608  12,582,912        4,194,304              0  25,165,824  8,388,608",
        "      2  20,971,520           0                0              0  20,971,520  4,194,304",
        "largest there: weights_2 (channel 2) 20,971,520, k (channel 1) 12,582,912, "
        "weights_1 (channel 1) 8,388,608, x (channel 1) 4,194,304",
        "What frees room: more channels (3 are in use, all bytes need 3 at least); weights of fewer bits; "
        "a smaller context; a smaller max_tokens; a board whose channels are larger",
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
        "What frees room: a smaller max_tokens; a larger hold_bits, with which less goes through memory; "
        "a board whose channels are larger"
    )
