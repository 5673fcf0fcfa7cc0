"""The timeline of a profile that is made by hand: every cycle, byte and token has its place."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamgen.observe.profile import KernelProfile, PassProfile, PhaseProfile, Profile
from streamgen.observe.timeline import events, write_trace
from streamgen.runtime.device import HostCall
from streamgen.runtime.observed import Windows

WINDOWS = Windows(
    steps=np.array([0, 1, 1, 1, 2]),
    cycles=np.array([10, 8, 8, 4, 5]),
    busy=np.array([[4], [8], [5], [0], [1]]),
    stalled=np.array([[1], [0], [1], [4], [2]]),
    beats=np.array([[[1, 0]], [[3, 0]], [[0, 0]], [[0, 0]], [[2, 1]]]),
    levels=np.array([[1], [1], [2], [2], [0]]),
)


def _pass(begun: int) -> PassProfile:
    least: Any = {"memory_cycles": 5.0, "product_cycles": 1.0, "products": 9, "channels": 1}
    return PassProfile(
        design="tiny",
        position=3,
        tokens=1,
        cycles=35,
        phases=(
            PhaseProfile(name="first", walks=1, cycles=10, bytes=64, **least),
            PhaseProfile(name="layer", walks=2, cycles=25, bytes=320, **least),
        ),
        kernels=(KernelProfile(name="k", kind="Norm", busy=(4, 14), stalled=(1, 7), idle=(5, 4)),),
        streams=(),
        moved={2: (384, 64)},
        begun=begun,
        ended=begun + 40,
        sections=(0, 1, 1),
        fifos=(("a.o -> k.i", 2),),
        windows=WINDOWS,
    )


CALLS = (
    HostCall(kernel="tiny", buffer="x", way="write", bytes=64, time=90),
    HostCall(kernel="tiny", buffer="y", way="read", bytes=32, time=140),
)
PROFILE = Profile(name="tiny", clock_mhz=250.0, passes=(_pass(100), _pass(150)), calls=CALLS)


def _found(**wanted: Any) -> list[dict[str, Any]]:
    return [e for e in events(PROFILE) if all(e.get(key) == value for key, value in wanted.items())]


def test_tracks() -> None:
    names = [(e["pid"], e["tid"], e["args"]["name"]) for e in _found(ph="M") if e["name"].endswith("_name")]
    assert names == [(1, 1, "host"), (1, 1, "calls"), (2, 2, "tiny"), (2, 2, "phases"), (2, 3, "k")]


def test_passes_and_walks() -> None:
    walks = [(e["name"], e["ts"], e["dur"], e["args"]["pass"], e["args"]["walk"]) for e in _found(
        ph="X", pid=2, tid=2
    )]  # fmt: skip
    assert walks == [
        (name, begun + at, cycles, number, walk)
        for number, begun in enumerate((100, 150))
        for name, at, cycles, walk in (("first", 0, 10, 0), ("layer", 10, 20, 0), ("layer", 30, 5, 1))
    ]


def test_kernels_have_the_state_of_most_cycles() -> None:
    slices = _found(ph="X", pid=2, tid=3)
    assert [(e["name"], e["ts"], e["dur"]) for e in slices[:4]] == [
        ("idle", 100, 10), ("busy", 110, 16), ("stalled", 126, 4), ("stalled", 130, 5)
    ]  # fmt: skip
    counts = [tuple(e["args"][state] for state in ("busy", "stalled", "idle")) for e in slices[:4]]
    assert counts == [(4, 1, 5), (13, 1, 2), (0, 4, 0), (1, 2, 2)]


def test_counters_hold_their_value_until_the_next() -> None:
    seen: dict[str, list[tuple[int, float]]] = {}
    for e in _found(ph="C"):
        ((unit, value),) = e["args"].items()
        seen.setdefault(f"{e['name']}: {unit}", []).append((e["ts"], value))
    beat = 64 * 250e6 / 1e9  # GB/s of a beat each cycle
    assert seen == {
        "channel 2 read: GB/s": [
            (at + begun, pytest.approx(rate * beat, abs=1e-3))
            for begun in (100, 150)
            for at, rate in ((0, 0.1), (10, 0.375), (18, 0), (30, 0.4), (35, 0))
        ],
        "channel 2 write: GB/s": [
            (at + begun, pytest.approx(rate * beat, abs=1e-3))
            for begun in (100, 150)
            for at, rate in ((0, 0), (30, 0.2), (35, 0))
        ],
        "FIFO a.o -> k.i, depth 2: tokens": [
            (at + begun, level) for begun in (100, 150) for at, level in ((0, 1), (18, 2), (30, 0))
        ],
    }


def test_the_host() -> None:
    runs = [(e["name"], e["ts"], e["dur"], e["args"]["cycles"]) for e in _found(ph="X", pid=1)]
    assert runs == [("run tiny", 100, 40, 35), ("run tiny", 150, 40, 35)]
    calls = [(e["name"], e["ts"], e["args"]) for e in _found(ph="i", pid=1)]
    assert calls == [
        ("write x", 90, {"kernel": "tiny", "bytes": 64}), ("read y", 140, {"kernel": "tiny", "bytes": 32})
    ]  # fmt: skip


@pytest.mark.parametrize("profile", [PROFILE, replace(PROFILE, passes=(), calls=())])
def test_the_file_is_json(profile: Profile, tmp_path: Path) -> None:
    write_trace(profile, tmp_path / "trace.json")
    found = json.loads((tmp_path / "trace.json").read_text())
    assert found == {
        "otherData": {"name": "tiny", "clock_mhz": 250.0, "time": "1 us is 1 cycle"},
        "traceEvents": json.loads(json.dumps(list(events(profile)))),
    }
    assert "windows" not in json.loads(profile.to_json())
