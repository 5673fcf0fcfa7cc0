"""streamgen.gateware.stream.countdown: exactly `count` steps, next count without a gap."""

import pytest
from amaranth.sim import Simulator

from streamgen.gateware.stream import CountdownParams


def play(counts, steps):
    """Cycles (active, last while active, count taken) when `steps` says in which cycles `step` is high."""
    countdown = CountdownParams(bits=4).build()
    counts = list(counts)
    seen = []

    async def testbench(context):
        for step in steps:
            context.set(countdown.step, step)
            context.set(countdown.i_count.valid, bool(counts))
            context.set(countdown.i_count.payload, counts[0] if counts else 0)
            active = context.get(countdown.active)
            taken = context.get(countdown.taken)
            seen.append((active, active & context.get(countdown.last), counts.pop(0) if taken else None))
            await context.tick()

    simulator = Simulator(countdown)
    simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    simulator.run()
    return seen


def test_counts_follow_without_a_gap():
    assert play([2, 1, 3], [1] * 8) == [
        (0, 0, 2), (1, 0, None), (1, 1, 1), (1, 1, 3), (1, 0, None), (1, 0, None), (1, 1, None), (0, 0, None),
    ]  # fmt: skip


def test_steps_that_pause_and_counts_of_zero():
    assert play([0, 2, 0, 1], [0, 0, 0, 1, 0, 1, 1, 1, 1]) == [
        (0, 0, 0), (0, 0, 2), (1, 0, None), (1, 0, None), (1, 1, None), (1, 1, 0), (0, 0, 1), (1, 1, None),
        (0, 0, None),
    ]  # fmt: skip


def test_largest_count():
    seen = play([15], [1] * 17)
    assert [active for active, *_ in seen] == [0] + [1] * 15 + [0]
    assert [last for _, last, _ in seen].index(1) == 15


@pytest.mark.parametrize("bits", [0, 33])
def test_bad_params(bits):
    with pytest.raises(ValueError) as error:
        CountdownParams(bits=bits)
    assert str(error.value) == f"bits of a countdown must be 1 to 32, not {bits}"
