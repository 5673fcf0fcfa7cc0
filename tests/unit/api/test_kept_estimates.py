"""Kept estimates: the same text without the work, and never an old result for another question."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streamgen import cli
from streamgen.api import estimation, kept_estimates
from streamgen.api.kept_estimates import VARIABLE, EstimatedModel, digest_of, digest_of_files
from streamgen.base.errors import BudgetError
from streamgen.compiler.config import CompileConfig
from streamgen.model.frontend import import_any
from streamgen.model.graph.logical import Operation
from tests.shared.decoders import TINY, tiny_decoder

SMALL = {"vocab_size": 64, "n_positions": 64, "n_embd": 32, "n_head": 2, "n_layer": 2}
OPTIONS = ("--max-tokens=2", "--context=16", "--channels=2", "--n-lanes=1", "--prompt-tokens=2")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for kept estimates."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "kept"))
    return tmp_path / "kept"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The config.json of a small GPT-2."""
    folder = tmp_path / "model"
    folder.mkdir()
    return _config(folder)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """The number of estimates that were computed since the last call."""
    known, calls = estimation.estimate, []

    def estimate(*given: Any, **named: Any) -> Any:
        calls.append(given)
        return known(*given, **named)

    def count() -> int:
        number = len(calls)
        calls.clear()
        return number

    monkeypatch.setattr(estimation, "estimate", estimate)
    return count


def _config(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    values = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **SMALL, **changes}
    path.write_text(json.dumps(values))
    return path


def _silent(message: str) -> None:
    """Show no progress."""


def test_every_output_is_the_same_from_what_is_kept(
    store: Path, model: Path, counted: Callable[[], int], capsys: pytest.CaptureFixture[str]
) -> None:
    for output in ((), ("--phases",), ("--explain",), ("--json",)):
        shutil.rmtree(store, ignore_errors=True)
        texts = []
        for expected in (1, 0):
            assert cli.main(["estimate", str(model), *OPTIONS, *output]) == 0
            texts.append(capsys.readouterr().out)
            assert counted() == expected
        assert texts[0] == texts[1] and texts[0]
    assert cli.main(["estimate", str(model), *OPTIONS, "--fresh"]) == 0
    assert counted() == 1
    assert len([*store.iterdir()]) == 1


def test_what_is_kept_is_read_without_torch_and_without_the_compiler(store: Path, model: Path) -> None:
    words = ["estimate", str(model), *OPTIONS]
    assert cli.main(words) == 0
    code = "import sys; from streamgen.cli import main; status = main(sys.argv[1:]); " + (
        "print(sorted({'torch', 'amaranth', 'transformers', 'scipy'} & set(sys.modules))); sys.exit(status)"
    )
    again = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert again.stdout.splitlines()[-1] == "[]"


def test_a_kept_value_equals_the_computed_one(store: Path) -> None:
    graph = tiny_decoder()
    first = EstimatedModel(graph).estimate(TINY, _silent)
    second = EstimatedModel(graph).estimate(TINY, _silent)
    assert first == second and first is not second
    assert first.to_json() == second.to_json() and str(first) == str(second)


