"""Threads, processes, and processes that are killed: what is right stays right, or is refused."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import streamgen
from streamgen.artifact.roles import LOGITS
from streamgen.compiler.config import CompileConfig
from streamgen.runtime.generation import Session, TextDevice, TextPart
from tests.shared.accelerators import TINY, contents, same, tiny, tiny_module, values
from tests.shared.decoders import tiny_accelerator

ROOT = Path(__file__).parents[2]
KILLS = 50
WORK = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
import streamgen
from tests.shared import accelerators
from streamgen.runtime import simulator, verilator
verilator.FAST = ("-O0",)
simulator.QUICK_SECONDS = float("inf")  # no second simulator, however slow the machine
x = accelerators.values(2, 40)
print("compile", flush=True)
made = streamgen.compile(accelerators.tiny_module(), torch.zeros(1, 40), accelerators.TINY)
print("write", flush=True)
place = Path(sys.argv[1])
folder = place if place.exists() else made.write(place)
print("build", flush=True)
opened = streamgen.load(folder)
opened.run(x[:1])
print("run", flush=True)
for _ in range(20):
    assert opened.run(x).tobytes() == made.golden(x).tobytes()
print("right", flush=True)
"""


def _started(folder: Path, cache: Path, **more: str) -> subprocess.Popen[str]:
    """A process that compiles, writes, builds and runs, and says when it begins each."""
    environment = {name: value for name, value in os.environ.items() if name != "HOME"}  # nor is that needed
    environment |= {"XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(ROOT), **more}
    command = [sys.executable, "-c", WORK, str(folder)]
    return subprocess.Popen(
        command, env=environment, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_one_accelerator_in_several_threads(tmp_path: Path) -> None:
    """Each gets the result of its own inputs; golden, reports and writing go on beside."""
    accelerator = streamgen.load(tiny().write(tmp_path / "written"))
    inputs = [values(count, 40, seed=count) for count in (1, 2, 3, 5)]
    with ThreadPoolExecutor(8) as pool:
        runs = [pool.submit(accelerator.run, x) for x in inputs * 2]
        goldens = [pool.submit(accelerator.golden, x) for x in inputs]
        reports = [pool.submit(accelerator.report) for _ in range(3)]
        copies = [pool.submit(accelerator.write, tmp_path / f"copy{k}") for k in range(2)]
    accelerator.close()
    assert all(same(one.result(), tiny().golden(x)) for one, x in zip(runs, inputs * 2, strict=True))
    assert all(same(one.result(), tiny().golden(x)) for one, x in zip(goldens, inputs, strict=True))
    assert {one.result().name for one in reports} == {"tiny"}
    assert all(contents(one.result()) == contents(tmp_path / "written") for one in copies)


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.long_runs
@pytest.mark.timeout(900)
def test_texts_in_several_threads() -> None:
    """Each text has its own keys and values, in whichever order their passes come."""
    model = tiny_accelerator()
    prompts = [[3, 1, 4], [1, 5], [9, 2, 6, 5, 3]]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda prompt: list(model.generate(prompt, 4)), prompts))
    model.close()
    assert found == [list(model.generate(prompt, 4, golden=True)) for prompt in prompts]


@pytest.mark.slow
def test_a_device_is_not_closed_in_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who closes it in another thread waits: nobody takes a simulator from under a run."""
    model, waited = tiny_accelerator(), []

    def passes(device: TextDevice, session: Session, parts: Sequence[TextPart]) -> Iterator[dict[str, Any]]:
        closer = threading.Thread(target=model.close)
        closer.start()
        closer.join(0.5)
        waited.append(closer)
        assert closer.is_alive()
        yield {LOGITS: np.zeros((1, 70), np.float32)}

    monkeypatch.setattr(TextDevice, "run", passes)
    model.session().last_logits([1])
    for closer in waited:
        closer.join()


@pytest.mark.slow
def test_one_text_in_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each goes on where another one has ended, and none behind the context."""
    found: list[tuple[int, int]] = []

    def passes(device: TextDevice, session: Session, parts: Sequence[TextPart]) -> Iterator[dict[str, Any]]:
        for part in parts:
            time.sleep(0.01)
            found.append((part.position, len(part.ids)))
            yield {LOGITS: np.zeros((1, 70), np.float32)}

    monkeypatch.setattr(TextDevice, "run", passes)
    model = tiny_accelerator()
    session = model.session()
    with ThreadPoolExecutor(9) as pool:
        texts = [pool.submit(session.last_logits, [1] * 9) for _ in range(9)]
    errors = [str(text.exception()) for text in texts if text.exception()]
    assert errors == ["72 tokens, 9 more and 0 to come are 81; the context is 72"]
    assert all(one + count == two for (one, count), (two, _) in pairwise(found))
    assert session.position == model.config.context == 72


