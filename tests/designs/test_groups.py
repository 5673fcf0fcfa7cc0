"""Several accelerators for one module: whatever the budget of converters, the same bits."""

import random
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import silu

import streamgen
from streamgen.api.accelerator import Accelerator
from streamgen.base.errors import BudgetError, DeviceError, DeviceTimeoutError, GraphError, ProbeError
from streamgen.compiler.budget import budget_of
from streamgen.compiler.config import CompileConfig
from streamgen.compiler.explore.fusion import FusedGroup
from streamgen.compiler.lower import GraphBuilder, converter_bits, insert_converters, insert_forks
from streamgen.compiler.plan.grouping import GroupPlan, group_graph, parts_of
from streamgen.itensor import ITensor
from streamgen.kernels.elementwise import BinaryParams, UnaryParams
from streamgen.kernels.matmul.weights import WeightsParams
from streamgen.model import golden
from streamgen.model.frontend import default_checkpoint, import_module, load_feed_forward
from streamgen.model.graph import Graph
from streamgen.model.graph.logical import LogicalGraph
from streamgen.numbers.formats import round_f24
from streamgen.runtime.chain import Chain
from streamgen.runtime.memory import Fault, MemoryModel
from tests.shared.accelerators import Gated, Several, compiled, same, values
from tests.shared.campaigns import sampled

pytestmark = pytest.mark.slow

GATED = CompileConfig(name="gated", max_tokens=2, multipliers=96, channels=1, weights="w8", prefetch_beats=64)


