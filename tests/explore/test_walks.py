"""Layers are looked at until they repeat: the same cycles as when all of them are played."""

import importlib

import pytest

import streamgen
from tests.decoders import TINY, random_decoder

predicting = importlib.import_module("streamgen.explore.predict")  # its package has a function of that name


@pytest.mark.slow
def test_as_when_all_are_played(monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked = random_decoder(layers=11), {"positions": (0, 40), "prompts": (4,)}
    played: list[int] = []
    known = predicting._cut

    def cut(graph, table, few):  # type: ignore[no-untyped-def]
        played.append(max(few))
        return known(graph, table, few)

    monkeypatch.setattr(predicting, "_cut", cut)
    found = streamgen.estimate(model, None, TINY, **asked)
    assert max(played) < 11
    monkeypatch.setattr(predicting, "WALKS", 100)
    whole = streamgen.estimate(model, None, TINY, **asked)
    assert played[-1] == 11
    for one, other in zip(found.passes, whole.passes, strict=True):
        assert one.cycles == pytest.approx(other.cycles, rel=0.002)
        for phase, played_phase in zip(one.phases, other.phases, strict=True):
            assert phase.cycles == pytest.approx(played_phase.cycles, abs=0.01 * other.cycles)
    assert found.first_tokens[4] == pytest.approx(whole.first_tokens[4], rel=0.002)
