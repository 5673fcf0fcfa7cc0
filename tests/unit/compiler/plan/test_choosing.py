"""Plans: what the compiler chooses for a goal on a board, and what a user fixes."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

import streamgen
from streamgen.base.errors import BudgetError
from streamgen.compiler.budget import budget_of
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.plan import choosing
from streamgen.compiler.plan.choosing import planned
from streamgen.compiler.plan.closed import ClosedForm
from streamgen.compiler.plan.goals import GOALS
from streamgen.compiler.plan.grouping import parts_of
from streamgen.compiler.plan.policy import hardware, limited
from streamgen.compiler.plan.promise import Blueprint
from streamgen.compiler.plan.record import PLAN_FILE, DesignPlan
from streamgen.platform.boards import board_of
from tests.shared.decoders import random_decoder
from tests.unit.compiler.plan.shapes import PLAIN, graph_of, plan_of

SEARCHED = ("channels", "n_lanes", "lanes", "attention_lanes", "cache_channels", "prefetch_beats")


def test_no_candidate_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither with the fixed factors nor without one of them: an error, and no advice."""
    asked = replace(PLAIN, n_lanes=3, lanes=8)
    plain, graph = graph_of(tmp_path, asked)
    config, _ = limited(plain, asked)
    monkeypatch.setattr(choosing, "_designs", lambda *_: iter(()))
    with pytest.raises(BudgetError, match=r"^no design of '.*' fits 'u55c'$"):
        planned(plain, graph, asked, config, plain.context, lambda design: None)


@pytest.mark.slow
def test_nothing_given(tmp_path: Path) -> None:
    """Every factor has a value, the whole board is used, and every factor says why it is not more."""
    design = plan_of(tmp_path)
    assert design.plan.goal == "conversation" and design.plan.ranked > 1000
    chosen = {factor.name: factor for factor in design.plan.factors}
    assert chosen["channels"].value == 32 and chosen["context"].value == 8192
    assert all(factor.why for factor in design.plan.factors)
    for name in SEARCHED:
        assert chosen[name].by == "search"
        assert chosen[name].value == getattr(design.config, name)
    assert design.graph.context == design.config.context == 8192
    assert design.plan.config == asdict(design.config)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fixed", [{"channels": 6}, {"n_lanes": 3, "lanes": 8}, {"attention_lanes": 2, "cache_channels": 4}]
)
def test_what_a_user_fixes_is_kept(tmp_path: Path, fixed: dict[str, int]) -> None:
    design = plan_of(tmp_path, replace(PLAIN, **fixed))
    for factor in design.plan.factors:
        assert (factor.by == "user") == (factor.name in fixed)
    for name, value in fixed.items():
        assert getattr(design.config, name) == value


@pytest.mark.slow
@pytest.mark.parametrize("goal", GOALS)
def test_no_single_change_is_better(tmp_path: Path, goal: str) -> None:
    """In closed form, no other value of one factor saves more than 2 % of the goal and fits the card."""
    design = plan_of(tmp_path, replace(PLAIN, goal=goal, channels=8))
    runs = GOALS[goal].passes(2048, 16)

    def cost(config: CompileConfig) -> float:
        budget = budget_of(config, design.graph)
        form = ClosedForm(design.graph, hardware(design.graph, budget), budget.memory)
        return sum(form.cycles(run.tokens, run.position, logits=run.logits) * run.count for run in runs)

    def fits(config: CompileConfig) -> bool:
        try:
            return not Blueprint(parts_of(design.graph, config)[0]).shortage
        except BudgetError:
            return False

    best, better = cost(design.config), []
    changes = {
        "n_lanes": range(1, 33),
        "lanes": (8, 16, 32),
        "attention_lanes": (1, 2, 4, 8),
        "cache_channels": (1, 2, 4, 8),
        "prefetch_beats": (64, 512, 1024),
    }
    for name, values in changes.items():
        for value in values:
            change: dict[str, Any] = {name: value, "multipliers": None}
            config = replace(design.config, **change)
            if config.attention_lanes <= config.cache_channels and cost(config) < 0.98 * best:
                better.append(config)
    assert not any(map(fits, better))


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ({"channels": 8, "attention_lanes": 16}, "attention_lanes is 16; it must be at most 8"),
        ({"attention_lanes": 8, "cache_channels": 4}, "cache_channels is 4; it must be 8 to 32"),
        ({"channels": 8, "cache_channels": 16}, "cache_channels is 16; it must be 1 to 8"),
    ],
)
def test_factors_that_contradict_one_another(tmp_path: Path, fixed: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_of(tmp_path, replace(PLAIN, **fixed))


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        (
            {"multipliers": 64, "n_lanes": 8, "channels": 8},
            "CompileConfig.multipliers is 64 and CompileConfig.n_lanes is 8, but an engine of 2 columns with "
            "8 rows in each needs 512 multipliers",
        ),
        (
            {"multipliers": 32},
            "CompileConfig.multipliers is 32, but an engine of 2 columns with 1 row in each needs 64 "
            "multipliers",
        ),
    ],
)
def test_too_few_multipliers_for_an_engine(tmp_path: Path, fixed: dict[str, int], message: str) -> None:
    """The error names what the user gave, not what the plan made of it, and a value that helps."""
    with pytest.raises(BudgetError) as error:
        plan_of(tmp_path, replace(PLAIN, **fixed))
    first, advice = str(error.value).splitlines()
    assert first == message and re.match(r"What helps: (\w+=\w+ in place of \w+; )?multipliers=", advice)


