"""A profile as a timeline in Chrome's trace format, which Perfetto and chrome://tracing show.

The host is a process with one track: its accesses to buffers, and a slice from the start of each run to its
end. Each design is a process. It has a track for the phases, one for each kernel, a counter for the speed of
each memory channel and one for the level of each FIFO. A microsecond in the trace is a cycle of the card.
Accesses of the host to a simulated card take no cycles.

Kernels, channels and FIFOs are sampled in windows of a pass (`Windows`). A slice of a kernel is named by the
state that most of its cycles have, busy, stalled or idle; its arguments count the cycles of each.
Neighbouring windows of a walk with the same state are one slice. A level is the most tokens that the FIFO
held in a window.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from streamgen.artifact.packing import BEAT_BYTES
from streamgen.base.folders import new_file
from streamgen.observe.profile import PassProfile, Profile

Event = dict[str, Any]
STATES = ("busy", "stalled", "idle")


def write_trace(profile: Profile, path: Path) -> None:
    """Write the timeline of a profile. Raises OSError if the file cannot be written; then no file is left."""
    other = {"name": profile.name, "clock_mhz": profile.clock_mhz, "time": "1 us is 1 cycle"}
    with new_file(path) as file:
        file.write(b'{"otherData": %b, "traceEvents": [' % json.dumps(other).encode())
        for number, event in enumerate(events(profile)):
            file.write(b",\n"[not number :] + json.dumps(event, separators=(",", ":")).encode())
        file.write(b"\n]}\n")


def events(profile: Profile) -> Iterator[Event]:
    """The names of the tracks, then the events on them. Readers take the numbers of processes and tracks for
    those of Linux, where 0 is special and no two threads have the same: all begin at 1 and differ."""
    yield from _names(1, 1, "host", ["calls"])
    yield from _host(profile)
    places: dict[str, tuple[int, int]] = {}
    process, track = 2, 2
    for part in profile.passes:
        if part.design not in places:
            places[part.design] = process, track
            names = ["phases", *(kernel.name for kernel in part.kernels)]
            yield from _names(process, track, part.design, names)
            process, track = process + 1, track + len(names)
    for number, part in enumerate(profile.passes):
        process, track = places[part.design]
        for event in _pass(part, number, profile.clock_mhz):
            yield event | {"pid": process, "tid": track + event["tid"]}


def _names(process: int, first: int, name: str, tracks: Sequence[str]) -> Iterator[Event]:
    yield _named("process", process, first, {"name": name})
    yield _named("process_sort_index", process, first, {"sort_index": process})
    for track, title in enumerate(tracks, first):
        yield _named("thread", process, track, {"name": title})
        yield _named("thread_sort_index", process, track, {"sort_index": track})


def _named(what: str, process: int, track: int, values: Event) -> Event:
    name = what if what.endswith("index") else f"{what}_name"
    return {"ph": "M", "name": name, "pid": process, "tid": track, "args": values}


def _host(profile: Profile) -> Iterator[Event]:
    for number, part in enumerate(profile.passes):
        what = {"pass": number, "position": part.position, "tokens": part.tokens, "cycles": part.cycles}
        name = f"run {part.design}"
        yield _slice(1, name, part.begun, part.ended - part.begun, what) | {"pid": 1}
    for call in profile.calls:
        values = {"kernel": call.kernel, "bytes": call.bytes}
        name = f"{call.way} {call.buffer}"
        yield {"ph": "i", "s": "t", "name": name, "pid": 1, "tid": 1, "ts": call.time, "args": values}


def _pass(profile: PassProfile, number: int, clock_mhz: float) -> Iterator[Event]:
    windows = profile.windows
    starts = profile.begun + np.cumsum(windows.cycles) - windows.cycles
    walks: dict[int, int] = {}
    for step, phase in enumerate(profile.sections):
        walk = walks[phase] = walks.get(phase, -1) + 1
        inside = np.flatnonzero(windows.steps == step)
        if not len(inside):
            continue
        name = profile.phases[phase].name
        what = {"pass": number, "phase": name, "walk": walk}
        start, cycles = int(starts[inside[0]]), int(windows.cycles[inside].sum())
        yield _slice(0, name, start, cycles, what | {"position": profile.position, "tokens": profile.tokens})
        for node in range(len(profile.kernels)):
            for first, counts in _runs(profile, node, inside):
                values = dict(zip(STATES, counts, strict=True))
                state = max(STATES, key=values.__getitem__)
                yield _slice(1 + node, state, int(starts[first]), sum(counts), what | values)
    end = profile.begun + profile.cycles
    seconds = windows.cycles / (clock_mhz * 1e6)
    for port, channel in enumerate(profile.moved):
        for way, beats in zip(("read", "write"), windows.beats[:, port].T, strict=True):
            speeds = np.round(beats * BEAT_BYTES / seconds / 1e9, 3)
            yield from _counter(f"channel {channel} {way}", "GB/s", starts, speeds.tolist(), end)
    for fifo, (name, depth) in enumerate(profile.fifos):
        levels = windows.levels[:, fifo].tolist()
        yield from _counter(f"FIFO {name}, depth {depth}", "tokens", starts, levels, end)


def _runs(
    profile: PassProfile, node: int, inside: Iterable[int]
) -> Iterator[tuple[int, tuple[int, int, int]]]:
    """The first window of each run of windows with the same state, and its busy, stalled and idle cycles."""
    windows = profile.windows
    run: tuple[int, tuple[int, int, int]] | None = None
    for window in inside:
        busy, stalled = int(windows.busy[window, node]), int(windows.stalled[window, node])
        counts = busy, stalled, int(windows.cycles[window]) - busy - stalled
        if run is not None and _state(run[1]) == _state(counts):
            run = run[0], (run[1][0] + counts[0], run[1][1] + counts[1], run[1][2] + counts[2])
        else:
            if run is not None:
                yield run
            run = int(window), counts
    if run is not None:
        yield run


def _state(counts: tuple[int, int, int]) -> int:
    """The index of the state that most cycles have; the first one of several."""
    return counts.index(max(counts))


def _counter(name: str, unit: str, starts: np.ndarray, values: Sequence[float], end: int) -> Iterator[Event]:
    """A counter that changes at these times and is 0 after the pass."""
    before = None
    for start, value in zip(starts.tolist(), values, strict=True):
        if value != before:
            yield {"ph": "C", "name": name, "tid": 0, "ts": start, "args": {unit: value}}
        before = value
    if before:
        yield {"ph": "C", "name": name, "tid": 0, "ts": end, "args": {unit: 0}}


def _slice(track: int, name: str, start: int, cycles: int, values: Event) -> Event:
    return {"ph": "X", "name": name, "tid": track, "ts": start, "dur": cycles, "args": values}
