"""When a memory channel moves each beat, given when its clients ask and when their FIFOs empty.

The laws are those of the read and write clients, the channel master and the memory model, event by event:

* A read client cuts a command into bursts that end at multiples of its burst length. A burst is asked for
  two cycles after the command or the burst before, when the prefetch FIFO has room for all of it.
* A write client asks when the last beat of a burst is in its FIFO.
* The master grants one address a cycle of each kind, round-robin; the memory takes up to `OUTSTANDING`.
* A read burst is served in order, its first beat a latency after its address; beats of writes in the order of
  their addresses. Reads and writes share the beats of the channel and take turns.

Times are cycles from the start of a run.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from streamgen.manifest import MemoryTiming

__all__ = ["Command", "Reader", "Writer", "serve"]

OUTSTANDING = 32  # bursts of each kind that wait at the memory
ADDRESS = 1  # cycles from an address granted to the pins
DATA = 2  # cycles from a beat served to the client's FIFO: the pins, the master
WRITE_QUEUE = 3  # cycles from a beat in a write client's FIFO to its head
RESPONSE = 1  # cycles from a response at the pins to the client

NEVER = 1 << 60


@dataclass(frozen=True)
class Command:
    """A transfer of whole beats that a client takes in a cycle."""

    cycle: int
    offset: int  # in beats
    beats: int


@dataclass(eq=False)
class Reader:
    """A read client. popped: cycle in which each beat leaves the prefetch FIFO, in order; empty: at once.

    arrived: the result, the cycle in which each beat enters the FIFO.
    """

    commands: Sequence[Command]
    burst: int
    depth: int
    popped: np.ndarray
    arrived: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._bursts: deque[tuple[int, int]] = deque()  # (earliest cycle of issue, beats)
        for command in self.commands:
            earliest, offset, left = command.cycle + 2, command.offset, command.beats
            while left:
                beats = min(left, self.burst - offset % self.burst)
                self._bursts.append((earliest, beats))
                earliest, offset, left = 0, offset + beats, left - beats
        self._asked = 0
        self._free = 0  # earliest cycle of the next issue
        self.request = self._next()

    def grant(self, cycle: int) -> int:
        """The request is granted in this cycle; returns its beats."""
        _, beats = self._bursts.popleft()
        self._asked += beats
        self._free = max(self.request + 1, cycle)
        self.request = self._next()
        return beats

    def _next(self) -> int:
        """Cycle from which the next burst is asked for."""
        if not self._bursts:
            return NEVER
        earliest, beats = self._bursts[0]
        issue = max(earliest, self._free)
        last = self._asked + beats - self.depth - 1  # the beat that must have left
        if 0 <= last < len(self.popped):
            issue = max(issue, int(self.popped[last]) + 1)
        return issue + 1


@dataclass(eq=False)
class Writer:
    """A write client. bursts: for each, the cycles in which its beats enter the FIFO.

    done: the result, the cycle in which the response of the last burst reaches the client.
    """

    bursts: Sequence[np.ndarray]
    done: int = 0

    def __post_init__(self) -> None:
        self._next = 0
        self._free = 0

    @property
    def request(self) -> int:
        """Cycle from which the next burst is asked for."""
        if self._next == len(self.bursts):
            return NEVER
        return max(int(self.bursts[self._next][-1]) + 1, self._free)

    def grant(self, cycle: int) -> np.ndarray:
        """The request is granted in this cycle; returns when its beats are offered."""
        beats = self.bursts[self._next] + WRITE_QUEUE
        self._next += 1
        self._free = cycle + 1
        return beats


def serve(memory: MemoryTiming, readers: Sequence[Reader], writers: Sequence[Writer]) -> None:
    """Fill in the results of all clients, which stand in the order of their ports at the master."""
    _Channel(memory, readers, writers).run()


class _Channel:
    """One pass over the events of a channel, in order of time."""

    def __init__(self, memory: MemoryTiming, readers: Sequence[Reader], writers: Sequence[Writer]) -> None:
        self._beats, self._cycles, self._latency = memory.beats, memory.cycles, memory.latency
        self._readers, self._writers = readers, writers
        self._credit, self._now = self._beats + self._cycles, -1
        self._reads: deque[list[int]] = deque()  # client, cycle of the first beat, beats left
        self._writes: deque[list[int]] = deque()  # client, beats left, cycle of the address
        self._data: deque[int] = deque()  # cycles of write beats at the pins
        self._read_ends: list[int] = []
        self._write_ends: list[int] = []
        self._last_read = self._last_data = -1
        self._turn = 0

    def run(self) -> None:
        read_pins = write_pins = 0  # cycle from which the next address can be granted
        last_read = last_write = -1  # clients granted last
        read_count = write_count = 0
        while True:
            asking = min((r.request for r in self._readers), default=NEVER)
            read_grant = max(asking, read_pins) if asking < NEVER else NEVER
            asking = min((w.request for w in self._writers), default=NEVER)
            write_grant = max(asking, write_pins) if asking < NEVER else NEVER
            served = self._next_service()
            if served <= min(read_grant, write_grant):
                if served == NEVER:
                    return
                if self._writes:
                    self._serve(served)
                else:
                    self._serve_burst(served, min(read_grant, write_grant))
            elif read_grant <= write_grant:
                accept = read_grant + ADDRESS
                if read_count >= OUTSTANDING:
                    if len(self._read_ends) <= read_count - OUTSTANDING:
                        self._serve(served)  # a place must become free first
                        continue
                    accept = max(accept, self._read_ends[read_count - OUTSTANDING] + 1)
                last_read = _chosen([r.request for r in self._readers], read_grant, last_read)
                beats = self._readers[last_read].grant(read_grant)
                self._reads.append([last_read, accept + self._latency, beats])
                read_pins, read_count = accept, read_count + 1
            else:
                accept = write_grant + ADDRESS
                if write_count >= OUTSTANDING:
                    if len(self._write_ends) <= write_count - OUTSTANDING:
                        self._serve(served)
                        continue
                    accept = max(accept, self._write_ends[write_count - OUTSTANDING] + 1)
                last_write = _chosen([w.request for w in self._writers], write_grant, last_write)
                offered = self._writers[last_write].grant(write_grant)
                for cycle in offered.tolist():
                    # the order of the bursts is known a cycle after the grant; the pins are registers
                    self._last_data = max(cycle, write_grant + 1, self._last_data) + 1
                    self._data.append(self._last_data)
                self._writes.append([last_write, len(offered), accept])
                write_pins, write_count = accept, write_count + 1

    def _next_service(self) -> int:
        """The cycle in which the next beat is served."""
        read, write = self._ready()
        first = min(read, write)
        if first == NEVER:
            return NEVER
        first = max(first, self._now + 1)
        missing = self._cycles - min(
            self._credit + self._beats * (first - self._now), self._beats + self._cycles
        )
        return first + (-(-missing // self._beats) if missing > 0 else 0)

    def _ready(self) -> tuple[int, int]:
        """From when on a read and a write beat can be served."""
        read = max(self._reads[0][1] - 1, self._last_read + 1) if self._reads else NEVER
        write = max(self._data[0], self._writes[0][2]) if self._writes else NEVER
        return read, write

    def _serve(self, cycle: int) -> None:
        """Serve a beat, or one of each kind, in this cycle."""
        self._credit = min(self._credit + self._beats * (cycle - self._now), self._beats + self._cycles)
        self._now = cycle
        read, write = self._ready()
        first = self._turn
        for kind in (first, 1 - first):
            if self._credit >= self._cycles and (write if kind else read) <= cycle:
                self._credit -= self._cycles
                self._turn = 1 - kind
                if kind:
                    self._write_beat(cycle)
                else:
                    self._read_beat(cycle)

    def _serve_burst(self, cycle: int, until: int) -> None:
        """Serve the first read burst from this cycle on, as far as it goes `until` then; there are no writes.

        With credit c left behind the first beat, beat j follows when j * cycles - c has come in.
        """
        client, _, left = burst = self._reads[0]
        credit = min(self._credit + self._beats * (cycle - self._now), self._beats + self._cycles)
        credit -= self._cycles
        arrived = self._readers[client].arrived
        served, last = 0, cycle
        while served < left:
            now = cycle + max(served, -((credit - served * self._cycles) // self._beats))
            if now > until and served:
                break
            last = now
            arrived.append(now + DATA)
            served += 1
        spent = credit + self._beats * (last - cycle) - (served - 1) * self._cycles
        self._credit, self._now, self._last_read, self._turn = spent, last, last, 1
        burst[2] -= served
        if not burst[2]:
            self._reads.popleft()
            self._read_ends.append(last)

    def _read_beat(self, cycle: int) -> None:
        burst = self._reads[0]
        self._readers[burst[0]].arrived.append(cycle + DATA)
        self._last_read = cycle
        burst[2] -= 1
        if not burst[2]:
            self._reads.popleft()
            self._read_ends.append(cycle)

    def _write_beat(self, cycle: int) -> None:
        burst = self._writes[0]
        self._data.popleft()
        burst[1] -= 1
        if not burst[1]:
            self._writes.popleft()
            self._write_ends.append(cycle)
            self._writers[burst[0]].done = cycle + self._latency + RESPONSE


def _chosen(requests: Sequence[int], cycle: int, last: int) -> int:
    """Round-robin among those that ask by now: the first behind the last one granted."""
    asking = [k for k, request in enumerate(requests) if request <= cycle]
    return min((k for k in asking if k > last), default=asking[0])
