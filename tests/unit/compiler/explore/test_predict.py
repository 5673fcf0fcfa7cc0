"""Predicted cycles of networks against simulated ones, and the clocks of every kernel against its curves."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import streamgen
from streamgen.artifact.manifest import MemoryTiming
from streamgen.compiler.explore.tokens import Fifo, TokenRun
from streamgen.contract.cost import Curve
from streamgen.converters import PingPongParams, choose_converter
from streamgen.fifo.clocks import Clocks, clocks_of
from streamgen.fifo.curves import KernelSide
from streamgen.itensor import ITensor, infer_converter
from streamgen.kernels.attention.quantise_rows import QuantiseRowsParams
from streamgen.kernels.attention.softmax import AttentionSoftmaxParams
from streamgen.kernels.attention.values import AttentionValuesParams
from streamgen.kernels.elementwise import BinaryParams, UnaryParams
from streamgen.kernels.matmul.matmul import ColumnParams
from streamgen.kernels.matmul.quantise import QuantiseParams
from streamgen.kernels.moves.concat import ConcatParams
from streamgen.kernels.moves.fork import ForkParams
from streamgen.kernels.moves.segments import SegmentsParams
from streamgen.testing.clocks import check_clocks, token_times
from tests.shared.accelerators import RESIDUAL, SHARED_CHANNEL, Residual, Several, compiled, tiny, values
from tests.shared.campaigns import sampled
from tests.unit.compiler.explore.random_modules import RandomModule, random_config
from tests.unit.converters.converter_pairs import random_pair

SHARE = 0.05  # of the simulated cycles
SAMPLE = (0, 1, 4, 7, 12, 21, 23, 24)  # random modules in which every operation and every choice occurs


def _hold(accelerator: streamgen.Accelerator, tokens: int, *features: int) -> None:
    accelerator.run(*(values(tokens, width, seed=tokens) for width in features))
    cycles = accelerator.report().cycles
    assert cycles is not None
    predicted = accelerator.predict(tokens)
    assert abs(predicted - cycles) <= SHARE * cycles, (tokens, predicted, cycles)


@pytest.mark.slow
def test_one_matmul() -> None:
    for tokens in (1, 3):  # one pass, three passes
        _hold(tiny(), tokens, 40)


@pytest.mark.slow
def test_two_matmuls_and_a_sum() -> None:
    accelerator = compiled(Residual, RESIDUAL, 40)
    for tokens in (1, 3, 5):  # one tile, two tiles, two passes
        _hold(accelerator, tokens, 40)


@pytest.mark.campaign
@pytest.mark.slow
def test_several_matmuls_on_one_channel() -> None:
    accelerator = compiled(Several, SHARED_CHANNEL, 100, 24)
    for tokens in (1, 5, 7):
        _hold(accelerator, tokens, 100, 24)


@pytest.mark.slow
@pytest.mark.parametrize("number", sampled(range(30), SAMPLE))
def test_random_modules(number: int, seed: int) -> None:
    """One token, the most, and a number of tiles between the corners that FIFOs are sized for."""
    number += 1000 * seed
    module, config = RandomModule(number).eval(), random_config(number)
    inputs = tuple(torch.zeros(config.size("max_tokens"), width) for width in module.features)
    accelerator = streamgen.compile(module, inputs, config)
    for tokens in sorted({1, (config.size("max_tokens") + 1) // 2, config.size("max_tokens")}):
        _hold(accelerator, tokens, *module.features)


def test_no_tokens() -> None:
    with pytest.raises(ValueError) as caught:
        tiny().predict(0)
    assert str(caught.value) == "tokens is 0; at least 1 is needed"


ROWS = ITensor((1, 4), "f24", (3, 5), (1, 4), ((0,), (1,)))
COLUMN = {
    "formats": ("w4",), "group": 32, "scale_bits": 8, "minimum": True, "max_k": 96, "max_n": 12, "max_t": 6,
}  # fmt: skip
COLUMN_BOUNDS = {"t": 6, "k": 96, "n": 12, "format": "w4", "grouped": True}
ATTENTION = {"dims": 24, "lanes": 2, "group": 2, "max_length": 72, "max_rows": 24, "p_bits": 12}
KERNELS = {
    "unary": (UnaryParams(function="silu", lanes=4, max_tokens=15), {"itensor": ROWS}),
    "binary": (BinaryParams(operation="add", lanes=4, max_tokens=15), {"itensor": ROWS}),
    "rows that are counted": (
        UnaryParams(function="silu", lanes=4, max_tokens=5, max_rows=4),
        {"itensor": ROWS, "rows": 3},
    ),
    "fork": (ForkParams(token_bits=96, ways=9, max_tokens=15), {"itensor": ROWS}),
    "concat": (
        ConcatParams(ways=3, dtype="f24", element_shape=(1, 1), max_tokens=20),
        {"itensor": ITensor((1, 1), "f24", (20,), (1,), ((), (0,)))},
    ),
    "quantiser, wide": (QuantiseParams(lanes=32, max_k=96, sums=True), {"t": 5, "k": 96, "valid_k": 90}),
    "quantiser, narrow": (QuantiseParams(lanes=2, max_k=64, sums=False), {"t": 3, "k": 64, "valid_k": 64}),
    "column, bound by steps": (ColumnParams(t_lanes=1, n_lanes=2, **COLUMN), COLUMN_BOUNDS),
    "column, bound by results": (ColumnParams(t_lanes=3, n_lanes=4, **COLUMN), COLUMN_BOUNDS),
    "column of both widths": (
        ColumnParams(t_lanes=2, n_lanes=2, **{**COLUMN, "formats": ("w4", "w8")}),
        {**COLUMN_BOUNDS, "format": "w8", "grouped": False},
    ),
    "softmax of attention": (
        AttentionSoftmaxParams(lanes=2, max_length=72, p_bits=12),
        {"rows": 30, "length": 11, "causal": True, "position": 6, "window": 0}
        | {"rows_per_position": 6, "rows_per_head": 30},
    ),
    "values, bound by tiles": (
        AttentionValuesParams(**ATTENTION, width=8),
        {"heads": 4, "t": 3, "length": 70},
    ),
    "values, bound by results": (
        AttentionValuesParams(**ATTENTION, width=1),
        {"heads": 4, "t": 3, "length": 9},
    ),
    "quantise rows": (
        QuantiseRowsParams(lanes=4, max_d=8, max_tokens=64),
        {"t": 2, "features": 32, "d": 8, "tile": 16},
    ),
    "segments": (
        SegmentsParams(token_bits=48, ways=3, max_tokens=120),
        {
            "itensor": ITensor((1, 2), "f24", (8, 3, 2), (4, 1, 2), ((1,), (0, 2))),
            "sizes": (1, 2, 1),
            "rounds": 2,
        },
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_clocks_without_waits_are_the_curves(name: str) -> None:
    check_clocks(*KERNELS[name])


def test_codes_wait_for_their_group_only() -> None:
    """Scales run ahead of the codes: those of the next piece come late."""
    params, bounds = KERNELS["quantise rows"]
    count = params.inputs(bounds)["i"].token_count
    piece = count // 2
    late = token_times(params, bounds, {"i": np.arange(count) + 100 * (np.arange(count) >= piece)})
    for port, times in token_times(params, bounds).items():
        half = len(times) // 2
        np.testing.assert_array_equal(late[port][:half], times[:half])
        assert (late[port][half:] > 100).all(), port


PAIRS = {
    "activations": (
        ITensor((1, 32), "mxi8s", (8, 5), (1, 32), ((0,), (1,))),
        ITensor((2, 32), "mxi8s", (3, 4, 5), (1, 2, 32), ((1,), (2,))),
    ),
    "panels of weights": (
        ITensor((4, 32), "i4", (6, 5), (4, 32), ((0,), (1,))),
        ITensor((4, 32), "i4", (6, 3, 5), (4, 1, 32), ((0,), (2,))),
    ),
    "tiles to rows": (
        ITensor((1, 4), "f24", (6, 4, 2, 2), (8, 2, 1, 4), ((1, 2), (0, 3))),
        ITensor((1, 16), "f24", (8, 3), (1, 16), ((0,), (1,))),
    ),
    "wide to narrow": (
        ITensor((1, 8), "f24", (4, 3), (1, 8), ((0,), (1,))),
        ITensor((1, 2), "f24", (4, 3, 4), (1, 8, 2), ((0,), (1, 2))),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_clocks_of_converters_are_the_curves(name: str) -> None:
    source, target = PAIRS[name]
    for params in {PingPongParams(source=source, target=target), choose_converter(source, target)}:
        check_clocks(params, {"source": source, "target": target})


@pytest.mark.parametrize("seed", range(10))
def test_clocks_of_random_converters_are_the_curves(seed: int) -> None:
    rng = random.Random(seed)
    while infer_converter(*(pair := random_pair(rng))) is None:
        pass
    params = PingPongParams(source=pair[0], target=pair[1])
    check_clocks(params, {"source": pair[0], "target": pair[1]})


@dataclass(frozen=True, kw_only=True)
class _Own:
    """A user's kernel: every second token goes out, 7 cycles later."""

    def inputs(self, bounds: Mapping[str, Any]) -> dict[str, ITensor]:
        return {"i": ROWS}

    def outputs(self, bounds: Mapping[str, Any]) -> dict[str, ITensor]:
        return {"o": ITensor((1, 4), "f24", (7,), (4,), ((), (0,)))}

    def curves(self, bounds: Mapping[str, Any]) -> dict[str, Curve]:
        return {"i": Curve.nest(1, (15, 1)), "o": Curve.nest(8, (7, 2))}


