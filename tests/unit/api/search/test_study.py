"""Studies: never worse than the choice of the compiler, and shared between processes, even if one is
killed."""

import json
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from lxml import html
from sqlalchemy.pool import NullPool

from streamgen import cli
from streamgen.api.search import Evaluation, Point, Space, Value, space
from streamgen.api.search.evaluation import OBJECTIVES
from streamgen.api.search.front import FrontPoint, plot
from streamgen.api.search.stored import read_study
from streamgen.api.search.study import Study
from streamgen.base.errors import StorageError
from streamgen.cli.models import compiled_source
from streamgen.compiler.config import CompileConfig
from tests.shared.campaigns import sampled
from tests.shared.decoders import random_decoder
from tests.shared.postgres import postgres
from tests.unit.api.search.models import small_space
from tests.unit.compiler.explore.random_modules import RandomModule

NEAR = 0.75  # of the fastest point of all, which a search of half of them reaches
OFF = 0.6  # of it, which the compiler's own choice has: it is chosen for few multipliers, too

WORKER = """
import sys, time
from streamgen.api.search import stored, study
from tests.unit.api.search.models import small_space
stored.HEARTBEAT, stored.GRACE = 1, 2
designs, stop = small_space(), int(sys.argv[2])
known, count = designs.evaluate, 0
def evaluate(point, **how):
    global count
    count += 1
    print("point", flush=True)
    while stop and count == stop:
        time.sleep(1)
    return known(point, **how)
designs.evaluate = evaluate
study.Study(designs, storage=sys.argv[1], seed=None).run(int(sys.argv[3]))
print("ended", flush=True)
"""


def _worker(url: str, stop: int, trials: int) -> subprocess.Popen[str]:
    """A process that works on the study. It hangs in its point number `stop`, unless that is 0."""
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, url, str(stop), str(trials)], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("sampler", ["tpe", "nsga2"])
def test_a_front_beats_the_default(sampler: Any) -> None:
    designs = small_space()
    study = Study(designs, sampler=sampler)
    study.run(8)
    assert study.points == 8 and len(study.tried) <= 8
    front = study.front(exact=False)
    default = designs.evaluate(designs.default)
    assert max(evaluation.tokens_per_second for evaluation in front) >= default.tokens_per_second
    assert min(evaluation.luts for evaluation in front) <= default.luts
    assert [evaluation.tokens_per_second for evaluation in front] == sorted(
        (evaluation.tokens_per_second for evaluation in front), reverse=True
    )
    for evaluation in front:
        assert not any(
            other.tokens_per_second >= evaluation.tokens_per_second and other.luts < evaluation.luts
            for other in front
        )


SHAPES: tuple[dict[str, Any], ...] = (
    {},
    {"kv_heads": 4},
    {"norm": "layer", "bias": True},
    {"windows": (8, None)},
    {"layers": 3, "wide": 96},
    {"hidden": 64, "head_dim": 16, "rotated": 16, "vocabulary": 200},
)


