"""Matmuls whose rows are not whole tiles: only the last tile has padding, and hardly any is read."""

from typing import Any

import pytest

from streamgen.compiler.schedule import Derivation
from streamgen.compiler.schedule.engine import Engine
from streamgen.compiler.schedule.extents import extents
from streamgen.compiler.schedule.phases import schedule
from streamgen.kernels.matmul.weights import UnevenWeightsParams
from tests.unit.compiler.schedule.small import CHANNEL, check_decoder, small_model, small_plan

# A tile has 64 rows, 16 of each of 4 columns; a token of 16 rows has 4 beats.
TILES: dict[str, Any] = {"columns": 4, "n_lanes": 16, "lanes": 4}
SIZES: dict[str, Any] = {"hidden": 160, "heads": 5, "kv_heads": 1, "head_dim": 32, "rotated": 32, "wide": 224}


def _engine(plan: dict[str, Any], sizes: dict[str, Any]) -> Engine:
    model, made = small_model(**sizes), small_plan(**plan)
    scheduled = schedule(model, (), early_last_rows=True)
    return Engine(scheduled, made, extents(scheduled, made))


def _beats(engine: Engine) -> dict[str, int | None]:
    """By the names of matmuls, the beats of a token of the last tile."""
    return {
        "+".join(step.name for step in matmul.steps): engine.weights.layout(
            engine.weight_bounds(phase, 1)
        ).last_beats
        for phase, matmul in engine.matmuls.items()
        if phase <= 5
    }


def test_tiles_have_rows_of_several_matmuls() -> None:
    """160 + 32 + 32 rows are 3 tiles and a half; 160 rows are 2 and a half; 2 x 224 rows are 7."""
    engine = _engine(TILES, SIZES)
    assert _beats(engine) == {
        "q+k+v": 2,
        "o": 2,
        "gate+up": None,
        "down": 2,
    }
    assert isinstance(engine.weights, UnevenWeightsParams)
    first = next(m for m in engine.matmuls.values() if len(m.steps) == 3)
    assert (first.rows, first.padding, first.k, first.whole) == ([160, 32, 64], 32, 160, False)


def test_operands_are_not_padded_to_tiles() -> None:
    """176 values are 6 groups of 32, and 240 are 8; rows that meet have halves of tiles."""
    engine = _engine(TILES, SIZES | {"hidden": 176, "wide": 240})
    widths = {step.name: m.k for m in engine.matmuls.values() for step in m.steps}
    assert (widths["q"], widths["o"], widths["gate"], widths["down"]) == (192, 160, 192, 256)
    rows = {step.name: n for m in engine.matmuls.values() for step, n in zip(m.steps, m.rows, strict=True)}
    assert (rows["o"], rows["gate"], rows["up"]) == (192, 256, 256)


def test_whole_tiles_are_parted_as_they_are_made() -> None:
    sizes = SIZES | {"hidden": 192, "heads": 4, "kv_heads": 2, "wide": 256, "vocabulary": 64}
    engine = _engine(TILES, sizes)
    assert all(matmul.whole and not matmul.padding for matmul in engine.matmuls.values())
    assert not engine.weights.uneven


def test_rows_in_one_beat_are_never_uneven() -> None:
    engine = _engine(TILES | {"n_lanes": 4}, SIZES | {"hidden": 168})
    assert not engine.weights.uneven and any(matmul.padding for matmul in engine.matmuls.values())


@pytest.mark.parametrize("changes", [{}, {"vocabulary": 103, "wide": 240}], ids=str)
def test_what_is_read_is_what_is_needed(changes: dict[str, Any]) -> None:
    """The codes of a walk in memory are those of the rows, up to a beat for each token of the last tile."""
    plan = small_plan(**TILES)
    derivation = Derivation(small_model(**SIZES | changes), plan, CHANNEL)
    engine = _engine(TILES, SIZES | changes)
    read = derivation.largest.node("load_column0_weights").bounds
    for phase, matmul in engine.matmuls.items():
        bounds = read[phase]
        assert bounds is not None
        layout = engine.weights.layout(engine.weight_bounds(phase, 1))
        assert bounds["itensor"].token_count == layout.beats
        real = sum(step.outputs[0].shape.features for step in matmul.steps)
        tokens = matmul.k // 32 * (2 if matmul.weight.format == "w8" else 1)
        codes = int((layout.kinds == 2).sum())
        # 4 rows of 4 columns are a beat; padding of values to 16 and of parts to columns is read
        assert codes * 16 <= (real + 15 + 16 * (len(matmul.steps) + 1)) * tokens


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "lanes"),
    [
        ({}, 4),
        ({"hidden": 176, "wide": 240, "vocabulary": 103}, 16),
        ({"heads": 3, "kv_heads": 3, "head_dim": 24, "rotated": 24, "bias": True}, 8),
        ({"norm": "layer", "function": "relu", "heads": 4, "kv_heads": 2}, 2),
    ],
    ids=str,
)
def test_logits_are_those_of_the_model(changes: dict[str, Any], lanes: int) -> None:
    check_decoder(small_model(**{**SIZES, **changes}), small_plan(**TILES | {"lanes": lanes}))
