"""Pipeline samples through kernels that follow one another, so that all kernels work at the same time.

A sample is the tokens of one run. While the second kernel works on the first sample, the first kernel works
on the second sample. Each sample in flight has a slot, the same in all kernels, and so its own buffers: a
kernel reads the results of the kernel before it in place. The host starts every run that can start, and
checks which runs are done.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from streamgen.artifact.manifest import Buffer
from streamgen.base.errors import DeviceError
from streamgen.runtime.arrays import Parts, cropped, packed, padded, unpacked


class LineStage(Protocol):
    """The part of `Execution` that is used here."""

    label: str
    alone: bool

    @property
    def slots(self) -> int: ...
    def tiles(self, tokens: int) -> int: ...
    def buffers(self, role: str) -> list[Buffer]: ...
    def submit(
        self,
        images: Mapping[str, bytes],
        tiles: int,
        position: int = 0,
        variant: str | None = None,
        slot: int | None = None,
    ) -> None: ...
    def ready(self, wait: bool = False) -> bool: ...
    def collect(
        self, timeout: float, since: float | None = None, wanted: Collection[str] | None = None
    ) -> dict[str, bytes]: ...
    def give_up(self) -> None: ...


Prepare = Callable[[int, int, int], None]


@dataclass
class _Sample:
    """A sample in flight. stage: number of the stage that works on it; the number of stages when it is
    finished."""

    slot: int
    arrays: Mapping[str, np.ndarray]
    tokens: int
    stage: int = 0
    results: dict[str, np.ndarray] = field(default_factory=dict)


def through(
    stages: Sequence[LineStage],
    parts: Parts,
    wanted: Collection[str],
    timeout: float,
    prepare: Prepare = lambda stage, slot, tokens: None,
) -> Iterator[Mapping[str, np.ndarray]]:
    """Send parts through all stages, and yield the outputs `wanted`, by name, for each part in order.

    timeout: seconds in which at least one run must end. prepare: called before each run with the number of
    its stage, the slot and the number of tokens. After it, all inputs that the host does not give must lie in
    the buffers of the stage.

    Raises the errors of the stages. After an error, and if the caller stops early, all runs in flight are
    given up.
    """
    line = _Line(stages, wanted, timeout, prepare)
    slots = 1 if any(stage.alone for stage in stages) else stages[0].slots + len(stages) - 1
    try:
        for number, (arrays, tokens) in enumerate(parts):
            if len(line.samples) == slots:
                yield line.oldest()
            line.add(_Sample(number % slots, arrays, tokens))
        while line.samples:
            yield line.oldest()
    finally:
        for stage in stages:
            stage.give_up()


class _Line:
    def __init__(
        self, stages: Sequence[LineStage], wanted: Collection[str], timeout: float, prepare: Prepare
    ) -> None:
        self._stages, self._wanted, self._timeout, self._prepare = stages, wanted, timeout, prepare
        self.samples: deque[_Sample] = deque()
        self._since = time.monotonic()

    def add(self, sample: _Sample) -> None:
        """Start a sample at the first stage."""
        self.samples.append(sample)
        self._start(sample)

    def oldest(self) -> Mapping[str, np.ndarray]:
        """Wait for the oldest sample and return its results."""
        while self.samples[0].stage < len(self._stages):
            self._attend()
        return self.samples.popleft().results

    def _attend(self) -> None:
        """Move every sample that is done with its stage to the next stage. If there is none, wait a little
        for the oldest sample."""
        first: dict[int, _Sample] = {}
        for sample in self.samples:
            if sample.stage < len(self._stages):
                first.setdefault(sample.stage, sample)
        done = [s for s in first.values() if self._stages[s.stage].ready(wait=len(first) == 1)]
        for sample in done:
            self._bring_on(sample)
        if done:
            self._since = time.monotonic()
            return
        waited = self.samples[0]
        if not self._stages[waited.stage].ready(wait=True) and time.monotonic() > self._since + self._timeout:
            self._bring_on(waited)  # raises a timeout that names the run

    def _bring_on(self, sample: _Sample) -> None:
        stage = self._stages[sample.stage]
        with _named(stage):
            results = stage.collect(self._timeout, self._since, self._wanted)
        tiles = stage.tiles(sample.tokens)
        for info in stage.buffers("output"):
            if info.name in results:
                array = unpacked(info, results[info.name], tiles)
                sample.results[info.name] = cropped(info, array, sample.tokens)
        sample.stage += 1
        if sample.stage < len(self._stages):
            self._start(sample)

    def _start(self, sample: _Sample) -> None:
        stage = self._stages[sample.stage]
        tiles = stage.tiles(sample.tokens)
        images = {
            info.name: packed(info, padded(info, sample.arrays[info.name], tiles), tiles)
            for info in stage.buffers("input")
            if info.name in sample.arrays
        }
        if len(self.samples) == 1:
            self._since = time.monotonic()
        with _named(stage):
            self._prepare(sample.stage, sample.slot, sample.tokens)
            stage.submit(images, tiles, slot=sample.slot)


@contextmanager
def _named(stage: LineStage) -> Iterator[None]:
    """Begin device errors with the label of the stage."""
    try:
        yield
    except DeviceError as error:
        if not stage.label:
            raise
        raise type(error)(f"{stage.label}: {error}") from error
