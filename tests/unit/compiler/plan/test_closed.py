"""The closed form of cycles: near what a whole design is predicted to take, and a bound that holds."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

import streamgen
from streamgen.compiler.budget import budget_of
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.plan.closed import ClosedForm
from streamgen.compiler.plan.policy import hardware
from tests.unit.compiler.plan.shapes import PLAIN, graph_of

NEAR = 0.12  # share by which a pass of these small shapes may differ from its closed form


def _form(folder: Path, config: CompileConfig, **sizes: int) -> ClosedForm:
    _, graph = graph_of(folder, config, **sizes)
    budget = budget_of(config, graph)
    return ClosedForm(graph, hardware(graph, budget), budget.memory)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("channels", "rows", "attention", "sizes"),
    [
        (8, 4, 2, {}),
        (8, 2, 8, {"num_key_value_heads": 8}),
        (16, 8, 4, {"hidden_size": 1024, "num_attention_heads": 16}),
        (4, 3, 1, {"intermediate_size": 2816, "vocab_size": 1024}),
        (8, 16, 4, {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3}),  # half tiles
    ],
)
def test_near_what_is_predicted(
    tmp_path: Path, channels: int, rows: int, attention: int, sizes: dict[str, int]
) -> None:
    config = replace(
        PLAIN,
        goal="small",
        channels=channels,
        n_lanes=rows,
        attention_lanes=attention,
        lanes=16,
        prefetch_beats=512,
    )
    form = _form(tmp_path, config, **sizes)
    found = streamgen.estimate(
        tmp_path / "config.json", None, config, positions=[0, 100, 1000], prompts=[100]
    )
    for run in found.passes:
        cycles = form.cycles(run.tokens, run.position)
        assert form.bound(run.tokens, run.position) <= run.cycles
        assert abs(cycles / run.cycles - 1) <= NEAR, (run.tokens, run.position, cycles, run.cycles)
    prompt = sum(form.cycles(16, 16 * k, logits=False) for k in range(6)) + form.cycles(4, 96)
    assert abs(prompt / found.first_tokens[100] - 1) <= NEAR


def test_the_bound_is_below_the_cycles(tmp_path: Path) -> None:
    form = _form(tmp_path, replace(PLAIN, channels=8, n_lanes=4, attention_lanes=4))
    for tokens, position in product((1, 3, 16), (0, 17, 500, 2000)):
        assert 0 < form.bound(tokens, position) <= form.cycles(tokens, position)


def test_padding_of_tiles_is_not_read(tmp_path: Path) -> None:
    """Rows of 576 are 4 tiles and a half: 16 rows of a column read as many beats as 8, but for scales."""
    sizes = {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3}
    config = replace(PLAIN, channels=8, attention_lanes=4)
    wide, narrow = (_form(tmp_path, replace(config, n_lanes=rows), **sizes) for rows in (16, 8))
    assert wide.weights.uneven and not narrow.weights.uneven
    assert narrow.beats() < wide.beats() < 1.02 * narrow.beats()


def test_what_makes_a_pass_longer(tmp_path: Path) -> None:
    config = replace(PLAIN, channels=8, n_lanes=4, attention_lanes=2)
    form = _form(tmp_path, config)
    assert form.cycles(1, 1500) > form.cycles(1, 500) > form.cycles(1, 0)
    assert form.cycles(16, 0) > form.cycles(1, 0) > form.cycles(1, 0, logits=False)
    plan = form.engine.plan
    assert form.cycles(1, 1500, replace(plan, attention_lanes=8)) < form.cycles(1, 1500)
    assert form.cycles(1, 500, replace(plan, prefetch=64)) > form.cycles(1, 500)
    more = _form(tmp_path, replace(config, channels=16))
    assert more.beats() < form.beats() and more.cycles(1, 0) < form.cycles(1, 0)
