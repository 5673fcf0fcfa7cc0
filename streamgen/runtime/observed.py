"""Read the instruments of a simulator: compare tokens that pass FIFOs, and count the busy cycles of nodes."""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamgen.base.errors import DeviceError
from streamgen.runtime.core import Core
from streamgen.runtime.instruments import COUNTING, Instruments


@dataclass(frozen=True, kw_only=True)
class Watched:
    """Results of watching FIFOs in a run.

    passed: for each FIFO, the number of tokens that went in and the number that went out. difference: the
    first token that was not the expected one, as the index of its FIFO in the instruments' streams, "i" or
    "o" (input or output of the FIFO), the cycle from the start of the run, and its bytes; None if all tokens
    were as expected.
    """

    passed: tuple[tuple[int, int], ...]
    difference: tuple[int, str, int, bytes] | None


@dataclass(frozen=True, kw_only=True)
class Profiled:
    """Cycles of a run, as arrays of uint64. cycles: cycles of each step, [steps]. busy, stalled: cycles of
    each step in which each node was busy or stalled, [steps, nodes]. windows: the run in windows."""

    cycles: np.ndarray
    busy: np.ndarray
    stalled: np.ndarray
    windows: "Windows"


@dataclass(frozen=True, kw_only=True)
class Windows:
    """A run as a sequence of windows, each within one step, as arrays of uint64 with a row for each window.

    steps: its step, [windows]. cycles: its length, [windows]. busy, stalled: cycles in which each node was
    busy or stalled, [windows, nodes]. beats: beats that each memory port read and wrote while the hardware
    counted cycles, so without the status block, [windows, ports, 2].
    levels: most tokens that each FIFO held, [windows, FIFOs]. The windows of a run have one length, except at
    the end of a step. A run has up to 512 windows; more only if it has many short steps.
    """

    steps: np.ndarray
    cycles: np.ndarray
    busy: np.ndarray
    stalled: np.ndarray
    beats: np.ndarray
    levels: np.ndarray


class Observed:
    """The `instruments` of the simulator `core` in module `top`. Raises DeviceError if the simulator was
    built without them."""

    def __init__(self, core: Core, top: str, instruments: Instruments) -> None:
        self._core, self._top = core, top
        self._expected: list[np.ndarray] = []
        self._profile: tuple[int, list[np.ndarray]] = 0, []
        for stream in instruments.streams:
            for side, instance in zip("io", stream, strict=True):
                if not core.do("probe", self._scope(instance), side.encode()):
                    raise DeviceError(f"the simulator does not show the pins of FIFO {instance!r}")

    def watch(self, tokens: Sequence[np.ndarray]) -> None:
        """Compare the next tokens of each stream with these: one array per stream, uint8 [count, bytes]."""
        self._expected = [np.ascontiguousarray(array, np.uint8) for array in tokens]
        for k, array in enumerate(self._expected):
            place = array.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
            for side in range(2):
                self._core.do("expect", 2 * k + side, place, *array.shape)
        self._core.do("watch", True)

    def watched(self, zero: int) -> Watched:
        """The results since `watch`. zero: the cycle in which the run began."""
        counts = [self._core.do("passed", k) for k in range(2 * len(self._expected))]
        probe, cycle = ctypes.c_uint64(), ctypes.c_uint64()
        seen = self._core.do("difference", probe, cycle)
        difference = None
        if seen:
            stream, side = divmod(probe.value, 2)
            content = ctypes.string_at(seen, self._expected[stream].shape[1])
            difference = stream, "io"[side], cycle.value - zero, content
        return Watched(passed=tuple(zip(counts[::2], counts[1::2], strict=True)), difference=difference)

    def profile(self, nodes: int, tokens: Mapping[tuple[str, str, int], np.ndarray]) -> None:
        """Count the cycles of `nodes` nodes from now on. tokens: for each instance of a FIFO, its side ("i"
        or "o") and the node whose port it joins: the number of tokens that pass there in each step, [steps].
        """
        self._profile = nodes, [np.ascontiguousarray(array, np.uint64) for array in tokens.values()]
        steps = len(self._profile[1][0])
        fine = self._core.do("profile", self._top.encode(), COUNTING.encode(), nodes, steps)
        for (instance, side, node), array in zip(tokens, self._profile[1], strict=True):
            fine &= self._core.do("profile_port", self._scope(instance), side.encode(), node, _numbers(array))
        if not fine:
            raise DeviceError("the simulator does not show the pins that a profile needs")
        self._core.do("profile_start")

    def profiled(self) -> Profiled:
        """The counts since `profile`. Raises DeviceError if other tokens passed than `profile` was given."""
        nodes, tokens = self._profile
        steps = len(tokens[0])
        cycles, busy, stalled = (np.zeros(shape, np.uint64) for shape in (steps, *[(steps, nodes)] * 2))
        windows = self._windows(nodes, len(tokens) // 2)
        if not self._core.do("profile_end", *map(_numbers, (cycles, busy, stalled))):
            raise DeviceError("the tokens that passed are not those of the graph")
        return Profiled(cycles=cycles, busy=busy, stalled=stalled, windows=windows)

    def _windows(self, nodes: int, fifos: int) -> Windows:
        count, width = ctypes.c_uint64(), ctypes.c_uint64()
        first = self._core.do("profile_windows", count, width)
        shape = count.value // width.value, width.value
        rows = np.ctypeslib.as_array(first, shape).copy() if count.value else np.zeros(shape, np.uint64)
        step, cycles, busy, stalled, beats, levels = np.split(
            rows, np.cumsum([1, 1, nodes, nodes, width.value - 2 - 2 * nodes - fifos]), axis=1
        )
        return Windows(
            steps=step[:, 0],
            cycles=cycles[:, 0],
            busy=busy,
            stalled=stalled,
            beats=beats.reshape(shape[0], -1, 2),
            levels=levels,
        )

    def _scope(self, instance: str) -> bytes:
        return f"{self._top}.{instance}".encode()


def _numbers(array: np.ndarray) -> Any:
    """A pointer to the numbers of an array of uint64."""
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_uint64))
