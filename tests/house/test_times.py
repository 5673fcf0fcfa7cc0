"""What a session prints of the time that its tests took."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
TESTS = """
    import subprocess, sys

    def test_works_elsewhere(record_property):
        record_property("graphs", 40)
        subprocess.run([sys.executable, "-c", "while __import__('time').process_time() < 0.5: pass"])

    def test_waits():
        __import__("time").sleep(0.5)
"""


@pytest.fixture(autouse=True)
def _finds_the_plugin(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeconftest('pytest_plugins = ["streamgen.testing.pytest_plugin", "sim.times"]')


@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_processor_time_of_children_counts(pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    pytester.makepyfile(test_it=TESTS)
    result = pytester.runpytest_subprocess("--times", "-1", "--seed", "3", *workers)
    text = "\n".join(result.outlines)
    assert "times, seed 3" in text
    found = re.findall(r"^ +([\d.]+) +([\d.]+)  (.*)$", text, re.MULTILINE)
    times = {name: (float(processor), float(wall)) for processor, wall, name in found}
    works, waits = times["test_it.py::test_works_elsewhere, graphs: 40"], times["test_it.py::test_waits"]
    assert works[0] >= 0.5 and waits[0] < 0.3 and waits[1] >= 0.5
    assert list(times)[-2:] == ["test_it.py, 2 tests", "all, 2 tests"]


def test_few_or_none(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="def test_one(): ...\n\ndef test_other(): ...")
    few = "\n".join(pytester.runpytest_subprocess("--times", "1").outlines)
    assert len(re.findall(r"test_it.py::test_\w+$", few, re.MULTILINE)) == 1
    assert "seconds of a test" not in "\n".join(pytester.runpytest_subprocess().outlines)
