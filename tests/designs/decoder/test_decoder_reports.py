"""What is told of a language model of two layers on its emitted Verilog: passes, reports, profiles."""

import json
import shutil
from collections import Counter as Counts
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamgen.api.language_model import LanguageModel
from streamgen.artifact.manifest import Counter
from streamgen.artifact.packing import BEAT_BYTES
from streamgen.base.errors import DeviceError
from streamgen.cli import main
from streamgen.observe.profile import Profile, Profiler
from streamgen.observe.timeline import STATES
from streamgen.runtime.execution import Launch
from streamgen.runtime.memory import MemoryModel
from tests.external.browser.perfetto import Counters, read_trace
from tests.shared.decoders import TINY, WORDS, opened_model

# schedule/test_derive.py has the same bits without hardware, in a few seconds
pytestmark = [pytest.mark.slow, pytest.mark.long_runs]

CONTEXT, VOCABULARY = TINY.context, WORDS.size
PHASES = ("embedding", "attention_norm", "q+k+v", "o", "gate+up", "down", "last", "logits")
IDS = np.random.default_rng(1).integers(0, VOCABULARY, CONTEXT)


def test_passes_are_counted(model: LanguageModel) -> None:
    device = model.device()
    seen = len(device.passes)
    device.session().last_logits(IDS[:6])
    first, second = device.passes[seen:]
    assert (first.position, first.tokens, second.position, second.tokens) == (0, 4, 4, 2)
    for one in (first, second):
        assert one.cycles > 1000 and one.bytes is not None and one.bytes > 30_000


def test_the_report_is_that_of_the_opened_folder(model: LanguageModel, written: Path) -> None:
    model.close()
    model.session().last_logits(IDS[:6])
    report = model.report()
    found = opened_model(written)
    assert found.report().cycles is None
    found.session().last_logits(IDS[:6])
    assert found.report() == report
    found.close()
    assert report.passes == tuple(one.cycles for one in model.device().passes) and len(report.passes) == 2
    for timing, (position, tokens) in zip(report.groups[0].timings, ((0, 4), (4, 2)), strict=True):
        assert (timing.position, timing.tokens) == (position, tokens)
        assert 1 < timing.ratio == timing.cycles / timing.bound < 5
    for kernel in report.kernels:
        assert kernel.busy > 0 and kernel.busy + kernel.stalled + kernel.idle == report.cycles
    assert all(f.greatest is not None and 1 <= f.greatest <= f.depth for f in report.fifos)
    memory = report.memory
    assert 0 < memory.converters < memory.fused < memory.unfused and memory.stored == 0
    text = str(report)
    for part in (
        "tiny: 128 multipliers",
        "of 8 phases are walked 2 times",
        "ratio",
        "kernel",
        "FIFO",
    ):
        assert part in text, part


@pytest.mark.timeout(900)
@pytest.mark.parametrize("delays", [0, 300])
def test_a_profile_adds_up(model: LanguageModel, delays: int, tmp_path: Path) -> None:
    """A pass of four tokens, behind which nothing is asked, and one of one token, held against what hardware
    and memory count themselves."""
    memory = MemoryModel(delays=delays, seed=5)
    model.close()
    found = model.profile(IDS[:5], memory=memory, trace=tmp_path / "trace.json")
    held: Counts[str] = Counts()
    for one in found.passes:
        for (name, _), most in zip(one.fifos, one.windows.levels.max(axis=0), strict=True):
            held[name] = max(held[name], int(most))
    assert held == {fifo.name: fifo.greatest for fifo in model.report().fifos}
    model.close()
    _require_same(found, *read_trace(tmp_path / "trace.json"))
    device = model.device(memory)
    device.session().last_logits(IDS[:5])
    for one, plain in zip(found.passes, device.passes, strict=True):
        counted = dict(zip(model.manifest.counters, plain.status.counters, strict=True))
        assert (one.position, one.tokens, one.cycles) == (plain.position, plain.tokens, plain.cycles)
        assert [(phase.name, phase.walks) for phase in one.phases] == [
            (name, 2 if name in PHASES[1:6] else 1) for name in PHASES
        ]
        assert sum(phase.cycles for phase in one.phases) == one.cycles
        asked = PHASES[:6] if one.tokens > 1 else PHASES
        assert [phase.name for phase in one.phases if phase.cycles > phase.bound > 0] == list(asked)
        for kernel in one.kernels:
            for kind in ("busy", "stalled"):
                assert sum(getattr(kernel, kind)) == counted[Counter(name=kernel.name, kind=kind)], kernel
            parts = zip(kernel.busy, kernel.stalled, kernel.idle, strict=True)
            assert [sum(part) for part in parts] == [phase.cycles for phase in one.phases]
            assert min(kernel.idle) >= 0
        by_name = {kernel.name: kernel for kernel in one.kernels}
        for name, at in (("scores", "q+k+v"), ("gated", "gate+up"), ("best", "logits")):
            busy = [phase for phase, cycles in zip(PHASES, by_name[name].busy, strict=True) if cycles]
            before = PHASES[PHASES.index(at) - 1]  # which may end when the first tokens of this one have gone
            assert busy in ([at], [before, at]) if at in asked else not busy
        for channel, moved in one.moved.items():
            for way, count in zip(("read", "write"), moved, strict=True):
                there = [s for s in one.streams if s.channel == channel and s.way == way]
                assert sum(stream.bytes for stream in there) == count
        streams = [stream for stream in one.streams if stream.phases]
        assert len(one.streams) == len(streams) + 2
        for stream in streams:
            assert sum(stream.phases) == stream.bytes
        assert [phase.bytes for phase in one.phases] == [
            sum(stream.phases[k] for stream in streams) for k in range(len(PHASES))
        ]
    model.close()


