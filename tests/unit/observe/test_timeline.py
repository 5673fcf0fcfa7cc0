"""The timeline of a profile that is made by hand: every cycle and byte has its place."""

from typing import Any

from streamgen.observe.profile import (
    KernelProfile,
    PassProfile,
    PhaseProfile,
    Profile,
    StepProfile,
    StreamProfile,
)
from streamgen.observe.timeline import events


def test_passes_follow_one_another() -> None:
    least: Any = {"memory_cycles": 5.0, "product_cycles": 1.0, "products": 9}
    one = PassProfile(
        design="tiny",
        position=3,
        tokens=1,
        cycles=35,
        phases=(
            PhaseProfile(
                name="first",
                walks=1,
                cycles=10,
                bytes=64,
                channels=1,
                **least,
            ),
            PhaseProfile(
                name="layer",
                walks=2,
                cycles=25,
                bytes=256,
                channels=1,
                **least,
            ),
        ),
        kernels=(KernelProfile(name="k", kind="Norm", busy=(4, 9), stalled=(1, 0), idle=(5, 16)),),
        streams=(
            StreamProfile(
                node="l", buffer="w", channel=2, way="read", bytes=320, phases=(64, 256), share=0.1
            ),
            StreamProfile(
                node="control", buffer="status", channel=2, way="write", bytes=64, phases=(), share=0.1
            ),
        ),
        steps=(
            StepProfile(phase=0, cycles=10, busy=(4,), stalled=(1,)),
            StepProfile(phase=1, cycles=12, busy=(5,), stalled=(0,)),
            StepProfile(phase=1, cycles=13, busy=(4,), stalled=(0,)),
        ),
        moved={2: (320, 64)},
    )
    found = list(events(Profile(name="tiny", clock_mhz=300.0, passes=(one, one))))
    names = [e["args"]["name"] for e in found if e["name"] == "thread_name"]
    assert names == ["phases", "k", "channel 2"]
    slices = [(e["tid"], e["name"], e["ts"], e["dur"]) for e in found if e["ph"] == "X"]
    assert [s for s in slices if s[0] == 0] == [
        (0, name, start + at, cycles)
        for at in (0, 35)
        for name, start, cycles in (("first", 0, 10), ("layer", 10, 12), ("layer", 22, 13))
    ]
    assert [s for s in slices if s[0] == 1][:4] == [
        (1, "busy", 0, 4),
        (1, "stalled", 4, 1),
        (1, "busy", 10, 5),
        (1, "busy", 22, 4),
    ]
    moves = [e["args"] for e in found if e.get("tid") == 2 and e["ph"] == "X"]
    assert [(m["pass"], m["walk"], m["read"], m["written"]) for m in moves[:3]] == [
        (0, 0, 64, 0),
        (0, 0, 128, 0),
        (0, 1, 128, 0),
    ]
    assert len(moves) == 6 and {e["pid"] for e in found} == {0}
