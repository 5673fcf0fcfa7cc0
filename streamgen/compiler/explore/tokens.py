"""Simulate a run of a graph token by token: phases, walks, back edges, FIFOs, memory channels, descriptors.

    table read -> descriptors at the nodes -> parts of kernels, FIFOs, clients, channels -> last response

Every part of a kernel has a clock that stops while a token is missing or a FIFO has no room (`fifo.clocks`;
the equations are those of `fifo.events`). Each token is visited once: a time is computed when all times that
it depends on are known. If nothing else can go on, the memory gives its next event. An execution begins when
its descriptor is there and the parts that take in tokens have finished the execution before.

The model of memory follows the clients, the channel master and the memory model:

* A read client cuts a command into bursts that end at multiples of its burst length. It requests a burst if
  the prefetch FIFO has room for all of it, and if memory then owes no more beats than the client may have
  under way. A write client requests a burst when its last beat is there.
* The master grants one read address and one write address per cycle, round-robin. The memory takes up to 32
  addresses of each kind.
* Read bursts are served in order; the first beat comes one latency after the address. Beats of writes come in
  the order of their addresses. Reads and writes share the beats of the channel and take turns.

Equal nodes, such as the columns of an engine, do the same at the same time, apart from the cycles between
their descriptors. The node that gets its descriptor last stands for all of them (`acting`).

The model leaves out how rows of tables straddle bursts, because that depends on ids. The loops are in
tokens.c and channels.c.
"""

import ctypes
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from streamgen.artifact.manifest import MemoryTiming
from streamgen.compiler.explore.acting import TRACK, Acting
from streamgen.compiler.explore.layout import Descriptors, Fifo, Known, Layout
from streamgen.compiler.explore.periods import MARKS
from streamgen.fifo.clocks import Clocks
from streamgen.fifo.library import loaded


class TokenRun:
    """A simulated run. The constructor simulates it.

    steps: phase of each step. executions: clocks by node and phase; a node has none in a phase in which it
    rests. channels: channel of each memory port, by node and port. descriptors: None if all descriptors are
    there in cycle 0. times: keep the times of FIFOs, for `sent` and `taken`. known: results that runs share.
    long: number of moves of all parts in a phase from which on its middle is left out, if the phase repeats
    itself (`periods`) and no times are kept. often: number of times that each phase occurs in the run of
    which this run is a part; None for this run itself.

    Attributes: cycles, until the last response or token. ends: for each step, the cycle in which its last
    token passes an end of a FIFO; 0 if there is no token.

    Raises RuntimeError if nodes wait for one another for ever.
    """

    def __init__(
        self,
        steps: Sequence[int],
        executions: Mapping[str, Mapping[int, Clocks]],
        fifos: Sequence[Fifo],
        memory: MemoryTiming,
        channels: Mapping[tuple[str, str], int],
        descriptors: Descriptors | None = None,
        *,
        times: bool = False,
        known: Known | None = None,
        long: int | None = None,
        often: Mapping[int, int] | None = None,
    ) -> None:
        known = known or Known()
        with known.turn:
            layout = Layout(executions, fifos, channels, descriptors, known)
            acting = Acting(layout, descriptors, Counter(steps) if often is None else often)
        self._of_fifo = acting.of_fifo
        several = (steps, acting, memory, descriptors, known, times)
        if times or not self._play(*several, long):
            self._play(*several, None)

    def _play(
        self,
        steps: Sequence[int],
        acting: Acting,
        memory: MemoryTiming,
        descriptors: Descriptors | None,
        known: Known,
        times: bool,
        long: int | None,
    ) -> bool:
        """Simulate the run. Returns whether the cycles of everything that was left out of long phases are
        known."""
        with known.turn:
            own = acting.arrays(1 + max(steps), long)
        arrays = [
            a if a.dtype == TRACK else np.ascontiguousarray(a, np.int32) for a in (np.array(steps), *own)
        ]
        counts = (len(acting.parts), len(acting.streams), len(acting.nodes), 1 + max(steps), len(steps))
        counts_behind = (
            len(acting.clients),
            len(acting.channels),
            len(arrays[-4]),
            len(arrays[-2]) - 1,
            acting.fifos,
        )
        sequencer = (-1, 0, 0, 0)
        if descriptors is not None:
            waits = descriptors.waiting, descriptors.way, descriptors.dropped
            sequencer = len(acting.clients) - 1, *waits
        model = _Model(
            *counts,
            *counts_behind,
            *(array.ctypes.data for array in arrays),
            *sequencer,
            *(memory.beats, memory.cycles, memory.latency),
        )
        self.ends = np.zeros(len(steps), np.int64)
        model.step_end = self.ends.ctypes.data
        if times:
            self._first = np.ascontiguousarray(acting.tokens(steps), np.int32)
            self._times = np.full((2, self._first[-1]), -1, np.int64)
            model.first_token, model.sent = self._first.ctypes.data, self._times[0].ctypes.data
            model.taken = self._times[1].ctypes.data
        marked = np.zeros((len(acting.parts), len(steps), MARKS) if acting.cuts else 0, np.int64)
        model.marked = marked.ctypes.data
        self.cycles = int(_library.tokens_run(ctypes.byref(model)))
        if self.cycles < 0:
            raise RuntimeError("parts of nodes wait for ever")
        for step, phase in enumerate(steps):
            if phase in acting.cuts:
                cut = acting.cuts[phase]
                if (taken := cut.taken(marked[[*cut.marks], step])) is None:
                    return False
                self.ends[step:] += taken
                self.cycles += taken
        return True

    def sent(self, fifo: int) -> np.ndarray:
        """The cycle in which each token of a FIFO leaves its source."""
        return self._moved(0, fifo)

    def taken(self, fifo: int) -> np.ndarray:
        """The cycle in which each token of a FIFO enters its target."""
        return self._moved(1, fifo)

    def _moved(self, end: int, fifo: int) -> np.ndarray:
        number = self._of_fifo[fifo]
        return self._times[end, self._first[number] : self._first[number + 1]]


class _Model(ctypes.Structure):
    """`struct model` of streams.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("parts", "streams", "nodes", "phases", "steps", "clients")),
        *((name, ctypes.c_int32) for name in ("channels", "items", "walks", "fifos")),
        *((f"array{i}", ctypes.c_void_p) for i in range(27)),
        *((name, ctypes.c_int32) for name in ("table", "deepest", "way", "dropped")),
        *((name, ctypes.c_int32) for name in ("rate_beats", "rate_cycles", "rate_latency")),
        *((name, ctypes.c_void_p) for name in ("step_end", "first_token", "sent", "taken", "marked")),
    ]


_library = loaded("streamgen.compiler.explore._tokens")
_library.tokens_run.restype = ctypes.c_int64
_library.tokens_run.argtypes = (ctypes.c_void_p,)
