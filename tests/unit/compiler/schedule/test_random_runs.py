"""Runs of random decoders, with phases, back edges, sections and memory, token by token: none stands still.

Every pass goes token by token through the queues of the depths that are computed, through the arbiters of the
memory and the sequencer's descriptors. What would never end is an error of `estimate`.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import streamgen
from streamgen.base.errors import StreamgenError
from streamgen.platform.boards import BOARDS, Board
from tests.designs.decoder.test_random_shapes import shape
from tests.shared.decoders import random_decoder
from tests.unit.compiler.schedule.features import FEATURES

GRAPHS, SAMPLE, PART = 1000, 6, 50
FIRST = 1000  # of the numbers of cases, behind those that run as Verilog


def _board(rng: np.random.Generator) -> Board:
    """Memories from quick to very slow ones; the rate of a channel is what the clock makes of it."""
    card = BOARDS["u55c"]
    latency = int(rng.choice([1, 20, 100, 700]))
    return replace(card, name="drawn", hbm=replace(card.hbm, latency=latency))


def _try(number: int, seed: int) -> str | None:
    """None, or our own refusal."""
    rng = np.random.default_rng([seed, number, 18])
    sizes, config = shape(rng, 1 + 8 * number)  # vocabularies of some hundred words
    features = [name for name in FEATURES if rng.random() < 0.4]
    changes: dict[str, Any] = {
        "board": _board(rng),
        "clock_mhz": float(rng.choice([60.0, 300.0, 600.0])),
        "channels": int(rng.choice([1, 2, 4, 8])),
        "attention_lanes": [None, None, 1, 2][rng.integers(4)],
    }
    label = f"case {number}: {sizes} {features} {config} {changes}"
    try:
        graph = random_decoder(number, **sizes)
        for name in features:
            graph = FEATURES[name](graph)
        config = replace(config, fill=1.0, **changes)
        last = sizes["context"] - 1
        positions = sorted({0, int(rng.integers(0, last + 1)), last})
        found = streamgen.estimate(
            graph, None, config, positions=positions, prompts=[int(rng.integers(1, last + 2))]
        )
    except (StreamgenError, ValueError) as error:
        assert "never ends" not in str(error), label
        return str(error)
    fastest = config.size("channels") * 64 * config.card.hbm.beats_per_cycle(config.clock_mhz)
    for one in found.passes:
        assert one.cycles * fastest >= sum(phase.bytes for phase in one.phases), label
        assert all(phase.cycles >= 0 for phase in one.phases), label
    assert min(found.first_tokens.values()) > 0, label
    return None


@pytest.mark.parametrize("number", [1052, 1105])
def test_sums_of_rows_of_middling_length(number: int) -> None:
    """They wait in the softmax, behind probabilities that values are ahead of."""
    assert _try(number, 0) is None


@pytest.mark.slow
def test_a_sample(seed: int) -> None:
    refused = [_try(FIRST + number, seed) for number in range(SAMPLE)]
    assert refused.count(None) >= SAMPLE // 3, refused


@pytest.mark.campaign
@pytest.mark.parametrize("part", range(GRAPHS // PART))
def test_runs_end(part: int, seed: int, record_property: Any) -> None:
    first = FIRST + SAMPLE + part * PART
    refused = [_try(number, seed) for number in range(first, first + PART)]
    reasons = sorted({reason for reason in refused if reason})
    record_property("refused", reasons)
    print(*reasons, sep="\n")
    assert refused.count(None) >= PART // 3, reasons
