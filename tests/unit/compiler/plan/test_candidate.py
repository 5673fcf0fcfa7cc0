"""What a plan says about the next larger value of a factor, for each reason why it was not chosen."""

from typing import Any, cast

import pytest

from streamgen.compiler.plan.candidate import THRIFT, Candidate, why_not


def _candidate(cycles: float, doublings: float) -> Candidate:
    return Candidate(cycles * (1 + THRIFT * doublings), cycles, cast("Any", None), cast("Any", None))


@pytest.mark.parametrize(
    ("cycles", "doublings", "short", "text"),
    [
        (1e6, 9, "", "16 would save nothing"),
        (999_600, 9, "", "16 would save nothing"),
        (1_012_000, 9, "", "16 would take 1.2% longer"),
        (999_200, 10, "", "16 would save 0.08%, less than the 0.10% that more hardware must save"),
        (
            996_000,
            9,
            "needs 288 of 240 URAM at the memory (SLR0)",
            "16 would save 0.4%, but with a context of 32,768 it needs 288 of 240 URAM at the memory (SLR0)",
        ),
        (996_000, 9, "", "16 would save 0.4%, but the complete design did not fit the card"),
    ],
)
def test_why_a_factor_is_not_larger(
    monkeypatch: pytest.MonkeyPatch, cycles: float, doublings: float, short: str, text: str
) -> None:
    monkeypatch.setattr(Candidate, "factors", {"lanes": 16})
    larger, chosen = _candidate(cycles, doublings), _candidate(1e6, 8)
    assert why_not(larger, chosen, "lanes", 32_768, short) == text
