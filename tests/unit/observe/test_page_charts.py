"""The charts of a page as values: axes, and what phases do in their own cycles."""

from typing import Any

import numpy as np
import pytest

from streamgen.observe.estimate import PassEstimate, PhaseEstimate
from streamgen.observe.page import charts
from streamgen.observe.page.charts import Scale
from streamgen.observe.page.tracks import timeline
from streamgen.observe.profile import PassProfile
from tests.unit.observe.test_timeline import PROFILE

RATE = 32.0  # bytes per cycle of a channel


@pytest.mark.parametrize(
    ("values", "log", "texts"),
    [
        ([1, 100], True, ["1", "2", "5", "10", "20", "50", "100"]),
        ([3, 30_000_000], True, ["10", "100", "1,000", "10,000", "100,000", "1,000,000", "10,000,000"]),
        ([0, 0], True, ["1"]),
        ([0, 10], False, ["0", "2", "4", "6", "8", "10"]),
        ([5, 5], False, None),
        ([-3, 7], False, None),
    ],
)
def test_an_axis(values: list[float], log: bool, texts: list[str] | None) -> None:
    axis = Scale(values, log=log)
    places = [axis.place(value) for value in sorted(values)]
    assert places == sorted(places) and all(0 <= place <= 100 for place in places)
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= 8 and [at for at, _ in ticks] == sorted(at for at, _ in ticks)
    assert all(axis.place(float(text.replace(",", ""))) == at for at, text in ticks)
    assert texts is None or [text for _, text in ticks] == texts


def test_a_predicted_phase_moves_no_more_than_its_channels_can() -> None:
    common: Any = {"walks": 1, "product_cycles": 10.0, "products": 9, "bytes": 3200, "limit": "memory"}
    phases = (
        PhaseEstimate(name="ahead", cycles=50, memory_cycles=100.0, **common),
        PhaseEstimate(name="waits", cycles=200, memory_cycles=100.0, **common),
        PhaseEstimate(name="none", cycles=20, memory_cycles=0.0, **{**common, "bytes": 0}),
    )
    timed = PassEstimate(group="g", tokens=1, position=0, phases=phases, moved={0: (6400, 0)})
    found = [(work.busy, work.moved, work.ahead) for work in charts.works(timed, RATE)]
    assert found == [(50, 1600, 1600), (100, 3200, 0), (0, 0, 0)]
    rows = charts.phases(timed, RATE).rows
    assert [[bar.text for bar in bars] for _, bars in rows] == [
        ["50 cycles, 19 %", "50 memory", "10 multipliers"],
        ["200 cycles, 74 %", "100 memory", "10 multipliers"],
        ["20 cycles, 7 %", "10 multipliers"],
    ]


def test_a_measured_phase_has_the_bytes_that_moved() -> None:
    profile: PassProfile = PROFILE.passes[0]
    first, layer = charts.works(profile, RATE)
    assert (first.moved, first.busy, first.ahead) == (64, 2, 0)
    assert (layer.moved, layer.busy, layer.ahead) == (6 * 64, 12, 0)


def test_tracks_add_up() -> None:
    """The area of a track is the share of the cycles that it stands for."""
    found = timeline(PROFILE.passes[0], RATE, 250.0)
    assert [name for name, _ in found.walks] == ["first", "layer", "layer"]
    assert sum(share for _, share in found.walks) == pytest.approx(100, abs=0.01)
    (kernel,) = found.kernels
    assert (kernel.name, kernel.text) == ("k", "busy 51 %, stalled 23 %")
    (stalled, both), (busy, alone) = kernel.areas
    assert (stalled, busy) == ("c1", "c0")
    assert _area(alone) == pytest.approx(18 / 35, abs=0.01)
    assert _area(both) == pytest.approx(26 / 35, abs=0.01)
    (channel,) = found.channels
    assert channel.text == "3.2 of 8.0 GB/s"


def _area(path: str) -> float:
    """The share of the area above the lower edge that a path encloses."""
    at, height, area = 0.0, 100.0, 0.0
    for part in path.removeprefix("M0 100").removesuffix("Z").replace("H", " H").replace("V", " V").split():
        value = float(part[1:])
        if part[0] == "H":
            area += (value - at) * (100 - height)
            at = value
        else:
            height = value
    assert (at, height) == (240, 100)
    return float(np.round(area / 100 / 240, 4))