def test_candidates_without_room_in_memory_do_not_end_the_search(tmp_path: Path) -> None:
    """12 rows are too many for 32 columns. Of candidates with 24 columns, some have no room in memory."""
    board = board_of("u55c")
    small = replace(board, name="small", hbm=replace(board.hbm, channel_bytes=580 << 10))
    design = plan_of(tmp_path, replace(PLAIN, board=small, n_lanes=12, context=512))
    assert (design.config.channels, design.config.n_lanes) == (24, 12)


@pytest.mark.parametrize("goal", ["latency", "conversation"])
def test_a_board_without_dsps(goal: Literal["latency", "conversation"]) -> None:
    board = board_of("u55c")
    slrs = tuple(replace(slr, resources=replace(slr.resources, dsp=0)) for slr in board.slrs)
    config = replace(PLAIN, board=replace(board, name="none", slrs=slrs), goal=goal)
    module = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU()).eval()
    with pytest.raises(BudgetError, match=r"^'accelerator' does not fit board 'none': .* DSP"):
        streamgen.estimate(module, torch.zeros(2, 1024), config)


@pytest.mark.slow
def test_few_multipliers_take_few_channels(tmp_path: Path) -> None:
    design = plan_of(tmp_path, replace(PLAIN, multipliers=512, n_lanes=4, context=512))
    assert (design.config.channels, design.config.n_lanes) == (4, 4)


@pytest.mark.slow
def test_a_plan_gives_the_same_bytes(tmp_path: Path) -> None:
    """The plan of a folder, given back, builds the same files."""
    graph = random_decoder(0, hidden=64, wide=96, heads=2, kv_heads=1)
    config = CompileConfig(goal="decode", channels=4, max_tokens=4, weights="w8", check_import=False)
    first = streamgen.compile(graph, None, config)
    first.write(tmp_path / "a")
    plan = DesignPlan.read(tmp_path / "a" / PLAN_FILE)
    assert plan == first.plan and plan.goal == "decode"
    again = streamgen.compile(graph, None, CompileConfig(**plan.config))
    again.write(tmp_path / "b")
    for file in (tmp_path / "a").rglob("*"):
        if file.is_file() and file.name != PLAN_FILE:
            other = tmp_path / "b" / file.relative_to(tmp_path / "a")
            assert other.read_bytes() == file.read_bytes(), file.name


def test_small_models_follow_rules(tmp_path: Path) -> None:
    design = plan_of(tmp_path, hidden_size=64, intermediate_size=96, num_hidden_layers=1, vocab_size=256)
    assert design.plan.goal == "small" and design.plan.ranked == 0
    assert (design.config.channels, design.config.max_tokens, design.config.context) == (8, 16, 2048)
    assert {factor.by for factor in design.plan.factors} == {"rule"}
    assert all(factor.why for factor in design.plan.factors)
    listed = {factor.name: factor.value for factor in design.plan.factors}
    assert listed["weights"] == "w4" and listed["head"] == "w8" and listed["fill"] == 0.75


