"""A run takes hardly more cycles than memory and multipliers need. Cycle counts repeat exactly."""

from fractions import Fraction

import numpy as np
import pytest
import torch

import streamgen
from streamgen.compiler.explore.bound import least_cycles, stages
from streamgen.compiler.plan.policy import whole
from streamgen.model.frontend import FeedForward, default_checkpoint, import_module, load_feed_forward

ALLOWANCE = 1.15
LATENCY = 200  # cycles of a stage


def _hold(accelerator: streamgen.Accelerator, tokens: int, features: int, frame: int = 0) -> None:
    """One run: golden bit for bit, and the cycles within the allowance.

    frame: memory latencies of the run itself that count, beside those of its stages.
    """
    x = np.random.default_rng(tokens).normal(size=(tokens, features)).astype(np.float32)
    assert accelerator.run(x).tobytes() == accelerator.golden(x).tobytes()
    timing = accelerator.manifest.memory
    found = stages(accelerator.graph, tokens)
    bound = least_cycles(found, Fraction(timing.beats, timing.cycles))
    cycles = accelerator.report().cycles
    assert cycles is not None
    assert bound <= cycles <= ALLOWANCE * bound + LATENCY * len(found) + frame * timing.latency


def _block() -> FeedForward:
    """128 -> 256 -> 128."""
    torch.manual_seed(0)
    shapes = ((128, 256), (128, 256), (256, 128))
    return FeedForward(*(torch.nn.Linear(k, n, bias=False) for k, n in shapes)).eval()


CONFIG = streamgen.CompileConfig(name="little", max_tokens=4, multipliers=192, channels=4)


@pytest.fixture(scope="module")
def small() -> streamgen.Accelerator:
    """The small block with as few multipliers as two token lanes need."""
    return streamgen.compile(_block(), (torch.zeros(4, 128),), CONFIG)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 4])
def test_small_block(small: streamgen.Accelerator, tokens: int) -> None:
    """Here the three accesses that wait for one another weigh: phase table, input, response of the store."""
    _hold(small, tokens, 128, frame=3)


@pytest.mark.slow
def test_demo_block() -> None:
    """The block of `examples/feed_forward.py`."""
    module = load_feed_forward(default_checkpoint(), layer=0)
    config = streamgen.CompileConfig(
        name="feed_forward", goal="small", max_tokens=16, multipliers=768, channels=4
    )
    accelerator = streamgen.compile(module, (torch.zeros(16, 576),), config)
    for tokens in (1, 16):
        _hold(accelerator, tokens, 576)


def test_stages() -> None:
    """Bytes and multipliers of the bound, counted by hand from the shapes."""
    network = import_module(_block(), (torch.zeros(4, 128),))
    network = network.quantised(CONFIG.numbers(False))
    derived = whole(network, CONFIG)
    assert derived.plan.own is not None
    first, second = stages(derived.graph(derived.plan.token_lanes, 0), tokens=3)
    assert {name.split("_")[0] for name in first.columns} == {"gate", "up"}
    assert {name.split("_")[0] for name in second.columns} == {"down"}
    assert (first.products, second.products) == (3 * 2 * 128 * 256, 3 * 128 * 256)
    assert first.multipliers + second.multipliers == derived.plan.own.multipliers
    for stage, matmuls, n, k in ((first, 2, 256, 128), (second, 1, 128, 256)):
        # codes of 4 bits, a scale and a minimum of 8 bits for each group of 32, 32 bits a row
        assert stage.bytes == matmuls * (n * k // 2 + n * k // 32 * 2 + n * 4)
        assert len(stage.channels) == len(stage.columns)
    memory = [stage.bytes / (64 * 0.25 * len(stage.channels)) for stage in (first, second)]
    assert [stage.memory_cycles(Fraction(1, 4)) for stage in (first, second)] == memory
    compute = [stage.products / stage.multipliers for stage in (first, second)]
    assert least_cycles((first, second), Fraction(1, 4)) == sum(map(max, memory, compute))
