"""A language model on a board whose channels do not hold its tables."""

from collections import Counter
from dataclasses import replace

import pytest

import streamgen
from streamgen.api.language_model import LanguageModel
from streamgen.kernels.memory import RowsLoadParams
from streamgen.platform.boards import board_of
from tests.shared.decoders import TINY, check_passes, compiled_model, random_decoder

SIZES = {"hidden": 64, "head_dim": 16, "rotated": 16, "wide": 96, "vocabulary": 512, "context": 128}
U55C = board_of("u55c")


def _loads(model: LanguageModel) -> Counter[int]:
    """The number of nodes that read rows of tables from each channel."""
    graph = model.groups[0].program.graph
    return Counter(
        tensor.channel
        for tensor in graph.tensors
        if isinstance(graph.node(tensor.node).params, RowsLoadParams)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pages", "config", "loads"),
    [
        # the embedding on both channels, beside rotations on the last one
        (45, replace(TINY, formats={"embedding": "f24"}), {0: 1, 1: 2}),
        # each beat of a row on a channel of its own; the phase table has no room on channel 0
        (25, replace(TINY, channels=4, formats={"embedding": "f24"}), {0: 1, 1: 1, 2: 1, 3: 2}),
    ],
)
def test_prompts_and_steps(pages: int, config: streamgen.CompileConfig, loads: dict[int, int]) -> None:
    """To the bit, and in the predicted cycles."""
    board = replace(U55C, name="small", hbm=replace(U55C.hbm, channel_bytes=pages * 4096))
    model = compiled_model(random_decoder(**SIZES), replace(config, board=board))
    assert _loads(model) == loads
    check_passes(model, (4, 1, 3, 1, 1))
