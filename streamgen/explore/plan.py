"""Unroll factors of all matmuls, found greedily: always raise the slowest.

A matmul has C columns (one memory channel each when there are enough), n_lanes output rows a column,
and the token lanes that all matmuls of the accelerator share: C * n_lanes * token_lanes * 32
multipliers. Its time for T tokens is the larger of what memory and multipliers need,

    max(bytes of one column / channel rate, n-tiles * t-tiles * max(K / 32, token_lanes * n_lanes)),

matmuls of one level of the graph run side by side, levels one after the other. For every number of
token lanes, a max-heap on time takes the slowest matmul and doubles its columns or its lanes, whichever
gains most (and those of its twins, equal matmuls of its level, which would hold it up), until a budget
ends or nothing gains. The lanes with the least time for one token plus the
largest number of tokens win: decode and prefill count alike.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import replace

from streamgen.config import CompileConfig
from streamgen.errors import BudgetError
from streamgen.formats import MX_GROUP
from streamgen.graph.plan import LinearPlan, LinearShape, Plan
from streamgen.packing import MemoryLayout

__all__ = ["explore"]

_MAX_COLUMNS = 16  # (1, C) tokens of 32-bit words fill one 512-bit beat
_MAX_TOKEN_LANES = 8


def explore(shapes: Sequence[LinearShape], config: CompileConfig, rate: float) -> Plan:
    """Choose all factors. rate: 512-bit beats a cycle that one channel gives.

    BudgetError when not even one lane a matmul fits.
    """
    least = MX_GROUP * len(shapes) * (config.token_lanes or 1)
    if least > config.multipliers:
        raise BudgetError(
            f"{len(shapes)} matmuls need at least {least} multipliers ({MX_GROUP} for each of "
            f"{config.token_lanes or 1} token lanes), the budget is {config.multipliers}: "
            f"{least - config.multipliers} too few. Raise CompileConfig.multipliers"
            + (" or lower token_lanes" if (config.token_lanes or 1) > 1 else "")
            + ", or split the module"
        )
    if config.token_lanes is not None:
        choices = [config.token_lanes]
    else:
        choices = [
            lanes for lanes in (1, 2, 4, 8) if lanes <= min(_MAX_TOKEN_LANES, _ceil_power(config.max_tokens))
        ]
    found: list[tuple[float, int, dict[str, LinearPlan], str]] = []
    for lanes in choices:
        if MX_GROUP * len(shapes) * lanes > config.multipliers:
            continue
        linears, stop = _grow(shapes, config, rate, lanes)
        times = [_total(shapes, linears, config, rate, lanes, t) for t in (1, config.max_tokens)]
        found.append((sum(times), lanes, linears, stop))
    best, lanes, linears, stop = min(found, key=lambda f: (f[0], f[1]))
    placed, io_channel, used = _place(shapes, linears, config.channels)
    reasons = [
        f"{lanes} token lane{'s' if lanes > 1 else ''}: least cycles for 1 plus {config.max_tokens} tokens "
        f"({best:.0f}) among " + ", ".join(f"{f[1]} ({f[0]:.0f})" for f in found)
    ]
    for shape in shapes:
        plan = placed[shape.name]
        memory, compute = _times(shape, plan, config, rate, lanes, 1)
        reasons.append(
            f"{shape.name}: {plan.columns} columns x {plan.n_lanes} rows x {lanes} tokens x {MX_GROUP}; "
            f"at one token memory needs {memory:.0f} cycles, multipliers {compute}; "
            f"channels {', '.join(map(str, plan.channels))}"
        )
    reasons.append(f"growth ended: {stop}")
    pad = max([MX_GROUP, *(s.group or 0 for s in shapes), *(plan.tile for plan in placed.values())])
    return Plan(
        token_lanes=lanes,
        feature_pad=pad,
        linears=placed,
        io_channel=io_channel,
        channels=used,
        reasons=tuple(reasons),
    )


def _grow(
    shapes: Sequence[LinearShape], config: CompileConfig, rate: float, lanes: int
) -> tuple[dict[str, LinearPlan], str]:
    linears = {shape.name: LinearPlan() for shape in shapes}
    twins: dict[tuple[int, ...], list[LinearShape]] = {}  # one of them alone gains nothing
    for shape in shapes:
        twins.setdefault((shape.level, shape.k, shape.n, shape.group or 0), []).append(shape)
    groups = list(twins.values())

    def time(shape: LinearShape, plan: LinearPlan) -> float:
        return sum(max(_times(shape, plan, config, rate, lanes, t)) for t in (1, config.max_tokens))

    # ties go to the first matmul
    heap = [(-time(group[0], linears[group[0].name]), index) for index, group in enumerate(groups)]
    heapq.heapify(heap)
    short = False  # of multipliers that some matmul would have gained from
    while heap:
        now, index = heapq.heappop(heap)
        group = groups[index]
        shape = group[0]
        plan = linears[shape.name]
        columns = sum(p.columns for p in linears.values())
        steps = []
        # one channel is left for inputs and outputs
        if plan.columns < _MAX_COLUMNS and columns + plan.columns * len(group) < config.channels:
            steps.append(replace(plan, columns=plan.columns * 2))
        if plan.n_lanes * MX_GROUP * (4 if shape.group else 8) < 512:  # a step takes one beat at most
            steps.append(replace(plan, n_lanes=plan.n_lanes * 2))
        gains = sorted((spent, s.columns, s) for s in steps if (spent := time(shape, s)) < -now)
        if gains and plan.tile * len(group) * lanes * MX_GROUP > _free(linears, config, lanes):
            short = True
        elif gains:
            linears |= {twin.name: gains[0][2] for twin in group}
            heapq.heappush(heap, (-gains[0][0], index))
    if short:
        return linears, f"{_free(linears, config, lanes)} of {config.multipliers} multipliers left"
    return linears, "no matmul gains from another doubling"


def _free(linears: Mapping[str, LinearPlan], config: CompileConfig, lanes: int) -> int:
    return config.multipliers - sum(plan.tile for plan in linears.values()) * lanes * MX_GROUP


def _times(
    shape: LinearShape, plan: LinearPlan, config: CompileConfig, rate: float, lanes: int, tokens: int
) -> tuple[float, int]:
    """Cycles that memory and multipliers need for a pass of `tokens` tokens."""
    k_steps = -(-shape.k // MX_GROUP)
    n_tiles = -(-shape.n // plan.tile)
    t_tiles = -(-tokens // lanes)
    if shape.group:
        scales = MemoryLayout(f"i{config.scale_bits}", (plan.n_lanes, 1, 1 + config.minimum))
        bits = plan.n_lanes * MX_GROUP * 4 * k_steps
        bits += scales.token_slot * -(-shape.k // shape.group)
    else:
        bits = plan.n_lanes * MX_GROUP * 8 * k_steps
    bits = (bits + plan.n_lanes * 32) * n_tiles
    return bits / 512 / rate, n_tiles * t_tiles * max(k_steps, lanes * plan.n_lanes)


def _total(
    shapes: Sequence[LinearShape],
    linears: Mapping[str, LinearPlan],
    config: CompileConfig,
    rate: float,
    lanes: int,
    tokens: int,
) -> float:
    levels: dict[int, float] = {}
    for shape in shapes:
        time = max(_times(shape, linears[shape.name], config, rate, lanes, tokens))
        levels[shape.level] = max(levels.get(shape.level, 0.0), time)
    return sum(levels.values())


def _place(
    shapes: Sequence[LinearShape], linears: Mapping[str, LinearPlan], budget: int
) -> tuple[dict[str, LinearPlan], int, int]:
    """Give each column its own channel while there are any, then share in turn; inputs, outputs last."""
    placed: dict[str, LinearPlan] = {}
    following = 0
    for shape in shapes:
        plan = linears[shape.name]
        channels = tuple((following + c) % budget for c in range(plan.columns))
        placed[shape.name] = replace(plan, channels=channels)
        following += plan.columns
    io_channel = min(following, budget - 1)
    return placed, io_channel, max([io_channel, *(c for p in placed.values() for c in p.channels)]) + 1


def _ceil_power(value: int) -> int:
    return 1 << (value - 1).bit_length()
