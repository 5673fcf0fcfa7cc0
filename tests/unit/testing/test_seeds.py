"""A failing test prints the seed that replays it, and the seed replays it."""

import re
import shlex

import pytest

pytestmark = pytest.mark.slow

pytest_plugins = ["pytester"]

PLUGIN = "streamgen.testing.pytest_plugin"

FAILING = """
    import numpy as np

    def test_small(seed):
        value = np.random.default_rng(seed).integers(1000)
        print("drawn", value)
        assert value < 0
"""


def run(pytester: pytest.Pytester, *arguments: str) -> str:
    """Output of a session in a separate process, whose working directory has no conftest of streamgen."""
    pytester.makeconftest(f"pytest_plugins = [{PLUGIN!r}]")
    return "\n".join(pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments).outlines)


def drawn(output: str) -> str:
    match = re.search(r"drawn \d+", output)
    assert match is not None, output
    return match[0]


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
    pytester.makeconftest(f"pytest_plugins = [{PLUGIN!r}]")
    result = pytester.runpytest_subprocess("--seed", "-1")
    result.stderr.fnmatch_lines(["*argument --seed: a seed is an integer of at least 0, not '-1'"])


def test_nothing_is_forced_on_others(pytester: pytest.Pytester) -> None:
    """Without the plugin, there is neither its option nor its fixture."""
    pytester.makepyfile(test_it="def test_other(seed): ...")
    pytester.runpytest_subprocess("-p", "no:cacheprovider").stdout.fnmatch_lines(
        ["*fixture 'seed' not found"]
    )
    assert pytester.runpytest_subprocess("--seed", "7").ret == pytest.ExitCode.USAGE_ERROR
