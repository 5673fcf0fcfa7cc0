"""pytest plugin of the kit: one seed for a session. A failed test prints it.

    pytest_plugins = ["streamgen.testing.pytest_plugin"]  # in a conftest.py

    def test_any_tokens(seed):
        rng = np.random.default_rng(seed)

The seed is 0 unless `pytest --seed N` gives another one, so all runs are the same. A failed test prints the
command that replays it.
"""

import argparse
import shlex
from collections.abc import Generator

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("streamgen").addoption(
        "--seed", type=_natural, default=0, metavar="N", help="seed of random tests (default: 0)"
    )


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of this session: the value of --seed; by default 0."""
    return int(request.config.getoption("--seed"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        number = item.config.getoption("--seed")
        replay = f"pytest {shlex.quote(item.nodeid)} --seed {number}"
        report.sections.append(("seed", f"the seed is {number}; this replays the test: {replay}"))
    return report


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a seed is an integer of at least 0, not {text!r}")
    return int(text)
