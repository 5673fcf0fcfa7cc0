"""Estimates: the resources of the compiled model and its predicted cycles, from shapes alone."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import streamgen
from streamgen import cli
from streamgen.artifact.roles import BEST
from streamgen.base.errors import BudgetError, CheckpointError, GraphError
from streamgen.compiler.config import CompileConfig
from streamgen.model.frontend import import_any, shapes_of
from streamgen.model.graph.logical import Repeat
from streamgen.model.operations import LastRow, Linear
from streamgen.numbers.quantisation import is_uniform, quantise
from tests.shared.decoders import TINY, random_decoder, tiny_accelerator, tiny_decoder
from tests.unit.model.frontend.checkpoints import llama
from tests.unit.model.frontend.test_load_gguf import gguf_file

SMALL = {"vocab_size": 64, "n_positions": 64, "n_embd": 32, "n_head": 2, "n_layer": 5}
MLP = "examples/mlp.py:mlp"
TWO = torch.nn.Sequential(torch.nn.Linear(40, 24), torch.nn.ReLU(), torch.nn.Linear(24, 8)).eval()


def _config(folder: Path, **changes: Any) -> Path:
    """The config.json of a small GPT-2, with changes."""
    path = folder / "config.json"
    path.write_text(
        json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **SMALL, **changes})
    )
    return path


@pytest.mark.slow
def test_figures_are_those_of_the_compiled_model() -> None:
    compiled, estimate = tiny_accelerator(), streamgen.estimate(tiny_decoder(), None, TINY, prompts=(1, 4, 9))
    (group,), (estimated,) = compiled.report().groups, estimate.groups
    assert estimated.resources == group.resources
    assert (estimated.multipliers, estimated.choices) == (group.multipliers, group.choices)
    assert estimate.memory == compiled.report().memory
    assert [run.position for run in estimate.passes] == [0, 36, 71, 0]
    for run in estimate.passes:
        assert run.cycles == compiled.predict(run.tokens, run.position, BEST)
        assert all(phase.cycles >= 0 and phase.limit for phase in run.phases)
    assert estimate.first_tokens == {n: compiled.predict(n, 0, BEST) for n in (1, 4, 9)}
    (first,) = (run for run in estimate.passes if (run.tokens, run.position) == (1, 0))
    least = sum(max(phase.memory_cycles, phase.product_cycles) for phase in first.phases)
    assert estimate.first_bounds[1] == round(least)
    assert all(0 < estimate.first_bounds[n] <= estimate.first_tokens[n] for n in (1, 4, 9))
    by_channel: dict[int, dict[str, int]] = {}
    for buffer in compiled.manifest.buffers:
        roles = by_channel.setdefault(buffer.channel, {})
        roles[buffer.role] = roles.get(buffer.role, 0) + buffer.bytes
    assert estimated.channels == by_channel


@pytest.mark.slow
def test_phases_are_those_of_a_profile() -> None:
    """The cycles of each phase are near those that a simulation counts."""
    compiled = tiny_accelerator()
    (seen,) = compiled.profile(np.arange(4)).passes
    (*_, largest) = streamgen.estimate(tiny_decoder(), None, TINY).passes
    assert [phase.name for phase in largest.phases] == [phase.name for phase in seen.phases]
    for predicted, other in zip(largest.phases, seen.phases, strict=True):
        assert predicted.walks == other.walks
        if not predicted.name.startswith(("last", "logits")):  # the profiled pass writes logits, too
            assert abs(predicted.cycles - other.cycles) <= 0.05 * seen.cycles, (predicted, other)
    compiled.close()


@pytest.mark.slow
def test_networks_have_no_positions() -> None:
    config = CompileConfig(max_tokens=2, multipliers=64, channels=1)
    estimate = streamgen.estimate(TWO, torch.zeros(2, 40), config)
    compiled = streamgen.compile(TWO, torch.zeros(2, 40), config)
    assert estimate.groups[0].resources == compiled.report().groups[0].resources
    assert [(run.tokens, run.cycles) for run in estimate.passes] == [(n, compiled.predict(n)) for n in (1, 2)]
    with pytest.raises(
        ValueError, match="positions and prompts are for language models, and this model is not"
    ):
        streamgen.estimate(TWO, torch.zeros(2, 40), config, positions=(1,))
    with torch.device("meta"):
        bare = torch.nn.Sequential(torch.nn.Linear(40, 24), torch.nn.ReLU(), torch.nn.Linear(24, 8))
    again = streamgen.estimate(bare, torch.zeros(2, 40), config)
    assert (again.groups, again.passes) == (estimate.groups, estimate.passes)
    assert all(parameter.is_meta for parameter in bare.parameters())  # the user's module is as it was
    bare.register_buffer("mask", torch.zeros(8, device="meta"))
    with pytest.raises(ValueError, match="buffer mask is on the meta device"):
        streamgen.estimate(bare, torch.zeros(2, 40), config)


@pytest.mark.slow
def test_a_config_is_enough(tmp_path: Path) -> None:
    """The figures equal those of a model with weights. Layers are traced twice and repeated."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = CompileConfig(max_tokens=4, context=32, channels=2, n_lanes=2, lanes=2)
    estimate = streamgen.estimate(_config(tmp_path), None, config)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path)).eval()
    graph, _ = import_any(model, None, 4, 32)
    shapes = shapes_of(tmp_path / "config.json", None, 4, 32)
    assert [o.form() for _, o in _ops(shapes)] == [o.form() for _, o in _ops(graph)]
    expected = streamgen.estimate(graph, None, config)
    assert (estimate.groups, estimate.passes) == (expected.groups, expected.passes)
    assert estimate.first_tokens == expected.first_tokens
    (repeat,) = [o.op for o in shapes.operations if isinstance(o.op, Repeat)]
    assert len(repeat.layers) == 5 and repeat.period == 1
    weights = [op.weight for _, op in _ops(shapes) if isinstance(op, Linear)]
    assert all(isinstance(weight, np.ndarray) and is_uniform(weight) for weight in weights)
    with torch.device("meta"):
        bare = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
    assert streamgen.estimate(bare, None, config).groups == estimate.groups