def test_clocks_of_a_kernel_of_the_user_follow_from_its_curves() -> None:
    """Outputs wait for their share of the inputs, 5 cycles before; inputs for outputs that have no room."""
    params = _Own()
    check_clocks(params, {})
    offered = np.arange(15)
    offered[4:] += 50  # token 4 comes in cycle 54; the second output is the first that needs it
    times = token_times(params, {}, {"i": offered})
    assert times["i"].tolist() == [*range(1, 5), *range(54, 65)]
    assert times["o"].tolist() == [8, *range(59, 71, 2)]
    room = np.arange(7)
    room[1:] += 91  # the second token leaves the register in cycle 100; so long the third one has no place
    times = token_times(params, {}, room={"o": room})
    assert times["o"].tolist() == [8, 10, *range(100, 110, 2)]
    assert times["i"].tolist() == [*range(1, 13), 101, 102, 103]


def test_clocks_that_do_not_keep_to_the_curves_are_named() -> None:
    class Late(_Own):
        def clocks(self, bounds: Mapping[str, Any]) -> Clocks:
            own, part = clocks_of(_Own(), bounds), KernelSide("late", np.arange(9, 22, 2))
            return Clocks((*own.parts, part), {**own.ports, "o": (part, np.arange(7))}, own.streams)

    with pytest.raises(AssertionError) as caught:
        check_clocks(Late(), {})
    assert str(caught.value) == "o: by its clocks token 0 moves in cycle 9, but the curve says 8"


def test_who_waits_for_ever_is_no_prediction() -> None:
    """Two kernels that need a token of one another."""
    part = KernelSide("both", np.arange(1))
    node = {0: Clocks((part,), {"i": (part, part.cycles), "o": (part, part.cycles)})}
    fifos = [Fifo(("a", "o"), ("b", "i"), 1, 1), Fifo(("b", "o"), ("a", "i"), 1, 1)]
    with pytest.raises(RuntimeError) as caught:
        TokenRun([0], {"a": node, "b": node}, fifos, MemoryTiming(beats=1, cycles=1, latency=1), {})
    assert str(caught.value) == "parts of nodes wait for ever"