def _require_same(found: Profile, slices: list[Any], counters: Counters) -> None:
    """The timeline adds up to the profile: phases, kernels, channels; nothing overlaps on a track."""
    (design,) = {one.design for one in found.passes}
    assert {event["process"] for event in slices} == {design, "host"}
    ends: dict[tuple[str, str], int] = {}
    sums: Counts[tuple[Any, ...]] = Counts()
    for event in sorted(slices, key=lambda event: event["ts"]):
        track, what = (event["process"], event["track"]), event["args"]
        assert event["ts"] >= ends.get(track, 0) and (event["dur"] > 0 or event["process"] == "host")
        ends[track] = event["ts"] + event["dur"]
        if event["process"] == "host":
            sums[event["name"]] += 1
            continue
        one = found.passes[what["pass"]]
        assert one.begun <= event["ts"] and ends[track] <= one.begun + one.cycles <= one.ended
        sums[what["pass"], event["track"], what["phase"]] += event["dur"]
        for state in what.keys() & STATES:
            sums[what["pass"], event["track"], what["phase"], state] += what[state]
    assert sums[f"run {design}"] == len(found.passes)
    assert sums["write weights_0"] == 1 and sums["write ids"] == sums["read status"] == len(found.passes)
    beat = BEAT_BYTES * found.clock_mhz * 1e6 / 1e9
    for number, one in enumerate(found.passes):
        for k, phase in enumerate(one.phases):
            assert sums[number, "phases", phase.name] == phase.cycles
            for kernel in one.kernels:
                assert sums[number, kernel.name, phase.name] == phase.cycles
                for state in STATES:
                    assert sums[number, kernel.name, phase.name, state] == getattr(kernel, state)[k]
        end = one.begun + one.cycles
        for channel, moved in one.moved.items():
            for way, count in zip(("read", "write"), moved, strict=True):
                values = counters[design, f"channel {channel} {way} GB/s"]
                assert all(0 <= speed <= beat + 1e-3 for _, speed in values)
                seen = round(_area(values, one.begun, end) / beat)
                control = sum(s.bytes for s in one.streams if (s.node, s.way) == ("control", way))
                control *= channel == 0
                assert count - control <= seen * BEAT_BYTES <= count
        for k, (name, depth) in enumerate(one.fifos):
            values = counters[design, f"FIFO {name}, depth {depth} tokens"]
            held = int((one.windows.levels[:, k] * one.windows.cycles).sum())
            assert _area(values, one.begun, end) == held
            assert max(level for _, level in values) <= depth


def _area(values: list[tuple[int, float]], begin: int, end: int) -> float:
    """The sum over the cycles from `begin` to `end` of a counter, which is 0 at first."""
    times = [*(time for time, _ in values), end]
    return sum(
        value * max(0, min(after, end) - max(time, begin))
        for (time, value), after in zip(values, times[1:], strict=True)
    )


def test_traces_that_have_no_place(model: LanguageModel, tmp_path: Path) -> None:
    for path, message in (
        (tmp_path / "none" / "trace.json", "there is no folder"),
        (tmp_path, "is a folder; a file is needed"),
    ):
        with pytest.raises(OSError, match=message):
            model.profile(IDS[:1], trace=path)


def test_a_profile_as_text(model: LanguageModel) -> None:
    text = str(model.profile(IDS[:2]))
    for part in (
        "tiny, 2 tokens at position 0: ",
        "ratio",
        "busy+stalled %",
        "% of channel",
        "cache_values_x_1",
    ):
        assert part in text, part
    assert len(text.splitlines()[0]) <= 110 and max(map(len, text.splitlines())) <= 110
    with pytest.raises(ValueError, match=r"^ids\[1\] is 64; ids are 0 to 63$"):
        model.profile([1, 64])


def test_a_profile_of_other_tokens_is_refused(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    observer = Profiler.observer

    for tokens in (2, 4):

        def of_other_tokens(self: Profiler, *given: Any, tokens: int = tokens) -> Any:
            watch = observer(self, *given)
            return lambda device, images, launch: watch(device, images, Launch(tiles=tokens))

        monkeypatch.setattr(Profiler, "observer", of_other_tokens)
        with pytest.raises(DeviceError) as raised:
            model.profile(IDS[:3])
        assert str(raised.value) == "the tokens that passed are not those of the graph"


def test_the_report_on_the_command_line(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(written)]) == 0
    assert "5 of 8 phases are walked 2 times" in capsys.readouterr().out
    assert main(["report", str(written), "--channels", "4"]) == 2
    assert "tiny is already compiled" in capsys.readouterr().err


def test_a_folder_of_another_version_is_refused(written: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(written, tmp_path / "tiny"))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["counters"][-1]["depth"] = 7
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError) as raised:
        opened_model(folder, changed_files=True).report()
    assert str(raised.value) == (
        f"{folder} was written by a version of streamgen that builds other FIFOs; compile the model again"
    )


def test_a_report_of_a_profile_beside_an_open_device(model: LanguageModel) -> None:
    """A device that is open and has not run says nothing of the run before."""
    model.close()
    model.device().open()
    model.profile(IDS[:2])
    (group,) = model.report().groups
    assert group.kernels and any(fifo.greatest is not None for fifo in group.fifos)


def test_a_run_without_probes_forgets_those_of_the_run_before(model: LanguageModel) -> None:
    model.run(IDS[:2], probe=True)
    assert model.probed is not None
    model.run(IDS[:2])
    assert model.probed is None
