"""The energy of a run: its bounds hold its likely value, and grow with every part of the work."""

import pytest

from streamgen.api.energy import LEAST, LIKELY, MOST, energy
from streamgen.platform.boards import BOARDS, Board

WORK = {"cycles": 3e5, "products": 5e8, "bits": 4e9, "luts": 4e5}


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_the_likely_value_lies_between_the_bounds(board: Board) -> None:
    least, likely, most = (energy(board, 300.0, **WORK, figures=f) for f in (LEAST, LIKELY, MOST))
    assert 0 < least < likely < most
    assert likely == energy(board, 300.0, **WORK)


@pytest.mark.parametrize("part", WORK)
def test_more_of_any_work_takes_more(part: str) -> None:
    more = WORK | {part: 2 * WORK[part]}
    for figures in (LEAST, LIKELY, MOST):
        before, after = (energy(BOARDS["u55c"], 300.0, **work, figures=figures) for work in (WORK, more))
        assert before < after <= 2 * before


def test_a_full_card_takes_its_power_at_most() -> None:
    """Of idle power and LUTs, without products and memory, in a second."""
    board = BOARDS["u55c"]
    work = {"cycles": board.clock_mhz * 1e6, "products": 0, "bits": 0, "luts": board.resources.lut}
    for figures in (LEAST, LIKELY, MOST):
        assert energy(board, board.clock_mhz, **work, figures=figures) < board.watts