@pytest.mark.slow
def test_compile_side_by_side(tmp_path: Path) -> None:
    """Threads that compile, estimate, write: the same bytes as one after the other, the same stderr."""
    error = sys.stderr
    modules = {f"m{size}": torch.nn.Linear(size, 8, bias=False) for size in (32, 40, 48)}
    config = CompileConfig(max_tokens=1, multipliers=32, channels=1, weights="w8")

    def made(name: str) -> dict[str, bytes]:
        module = modules[name]
        folder = tmp_path / f"{threading.get_ident()}-{name}"
        example = torch.zeros(1, module.in_features)
        streamgen.estimate(module, example, config)
        return contents(streamgen.compile(module, example, config).write(folder))

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(made, modules))
    for name, files in zip(modules, found, strict=True):
        shutil.rmtree(tmp_path / f"{threading.get_ident()}-{name}", ignore_errors=True)
        assert made(name) == files
    assert sys.stderr is error


FORKING = """
import gc, os
from tests.shared import accelerators
x = accelerators.values(2, 40)
made = accelerators.tiny()
place, right = made.written, made.run(x).tobytes()
if not (child := os.fork()):
    assert made.run(x).tobytes() == right
    accelerators.tiny.cache_clear()
    del made
    gc.collect()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
made.close()
assert made.written == place and made.run(x).tobytes() == right
print("right")
"""


@pytest.mark.slow
def test_a_process_that_is_forked() -> None:
    """Its copy of an accelerator works, and takes neither simulator nor folder from its parent."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", FORKING]
    found = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert found.stdout == "right\n", found.stderr


@pytest.mark.slow
@pytest.mark.parametrize("names", [("one", "one"), ("one", "other")])
def test_two_writers_of_one_folder(names: tuple[str, str], tmp_path: Path) -> None:
    """Both have written the same, or one of them is told."""
    module = tiny_module()  # its random weights come from torch's one generator

    def write(name: str) -> str:
        config = replace(TINY, name=name)
        try:
            streamgen.compile(module, torch.zeros(1, 40), config).write(tmp_path / "one")
        except OSError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(2) as pool:
        said = sorted(pool.map(write, names))
    assert said[0] == ""
    assert (said[1] == "") == (names[0] == names[1])
    if said[1]:
        assert "exists and has no " in said[1]
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
    assert same(streamgen.load(tmp_path / "one").golden(values(1, 40)), tiny().golden(values(1, 40)))


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_two_processes_on_one_design(tmp_path: Path) -> None:
    """Both are right; one builds the simulator, the other waits for it. HOME is not set."""
    folder = tiny().write(tmp_path / "written")
    processes = [_started(folder, tmp_path / "cache") for _ in range(2)]
    for process in processes:
        out, err = process.communicate(timeout=800)
        assert (process.returncode, out.splitlines()[-1:]) == (0, ["right"]), err
    assert len([*(tmp_path / "cache").rglob("*.so")]) == 1


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.timeout(1400)
@pytest.mark.parametrize("case", range(KILLS))
def test_killed_at_a_random_moment(case: int, seed: int, tmp_path: Path) -> None:
    """kill -9, wherever it is: what is there is whole, the same work then succeeds, nothing stale is used."""
    draw = random.Random(f"{seed} {case}")
    stage = ("compile", "write", "build", "run")[case % 4]
    folder, cache = tmp_path / "made", tmp_path / "cache"
    process = _started(folder, cache)
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == stage:
            break
    time.sleep(draw.random() * {"compile": 5, "write": 0.05, "build": 20, "run": 1}[stage])
    process.send_signal(signal.SIGKILL)
    process.communicate()
    if folder.exists():
        assert contents(folder) == contents(tiny().write(tmp_path / "right"))
    again = _started(folder, cache)
    out, err = again.communicate(timeout=1200)
    assert (again.returncode, out.splitlines()[-1:]) == (0, ["right"]), err


@pytest.mark.slow
def test_without_a_compiler(tmp_path: Path) -> None:
    """One message that says what to install; golden needs none."""
    folder = tiny().write(tmp_path / "written")
    process = _started(folder, tmp_path / "cache", PATH=str(tmp_path))
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1
    assert err.splitlines()[-1].endswith(
        "simulation needs a C++ compiler, and none is on PATH: apt-get install g++"
    )
    np.testing.assert_array_equal(streamgen.load(folder).golden(values(1, 40)), tiny().golden(values(1, 40)))


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.long_runs
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", range(10))
def test_generate_killed(case: int, seed: int, tmp_path: Path) -> None:
    """The folder of a language model that wrote a text when its process was killed: the same files, whole."""
    model = tiny_accelerator()
    folder = model.write(tmp_path / "model")
    before = contents(folder)
    code = (
        f"import streamgen; model = streamgen.load({str(folder)!r}); texts = model.generate([1], 60)\n"
        "for token in texts: print(token, flush=True)"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline()  # the first token is written
        time.sleep(random.Random(f"{seed} {case}").random())
        child.kill()
    assert contents(folder) == before
    opened = streamgen.load(folder)
    assert list(opened.generate([1], 3)) == list(model.generate([1], 3, golden=True))  # type: ignore[attr-defined]
    opened.close()
