"""Weights that stay on the chip: bits of golden, one read of the weights after each reset, cycles, plans."""

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import streamgen
from benchmarks import jet_tagging
from streamgen.api.accelerator import Accelerator
from streamgen.base.errors import BudgetError
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.plan.record import PlannedFactor
from streamgen.kernels.elementwise import UnaryParams
from streamgen.numbers.formats import round_f24
from streamgen.runtime.execution import Execution
from streamgen.runtime.memory import MemoryModel
from streamgen.runtime.simulator import SimulatedDevice

CONFIG = CompileConfig(name="kept", goal="latency", max_tokens=8, multipliers=512)
X = np.asarray(round_f24(np.random.default_rng(1).normal(size=(8, 20))), np.float32)


MOST_LATENCY = 144  # cycles, as docs/numbers.md says; jet_tagging.MOST_LATENCY are allowed


class Kept(nn.Module):
    """Two matmuls that read one value, one with minimums and one of bytes; padding everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(20, 75), nn.Linear(20, 75, bias=False), nn.Linear(75, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)) * self.gate(x))


class Twice(nn.Module):
    """A result that ReLU and another operation read."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.up(x)
        return torch.relu(y) + y


def policy(module: nn.Module, example: torch.Tensor, **choices: object) -> PlannedFactor:
    """The policy that the plan chooses, with its reason."""
    config = CompileConfig(name="net", max_tokens=8, **choices)  # type: ignore[arg-type]
    plan = streamgen.estimate(module.eval(), example, config).plan
    return next(factor for factor in plan.factors if factor.name == "policy")


@pytest.fixture(scope="module")
def compiled() -> Accelerator:
    torch.manual_seed(3)
    config = replace(CONFIG, formats={"gate": "w8"})
    return streamgen.compile(Kept().eval(), torch.zeros(8, 20), config)


@pytest.fixture(scope="module")
def folder(compiled: Accelerator, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled.write(tmp_path_factory.mktemp("resident") / "kept")


@pytest.fixture(scope="module")
def execution(folder: Path) -> Iterator[Execution]:
    with Execution(folder) as opened:
        yield opened


def works(compiled: Accelerator, execution: Execution) -> bool:
    (found,) = execution.run(X)
    return found.tobytes() == compiled.golden(X).tobytes()


def beats_read(execution: Execution) -> int:
    """Beats that the channels of weights have read so far."""
    device = execution.device
    assert isinstance(device, SimulatedDevice)
    channels = {buffer.channel for buffer in execution.manifest.buffers if buffer.role == "resident"}
    return sum(device.traffic(channel)[0] for channel in channels)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_weights_are_read_once_after_each_reset(compiled: Accelerator, execution: Execution) -> None:
    beats = sum(b.bytes for b in execution.manifest.buffers if b.role == "resident") // 64
    for _ in range(2):
        assert works(compiled, execution)
        first = beats_read(execution)
        assert works(compiled, execution) and works(compiled, execution)
        assert beats_read(execution) == first
        execution.device.reset()
        assert works(compiled, execution)
        assert beats_read(execution) == first + beats


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_reset_in_mid_run(compiled: Accelerator, execution: Execution) -> None:
    """In the first run after a reset, which reads the weights, and in a later one."""
    for cycles in range(100, 420, 20):
        execution.device.reset()
        execution.device.start()
        execution.device.run(cycles)
        execution.device.reset()
        assert works(compiled, execution)
        execution.device.start()
        execution.device.run(cycles)
        execution.device.reset()
        assert works(compiled, execution)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_memory_with_delays(compiled: Accelerator, folder: Path) -> None:
    with Execution(folder, memory=MemoryModel(delays=50, seed=2)) as slow:
        assert works(compiled, slow) and works(compiled, slow)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_other_weights_are_read(compiled: Accelerator, folder: Path, tmp_path: Path) -> None:
    """New contents of a file of weights reach the chip, though the device stays open."""
    place = tmp_path / "kept"
    shutil.copytree(folder, place)
    with Execution(place) as execution:
        assert works(compiled, execution)
        file = next(place / b.file for b in execution.manifest.buffers if b.role == "resident" and b.file)
        before = beats_read(execution)
        os.utime(file, ns=(0, 0))
        assert works(compiled, execution)
        assert beats_read(execution) > before


@pytest.mark.slow
def test_cycles_are_predicted(compiled: Accelerator, execution: Execution) -> None:
    """A run that finds the weights on the chip takes the predicted cycles."""
    for tokens in (1, 8):
        for _ in range(2):
            execution.run(X[:tokens])
        assert execution.statuses[-1].cycles == pytest.approx(compiled.predict(tokens), abs=4)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_jet_tagging(tmp_path: Path) -> None:
    """The network of hls4ml's papers in one SLR: cycles on the Verilog."""
    example = torch.zeros(jet_tagging.TOKENS, 16)
    built = streamgen.compile(jet_tagging.network(), example, jet_tagging.CONFIG)
    accelerator = streamgen.load(built.write(tmp_path / "jet"))
    found = jet_tagging.measured(accelerator, torch.randn(2 * jet_tagging.TOKENS, 16))
    used = accelerator.report().groups[0].resources.total
    accelerator.close()
    assert found.latency <= MOST_LATENCY and found.interval <= jet_tagging.MOST_INTERVAL
    assert sum(found.kernels.values()) == found.latency
    board = jet_tagging.CONFIG.card
    offered = board.home.resources * board.fill
    assert all(getattr(used, name) <= getattr(offered, name) for name in ("lut", "ff", "dsp", "bram", "uram"))


def test_the_plan_keeps_weights_that_fit() -> None:
    small, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)), torch.zeros(8, 8)
    chosen = policy(small, x, goal="latency")
    assert (chosen.value, chosen.by) == ("resident", "rule")
    assert re.fullmatch(
        r"the weights take \d+ bytes, and 1/4 of the block RAM and ultra RAM of SLR0 holds 2,730,240 bytes",
        chosen.why,
    )


