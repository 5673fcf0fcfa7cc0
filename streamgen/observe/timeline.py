"""A profile as a timeline in Chrome's trace format, which Perfetto and chrome://tracing show.

Each design is a process. It has a track for the phases, one for each kernel and one for each memory channel.
Passes and walks of phases follow one another. A microsecond in the trace is a cycle. A profile does not
record when things happen within a walk. The trace therefore draws a kernel's busy cycles at the start of the
walk and its stalled cycles after them, and shares the bytes of a channel evenly among the walks of a phase.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streamgen.base.folders import new_file
from streamgen.observe.profile import PassProfile, Profile

Event = dict[str, Any]


def write_trace(profile: Profile, path: Path) -> None:
    """Write the timeline of a profile. Raises OSError if the file cannot be written; then no file is left."""
    other = {"name": profile.name, "clock_mhz": profile.clock_mhz, "time": "1 us is 1 cycle"}
    text = json.dumps({"traceEvents": [*events(profile)], "otherData": other})
    with new_file(path) as file:
        file.write(text.encode())


def events(profile: Profile) -> Iterator[Event]:
    """The names of the tracks, then the events on them."""
    first_passes: dict[str, PassProfile] = {}
    for part in profile.passes:
        first_passes.setdefault(part.design, part)
    designs = list(first_passes)
    for process, (design, part) in enumerate(first_passes.items()):
        yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": design}}
        for track, name in enumerate(_tracks(part)):
            yield {"ph": "M", "name": "thread_name", "pid": process, "tid": track, "args": {"name": name}}
            yield {
                "ph": "M",
                "name": "thread_sort_index",
                "pid": process,
                "tid": track,
                "args": {"sort_index": track},
            }
    start = 0
    for number, part in enumerate(profile.passes):
        for event in _pass(part, number, start):
            yield event | {"pid": designs.index(part.design)}
        start += part.cycles


def _tracks(profile: PassProfile) -> list[str]:
    channels = [f"channel {channel}" for channel in sorted(profile.moved)]
    return ["phases", *(kernel.name for kernel in profile.kernels), *channels]


def _pass(profile: PassProfile, number: int, start: int) -> Iterator[Event]:
    first_channel = 1 + len(profile.kernels)
    bytes_of = _bytes(profile)
    seen = dict.fromkeys(range(len(profile.phases)), 0)
    for step in profile.steps:
        phase = profile.phases[step.phase]
        what = {"pass": number, "phase": phase.name, "walk": seen[step.phase]}
        seen[step.phase] += 1
        yield _slice(
            0, phase.name, start, step.cycles, what | {"position": profile.position, "tokens": profile.tokens}
        )
        for track, (busy, stalled) in enumerate(zip(step.busy, step.stalled, strict=True), 1):
            if busy:
                yield _slice(track, "busy", start, busy, what)
            if stalled:
                yield _slice(track, "stalled", start + busy, stalled, what)
        for track, moved in enumerate(bytes_of, first_channel):
            read, written = (moved[way][step.phase] // phase.walks for way in ("read", "write"))
            if read or written:
                yield _slice(track, "moves", start, step.cycles, what | {"read": read, "written": written})
        start += step.cycles


def _bytes(profile: PassProfile) -> list[dict[str, list[int]]]:
    """Bytes of each channel by direction and phase, without the bytes of the control."""
    by_channel = {
        channel: {way: [0] * len(profile.phases) for way in ("read", "write")}
        for channel in sorted(profile.moved)
    }
    for stream in profile.streams:
        for phase, count in enumerate(stream.phases):
            by_channel[stream.channel][stream.way][phase] += count
    return list(by_channel.values())


def _slice(track: int, name: str, start: int, cycles: int, values: dict[str, Any]) -> Event:
    return {"ph": "X", "name": name, "tid": track, "ts": start, "dur": cycles, "args": values}
