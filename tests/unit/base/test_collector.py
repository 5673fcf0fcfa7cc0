"""The garbage collector at rest: what a block leaves behind is collected before the next block."""

import gc
import weakref

from streamgen.base.collector import collector_at_rest


class _Node:
    """An object in a cycle."""

    def __init__(self) -> None:
        self.own = self


def test_cycles_of_a_block_end_before_the_next() -> None:
    with collector_at_rest():
        assert not gc.isenabled()
        node = _Node()
        gone = weakref.ref(node)
        del node
        assert gone() is not None
        with collector_at_rest():
            assert gone() is not None  # nothing is collected inside a block
    assert gc.isenabled()
    with collector_at_rest():
        assert gone() is None


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with collector_at_rest():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
