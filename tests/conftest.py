"""What all tests share: the crossing of stalls that every stream test runs through, the seed, and simulators
that are built quickly: most run some thousand cycles, for which optimising takes longer than it saves. A test
of long runs says so by its mark `long_runs`.

A test without the fixture `seed` draws from seeds of its own. `pytest --seed N` mixes N into all of them.
"""

import gc
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from streamgen.base import progress
from streamgen.gateware import rtl
from streamgen.runtime import simulator, verilator
from streamgen.testing import kernel
from streamgen.testing.bench import Stalls
from tests.shared.blocks import BlocksOfWorkers
from tests.shared.campaigns import shares

if TYPE_CHECKING:
    from selenium.webdriver.remote.webdriver import WebDriver

STALLS = {
    "free": None,
    "slow-source": Stalls(seed=11, sources=0.5),
    "slow-sink": Stalls(seed=12, sinks=0.5),
    "both": Stalls(seed=13, sources=0.3, sinks=0.3),
    "heavy": Stalls(seed=14, sources=0.8, sinks=0.9),
}

OPTIMISED = verilator.FAST

# Designs are graphs of many small objects; looking for cycles among them at Python's own thresholds
# takes time and finds next to none.
gc.set_threshold(50_000, 20, 50)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the fixtures of a test, which may build simulators too."""
    os.environ.pop("COLUMNS", None)  # xdist sets it for its workers
    progress.FIRST = math.inf  # tests of error messages see nothing else
    simulator.QUICK_BYTES = 0  # nothing is built beside tests
    rtl.REMEMBERED = 200_000_000  # adders and FIFOs come in every design
    kernel.REMEMBERED = 16  # most tests of a file check the same kernels
    verilator.FAST = ("-O0",) if item.get_closest_marker("long_runs") is None else OPTIMISED


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test of several cases with `stalls`, each case has some of them, so that together they have all;
    `make campaign` runs what is left of the crossing."""
    crossings: dict[object, dict[object, list[tuple[int, pytest.Item]]]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and "stalls" in (choice := _choice(item)):
            stalls = choice.pop("stalls")
            if item.get_closest_marker("campaign") is None:
                cases = crossings.setdefault((item.path, item.originalname), {})
                cases.setdefault(tuple(sorted(choice.items())), []).append((stalls, item))
    for cases in crossings.values():
        for tests, kept in zip(cases.values(), shares(len(STALLS), len(cases)), strict=True):
            for stalls, item in tests:
                if stalls not in kept:
                    item.add_marker(pytest.mark.campaign)


def _choice(item: pytest.Function) -> dict[str, int]:
    """Which of its values each parameter of a test has."""
    return dict(item.callspec.indices) if hasattr(item, "callspec") else {}


@pytest.fixture(params=STALLS.values(), ids=STALLS.keys())
def stalls(request: pytest.FixtureRequest, seed: int) -> Stalls | None:
    """Stalls in x stalls out: none, either, both, nearly always."""
    return request.param and replace(request.param, seed=request.param.seed + 100 * seed)


@pytest.fixture(scope="session", autouse=True)
def _blocks_of_workers(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Workers have folders of their own in that of the session."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        rtl._memory = BlocksOfWorkers(tmp_path_factory.getbasetemp().parent / "blocks")


@pytest.fixture(autouse=True)
def _other_numbers(seed: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mixes --seed, and a test's own parameter `seed`, into the seeds that tests and the kit give numpy."""
    if several := sorted({seed, int(request.config.getoption("--seed"))} - {0}):
        plain = np.random.default_rng

        def mixed(given: Any) -> np.random.Generator:
            return plain([*several, *np.atleast_1d(given)])

        monkeypatch.setattr(np.random, "default_rng", mixed)


@pytest.fixture(scope="module")
def browser() -> Iterator["WebDriver"]:
    """A Chromium, which finds what tests serve and nothing else."""
    from benchmarks.page import chromium
    from tests.external.browser.browsers import HOST

    with chromium(HOST) as found:
        yield found


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation, built as `make docs` does it, without a warning; for tests to look at only. The API
    reference is an empty page: pdoc's, of `test_the_api_reference`."""
    folder, root = tmp_path_factory.mktemp("site"), Path(__file__).parents[1]
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", str(root / "docs"), str(folder)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    (folder / "api").mkdir()
    (folder / "api/index.html").touch()
    return folder
