"""Events in groups, against what sorting says."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamgen.fifo.groups import StreamEnd, grouped

RISING = st.lists(st.integers(0, 30), max_size=12, unique=True).map(sorted)
NODES = st.lists(st.lists(RISING, max_size=4), min_size=1, max_size=5)


@given(NODES)
def test_events_stand_in_the_order_of_their_cycles(nodes: list[list[list[int]]]) -> None:
    """Node by node, cycle by cycle, side by side; each event knows its token, each token its group."""
    sides: list[list[StreamEnd]] = []
    expected: list[tuple[int, int, int, int]] = []  # node, cycle, code, token
    count = 0
    for n, several in enumerate(nodes):
        sides.append([])
        for cycles in several:
            own = np.array(cycles, np.int64)
            group = np.full(len(own), -1, np.int32)
            sides[-1].append(StreamEnd(own, 7 * own, count, 100 * count, group))
            expected += [(n, cycle, count, 100 * count + k) for k, cycle in enumerate(cycles)]
            count += 1
    expected.sort()
    found = grouped(sides)
    sizes = np.diff(found.first)
    of_group = np.repeat(np.arange(len(sizes)), sizes)
    of_node = np.repeat(np.arange(len(nodes)), np.diff(found.node))
    events = np.stack([of_node[of_group], found.cycle[of_group], found.event, found.token], 1)
    assert [tuple(event) for event in events.tolist()] == expected
    assert len({(n, cycle) for n, cycle, *_ in expected}) == len(sizes)
    assert (found.clock == 7 * found.cycle).all()
    for side in (side for node in sides for side in node):
        assert side.group is not None
        assert (found.cycle[side.group] == side.cycles).all()
