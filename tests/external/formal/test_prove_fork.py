"""Fanout: one token followed to every branch."""

import pytest
from amaranth import Cat

from sim.formal import Theorem, prove
from sim.formal_laws import Follow, fire, obey
from streamgen.gateware.stream.fork import Fanout, FanoutParams
from streamgen.gateware.stream.register_slice import add_skid
from tests.external.formal.seeded import check_found


def theorem(bits: int, branches: int, fan_out: int = 8) -> Theorem:
    """Every token on every branch, in order, once each."""
    params = FanoutParams(bits=bits, branches=branches, fan_out=fan_out)
    fork = Fanout(params)
    t = Theorem(f"fork into {branches}, fan-out {fan_out}", fork)
    obey(t, i=fork.i)
    branch = [getattr(fork, f"o_{k}") for k in range(branches)]
    for k, o in enumerate(branch):
        Follow(
            t,
            fork.i,
            o,
            capacity=2 * params.levels,
            latency=2 * params.levels,
            name=f"o_{k}",
            given=Cat(other.ready for other in branch if other is not o).all(),
        )
    t.reachable("one branch runs ahead", fire(branch[0]) & ~fire(branch[-1]))
    return t


def test_fork() -> None:
    prove(theorem(bits=2, branches=2))


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "branches", "fan_out"), [(4, 2, 8), (2, 3, 8), (1, 3, 2), (1, 4, 2)])
def test_forks(bits: int, branches: int, fan_out: int) -> None:
    prove(theorem(bits, branches, fan_out))


FAULTS = {
    "waits for one branch only": (
        "advance.eq((pending & ~ready) == 0)",
        "advance.eq((pending & ~ready)[0] == 0)",
    ),
    "branches take it again": ("pending.eq(pending & ~ready)", "pending.eq(pending)"),
    "a branch is left out": ("pending.eq(i.valid.replicate(len(outputs)))", "pending.eq(i.valid)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    check_found(lambda: theorem(bits=1, branches=2), add_skid, *FAULTS[name])
