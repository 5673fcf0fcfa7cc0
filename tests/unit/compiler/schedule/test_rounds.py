"""Keys, values and queries from the engine in rounds: where what reads them takes tiles as they are made."""

from typing import Any

import numpy as np
import pytest

from streamgen.artifact.row_order import RowOrder
from streamgen.compiler.schedule import Derivation, HardwarePlan
from streamgen.numbers.quantisation import Numbers
from tests.shared.decoders import random_decoder
from tests.unit.compiler.schedule.small import CHANNEL

PLAN = HardwarePlan(max_tokens=4, context=16, columns=2, n_lanes=4, lanes=2)  # a tile has 8 rows
SIZES: dict[str, Any] = {
    "hidden": 64,
    "head_dim": 8,
    "rotated": 0,
    "wide": 96,
    "vocabulary": 64,
    "context": 16,
}


@pytest.mark.parametrize(
    ("changes", "rounds", "sizes"),
    [
        ({"heads": 8, "kv_heads": 8}, 8, (1, 1, 1)),
        ({"heads": 8, "kv_heads": 4}, 4, (2, 1, 1)),
        ({"heads": 6, "kv_heads": 6}, 1, (6, 6, 6)),  # a row of scales has no six pieces
        ({"heads": 8, "kv_heads": 8, "head_dim": 16}, 1, (16, 16, 16)),  # a tile has half a head
        ({"heads": 8, "kv_heads": 8, "rotated": 8}, 1, (8, 8, 8)),  # rotations take whole rows
    ],
    ids=str,
)
def test_rounds_are_as_many_as_readers_take(
    changes: dict[str, int], rounds: int, sizes: tuple[int, ...]
) -> None:
    model = random_decoder(**{**SIZES, **changes}).quantised(Numbers(by_layer={"logits": "w8"}))
    parted = [b for b in Derivation(model, PLAN, CHANNEL).largest.node("part").bounds if b is not None]
    assert parted and {(b["rounds"], b["sizes"]) for b in parted} == {(rounds, sizes)}


def test_rows_of_rounds() -> None:
    """Two rounds: the first half of each, then the second half of each."""
    order = RowOrder(rows=(4, 2), columns=2, rounds=2)
    parts = [np.array([[0], [1], [2], [3]]), np.array([[10], [11]])]
    assert order.joined(parts).ravel().tolist() == [0, 1, 10, 2, 3, 11]
    assert order.places(0).tolist() == [0, 1, 3, 4] and order.places(1).tolist() == [2, 5]
