"""The memory channel of each content: first choices if they have room, then the fewest channels that do."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from streamgen.base.errors import BudgetError
from streamgen.compiler.schedule.channels import (
    Content,
    Key,
    Parts,
    Room,
    beside_caches,
    buffers,
    find_places,
)
from streamgen.kernels.memory import RowsLoadParams
from streamgen.platform.boards import board_of
from streamgen.platform.capacity import bytes_by_channel

PAGE = 4096
ROOM = 16 * PAGE  # of a channel


def _room(channels: int, pages: int = 16) -> Room:
    u280 = board_of("u280")
    board = replace(u280, name="small", hbm=replace(u280.hbm, channel_bytes=pages * PAGE))
    return Room(board=board, channels=channels)


def _constant(name: str, channel: int, size: int, units: int = 1, *, moves: bool = True) -> Content:
    return Content(key=("constant", name), channel=channel, bytes=size, units=units, moves=moves)


def _weights(*sizes: int) -> list[Content]:
    """Of columns, one on each channel."""
    return [_constant(f"column{c}", c, size, moves=False) for c, size in enumerate(sizes)]


def _found(contents: list[Content], room: Room) -> Mapping[Key, Parts]:
    """The places; no channel has more than its room, and no byte is lost."""
    places = find_places("a", contents, room)
    held = buffers(contents, places)
    assert max(bytes_by_channel(held).values()) <= room.board.hbm.channel_bytes
    assert sum(buffer.bytes for buffer in held) == sum(content.bytes for content in contents)
    return places


def test_nothing_moves_if_all_channels_have_room_to_the_byte() -> None:
    table = _constant("table", 1, 8 * PAGE, units=64)
    caches = Content(key=("state", "keys"), channel=1, bytes=PAGE - 64, moves=False)
    assert _found([*_weights(ROOM, 7 * PAGE), table, caches], _room(2)) == {}


def test_one_beat_too_many_moves_a_table_to_the_channel_with_the_most_room() -> None:
    table = _constant("table", 1, 8 * PAGE, units=64)
    contents = [*_weights(9 * PAGE, 8 * PAGE + 64, 8 * PAGE), table]
    assert _found(contents, _room(3)) == {table.key: ((2, 64),)}


def test_the_fewest_channels_hold_equal_parts() -> None:
    table = _constant("table", 3, 18 * PAGE, units=9)
    assert _found([*_weights(*[6 * PAGE] * 4), table], _room(4)) == {table.key: ((2, 4), (3, 5))}


def test_parts_are_as_unequal_as_the_room() -> None:
    table = _constant("table", 0, 21 * PAGE, units=21)
    contents = [*_weights(15 * PAGE, 11 * PAGE, PAGE + 64, 13 * PAGE), table]
    assert _found(contents, _room(4)) == {table.key: ((3, 3), (1, 5), (2, 13))}


def test_a_table_that_takes_the_last_beat_of_memory() -> None:
    table = _constant("table", 0, 12 * PAGE, units=64 * 12)
    contents = [*_weights(13 * PAGE, 13 * PAGE, 13 * PAGE, 13 * PAGE), table]
    places = _found(contents, _room(4))
    assert sorted(places[table.key]) == [(c, 192) for c in range(4)]
    beat = _constant("beat", 2, 64)
    with pytest.raises(BudgetError) as error:
        find_places("a", [*contents, beat], _room(4))
    assert error.value.needed_bytes == 65 * PAGE  # whole pages of a channel
    assert error.value.available_bytes == 64 * PAGE
    assert str(error.value).splitlines()[0] == (
        "'a' does not fit the memory of board 'small': it needs 266,240 bytes; 4 channels of 65,536 bytes "
        "have 262,144"
    )


def test_what_is_in_one_piece_comes_before_tables() -> None:
    """A bias, a spill and an output for which there is room only where a table could be."""
    table = _constant("table", 0, 20 * PAGE, units=20)
    spill = Content(key=("spill", "kept"), channel=0, bytes=5 * PAGE - 64)
    logits = Content(key=("output", "logits"), channel=0, bytes=3 * PAGE)
    contents = [*_weights(14 * PAGE, 2 * PAGE, 2 * PAGE), table, spill, logits, _constant("bias", 0, PAGE)]
    assert _found(contents, _room(3)) == {
        spill.key: ((2, 1),),
        logits.key: ((1, 1),),
        table.key: ((2, 9), (1, 11)),
    }


def test_rotations_come_before_tables_and_lie_in_one_piece_if_they_can() -> None:
    table = _constant("table", 0, 12 * PAGE, units=12)
    turns = replace(_constant("turns", 0, 8 * PAGE, units=4), early=True)
    contents = [*_weights(14 * PAGE, 8 * PAGE, 2 * PAGE), table, turns]
    assert _found(contents, _room(3)) == {turns.key: ((2, 4),), table.key: ((2, 6), (1, 6))}
    contents = [*_weights(*[10 * PAGE] * 6), replace(table, bytes=20 * PAGE, units=20), turns]
    assert _found(contents, _room(6)) == {
        turns.key: ((4, 2), (5, 2)),
        table.key: tuple((channel, 5) for channel in range(4)),
    }


def test_caches_and_weights_of_columns_stay() -> None:
    keys = Content(key=("state", "keys"), channel=0, bytes=4 * PAGE, moves=False)
    with pytest.raises(BudgetError) as error:
        find_places("a", [*_weights(13 * PAGE, 64), keys], _room(2))
    assert (error.value.needed_bytes, error.value.available_bytes) == (18 * PAGE, 32 * PAGE)


def test_the_room_that_caches_may_have() -> None:
    keys = Content(key=("state", "keys"), channel=0, bytes=9 * PAGE, moves=False)
    table = _constant("table", 1, 12 * PAGE, units=12)
    contents = [*_weights(6 * PAGE, 6 * PAGE - 64), table, keys]
    taken = beside_caches("a", contents, _room(3))
    assert taken == {0: 12 * PAGE, 1: 12 * PAGE, 2: 0}
    with pytest.raises(BudgetError):
        beside_caches("a", [*contents, _constant("more", 0, 17 * PAGE)], _room(3))


def test_channels_in_use_come_before_others() -> None:
    table, other = (_constant(name, 0, 12 * PAGE, units=12) for name in ("table", "other"))
    assert _found([_constant("weights", 0, 8 * PAGE, moves=False), table], _room(2)) == {
        table.key: ((1, 12),)
    }
    contents = [*_weights(8 * PAGE, 12 * PAGE), table]
    assert _found(contents, _room(3)) == {table.key: ((1, 4), (0, 8))}
    assert _found([*contents, other], _room(3)) == {table.key: ((1, 4), (0, 8)), other.key: ((2, 12),)}


def test_an_error_spreads_tables_evenly() -> None:
    """So that it does not look as if one channel alone were short."""
    table = _constant("table", 1, 60 * PAGE, units=4)
    with pytest.raises(BudgetError) as error:
        find_places("a", [*_weights(PAGE, PAGE), table], _room(2))
    row = str(error.value).splitlines()[2].split()
    assert row[:4] == ["0", "to", "1", f"{31 * PAGE:,}"]


@pytest.mark.parametrize(
    ("shape", "tile", "dtype", "units"),
    [
        ((4096,), (16,), "i8", 64),
        ((3584,), (16,), "f24", 224),
        ((896,), (32,), "i8", 14),
        ((40,), (8,), "f24", 3),  # two tokens and a half of a beat
        ((1,), (1,), "f24", 1),
        ((2, 64), (2, 16), "f24", 4),  # cosines and sines of 16 pairs in two beats
        ((2, 64), (2, 4), "f24", 8),
        ((2, 12), (2, 4), "f24", 2),  # a token and a half of two
        ((2, 64), (1, 16), "f24", 1),  # all cosines before all sines
    ],
)
def test_units_of_rows(shape: tuple[int, ...], tile: tuple[int, ...], dtype: str, units: int) -> None:
    """Parts take the beats of a whole row, however it is cut."""
    whole = RowsLoadParams(
        shape=shape, tile=tile, vocabulary=9, max_ids=4, dtype=dtype, rate=1.0, latency=100
    )
    assert whole.row_units == units
    for first in range(1, units):
        (a, before), (b, behind) = whole.parts([first, units - first])
        assert a.row_beats + b.row_beats == whole.row_beats and a.tokens + b.tokens == whole.tokens
        assert (before.start, before.stop, behind.stop) == (0, behind.start, whole.stored[-1])
        assert a.shape[-1] + b.shape[-1] == shape[-1] and a.shape[:-1] == b.shape[:-1] == shape[:-1]
        assert (a.stored[-1], b.stored[-1]) == (before.stop, behind.stop - behind.start)


@pytest.mark.parametrize(
    ("units", "fifos"),
    [
        ([32, 32], [(64, 32)] * 2),
        ([4, 20, 40], [(32, 16), (64, 32), (128, 64)]),
        ([1, 63], [(32, 16), (128, 64)]),
    ],
)
def test_loads_of_parts_have_smaller_fifos(units: list[int], fifos: list[tuple[int, int]]) -> None:
    whole = RowsLoadParams(
        shape=(4096,), tile=(16,), vocabulary=9, max_ids=4, dtype="i8", prefetch=128, burst=64, rate=1.0,
        latency=100,
    )  # fmt: skip
    assert [(part.prefetch, part.burst) for part, _ in whole.parts(units)] == fifos


@pytest.mark.parametrize("units", [[1, 2], [4, 0], [5]])
def test_parts_that_are_not_those_of_a_row(units: list[int]) -> None:
    whole = RowsLoadParams(shape=(64,), tile=(16,), vocabulary=9, max_ids=4, rate=1.0, latency=100)
    with pytest.raises(ValueError) as error:
        whole.parts(units)
    assert str(error.value) == (
        f"rows (64,) of f24 in tiles (16,) have 4 units, which parts of {units} units are not"
    )
