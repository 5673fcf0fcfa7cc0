"""FIFO in registers, LUT memory, block and ultra RAM."""

import pytest

from sim.formal import Theorem, prove
from sim.formal_laws import Follow, obey
from streamgen.fifo.queue import Queue, QueueParams
from tests.external.formal.seeded import check_found


def theorem(**choices: object) -> Theorem:
    """Tokens in order, once each, `depth` of them at most and at least, `level` counted right."""
    params = QueueParams(**choices)
    queue = Queue(params)
    t = Theorem(f"queue {choices}", queue)
    obey(t, i=queue.i)
    inside = Follow(t, queue.i, queue.o, capacity=params.depth, latency=params.latency).inside
    t.always(
        "there is room as long as fewer than `depth` tokens are inside",
        queue.i.ready | (inside == params.depth),
    )
    t.always("`level` is the number of tokens inside", queue.level == inside)
    t.reachable("the queue is full", inside == params.depth)
    return t


@pytest.mark.parametrize(
    ("memory", "depth", "bits"), [("register", 1, 3), ("register", 2, 3), ("lutram", 2, 2)]
)
def test_queue(memory: str, depth: int, bits: int) -> None:
    prove(theorem(memory=memory, depth=depth, bits=bits))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("memory", "depth", "bits"),
    [
        *(("lutram", depth, 2) for depth in (3, 4, 5, 7, 8)),
        ("lutram", 4, 4),
        ("bram", 8, 2),
        ("bram", 9, 1),
        ("uram", 8, 2),
    ],
)
def test_queue_memories(memory: str, depth: int, bits: int) -> None:
    assert prove(theorem(memory=memory, depth=depth, bits=bits)).clauses


FAULTS = {
    "one too many": (
        "lutram",
        3,
        "full.eq(self.level == params.depth - 1)",
        "full.eq(self.level == params.depth)",
    ),
    "one too few": (
        "lutram",
        4,
        "full.eq(self.level == params.depth - 1)",
        "full.eq(self.level == params.depth - 2)",
    ),
    "push when full": ("lutram", 2, "push.eq(self.i.valid & ~full)", "push.eq(self.i.valid)"),
    "empty is overlooked": ("lutram", 3, "occupied.eq(self.level != 1)", "occupied.eq(self.level != 0)"),
    "word fetched over": ("bram", 8, "read.en.eq(~fetched | shift)", "read.en.eq(1)"),
    "output overwritten": ("bram", 8, "shift.eq(~self.o.valid | self.o.ready)", "shift.eq(1)"),
    "fetch forgets": ("uram", 8, "occupied.eq(stored != 1)", "occupied.eq(0)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    memory, depth, old, new = FAULTS[name]
    check_found(lambda: theorem(memory=memory, depth=depth, bits=2), Queue._build_memory, old, new)


@pytest.mark.slow
def test_fault_in_the_pointers() -> None:
    check_found(
        lambda: theorem(memory="lutram", depth=5, bits=2),
        Queue._advance,
        "last = self._params.depth - 1",
        "last = self._params.depth",
    )