def test_factors_of_rules_that_a_user_gives(tmp_path: Path) -> None:
    given = {"head": "w4", "fill": 0.5, "converter_bits": 1 << 22}
    design = plan_of(
        tmp_path,
        replace(PLAIN, **given),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        vocab_size=256,
    )
    by_user = {factor.name: factor.value for factor in design.plan.factors if factor.by == "user"}
    assert by_user == given


def test_formats_are_those_of_the_model() -> None:
    """Of a module whose layers ask for formats of their own."""
    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)).eval()
    found = streamgen.estimate(module, torch.zeros(2, 64), CompileConfig(formats={"m_0": "w8"}))
    listed = {factor.name: factor.value for factor in found.plan.factors}
    assert listed["weights"] == "w4, w8" and "head" not in listed


def test_a_context_beyond_that_of_the_model(tmp_path: Path) -> None:
    design = plan_of(
        tmp_path,
        replace(PLAIN, context=1 << 20),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        vocab_size=256,
    )
    (context,) = (factor for factor in design.plan.factors if factor.name == "context")
    assert context.why == f"1,048,576 are asked for; the model has {context.value:,}"


@pytest.mark.slow
def test_a_large_network_takes_more_of_the_board() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(1024, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512))
    small = streamgen.estimate(module, torch.zeros(2, 1024), CompileConfig(goal="small"))
    whole = streamgen.estimate(module, torch.zeros(2, 1024))
    assert whole.plan.goal == "latency"
    assert whole.passes[-1].cycles < 0.5 * small.passes[-1].cycles


def test_candidates_that_cannot_be_built_are_counted(tmp_path: Path) -> None:
    """The next candidate is taken, and the record says why the first one was not."""
    _, graph = graph_of(tmp_path, hidden_size=64, intermediate_size=96, num_hidden_layers=1, vocab_size=256)
    config = replace(PLAIN, context=2048, max_tokens=16, goal="decode", channels=2, lanes=8)
    tries = []

    def build(design: Any) -> str:
        tries.append(design.config)
        if len(tries) == 1:
            raise BudgetError("too large\nmore")
        return "built"

    design, result = planned(graph, graph, config, config, 8192, build)
    assert result == "built" and len(tries) == 2 and tries[0] != tries[1]
    assert design.plan.refused == ("too large",) and design.config == tries[1]


def test_the_error_of_the_best_candidate_is_raised(tmp_path: Path) -> None:
    _, graph = graph_of(tmp_path, hidden_size=64, intermediate_size=96, num_hidden_layers=1, vocab_size=256)
    config = replace(
        PLAIN, context=2048, max_tokens=16, goal="decode", channels=2, n_lanes=1, lanes=8, attention_lanes=1,
        cache_channels=1, prefetch_beats=64,
    )  # fmt: skip

    def build(design: Any) -> None:
        raise BudgetError("does not fit")

    with pytest.raises(BudgetError, match="does not fit"):
        planned(graph, graph, config, config, 8192, build)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value"),
        ("[]", ""),
        ("{}", "factors"),
        ('{"factors": [], "refused": [], "x": 1}', "x"),
    ],
)
def test_files_without_a_plan(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "plan.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"holds no plan of this version") as caught:
        DesignPlan.read(file)
    assert why in str(caught.value) and str(file) in str(caught.value)


def test_a_plan_as_text_and_as_a_file(tmp_path: Path) -> None:
    design = plan_of(tmp_path, hidden_size=64, intermediate_size=96, num_hidden_layers=1, vocab_size=256)
    design.plan.write(tmp_path)
    assert DesignPlan.read(tmp_path / PLAN_FILE) == design.plan
    assert "goal: small" in str(design.plan) and "max_tokens" in str(design.plan)
    assert json.loads((tmp_path / PLAN_FILE).read_text())["goal"] == "small"


@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize(("context", "most"), [(1, 1), (2, 2), (7, 4), (512, 16), (8192, 16), (700, 16)])
def test_passes_of_goals(goal: str, context: int, most: int) -> None:
    """Passes lie within the context, and a prompt has as many tokens as its passes."""
    runs = GOALS[goal].passes(context, most)
    assert runs
    for run in runs:
        assert 1 <= run.tokens <= most and run.count > 0
        assert run.position >= 0 and run.position + run.tokens <= max(context, most)
    if goal == "prompt":
        assert sum(run.tokens * run.count for run in runs) == pytest.approx(min(1024, context))
