"""A failing test prints the seed that replays it, and the seed replays it."""

import re
import shlex

import pytest

pytest_plugins = ["pytester"]

FAILING = """
    import numpy as np

    def test_small(seed):
        value = np.random.default_rng(seed).integers(1000)
        print("drawn", value)
        assert value < 0
"""


def run(pytester: pytest.Pytester, *arguments: str) -> str:
    """Output of a session in a process of its own; its working directory has no conftest of ours."""
    return "\n".join(pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments).outlines)


def drawn(output: str) -> str:
    found = re.search(r"drawn \d+", output)
    assert found is not None, output
    return found[0]


def test_failure_prints_what_replays_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=FAILING)
    first, other = run(pytester), run(pytester, "--seed", "7")
    assert "the seed is 0; this replays the test: pytest test_it.py::test_small --seed 0" in first
    assert "the seed is 7; this replays the test: pytest test_it.py::test_small --seed 7" in other
    assert drawn(first) != drawn(other)
    for output in (first, other):
        command = re.search(r"replays the test: pytest (.*)", output)
        assert command is not None
        assert drawn(run(pytester, *shlex.split(command[1]))) == drawn(output)


def test_success_prints_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="def test_fine(seed):\n    assert seed == 0")
    output = run(pytester)
    assert "1 passed" in output and "replays" not in output


def test_bad_seed(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess("--seed", "-1")
    result.stderr.fnmatch_lines(["*argument --seed: a seed is an integer of at least 0, not '-1'"])