@pytest.mark.parametrize(
    ("module", "kernels"),
    [(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)), 0), (Twice(), 1)],
)
def test_a_relu_that_alone_reads_a_result_has_no_kernel(module: nn.Module, kernels: int) -> None:
    built = streamgen.compile(module.eval(), torch.zeros(8, 16), CONFIG)
    nodes = built.groups[0].graph.nodes
    assert sum(isinstance(node.params, UnaryParams) for node in nodes) == kernels


def test_other_goals_and_models_are_planned_as_before() -> None:
    large, x = nn.Linear(4096, 2048), torch.zeros(8, 4096)
    chosen = policy(large, x, goal="latency")
    assert chosen.value == "spatial"
    assert chosen.why.startswith("the weights take 4,7") and "holds 2,730,240 bytes" in chosen.why
    attention = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
    chosen = policy(attention, torch.zeros(1, 8, 32), goal="latency")
    assert (chosen.value, chosen.why) == ("shared", "tokens of 'module' depend on one another")


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BudgetError) as error:
        policy(nn.Linear(4096, 2048), torch.zeros(8, 4096), policy="resident")
    assert re.match(
        r"the policy 'resident' keeps all weights on the chip, but the weights take 4,7\d\d,\d+ bytes, and "
        r"1/4 of the block RAM and ultra RAM of SLR0 holds 2,730,240 bytes\. Use another policy, or none",
        str(error.value),
    )


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"n_lanes": 4}, "CompileConfig.n_lanes is 4, but it has no effect with the policy 'resident'"),
        ({"multipliers": 64}, "2 matmuls with resident weights need at least 128 multipliers"),
        (
            {"fixed": {"a": {"columns": 2}}},
            "fixed gives 'a' the factor 'columns'; with the policy",
        ),
    ],
)
def test_factors_that_resident_weights_do_not_take(choices: dict[str, Any], message: str) -> None:
    module = nn.Sequential()
    module.a, module.b = nn.Linear(8, 8), nn.Linear(8, 4)
    with pytest.raises((ValueError, BudgetError), match=re.escape(message)):
        policy(module, torch.zeros(8, 8), policy="resident", **choices)