def test_a_front_goes_on_behind_what_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best point by bounds fits no SLR, so a point that it beat is evaluated in its place."""
    designs = small_space()
    study = Study(designs, ("luts",))
    study.run(12)
    (best,) = study.front(exact=False)
    known, exactly = designs.evaluate, []

    def evaluate(point: Point, *, exact: bool = False) -> Evaluation:
        evaluation = known(point, exact=exact)
        if exact:
            exactly.append(dict(point))
            if known(point).luts == best.luts:
                return replace(evaluation, why="it fits no SLR")
        return evaluation

    monkeypatch.setattr(designs, "evaluate", evaluate)
    (found,) = study.front()
    refused = [point for point in exactly if known(point).luts == best.luts]
    built = [point for point in exactly if point not in refused and point != designs.default]
    assert refused and built
    assert found.exact and found.feasible
    assert found.luts == min(known(point, exact=True).luts for point in [designs.default, *built])
    assert found.luts < known(designs.default, exact=True).luts


def test_a_study_begins_with_the_most_of_each_factor() -> None:
    designs = small_space()
    default, greatest = designs.default, []
    for factor in designs.factors:
        numbers = [value for value in factor.values if isinstance(value, int)]
        if numbers and "." not in factor.name and designs.applies(factor, default):
            greatest.append((factor.name, max(numbers)))
    study = Study(designs)
    study.run(1 + len(greatest))
    first, *others = study.report().trials
    assert all(
        first.choice.get(name) == str(value) for name, value in default.items() if name in first.choice
    )
    changed = [(name, value) for name, value in greatest if value != default[name]]
    assert changed
    for name, value in changed:
        assert any(trial.choice.get(name) == str(value) for trial in others), name


@pytest.mark.slow
@pytest.mark.parametrize("number", sampled(range(30), (3,)))
def test_a_search_of_random_modules_needs_no_hint(number: int, seed: int) -> None:
    module = RandomModule(1000 * seed + number)
    inputs = tuple(torch.zeros(2, width) for width in module.features)
    config = CompileConfig(max_tokens=4, multipliers=512, channels=2)
    chosen = ("policy", "multipliers", "channels", "token_lanes", "lanes")
    _needs_no_hint(module.eval(), inputs, config, chosen)


@pytest.mark.slow
@pytest.mark.parametrize("number", sampled(range(6), (0,)))
def test_a_search_of_random_decoders_needs_no_hint(number: int) -> None:
    config = CompileConfig(name="tiny", max_tokens=4, context=72, channels=4, multipliers=512)
    chosen = ("multipliers", "channels", "n_lanes")
    _needs_no_hint(random_decoder(seed=number, **SHAPES[number]), None, config, chosen)


def _needs_no_hint(model: Any, inputs: Any, config: CompileConfig, chosen: Sequence[str]) -> None:
    """A search that begins with the least value of every factor, without the choice of the compiler, gives no
    worse result. The search and the compiler are compared with all points of the space."""
    factors = space(model, inputs, config).factors
    only = {factor.name: factor.values[:1] for factor in factors if factor.name not in chosen}
    designs = space(model, inputs, config, only=only)
    points = _points(designs)
    every = [evaluation for point in points if (evaluation := designs.evaluate(point)).feasible]
    assert len(every) >= 24
    default, fastest = (
        designs.evaluate(designs.default),
        max(evaluation.tokens_per_second for evaluation in every),
    )
    study = Study(designs)
    study.run(len(points) // 2, first={factor.name: factor.values[-1] for factor in designs.factors})
    front = study.front(exact=False)
    best = max(evaluation.tokens_per_second for evaluation in front)
    assert best >= default.tokens_per_second and min(evaluation.luts for evaluation in front) <= default.luts
    assert fastest >= best >= NEAR * fastest
    assert default.tokens_per_second >= OFF * fastest
    known = {(evaluation.tokens_per_second, evaluation.luts) for evaluation in every}
    assert {(evaluation.tokens_per_second, evaluation.luts) for evaluation in front} <= known


def _points(designs: Space) -> list[dict[str, Value]]:
    """All points of a space, without factors that have no effect under their policy."""
    names = [factor.name for factor in designs.factors]
    points: dict[tuple[Any, ...], dict[str, Value]] = {}
    for values in product(*(factor.values for factor in designs.factors)):
        point = dict(zip(names, values, strict=True))
        point = {f.name: point[f.name] for f in designs.factors if designs.applies(f, point)}
        points[tuple(point.items())] = point
    return [*points.values()]


@pytest.mark.campaign
@pytest.mark.slow
def test_processes_share_a_study_in_a_database_and_one_is_killed() -> None:
    """A worker is killed in the middle of a point. Two others finish the study and repeat that point."""
    with postgres() as url:
        first = _worker(url, 3, 1000)
        assert first.stdout is not None
        assert [first.stdout.readline().strip() for _ in range(3)] == ["point"] * 3
        first.send_signal(signal.SIGKILL)
        first.wait()
        first.stdout.close()
        storage = optuna.storages.RDBStorage(url, engine_kwargs={"poolclass": NullPool})
        states = [
            trial.state.name for trial in optuna.load_study(study_name="module", storage=storage).trials
        ]
        assert states.count("RUNNING") == 1
        time.sleep(4)  # it has been silent for too long
        others = [_worker(url, 0, 12) for _ in range(2)]
        for other in others:
            said, _ = other.communicate(timeout=250)
            assert other.returncode == 0 and said.endswith("ended\n")
            assert said.count("point") > 1, "both had some"
        trials = optuna.load_study(study_name="module", storage=storage).trials
        done = [trial for trial in trials if trial.state.name in ("COMPLETE", "PRUNED")]
        (dead,) = [trial for trial in trials if trial.state.name == "FAIL"]
        again = [trial for trial in trials if trial.system_attrs.get("failed_trial") == dead.number]
        assert len(again) == 1 and again[0].params == dead.params and again[0] in done
        assert len(done) >= 12 and len({trial.number for trial in done}) == len(done)
        resumed = Study(small_space(), storage=url)
        assert resumed.points == len(done) and resumed.front(exact=False)
        with pytest.raises(ValueError, match="a study 'module' with other objectives: give"):
            Study(small_space(), ("luts",), storage=url)


def test_storages_that_cannot_be_used(tmp_path: Path) -> None:
    designs = small_space()
    for url, message in (
        (f"sqlite:///{tmp_path}/no/such/folder/base", "cannot be used: unable to open database file"),
        (
            "postgresql+psycopg://user:secret@127.0.0.1:9/base",
            "psycopg://user@127.0.0.1:9/base cannot be used",
        ),
        ("mysql+nosuch://host/base", "nosuch"),
    ):
        with pytest.raises((StorageError, ValueError), match=message) as caught:
            Study(designs, storage=url)
        assert "secret" not in str(caught.value)
    place = f"sqlite:///{tmp_path}/base"
    Study(designs, storage=place)
    with sqlite3.connect(tmp_path / "base") as base:
        base.execute("update alembic_version set version_num = 'v9.9.9.z'")
    with pytest.raises(StorageError, match="was written by another release of Optuna"):
        Study(designs, storage=place)


def test_what_a_storage_tells(tmp_path: Path) -> None:
    """The storage gives the same trials and objectives as the study, and reading does not change it."""
    designs, place = small_space(), f"sqlite:///{tmp_path}/base"
    search = Study(designs, ("luts", "energy"), storage=place, name="mine")
    search.run(8)
    told = search.report()
    before = (tmp_path / "base").read_bytes()
    assert read_study(place) == read_study(place, "mine") == told
    assert (tmp_path / "base").read_bytes() == before
    assert [trial.number for trial in told.trials] == list(range(8))
    default = designs.evaluate(designs.default)
    assert told.trials[0].values == (default.luts, default.joules)
    for trial in told.trials:
        choice = {name: int(text) if text.isdigit() else text for name, text in trial.choice.items()}
        evaluation = designs.evaluate({**dict.fromkeys(designs.default), **choice})
        if trial.state == "pruned":
            assert trial.why and not trial.values
        else:
            assert trial.values == (evaluation.luts, evaluation.joules)
            assert evaluation.feasible == (trial.state == "kept")
    front = {(evaluation.luts, evaluation.joules) for evaluation in search.front(exact=False)}
    assert {trial.values for trial in told.front} == front
    assert str(told).startswith("study mine: 8 points, ")
    Study(designs, storage=place, name="other")
    for name, message in (
        (None, "has mine, other; give the name of a study"),
        ("none", "has mine, other; it has no study 'none'"),
    ):
        with pytest.raises(ValueError, match=message):
            read_study(place, name)
    for nowhere in (f"{tmp_path}/journal", f"sqlite:///{tmp_path}/other"):
        with pytest.raises(StorageError, match="there is no file"):
            read_study(nowhere)
    optuna.create_study(storage=f"sqlite:///{tmp_path}/foreign", study_name="foreign")
    with pytest.raises(ValueError, match="'foreign' was not created by `streamgen explore`"):
        read_study(f"sqlite:///{tmp_path}/foreign")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["base", "foreign"]


def test_bad_studies() -> None:
    designs = small_space()
    for arguments, message in (
        ({"objectives": ("speed",)}, "objective is 'speed'; decode, first-token, luts, energy are allowed"),
        ({"objectives": ()}, "objective is ''; decode, first-token, luts, energy are allowed"),
        ({"objectives": ("luts", "luts")}, "objectives are luts, luts; each may be named only once"),
        ({"sampler": "random"}, "sampler is 'random'; tpe, nsga2 are allowed"),
    ):
        with pytest.raises(ValueError) as caught:
            Study(designs, **arguments)  # type: ignore[arg-type]
        assert str(caught.value) == message
    with pytest.raises(ValueError, match="trials is 0; at least 1 is needed"):
        Study(designs).run(0)


MLP = "examples/mlp.py:mlp"


@pytest.mark.slow
def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--multipliers=128", "--channels=2", "--max-tokens=2"]
    assert cli.main(["explore", MLP, "--factors", *options]) == 0
    assert "multipliers: 128, 64; the budget of 128" in capsys.readouterr().out
    page = tmp_path / "front.html"
    storage = f"--storage={tmp_path}/journal"
    asked = ["explore", MLP, "--trials=6", "--workers=2", f"--plot={page}", storage, *options]
    assert cli.main(asked) == 0
    text = capsys.readouterr().out
    assert "tokens/s" in text and "are exact: those of `streamgen estimate`" in text
    assert "plotly" in page.read_text() and page.stat().st_size > 1 << 20  # the library is in it
    assert "tried points (bounds)" in page.read_text() and "front (exact)" in page.read_text()
    assert (
        cli.main(["explore", MLP, "--trials=3", "--json", "--rough", "--only=policy=spatial", *options]) == 0
    )
    points = json.loads(capsys.readouterr().out)
    assert points and all(point["luts"] > 0 and not point["exact"] for point in points)
    assert cli.main(["report", MLP, storage, "--json", f"--html={tmp_path}/page.html", *options]) == 0
    told = json.loads(capsys.readouterr().out)["study"]
    assert told["objectives"] == ["decode", "luts"] and len(told["trials"]) >= 6
    drawn = html.fromstring((tmp_path / "page.html").read_text())
    front = [trial for trial in told["trials"] if trial["front"]]
    assert len(drawn.xpath("//*[@id='study']//tbody/tr")) == len(front) > 0


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["decode", "first-token", "energy"])
def test_commands_of_a_front_build_it(
    objective: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command, copied from the text under the second name of `explore`, makes the design of its row."""
    source = str(Path(__file__).parents[4] / MLP)
    monkeypatch.chdir(tmp_path)
    fixed = ["--multipliers=128", "--channels=2", "--max-tokens=2", "--example-shape=2,32", "--weights=w8"]
    fixed += ["--formats", '{"m_0": "w8"}', "--clock-mhz=250"]
    asked = [source, "--trials=5", f"--objective={objective}", "--objective=luts", *fixed]
    assert cli.main(["search", *asked]) == 0
    shown = capsys.readouterr().out.splitlines()
    commands = dict(line.strip().split("  ", 1) for line in shown if "  streamgen compile " in line)
    assert cli.main(["explore", *asked, "--json"]) == 0
    points = json.loads(capsys.readouterr().out)
    values = [point[OBJECTIVES[objective][0]] for point in points]
    assert values == sorted(values, reverse=OBJECTIVES[objective][1])
    assert [point["number"] for point in points] == [*range(1, len(points) + 1)] and points
    assert commands == {str(point["number"]): point["command"] for point in points}
    assert [line.split()[0] for line in shown[3 : 3 + len(points)]] == [*commands]
    for number, command in commands.items():
        program, *words = shlex.split(command)
        assert program == "streamgen" and cli.main(words) == 0
        capsys.readouterr()
        assert cli.main(["report", f"design-{number}", "--json"]) == 0
        (group,) = json.loads(capsys.readouterr().out)["groups"]
        (point,) = (point for point in points if str(point["number"]) == number)
        total = group["resources"]["total"]
        assert (total["lut"], total["dsp"]) == (point["luts"], point["dsps"])


