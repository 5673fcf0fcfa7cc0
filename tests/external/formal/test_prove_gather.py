"""Width adapter, narrow to wide: every narrow token in its slot of its word."""

from typing import Literal

import pytest
from amaranth import Const, Signal, Value

from sim.formal import Theorem, prove
from sim.formal_laws import Inside, Line, fire, obey, promise, transfer
from streamgen.gateware.stream.countdown import Countdown
from streamgen.gateware.stream.gather import Gather, GatherParams
from tests.external.formal.seeded import check_found


def theorem(bits: int, slots: int, token_bits: int = 0, partial: Literal["emit", "drop"] = "emit") -> Theorem:
    """A token followed to its slot; what is above the last token of a transfer is zero."""
    gather = Gather(GatherParams(bits=bits, slots=slots, token_bits=token_bits, partial=partial))
    t = Theorem(f"gather of {slots} x {bits} bits, {token_bits} count bits, {partial}", gather)
    i, o = gather.i, gather.o
    obey(t, i=i)
    promise(t, o=o)
    left = transfer(t, gather.i_descriptor, fire(i)) if token_bits else Const(2)
    place = Signal(range(slots), name="place")  # of the next token in its word
    whole, ends, completes = (Signal(name=name) for name in ("whole", "ends", "completes"))
    t.m.d.comb += [
        whole.eq(place == slots - 1),
        ends.eq(fire(i) & (whole | (left == 1))),
        completes.eq(ends & (whole if partial == "drop" else 1)),
    ]
    with t.m.If(fire(i)):
        t.m.d.sync += place.eq(place + 1)
    with t.m.If(ends):
        t.m.d.sync += place.eq(0)
    words = Inside(t, "words", completes, fire(o), 1).count
    t.always("a whole word is offered", o.valid == (words != 0))
    t.always("a token is taken while a word is free", i.ready | (left == 0) | ((words != 0) & ~o.ready))

    follow = t.free("follow")
    token = Line(t, "token", fire(i) & follow, words - fire(o), fire(o), 2)
    value, slot = Signal(bits, name="value"), Signal(range(slots), name="slot")
    with t.m.If(token.start):
        t.m.d.sync += [value.eq(i.payload), slot.eq(place)]
    t.always(
        "each token is in its slot of its word",
        ~token.leaves | (Value.cast(o.payload).word_select(slot, bits) == value),
    )
    if partial == "drop":  # the followed token may be in a word that is dropped: follow another
        waiting = Signal(name="waiting")  # its word is not yet whole
        with t.m.If(ends):
            t.m.d.sync += waiting.eq(0)
        with t.m.Elif(token.start):
            t.m.d.sync += waiting.eq(1)
        with t.m.If(ends & ~whole & (waiting | token.start)):
            t.m.d.sync += token.taken.eq(0)
    word = Line(t, "word", completes & follow, words - fire(o), fire(o), 2)
    filled = Signal(range(slots + 1), name="filled")
    with t.m.If(word.start):
        t.m.d.sync += filled.eq(place + 1)
    for k in range(slots):
        above = Value.cast(o.payload).word_select(k, bits)
        t.always(f"slot {k} is zero when no token is in it", ~word.leaves | (filled > k) | (above == 0))
    t.reachable("a followed token leaves", token.gone & word.gone)
    if token_bits:
        t.reachable("a word is left incomplete", ends & ~whole)
    return t


def test_gather() -> None:
    prove(theorem(bits=2, slots=2, token_bits=2))


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "slots"), [(2, 1), (2, 2), (2, 3), (1, 4)])
def test_gather_without_descriptor(bits: int, slots: int) -> None:
    prove(theorem(bits, slots))


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "slots"), [(2, 2), (2, 3), (1, 4)])
@pytest.mark.parametrize("partial", ["emit", "drop"])
def test_gather_of_transfers(bits: int, slots: int, partial: Literal["emit", "drop"]) -> None:
    prove(theorem(bits, slots, 3, partial))


FAULTS = {
    "words overwritten": ("active & (~full | self.o.ready)", "active"),
    "word lost": ("with m.If(~full | self.o.ready)", "with m.If(1)"),
    "slots in the wrong order": ("slot.rotate_left(1)", "slot.rotate_right(1)"),
    "old bits above": ("with m.If(slot[k] | slot[0])", "with m.If(slot[k])"),
    "transfers run together": ("m.d.sync += slot.eq(1)", "m.d.sync += slot.eq(slot.rotate_left(1))"),
    "last word forgotten": ("complete = ends", "complete = slot[-1]"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    check_found(lambda: theorem(bits=1, slots=3, token_bits=3), Gather.elaborate, *FAULTS[name])


@pytest.mark.slow
def test_fault_in_the_count() -> None:
    check_found(
        lambda: theorem(bits=1, slots=2, token_bits=2),
        Countdown.elaborate,
        "self.last.eq(count.payload == 1)",
        "self.last.eq(0)",
    )
