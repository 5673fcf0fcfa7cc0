"""Samples through kernels that follow one another: several in flight, so that all kernels work at a time.

A sample is what a run takes: some tokens. While the second kernel has the first sample the first one has
the next. Each sample in flight has a slot, the same in all kernels, and so buffers of its own: what one
kernel has written for it the next ones read where it lies. The host starts what can start and looks who is
done.
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
    """What is used here of `Execution`."""

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
    """stage: where it is; behind the last one when all have had it."""

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
    """The outputs `wanted`, by name, for each of the parts, in order.

    timeout: seconds until some run must have ended. prepare: called before each run, with the number of its
    stage, the slot and the tokens: what the host does not give a stage must then lie in its buffers.

    What a stage raises is raised; then, or when nobody asks for more, all that is in flight is given up.
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
        """A sample at the first stage."""
        self.samples.append(sample)
        self._start(sample)

    def oldest(self) -> Mapping[str, np.ndarray]:
        """The results of the oldest sample, when it has them."""
        while self.samples[0].stage < len(self._stages):
            self._attend()
        return self.samples.popleft().results

    def _attend(self) -> None:
        """Bring those on that are done with their stage; when none is, wait a little for the oldest."""
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
            self._bring_on(waited)  # which says what it is that takes so long

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
    """Errors say whose they are."""
    try:
        yield
    except DeviceError as error:
        if not stage.label:
            raise
        raise type(error)(f"{stage.label}: {error}") from error