class Reused(torch.nn.Module):
    """Every value is read far away too; results are read inside."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(40, 40)
        self.second = torch.nn.Linear(40, 40, bias=False)
        self.third = torch.nn.Linear(40, 24)
        self.gain = torch.nn.Parameter(torch.linspace(-1, 1, 40))

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = self.first(x)
        b = silu(self.second(a * self.gain) + x)
        c = torch.relu(b * a + z)
        return a, self.third(c + b), c


MODULES: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...], CompileConfig]] = {
    "gated": (lambda: Gated(20, 40), (20,), GATED),
    "several": (
        Several,
        (100, 24),
        CompileConfig(name="several", max_tokens=5, multipliers=96, channels=2, weights="w8"),
    ),
    "reused": (
        Reused,
        (40, 40),
        CompileConfig(name="reused", max_tokens=4, multipliers=256, channels=4, group=64),
    ),
}


@cache
def network(name: str) -> LogicalGraph:
    module, features, config = MODULES[name]
    torch.manual_seed(0)
    found = import_module(module(), [torch.zeros(2, f) for f in features])
    return found.quantised(config.numbers(False))


def planned(name: str, budget: int | None) -> list[GroupPlan]:
    """The groups for a budget; no hardware is made."""
    return parts_of(network(name), replace(MODULES[name][2], converter_bits=budget))


def why(part: GroupPlan) -> FusedGroup:
    """Why a group of a network is one."""
    assert part.fused is not None
    return part.fused


def finished(graph: Graph) -> Graph:
    return insert_converters(insert_forks(graph))


def computed(name: str, groups: list[GroupPlan], x: list[np.ndarray]) -> list[np.ndarray]:
    """What the groups compute one after the other, in numpy."""
    found = network(name)
    tokens = len(x[0])
    known = {value.name: (array, value.features) for value, array in zip(found.inputs, x, strict=True)}
    for group in groups:
        lanes = group.plan.token_lanes
        graph = finished(group.derivation.graph(-(-tokens // lanes) * lanes, 0))
        given = {}
        for tensor in graph.tensors:
            if tensor.role == "input":
                array, _ = known[tensor.name]
                given[tensor.name] = np.zeros(graph.tensor_itensor(tensor).shape, np.float32)
                rows, columns = map(min, zip(array.shape, given[tensor.name].shape, strict=True))
                given[tensor.name][:rows, :columns] = round_f24(array[:rows, :columns])
        outputs, _ = golden.run(graph, given)
        logical = {tensor.name: tensor.shape[1] for tensor in graph.tensors if tensor.role == "output"}
        known |= {key: (array, logical[key]) for key, array in outputs.items()}
    return [known[key][0][:tokens, : known[key][1]] for key in found.outputs]


@cache
def compiled_with(name: str, budget: int | None) -> Accelerator:
    module, features, config = MODULES[name]
    return compiled(module, replace(config, converter_bits=budget), *features)


def whole(name: str) -> Accelerator:
    """The module as one accelerator."""
    return compiled_with(name, None)


def most(name: str) -> int:
    """Converter bits of the module as one accelerator."""
    (part,) = planned(name, None)
    return why(part).converter_bits


def least_budget(plan: Callable[[int], object]) -> int:
    """A budget that the largest unit just fits, found by what refusals say."""
    budget = 1
    while True:
        try:
            plan(budget)
        except BudgetError as error:
            found = re.match(
                r"'[\w +]+' alone needs converters of (\d+) bits; the budget is (\d+) bits, (\d+) too few",
                str(error),
            )
            assert found is not None, str(error)
            needed, given, missing = map(int, found.groups())
            assert given == budget and missing == needed - given > 0
            budget = needed
        else:
            return budget


def inputs(name: str, tokens: int) -> list[np.ndarray]:
    return [values(tokens, f, seed=i) for i, f in enumerate(MODULES[name][1])]


@pytest.mark.campaign
@pytest.mark.parametrize("name", MODULES)
def test_golden_is_the_same_for_every_budget(name: str, seed: int) -> None:
    rng = random.Random(f"{name}{seed}")
    largest, one = most(name), planned(name, None)
    least = least_budget(lambda budget: planned(name, budget))
    x = [inputs(name, tokens) for tokens in (1, MODULES[name][2].max_tokens)]
    expected = [computed(name, one, arrays) for arrays in x]
    counts = {}
    for budget in (largest, largest - 1, least, rng.randint(least, largest)):
        groups = planned(name, budget)
        assert max(why(part).converter_bits for part in groups) <= budget
        for part in groups:
            assert converter_bits(finished(part.derivation.largest)) == why(part).converter_bits
        assert sorted(u for part in groups for u in why(part).units) == sorted(why(one[0]).units)
        for arrays, result in zip(x, expected, strict=True):
            found = computed(name, groups, arrays)
            assert same(tuple(found), tuple(result)), (budget, len(arrays[0]))
        counts[budget] = len(groups)
    # one bit less may also be met by other converters
    assert counts[largest] == 1 <= counts[largest - 1] <= counts[least] > 1, counts


@pytest.fixture(scope="module")
def gated() -> Accelerator:
    """Two groups."""
    accelerator = compiled_with("gated", most("gated") - 1)
    assert [g.units for g in accelerator.report().groups] == [("gate", "silu", "up", "mul"), ("down",)]
    return accelerator


def all_tokens_agree(accelerator: Accelerator, name: str) -> None:
    step = MODULES[name][2].max_tokens
    for tokens in range(1, 2 * step + 2):
        x = inputs(name, tokens)
        expected = whole(name).golden(*x)
        assert same(accelerator.golden(*x), expected), tokens
        assert same(accelerator.run(*x), expected), tokens
        report = accelerator.report()
        assert len(report.passes) == -(-tokens // step) == len(report.groups[0].passes)
        assert report.cycles == sum(sum(group.passes) for group in report.groups)


def test_two_groups_run_as_one(gated: Accelerator) -> None:
    all_tokens_agree(gated, "gated")


@pytest.mark.parametrize("name", sampled(["several", "reused"], []))
def test_the_least_budget_runs_as_one(name: str) -> None:
    accelerator = compiled_with(name, least_budget(lambda budget: planned(name, budget)))
    assert len(accelerator.groups) > 1
    all_tokens_agree(accelerator, name)


@pytest.mark.campaign
def test_demo_block_in_groups() -> None:
    """The real block with its real weights, 16 tokens, in half the bits that it takes as one group."""
    module = load_feed_forward(default_checkpoint(), layer=0)
    config = CompileConfig(name="feed_forward", goal="small", max_tokens=16, multipliers=768, channels=4)
    one = streamgen.compile(module, torch.zeros(16, 576), config)
    budget = one.report().groups[0].converter_bits // 2
    accelerator = streamgen.compile(module, torch.zeros(16, 576), replace(config, converter_bits=budget))
    assert len(accelerator.groups) > 1
    x = values(16, 576)
    assert same(accelerator.run(x), one.golden(x))


def test_written_loaded_and_copied(gated: Accelerator, tmp_path: Path) -> None:
    folder = gated.write(tmp_path / "deep" / "written")
    files = {"constants.npz", "design.v", "graph.json", "manifest.json", "notes.json"}
    places = {"chain.json", "group_0", "group_1", "interface.json", "plan.json"}
    assert {place.name for place in folder.iterdir()} == places
    assert all(files < {file.name for file in (folder / f"group_{i}").iterdir()} for i in (0, 1))
    loaded = streamgen.load(folder)
    assert loaded.manifests == gated.manifests and loaded.report() == gated.report()
    copy = loaded.write(tmp_path / "copy")
    x = inputs("gated", 2)
    assert same(streamgen.load(copy).run(*x), whole("gated").golden(*x))
    names = [file.relative_to(folder) for file in folder.rglob("*") if file.is_file()]
    assert all((copy / name).read_bytes() == (folder / name).read_bytes() for name in names)
    again = compiled_with.__wrapped__("gated", gated.report().groups[0].converter_budget).write(
        tmp_path / "again"
    )
    assert all((again / name).read_bytes() == (folder / name).read_bytes() for name in names)


def test_groups_know_their_graphs_and_manifests(gated: Accelerator) -> None:
    assert [manifest.top for manifest in gated.manifests] == ["gated_0", "gated_1"]
    assert "gate_column0" in str(gated.groups[0].graph) and "down_column0" in str(gated.groups[1].graph)
    between = [{b.name: b for b in manifest.buffers} for manifest in gated.manifests]
    one, two = (buffers["mul"] for buffers in between)
    assert (one.role, two.role) == ("output", "input") and one.channel == two.channel
    for attribute in ("graph", "manifest"):
        with pytest.raises(GraphError) as error:
            getattr(gated, attribute)
        assert str(error.value) == "there are 2 groups; use `groups[k].graph` or `manifests[k]`"


def test_report_of_groups(gated: Accelerator) -> None:
    x = inputs("gated", 3)
    gated.run(*x)
    report = gated.report()
    text = " ".join(str(report).split())
    budget = report.groups[0].converter_budget
    for part in (
        "2 groups",
        "gate, silu, up, mul",
        f"with down the converters would hold {budget + 1} bits;",
        "no units are left",
        f"{report.cycles:,} cycles in 2 passes",
        "in tensors between groups",
    ):
        assert part in text, part
    memory = report.memory
    assert memory.converters + memory.constants == sum(g.converter_bits for g in report.groups)
    nodes = [node for group in gated.groups for node in group.graph.nodes]
    rings = [node.params.held_bits for node in nodes if isinstance(node.params, WeightsParams)]
    assert memory.constants == sum(rings) > 0 and memory.stored == 2 * 64 * 24
    assert memory.fifos == sum(fifo.bits * fifo.depth for fifo in report.fifos)
    assert memory.fused == memory.converters + memory.fifos + memory.stored
    assert memory.unfused == whole("gated").report().memory.unfused
    assert whole("gated").report().memory.stored == 0


def test_any_memory_gives_the_same_result(gated: Accelerator) -> None:
    x = inputs("gated", 3)
    assert same(gated.run(*x, memory=MemoryModel(delays=60, seed=4)), whole("gated").golden(*x))


def test_probes_reach_all_groups(gated: Accelerator, tmp_path: Path) -> None:
    x = inputs("gated", 4)
    assert same(gated.run(*x, probe=True), whole("gated").golden(*x))
    assert gated.probed is not None and gated.probed.runs == 4
    folder = gated.write(tmp_path / "written")
    written = streamgen.load(folder, changed_files=True)
    weights = folder / "group_1" / "weights_0.bin"
    content = weights.read_bytes()
    weights.write_bytes(bytes([content[0] ^ 0x40]) + content[1:])
    with pytest.raises(ProbeError, match="load_down"):
        written.run(*x, probe=True)
    weights.write_bytes(content)
    assert same(written.run(*x), whole("gated").golden(*x))


def test_failed_group_is_named(gated: Accelerator) -> None:
    x = inputs("gated", 1)
    gated.run(*x)
    running = gated._running().groups
    for name, group in zip(("group_0", "group_1"), running, strict=True):
        group.device.inject("weights_0", 0, Fault("SLVERR"))
        with pytest.raises(DeviceError, match=rf"^{name}: the run ended with an error after \d+ cycles"):
            gated.run(*x)
        group.device.inject("weights_0", 0, None)
        assert same(gated.run(*x), whole("gated").golden(*x))
    with pytest.raises(DeviceTimeoutError, match=r"^group_0: not done after"):
        gated.run(*x, memory=MemoryModel(latency=1_000_000), timeout=0.001)
    assert same(gated.run(*x), whole("gated").golden(*x))


def test_inputs_are_checked_before_anything_runs(gated: Accelerator) -> None:
    for method in (gated.run, gated.golden):
        with pytest.raises(TypeError, match=r"^run takes 1 inputs \(x\); 2 are given$"):
            method(values(1, 20), values(1, 20))
        with pytest.raises(ValueError, match=r"^input 'x' must have shape \(\.\.\., 20\); it has \(1, 32\)$"):
            method(values(1, 32))
        assert method(values(0, 20)).shape == (0, 20)


def test_damaged_chains(gated: Accelerator, tmp_path: Path) -> None:
    folder = gated.write(tmp_path / "written")
    chain = Chain.read(folder)
    for broken, message in (
        ("", "chain.json does not hold a chain"),
        ("{}", "a chain: chain: expected the fields .*missing .'folders', 'inputs', 'name', 'outputs'"),
        (replace(chain, folders=("group_1", "group_0")).to_json(), "reads 'mul', but no group before it"),
        (replace(chain, folders=("group_0",)).to_json(), "has an output 'down'"),
        (
            chain.to_json().replace("group_1", "../elsewhere"),
            "is not a folder directly inside the folder of the chain",
        ),
        (chain.to_json().replace("group_1", "group_0"), "each name may occur only once"),
        (chain.to_json().replace('"group_0",', "3,"), r"chain\.folders\[0\]: expected str, not 3"),
    ):
        (folder / "chain.json").write_text(broken)
        with pytest.raises(ValueError, match=message):
            streamgen.load(folder)
    (folder / "chain.json").write_text(chain.to_json())
    manifest = (folder / "group_1" / "manifest.json").read_text()
    (folder / "group_1" / "manifest.json").write_text(manifest.replace('"max_tokens": 2', '"max_tokens": 1'))
    with pytest.raises(ValueError, match=r"group_1 takes 1 tokens in a run, but .*group_0 takes 2: compile"):
        streamgen.load(folder, changed_files=True)
    (folder / "group_1" / "manifest.json").write_text(manifest)
    (folder / "group_1" / "notes.json").unlink()
    with pytest.raises(ValueError, match=r"group_1/notes.json cannot be read"):
        streamgen.load(folder)


@pytest.mark.parametrize("budget", [0, -1])
@pytest.mark.parametrize("name", ["max_tokens", "multipliers", "channels", "converter_bits", "token_lanes"])
def test_budgets_of_nothing(name: str, budget: int) -> None:
    with pytest.raises(ValueError, match=rf"^CompileConfig\.{name} is {budget}; it must be "):
        CompileConfig(**{name: budget})


ROWS = ITensor((1, 4), "f24", (2, 8), (1, 4), ((0,), (1,)))
PANELS = ITensor((1, 4), "f24", (8, 2), (4, 1), ((1,), (0,)))


def diamond() -> Graph:
    """Kernels by hand: three converters of 1536 bits, a result that is read inside, an input read twice."""
    b = GraphBuilder("diamond")
    one = b.load("one", ROWS, shape=(2, 30), channel=0)
    two = b.load("two", PANELS, shape=(2, 32), channel=1)

    def binary(name: str, operation: str, itensor: ITensor, x, y):
        params = BinaryParams(operation=operation, lanes=4, max_tokens=16)
        return b.kernel(name, params, {"itensor": itensor}, i_a=x, i_b=y)["o"]

    total = binary("total", "add", ROWS, one, two)
    b.store("sum", total, shape=(2, 30), channel=1)
    product = binary("product", "multiply", PANELS, total, two)
    silu = UnaryParams(function="silu", lanes=4, max_tokens=16)
    bent = b.kernel("bent", silu, {"itensor": ROWS}, i=total)["o"]
    b.store("result", binary("last", "add", ROWS, product, bent), shape=(2, 32), channel=0)
    return b.build()


def by_budget(budget: int | None) -> list[tuple[Graph, FusedGroup]]:
    return group_graph(diamond(), budget_of(CompileConfig(name="diamond", converter_bits=budget)))


def test_graphs_by_hand() -> None:
    ((graph, fused),) = by_budget(None)
    largest, least = fused.converter_bits, least_budget(by_budget)
    assert least < largest and len(by_budget(largest)) == 1
    rng = np.random.default_rng(0)
    given = {name: round_f24(rng.normal(size=(2, 32))) for name in ("one", "two")}
    expected, _ = golden.run(finished(graph), given)
    for budget in (largest - 1, (largest + least) // 2, least):
        known = dict(given)
        groups = by_budget(budget)
        assert len(groups) > 1
        for part, why in groups:
            complete = finished(part)
            assert converter_bits(complete) == why.converter_bits <= budget
            read = {tensor.name: known[tensor.name] for tensor in part.tensors if tensor.role == "input"}
            outputs, _ = golden.run(complete, read)
            assert not set(outputs) & set(known)
            known |= outputs
        assert all(same(known[name], array) for name, array in expected.items()), budget
    with pytest.raises(BudgetError, match=rf"alone needs converters of {least} bits; .* bits, 1 too few"):
        by_budget(least - 1)


@pytest.mark.campaign
def test_graphs_by_hand_run() -> None:
    one = streamgen.assemble(diamond(), CompileConfig(name="diamond"))
    accelerator = streamgen.assemble(
        diamond(), CompileConfig(name="diamond", converter_bits=least_budget(by_budget))
    )
    assert len(accelerator.groups) > 1
    x = values(2, 30), values(2, 32)
    assert same(accelerator.golden(*x), one.golden(*x)) and same(accelerator.run(*x), one.golden(*x))
