"""What all tests share: the crossing of stalls that every stream test runs through."""

import pytest

from sim.bench import Stalls

STALLS = {
    "free": None,
    "slow-source": Stalls(seed=11, sources=0.5),
    "slow-sink": Stalls(seed=12, sinks=0.5),
    "both": Stalls(seed=13, sources=0.3, sinks=0.3),
    "heavy": Stalls(seed=14, sources=0.8, sinks=0.9),
}


@pytest.fixture(params=STALLS.values(), ids=STALLS.keys())
def stalls(request: pytest.FixtureRequest) -> Stalls | None:
    """Stalls in x stalls out: none, either, both, nearly always."""
    return request.param
