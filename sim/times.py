"""pytest plugin of the project: what a session ran, and what every test of it took.

    pytest --times 20 tests/unit/kernels

Processor time is that of the test and of the processes that it started and waited for, so it hardly depends
on what else the machine does, unless two processors share a core; it is what the limits of `make test` and
`make check` are made of. What a test says of itself by `record_property("graphs", 40)` is printed behind its
name.
"""

import os
import time
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass

import pytest

__all__: list[str] = []

_STARTED = pytest.StashKey[tuple[float, float]]()
_PROCESSOR, _WALL = "processor seconds", "seconds"


@dataclass(frozen=True)
class _Took:
    name: str
    processor: float
    wall: float
    said: str

    @property
    def line(self) -> str:
        return f"{self.processor:9.1f} {self.wall:9.1f}  {self.name}{self.said}"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("streamgen").addoption(
        "--times", type=int, metavar="N", help="print what tests took, the N dearest of them; -1: all of them"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--times") is not None:
        config.pluginmanager.register(_Times(config), "streamgen-times")


class _Times:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._took: list[_Took] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        item.stash[_STARTED] = _processor(), time.monotonic()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            processor, wall = item.stash[_STARTED]
            report.user_properties += [
                (_PROCESSOR, _processor() - processor),
                (_WALL, time.monotonic() - wall),
            ]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            said = dict(report.user_properties)
            processor, wall = float(said.pop(_PROCESSOR)), float(said.pop(_WALL))  # type: ignore[arg-type]
            words = "".join(f", {key}: {value}" for key, value in said.items())
            self._took.append(_Took(report.nodeid, processor, wall, words))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        shown = self._config.getoption("--times")
        write = terminalreporter.write_line
        terminalreporter.section(f"times, seed {self._config.getoption('--seed')}")
        write("processor      wall  seconds of a test")
        dearest = sorted(self._took, key=lambda took: -took.processor)
        for took in dearest[: shown if shown >= 0 else None]:
            write(took.line)
        files = defaultdict(list)
        for took in self._took:
            files[took.name.split("::")[0]].append(took)
        write("processor      wall  seconds of a file")
        for file, tooks in sorted(files.items(), key=lambda pair: -_sum(pair[1], file=pair[0]).processor):
            write(_sum(tooks, file=f"{file}, {len(tooks)} tests").line)
        write(_sum(self._took, file=f"all, {len(self._took)} tests").line)


def _sum(tooks: list[_Took], file: str) -> _Took:
    return _Took(file, sum(took.processor for took in tooks), sum(took.wall for took in tooks), "")


def _processor() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
