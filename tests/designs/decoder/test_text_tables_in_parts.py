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


def _loads(model: LanguageModel) -> dict[str, int]:
    """The channel of each node that reads rows of a table."""
    graph = model.groups[0].program.graph
    return {
        tensor.node: tensor.channel
        for tensor in graph.tensors
        if isinstance(graph.node(tensor.node).params, RowsLoadParams)
    }


def _compiled(pages: int, config: streamgen.CompileConfig, **sizes: object) -> LanguageModel:
    """A model on a board whose channels have that many pages."""
    board = replace(U55C, name="small", hbm=replace(U55C.hbm, channel_bytes=pages * 4096))
    return compiled_model(random_decoder(**{**SIZES, **sizes}), replace(config, board=board))


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
    model = _compiled(pages, config)
    assert Counter(_loads(model).values()) == loads
    check_passes(model, (4, 1, 3, 1, 1))


@pytest.mark.slow
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotations_in_parts(interleaved: bool) -> None:
    """Cosines and sines of 24 pairs, of which a channel gives 8 and another one 16. To the bit, and in the
    predicted cycles."""
    sizes = {"heads": 2, "kv_heads": 1, "head_dim": 64, "rotated": 48, "vocabulary": 70, "context": 1024}
    model = _compiled(80, replace(TINY, context=1024), layers=1, interleaved=interleaved, **sizes)
    assert _loads(model) == {"embedding": 1, "rotations_part_0": 0, "rotations_part_1": 1}
    check_passes(model, (4, 1, 3, 1, 1))
