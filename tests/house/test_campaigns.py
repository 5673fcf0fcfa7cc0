"""tests.shared.campaigns: what the cases of a crossing share."""

import pytest

from tests.shared.campaigns import shares


@pytest.mark.parametrize("cases", range(1, 9))
def test_all_cases_together_have_all_values(cases: int) -> None:
    found = shares(5, cases)
    assert len(found) == cases and len({len(share) for share in found}) == 1
    assert set.union(*found) == set(range(5))
    assert cases < 5 or all(len(share) == 1 for share in found)