@pytest.mark.parametrize(
    "changed",
    [
        ("--max-tokens=1",), ("--context=8",), ("--channels=1",), ("--board=u280",), ("--clock-mhz=250",),
        ("--prompt-tokens=1",), ("--position=3",), ("--goal=decode",), ("--weights=w8",), ("--fill=0.5",),
        ("--no-check-import",), ("--formats", '{"embedding": "w8"}'),
    ],
)  # fmt: skip
def test_another_question_has_another_answer(
    changed: tuple[str, ...], store: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every option that may change the result changes the key."""
    asked: list[str] = []
    monkeypatch.setattr(kept_estimates, "_kept", lambda texts, key, *_, **__: asked.append(key))
    given = EstimatedModel(model)
    plain = cli.streamgen.commands["estimate"].make_context("estimate", [str(model), *OPTIONS]).params
    other = cli.streamgen.commands["estimate"].make_context("estimate", [str(model), *OPTIONS, *changed])
    for params in (plain, other.params):
        names = CompileConfig.__dataclass_fields__
        fields = {n: v for n, v in params.items() if n in names and v is not None}
        positions, prompts = params["positions"] or None, params["prompts"] or None
        given.estimate(CompileConfig(**fields), _silent, positions=positions, prompts=prompts)
    assert len(set(asked)) == 2


def test_another_program_has_another_answer(
    store: Path, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "streamgen"
    (package / "inner" / "__pycache__").mkdir(parents=True)
    monkeypatch.setattr(kept_estimates, "PACKAGE", package)
    (package / "inner" / "a.py").write_text("a = 1")
    digests = []
    for change in (
        lambda: None,
        lambda: (package / "inner" / "a.py").write_text("a = 2"),
        lambda: (package / "inner" / "a.py").rename(package / "inner" / "b.py"),
        lambda: monkeypatch.setattr(kept_estimates, "_version", lambda name: f"{name} 9"),
    ):
        change()
        digests.append(kept_estimates._program.__wrapped__())
    assert len(set(digests)) == 4
    (package / "inner" / "__pycache__" / "a.pyc").touch()
    assert kept_estimates._program.__wrapped__() == digests[-1]


def test_files_decide_what_a_model_is(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    config, weights = _config(folder), folder / "model.safetensors"
    weights.write_bytes(b"weights")
    known = {digest_of_files(folder), digest_of_files(config)}
    assert len(known) == 2 and None not in known
    config.write_text(config.read_text())  # the same content
    assert known == {digest_of_files(folder), digest_of_files(config)}
    alone = digest_of_files(config)
    status = weights.stat()
    weights.write_bytes(b"WEIGHTS")
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))  # as if nothing had changed
    assert digest_of_files(folder) not in known and digest_of_files(config) == alone
    _config(folder, n_layer=3)
    assert digest_of_files(config) not in known
    other = tmp_path / "other"
    shutil.copytree(folder, other)  # the name of an estimate is that of the folder
    assert digest_of_files(other / "config.json") != digest_of_files(config)
    assert digest_of_files(tmp_path / "nothing") is None
    parts = [tmp_path / f"m-0000{part}-of-00002.gguf" for part in (1, 2)]
    for part in parts:
        part.write_bytes(b"GGUF")
    whole = digest_of_files(parts[0])
    parts[1].write_bytes(b"GGUF, too")
    assert digest_of_files(parts[0]) != whole


def test_numbers_decide_what_a_graph_is() -> None:
    def graph(seed: int, features: int = 8) -> Any:
        torch.manual_seed(seed)
        layers = torch.nn.Linear(40, features), torch.nn.ReLU()
        return import_any(torch.nn.Sequential(*layers).eval(), torch.zeros(2, 40))[0]

    digests = [digest_of(graph(*given)) for given in ((0,), (0,), (1,), (0, 9))]
    assert digests[0] == digests[1] and len(set(digests)) == 3 and None not in digests
    assert digest_of({"a": np.zeros((2, 3))}) != digest_of({"a": np.zeros((3, 2))})
    assert digest_of({"a": np.broadcast_to(1.0, (2, 3))}) != digest_of({"a": np.broadcast_to(2.0, (2, 3))})
    assert digest_of((1, 2)) != digest_of((12,)) and digest_of(1) != digest_of(True) != digest_of("True")


def test_operations_of_other_packages_are_not_kept(store: Path, counted: Callable[[], int]) -> None:
    """Their code may change, and nothing tells."""
    graph = tiny_decoder()
    first = graph.operations[0]
    kind = type(first.op)
    foreign = dataclass(frozen=True, eq=False)(type("Foreign", (kind,), {"__module__": "elsewhere"}))
    fields = {name: getattr(first.op, name) for name in kind.__dataclass_fields__}
    changed: Operation = replace(first, op=foreign(**fields))
    other = replace(graph, operations=(changed, *graph.operations[1:]))
    assert digest_of(graph) is not None and digest_of(other) is None
    for _ in range(2):
        EstimatedModel(other).estimate(TINY, _silent)
    assert counted() == 2 and not store.exists()


def test_what_does_not_fit_is_kept(
    store: Path, model: Path, counted: Callable[[], int], capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for _ in range(2):
        assert cli.main(["estimate", str(model), *OPTIONS, "--fill=0.0001"]) == 1
        said.append(capsys.readouterr().err)
    assert counted() == 1 and said[0] == said[1] and said[0].startswith("streamgen: ")


@pytest.mark.parametrize("damage", [b"", b"x", None])
def test_damage_is_computed_again(
    damage: bytes | None, store: Path, model: Path, counted: Callable[[], int]
) -> None:
    config = CompileConfig(max_tokens=2, context=16, channels=2, n_lanes=1)
    first = EstimatedModel(model).estimate(config, _silent)
    (file,) = store.iterdir()
    if damage is None:  # a whole file of another version: its values have other names
        text = file.read_text().partition("\n")[2].replace('"joules"', '"calories"')
        kept_estimates.TextCache(store).write(file.name, text)
    else:
        file.write_bytes(damage)
    counted()
    again = EstimatedModel(model).estimate(config, _silent)
    assert counted() == 1 and replace(again, seconds={}) == replace(first, seconds={})
    assert EstimatedModel(model).estimate(config, _silent) == again and counted() == 0


def test_nothing_is_kept_if_it_is_switched_off(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: Callable[[], int]
) -> None:
    monkeypatch.setenv(VARIABLE, "off")
    monkeypatch.setattr(kept_estimates, "user_cache_path", lambda name: tmp_path / name)
    config = CompileConfig(max_tokens=2, context=16, channels=2, n_lanes=1)
    for _ in range(2):
        EstimatedModel(model).estimate(config, _silent)
    assert counted() == 2 and not (tmp_path / "streamgen").exists()
    monkeypatch.delenv(VARIABLE)
    EstimatedModel(model).estimate(config, _silent)
    assert len([*(tmp_path / "streamgen" / "estimates").iterdir()]) == 1


def test_several_boards_read_a_model_once(store: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known, read = estimation.imported, []
    monkeypatch.setattr(estimation, "imported", lambda *given: read.append(given[0]) or known(*given))
    given = EstimatedModel(model)
    config = CompileConfig(max_tokens=2, context=16, channels=2, n_lanes=1)
    for board in ("u55c", "u280"):
        assert given.estimate(replace(config, board=board), _silent).board == board
    assert [source for source in read if isinstance(source, Path)] == [model]
    with pytest.raises(BudgetError):
        given.estimate(replace(config, fill=0.0001), _silent)
