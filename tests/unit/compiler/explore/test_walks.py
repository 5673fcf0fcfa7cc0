"""What is played once for many: the same cycles as when all of it is played."""

import importlib
from dataclasses import replace

import pytest

import streamgen
from streamgen.compiler.explore import acting
from tests.shared.decoders import TINY, random_decoder

predicting = importlib.import_module(
    "streamgen.compiler.explore.predict"
)  # its package has a function of that name


@pytest.mark.slow
@pytest.mark.parametrize("windows", [(None,), (3, 3, None)], ids=str)
def test_as_when_all_are_played(windows: tuple[int | None, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_decoder(layers=20, windows=windows)
    asked = {"positions": (0, 40), "prompts": (4,)}
    played: list[int] = []
    steps = predicting._steps

    def counted(graph, phases, *others):  # type: ignore[no-untyped-def]
        played.append(len(phases))
        return steps(graph, phases, *others)

    monkeypatch.setattr(predicting, "_steps", counted)
    found = streamgen.estimate(model, None, TINY, **asked)
    few = max(played)
    played.clear()
    monkeypatch.setattr(predicting, "BEFORE", 1000)
    whole = streamgen.estimate(model, None, TINY, **asked)
    assert 2 * few < min(played)
    for one, other in zip(found.passes, whole.passes, strict=True):
        assert one.cycles == pytest.approx(other.cycles, rel=0.002)
        for phase, played_phase in zip(one.phases, other.phases, strict=True):
            assert phase.cycles == pytest.approx(played_phase.cycles, abs=0.01 * other.cycles)
    assert found.first_tokens[4] == pytest.approx(whole.first_tokens[4], rel=0.002)


@pytest.mark.slow
def test_few_writes_do_not_tell_columns_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of keys and values of a prompt: fewer parts are played, and the cycles are the same."""
    model = random_decoder(hidden=128, wide=512, heads=4, kv_heads=1)
    config, asked = replace(TINY, channels=8, multipliers=1024), {"positions": (0, 40), "prompts": (8,)}
    parts: list[int] = []
    begin = acting.Acting.__init__

    def counted(self, *arguments, **options):  # type: ignore[no-untyped-def]
        begin(self, *arguments, **options)
        parts.append(len(self.parts))

    monkeypatch.setattr(acting.Acting, "__init__", counted)
    found = streamgen.estimate(model, None, config, **asked)
    played = parts.copy()
    parts.clear()
    monkeypatch.setattr(acting, "FEW", 1 << 30)
    whole = streamgen.estimate(model, None, config, **asked)
    assert sum(played) < sum(parts)
    assert [one.cycles for one in found.passes] == [one.cycles for one in whole.passes]
    assert found.first_tokens == whole.first_tokens