def test_a_model_without_weights_has_commands_that_estimate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"vocab_size": 64, "n_positions": 64, "n_embd": 32, "n_head": 2, "n_layer": 2}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **sizes}))
    budgets = ["--context=16", "--channels=2", "--max-tokens=2", "--trials=1"]
    assert cli.main(["explore", str(config), *budgets]) == 0
    out = capsys.readouterr().out
    assert f"{config} has no weights, so these commands only estimate the designs." in out
    (command,) = (line for line in out.splitlines() if "  streamgen estimate " in line)
    assert cli.main(["explore", str(config), *budgets, "--json"]) == 0
    (point,) = json.loads(capsys.readouterr().out)
    assert cli.main([*shlex.split(command)[2:], "--json", "--position=8"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["passes"][0]["tokens_per_second"] == pytest.approx(point["tokens_per_second"])
    (tmp_path / "model.safetensors").touch()
    assert compiled_source(str(config)) == compiled_source(str(tmp_path)) == str(tmp_path)
    assert [compiled_source(source) for source in (MLP, "default")] == [MLP, "default"]


def test_a_plot_tells_exact_points_from_bounds(tmp_path: Path) -> None:
    """The front is a line with steps; the other exact points and the bounds have marks of their own."""
    base = CompileConfig()

    def point(speed: float, luts: float) -> Evaluation:
        return Evaluation(config=base, exact=True, tokens_per_second=speed, luts=luts)

    exact = [point(3.0, 3.0), point(2.0, 1.0), point(1.0, 2.0)]
    front = [
        FrontPoint(number=number, evaluation=found, command="", chosen={})
        for number, found in enumerate(exact[:2], 1)
    ]
    tried = [{"decode": 4.0, "luts": 2.0}, {"decode": 5.0, "luts": 3.0}]
    for objectives, traces in (
        (("decode", "luts"), [
            ("tried points (bounds)", "markers", "circle-open", [2, 3], [4, 5]),
            ("other points (exact)", "markers", "circle", [2], [1]),
            ("front (exact)", "lines+markers+text", "diamond", [1, 3], [2, 3]),
        ]),
        (("decode",), [
            ("tried points (bounds)", "markers", "circle-open", [1, 2], [4, 5]),
            ("best bound so far", "lines", None, [1, 2], [4, 5]),
            ("front (exact)", "markers+text", "diamond", [2], [3]),
        ]),
    ):  # fmt: skip
        file = tmp_path / "front.html"
        plot(file, "a model", objectives, tried, exact, front[: len(objectives)])
        (call,) = re.findall(r"Plotly\.newPlot\(\s*\"[\w-]+\",\s*(.*)", file.read_text())
        data, end = json.JSONDecoder().raw_decode(call)
        layout, _ = json.JSONDecoder().raw_decode(call[end:].lstrip(", \n"))
        assert layout["yaxis"]["title"]["text"] == "tokens/s; more is better"
        found = [
            (t["name"], t["mode"], t.get("marker", {}).get("symbol"), [*t["x"]], [*t["y"]]) for t in data
        ]
        assert found == traces
        lines = [t["line"]["shape"] for t in data if "lines" in t["mode"]]
        assert lines == ["hv"]


@pytest.mark.slow
def test_several_models_and_boards(capsys: pytest.CaptureFixture[str]) -> None:
    """Models and boards are searched one after the other. A source that cannot be read or does not fit gives
    its reason in its place. The exit code is 1 if none is left."""
    options = ["--multipliers=128", "--channels=2", "--max-tokens=2", "--trials=2", "--rough"]
    boards = ["--on", "u55c", "--on", "u280"]
    assert cli.main(["explore", MLP, "nowhere", *boards, *options, "--json"]) == 0
    points = json.loads(capsys.readouterr().out)
    places = dict.fromkeys((point["model"], point["board"]) for point in points)
    assert [*places] == [(model, board) for model in (MLP, "nowhere") for board in ("u55c", "u280")]
    reason = "'nowhere' is not a folder, a GGUF file, a config.json or module:function"
    assert points[-1] == {"model": "nowhere", "board": "u280", "reason": reason}
    assert all(point["tokens_per_second"] > 0 for point in points if point["model"] == MLP)
    assert cli.main(["explore", MLP, *boards, *options, "--converter-bits=1"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" alone needs ")[0] for line in lines if "not searched" in line] == [
        f"{MLP} on {board}: not searched, because 'm_0'" for board in ("u55c", "u280")
    ]
    assert cli.main(["explore", MLP, *boards, "--trials=2", "--study=x"]) == 2
    assert "--plot and --study need a single MODEL and a single board" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --trials N, the number of points"),
        (["--trials=2", "--objective=speed"], "--objective is 'speed'; decode, first-token, luts, energy"),
        (["--trials=2", "--max-tokens=0"], "--max-tokens is 0; it must be None or 1 to 2^24"),
        (["--trials=2", "--only=policy"], "is not of the form FACTOR=VALUES"),
        (["--trials=2", "--only=policy="], "the space is empty: factor 'policy' has no value left"),
        (["--trials=2", "--plot=no/such/folder/x.html"], "for the plot"),
        (["--trials=2", "--storage=sqlite:////no/such/folder/base"], "cannot be used"),
        (["--trials=2", "--converter-bits=1"], "alone needs converters"),
    ],
)
def test_bad_commands(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explore", MLP, *arguments]) in (1, 2)
    assert message in capsys.readouterr().err
