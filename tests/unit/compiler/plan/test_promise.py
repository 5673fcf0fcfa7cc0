"""Promised resources of candidates: those of the bound design, with other factors."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamgen.compiler.budget import budget_of
from streamgen.compiler.plan.closed import ClosedForm
from streamgen.compiler.plan.grouping import parts_of
from streamgen.compiler.plan.policy import hardware
from streamgen.compiler.plan.promise import Blueprint
from streamgen.platform.capacity import RESOURCES
from tests.unit.compiler.plan.shapes import PLAIN, graph_of

BASE = replace(
    PLAIN, goal="small", channels=8, n_lanes=4, attention_lanes=2, lanes=16, prefetch_beats=512, context=2048
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n_lanes": 6},
        {"n_lanes": 12},  # rows that are not whole tiles
        {"n_lanes": 8, "attention_lanes": 4},
        {"prefetch_beats": 1024},
        {"attention_lanes": 1},
        {"cache_channels": 2},
        {"context": 8192},
    ],
)
def test_equal_to_a_bound_design(tmp_path: Path, changes: dict[str, Any]) -> None:
    """DSPs are those of the design that is bound with the changed factors. Converters and masters stay those
    of the first design: block memories are within 16, LUTs and registers within a tenth."""
    _, graph = graph_of(tmp_path, BASE)
    blueprint = Blueprint(parts_of(graph, BASE)[0])
    config = replace(BASE, **changes)
    graph = replace(graph, context=config.context)
    budget = budget_of(config, graph)
    plan = hardware(graph, budget)
    promised = blueprint.needs_of(plan, ClosedForm(graph, plan, budget.memory))
    bound = Blueprint(parts_of(graph, config)[0]).needs
    for name in RESOURCES:
        for given, real in ((promised.all, bound.all), (promised.fixed, bound.fixed)):
            room = 16 if name in ("bram", "uram") else max(2, 0.1 * getattr(real, name))
            assert abs(getattr(given, name) - getattr(real, name)) <= room, name
    assert promised.all.dsp == pytest.approx(bound.all.dsp, abs=2)


def test_a_design_that_fits_lacks_nothing(tmp_path: Path) -> None:
    _, graph = graph_of(tmp_path, BASE)
    assert Blueprint(parts_of(graph, BASE)[0]).shortage == ""
    tight = replace(BASE, fill=0.02)
    assert "needs" in Blueprint(parts_of(graph, tight)[0]).shortage
