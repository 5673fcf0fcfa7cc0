"""Factors of a plan that follow a rule, beside those that the search chooses."""

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from streamgen.compiler.budget import budget_of
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.plan.record import DesignPlan, PlannedFactor
from streamgen.model.golden_text import is_language_model
from streamgen.model.graph.logical import LogicalGraph

REASONS: Mapping[str, str] = {
    "policy": "matmuls take turns on one engine, unless a model has nothing but matmuls and pointwise values",
    "max_tokens": "more tokens in a pass need larger converters, and a prompt fills the last pass less",
    "multipliers": "those of all rows of all columns",
    "weights": "those of the checkpoint; float weights become w4, and w8 reads twice the bytes",
    "head": "w4 reads half the bytes, but changes which word is greatest",
    "group": "larger groups read fewer scales and lose more",
    "fill": "fuller SLRs may miss the clock",
    "converter_bits": "half of the block RAM; converters take what their orders need",
    "hold_bits": "an eighth of the memory on the chip; larger values wait in HBM",
}
"""By name of a factor: the rule, or what more would cost."""
OF_TEXTS = {"head", "group"}  # factors of language models alone


def completed(
    plan: DesignPlan, graph: LogicalGraph, asked: CompileConfig, config: CompileConfig
) -> DesignPlan:
    """A plan with the factors of rules and with the configuration of the design. asked: that of the user."""
    given = [
        replace(factor, why=factor.why or REASONS.get(factor.name, "")) if factor.by == "rule" else factor
        for factor in plan.factors
    ]
    for n, factor in enumerate(given):
        wish = getattr(asked, factor.name) if factor.name in ("context", "max_tokens") else None
        if wish is not None and factor.value < wish:
            given[n] = replace(factor, why=f"{wish:,} are asked for; the model has {factor.value:,}")
    known = {factor.name for factor in given}
    budget = budget_of(config, graph)
    formats = [matmul.integers.format for _, matmul in graph.matmuls()]
    head = [formats.pop()] if is_language_model(graph) else []
    values: dict[str, Any] = {
        "multipliers": config.multipliers or budget.multipliers,
        "weights": ", ".join(sorted(set(formats))),
        "head": "".join(head),
        "group": config.group,
        "fill": config.card.fill,
        "converter_bits": budget.converter_bits,
        "hold_bits": budget.hold_bits,
    }
    defaults = {field.name: field.default for field in fields(CompileConfig)}
    for name, value in values.items():
        if name in known or (name in OF_TEXTS and not is_language_model(graph)):
            continue
        if getattr(asked, name) != defaults[name]:
            given.append(PlannedFactor(name, value, "user"))
        else:
            given.append(PlannedFactor(name, value, "rule", REASONS[name]))
    return replace(plan, factors=tuple(given), config=asdict(config))
