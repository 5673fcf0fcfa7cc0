"""How many positions of a cache attention takes in a cycle: what memory gives, under the budgets."""

from dataclasses import replace
from typing import Any

import pytest

from streamgen.compiler.budget import budget_of
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.explore import attention_width
from streamgen.compiler.plan.policy import hardware
from streamgen.model.graph.logical import LogicalGraph
from streamgen.model.operations.balance import balanced
from streamgen.platform.boards import Channel
from tests.shared.decoders import TINY, random_decoder, tiny_decoder

MEMORY = Channel(rate=0.6927, latency=100)
CARD = CompileConfig(multipliers=8192, channels=32, max_tokens=32)


def model(heads: int, kv_heads: int, head_dim: int) -> LogicalGraph:
    """Nothing but its heads matters."""
    sizes = {"hidden": 64, "wide": 96, "vocabulary": 64, "context": 1024, "rotated": 0}
    return random_decoder(heads=heads, kv_heads=kv_heads, head_dim=head_dim, layers=1, **sizes)


def width(model: LogicalGraph, config: CompileConfig, channels: int) -> int:
    return attention_width(model, replace(budget_of(config, model), memory=MEMORY), channels)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "channels", "changes", "lanes"),
    [
        (16, 16, 64, 32, {"fill": 1.0}, 16),  # 16 * 32 * 0.69 / 34 beats: 10.4 positions a cycle
        (16, 16, 64, 32, {}, 8),  # 16 take more than an eighth of the LUTs
        (16, 16, 64, 32, {"multipliers": 512}, 4),
        (16, 16, 64, 8, {"fill": 1.0}, 4),
        (9, 3, 64, 4, {"multipliers": 512}, 4),  # as in SmolLM2: 3.1
        (16, 16, 64, 2, {}, 1),  # 0.65
        (16, 16, 128, 4, {}, 1),  # keys of two beats: 0.67
    ],
)
def test_as_wide_as_memory(
    heads: int, kv_heads: int, head_dim: int, channels: int, changes: dict[str, Any], lanes: int
) -> None:
    config = replace(CARD, **changes)
    assert width(model(heads, kv_heads, head_dim), config, channels) == lanes


def test_small_designs_stay_narrow() -> None:
    assert width(tiny_decoder(), TINY, 2) == 1


def test_channels_that_a_cache_cannot_lie_on() -> None:
    model = balanced(tiny_decoder()).quantised(TINY.numbers(True))
    assert hardware(model, budget_of(replace(TINY, cache_channels=1), model)).cache_channels == 1
    for lanes, asked, said in (
        (2, 1, "1; it must be 2 to 2. Attention reads 2 positions"),
        (1, 4, "4; it must be 1 to 2. Attention reads 1 position"),
    ):
        with pytest.raises(ValueError) as caught:
            hardware(model, budget_of(replace(TINY, attention_lanes=lanes, cache_channels=asked), model))
        assert str(caught.value) == (
            f"CompileConfig.cache_channels is {said} per cycle (CompileConfig.attention_lanes), each from "
            "another channel, and all caches lie on 2 channels"
        )


def test_the_user_may_choose() -> None:
    config = replace(CARD, attention_lanes=2)
    assert width(tiny_decoder(), config, 4) == 2
    with pytest.raises(ValueError) as caught:
        width(tiny_decoder(), replace(config, attention_lanes=8), 4)
    assert str(caught.value) == (
        "CompileConfig.attention_lanes is 8; it must be at most 4, because the positions of a cache lie on "
        "that many channels, and each channel delivers one position per cycle"
    )