def _ops(graph: Any) -> list[tuple[str, Any]]:
    return [(path, operation.op) for path, operation in graph.walk()]


def test_layers_that_differ_are_all_traced(tmp_path: Path) -> None:
    graph = shapes_of(_config(tmp_path, scale_attn_by_inverse_layer_idx=True), None, 4, 32)
    (repeat,) = [o.op for o in graph.operations if isinstance(o.op, Repeat)]
    assert repeat.period == 5


@pytest.mark.parametrize("form", ["w4", "w8"])
@pytest.mark.parametrize("value", [0.5, -2.0, 0.0])
def test_one_number_everywhere_is_quantised_as_any_weight(form: str, value: float) -> None:
    weight = np.broadcast_to(np.float32(value), (5, 72))
    uniform, again = quantise(weight, form=form), quantise(weight, form=form)
    expected = quantise(weight.copy(), form=form)
    assert uniform is again and is_uniform(uniform.codes)
    for part in ("codes", "scale", "minimum", "row_scale"):
        own, other = getattr(uniform, part), getattr(expected, part)
        assert (own is None) == (other is None)
        assert own is None or (own.dtype == other.dtype and np.array_equal(own, other))
    with pytest.raises(ValueError, match="must be finite"):
        quantise(np.broadcast_to(np.float32(np.nan), (5, 72)), form=form)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "no_such_model"}, "transformers cannot read it"),
        ({"model_type": "vit", "architectures": ["ViTModel"]}, "makes no causal language model of 'vit'"),
    ],
)
def test_configs_that_cannot_be(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        streamgen.estimate(_config(tmp_path, **changes), None, TINY)


def test_bad_requests() -> None:
    for asked, message in (
        ({"positions": (72,)}, "positions has 72; 0 to 71 are allowed"),
        ({"prompts": (0,)}, "prompts has 0; 1 to 72 are allowed"),
    ):
        with pytest.raises(ValueError) as caught:
            streamgen.estimate(tiny_decoder(), None, TINY, **asked)  # type: ignore[arg-type]
        assert str(caught.value) == message
    with pytest.raises(BudgetError, match="A design may fill 1% of each SLR"):
        streamgen.estimate(random_decoder(), None, replace(TINY, fill=0.01))


@pytest.mark.slow
def test_several_models_from_several_kinds_of_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A GGUF file, a folder of safetensors, its config.json alone, and a module give a line of the table
    each. The figures equal those of separate estimates, and all files of one model give the same figures."""
    model, folder, file = llama(), tmp_path / "folder", tmp_path / "file.gguf"
    model.save_pretrained(folder)
    gguf_file(file, model, {})
    alone = tmp_path / "config.json"
    alone.write_bytes((folder / "config.json").read_bytes())
    options = ["--max-tokens=2", "--context=16", "--channels=4", "--multipliers=128"]
    config = CompileConfig(max_tokens=2, context=16, channels=4, multipliers=128)
    sources = [str(file), str(folder), str(alone), MLP]
    assert cli.main(["estimate", *sources, *options, "--json"]) == 0
    several = json.loads(capsys.readouterr().out)
    assert cli.main(["estimate", *sources, *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Estimates on u55c at 300 MHz, ranked by")
    assert len([line for line in lines if line.startswith((f" {tmp_path}"[:10], " examples/"))]) >= len(
        sources
    )
    assert len(several) == len(sources)
    for source, found in zip(sources[:3], several, strict=False):
        own = json.loads(streamgen.estimate(Path(source), None, config).to_json())
        assert _without_times(own) == _without_times(found)
        for what in ("passes", "first_tokens", "groups", "memory"):
            assert found[what] == several[0][what], (source, what)


def _without_times(values: dict[str, Any]) -> dict[str, Any]:
    return {**values, "seconds": sorted(values["seconds"])}


def test_what_is_printed_of_memory_and_time() -> None:
    """The bytes of every channel by kind equal those of the design's buffers; time is given by stage."""
    estimate = streamgen.estimate(tiny_decoder(), None, TINY)
    (group,) = estimate.groups
    text = estimate.text(width=110)
    (*_, head) = (line for line in text.splitlines() if line.split()[:1] == ["channel"])
    assert "weights" in head and "caches" in head and "% of 536,870,912" in head
    assert sorted(group.channels) == [0, 1]
    for channel, by_role in group.channels.items():
        (row,) = (line for line in text.splitlines() if re.match(rf" ?{channel} +[\d,]+ ", line))
        assert f"{sum(by_role.values()):,}" in row and f"{by_role['weights']:,}" in row
    stages = ("import", "quantise", "schedule, bind, steer", "converters, place, size")
    assert [*estimate.seconds] == [*stages, "resources", "plan", "predict"]
    assert min(estimate.seconds.values()) >= 0 < sum(estimate.seconds.values())
    (said,) = (line for line in text.replace("\n", " ").split("processor time: ")[1:])
    assert [re.sub(r" [\d.]+ s$", "", part) for part in re.split(r"(?<= s), ", said)] == [*estimate.seconds]


@pytest.mark.slow
def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(_config(tmp_path, n_layer=2))
    options = ["--max-tokens=2", "--context=16", "--channels=2", "--n-lanes=1", "--prompt-tokens=2"]
    assert cli.main(["estimate", path, *options, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["board"] == "u55c" and found["passes"][0]["tokens_per_second"] > 0
    assert list(found["first_token_ms"]) == ["2"]
    assert cli.main(["estimate", path, *options, "--on", "u55c", "--on", "u280", "--at", "250"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Estimates at 250 MHz, ranked by") and max(map(len, text.splitlines())) <= 110
    assert [board for board in ("u55c", "u280") if text.count(f" {board} ") == 1] == ["u55c", "u280"]
    assert cli.main(["estimate", "nothing"]) == 2
    assert (
        "'nothing' is not a folder, a GGUF file, a config.json or module:function" in capsys.readouterr().err
    )


@pytest.mark.parametrize("call", [streamgen.compile, streamgen.estimate])
def test_state_in_what_is_no_language_model(call: Any) -> None:
    """Every token would need its own answer, but passes of several tokens would only give the answer of the
    first."""
    graph = tiny_decoder()
    (last,) = (operation for operation in graph.operations if isinstance(operation.op, LastRow))
    operations = tuple(
        replace(
            operation, inputs=tuple(last.inputs[0] if name == "last" else name for name in operation.inputs)
        )
        for operation in graph.operations
        if operation is not last
    )
    with pytest.raises(GraphError, match=r"must be a language model: .* for the last row only"):
        call(replace(graph, operations=operations), None, TINY)


def test_the_first_lines_count_every_group() -> None:
    """A network of several accelerators takes as long as all of them together."""
    layers = torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)
    config = streamgen.CompileConfig(max_tokens=2, multipliers=64, channels=1, converter_bits=12000)
    estimate = streamgen.estimate(torch.nn.Sequential(*layers).eval(), torch.zeros(2, 64), config)
    assert len(estimate.groups) == 2
    assert [run.group for run in estimate.headline] == [group.name for group in estimate.groups]
    seconds = sum(run.cycles for run in estimate.headline) / (estimate.clock_mhz * 1e6)
    (speed,) = (line for line in estimate.text(phases=False).splitlines() if line.split()[:1] == ["speed"])
    assert speed.split()[1:] == [f"{2 / seconds:,.0f}", "tokens/s", "in", "passes", "of", "2"]
    moved = sum(phase.bytes for run in estimate.headline for phase in run.phases) / seconds
    assert f"{moved / 425.6e9:.0%} of the 425.6 GB/s" in estimate.text(phases=False)
    low, high = estimate.joules_range
    assert 0 < low < estimate.joules < high <= 150 * seconds
    said = " ".join(estimate.text(width=200).split())
    assert (
        f"about {estimate.joules / seconds:,.0f} W ({low / seconds:,.0f} to {high / seconds:,.0f}), " in said
    )
    assert (
        f"tokens a joule ({2 / high:,.1f} to {2 / low:,.1f}), by a model that no board has confirmed" in said
    )
    assert "the card takes at most 150 W" in said
