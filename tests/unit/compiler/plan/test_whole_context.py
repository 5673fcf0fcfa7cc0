"""The whole context of a published shape has room in memory: what fits in bytes, fits."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from streamgen.base.errors import BudgetError
from streamgen.compiler.plan.grouping import parts_of
from streamgen.compiler.schedule.channels import Room, find_places
from tests.unit.compiler.plan.shapes import PLAIN, graph_of

LLAMA = json.loads((Path(__file__).parents[4] / "benchmarks/zoo.json").read_text())["llama-3.1-8b"]


def test_rotations_of_a_long_context_lie_in_parts(tmp_path: Path) -> None:
    """Weights, caches and tables take 98 % of the memory of a U55C. In one piece, the 67 MB of cosines and
    sines of 131,072 positions would have no room on any channel."""
    factors = {"channels": 32, "n_lanes": 5, "multipliers": 5120, "attention_lanes": 8, "cache_channels": 32}
    config = replace(PLAIN, context=131_072, max_tokens=16, **factors)
    _, ready = graph_of(tmp_path, config, **LLAMA)
    (part,) = parts_of(ready, config)
    contents, board = part.derivation.contents, config.card
    assert 0.98 < sum(c.bytes for c in contents) / (board.hbm.channels * board.hbm.channel_bytes) < 0.985
    tables = {t.node: t.shape for t in part.derivation.largest.tensors if t.node.startswith("rotations")}
    assert tables == {"rotations_part_0": (131_073, 2, 32), "rotations_part_1": (131_073, 2, 32)}
    whole = [replace(c, units=1) if c.key == ("constant", "rotations") else c for c in contents]
    with pytest.raises(BudgetError, match="does not fit the memory of board 'u55c'"):
        find_places("whole", whole, Room(board=board, channels=32))
