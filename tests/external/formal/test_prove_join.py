"""Join: inputs and output move together."""

import pytest
from amaranth import Cat

from sim.formal import Theorem, prove
from sim.formal_laws import fire, obey, promise
from streamgen.gateware.stream.join import Join, JoinParams
from tests.external.formal.seeded import check_found


def theorem(*bits: int) -> Theorem:
    """A token leaves exactly when one of every input is taken, and it is those."""
    join = Join(JoinParams(bits=bits))
    t = Theorem(f"join of {bits} bits", join)
    inputs = {f"i_{k}": getattr(join, f"i_{k}") for k in range(len(bits))}
    obey(t, **inputs)
    promise(t, o=join.o)
    for name, i in inputs.items():
        t.always(f"{name} moves when o does and only then", fire(i) == fire(join.o))
    t.always(
        "a token is what the inputs have side by side",
        ~fire(join.o) | (join.o.payload == Cat(i.payload for i in inputs.values())),
    )
    t.always("o is valid when all inputs are", join.o.valid == Cat(i.valid for i in inputs.values()).all())
    t.reachable("a token moves", fire(join.o))
    return t


@pytest.mark.slow
@pytest.mark.parametrize("bits", [(3,), (2, 2), (1, 2, 4), (1, 1, 1, 1, 1)])
def test_join(bits: tuple[int, ...]) -> None:
    prove(theorem(*bits))


FAULTS = {
    "takes what waits": ("i.ready.eq(self.o.valid & self.o.ready)", "i.ready.eq(self.o.ready)"),
    "sends before all are there": ("i.valid for i in inputs).all()", "i.valid for i in inputs).any()"),
    "takes before it is taken": ("i.ready.eq(self.o.valid & self.o.ready)", "i.ready.eq(self.o.valid)"),
    "wrong side first": ("Cat(i.payload for i in inputs)", "Cat(i.payload for i in inputs[::-1])"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    check_found(lambda: theorem(2, 3), Join.elaborate, *FAULTS[name])
