"""Register slice, and the stage that it and the fork are made of."""

import pytest

from sim.formal import Theorem, prove
from sim.formal_laws import Follow, obey
from streamgen.gateware.stream.register_slice import RegisterSlice, RegisterSliceParams, add_skid
from tests.external.formal.seeded import check_found


def theorem(bits: int, stages: int) -> Theorem:
    """Tokens in order, once each, two a stage."""
    block = RegisterSlice(RegisterSliceParams(bits=bits, stages=stages))
    t = Theorem(f"register slice of {stages} stages", block)
    obey(t, i=block.i)
    inside = Follow(t, block.i, block.o, capacity=2 * stages, latency=stages).inside
    t.always("an empty slice takes a token", block.i.ready | (inside != 0))
    t.reachable("the slice is full", inside == 2 * stages)
    return t


def test_register_slice() -> None:
    prove(theorem(bits=3, stages=1))


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "stages"), [(4, 1), (2, 2), (3, 2), (2, 3)])
def test_register_slices(bits: int, stages: int) -> None:
    prove(theorem(bits, stages))


FAULTS = {
    "skid overwritten": (
        "with m.If(~skid_full):\n        m.d.sync += skid.eq",
        "with m.If(1):\n        m.d.sync += skid.eq",
    ),
    "skid forgotten": ("payload.eq(skid)", "payload.eq(i.payload)"),
    "skid sent twice": ("pending.eq(-1), skid_full.eq(0)", "pending.eq(-1)"),
    "valid withdrawn": ("pending.eq(pending & ~ready)", "pending.eq(0)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    check_found(lambda: theorem(bits=2, stages=1), add_skid, *FAULTS[name])
