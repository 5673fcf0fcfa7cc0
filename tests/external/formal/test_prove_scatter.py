"""Width adapter, wide to narrow: the tokens of every word, the lowest bits first."""

import pytest
from amaranth import Const, Signal

from sim.formal import Theorem, prove
from sim.formal_laws import Inside, Line, fire, obey, promise, transfer
from streamgen.gateware.stream.scatter import Scatter, ScatterParams
from tests.external.formal.seeded import check_found


def theorem(bits: int, slots: int, token_bits: int = 0) -> Theorem:
    """A word followed until its last token that counts has left."""
    scatter = Scatter(ScatterParams(bits=bits, slots=slots, token_bits=token_bits))
    t = Theorem(f"scatter to {slots} x {bits} bits, {token_bits} count bits", scatter)
    i, o = scatter.i, scatter.o
    obey(t, i=i)
    promise(t, o=o)
    left = transfer(t, scatter.i_descriptor, fire(o)) if token_bits else Const(2)
    place = Signal(range(slots), name="place")  # of the next token in its word
    ends = Signal(name="ends")
    t.m.d.comb += ends.eq(fire(o) & ((place == slots - 1) | (left == 1)))
    with t.m.If(fire(o)):
        t.m.d.sync += place.eq(place + 1)
    with t.m.If(ends):
        t.m.d.sync += place.eq(0)
    words = Inside(t, "words", fire(i), ends, 1).count
    t.always("a token that is there and counts is offered", o.valid == ((words != 0) & (left != 0)))
    t.always("a word is taken when the one before has ended", i.ready == ((words == 0) | ends))

    word = Line(t, "word", fire(i) & t.free("follow"), words - ends, ends, 2)
    value = Signal.like(i.payload, name="value")
    with t.m.If(word.start):
        t.m.d.sync += value.eq(i.payload)
    t.always(
        "each token is the next part of its word",
        ~(fire(o) & word.taken & ~word.gone & (word.ahead == 0))
        | (o.payload == value.word_select(place, bits)),
    )
    t.reachable("a followed word ends", word.gone)
    if token_bits and slots > 1:
        t.reachable("the rest of a word is dropped", ends & (place == 0))
    return t


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "slots"), [(2, 1), (2, 2), (2, 3), (1, 4)])
@pytest.mark.parametrize("token_bits", [0, 2, 4])
def test_scatter(bits: int, slots: int, token_bits: int) -> None:
    prove(theorem(bits, slots, token_bits))


FAULTS = {
    "rest of a word kept": ("ends = slot[-1] | last", "ends = slot[-1]"),
    "word taken too early": ("~full | (move & ends)", "~full | ends"),
    "moves without ready": ("move.eq(self.o.valid & self.o.ready)", "move.eq(self.o.valid)"),
    "shifted by a bit": ("word[params.bits :]", "word[1:]"),
    "token before its descriptor": ("full & active", "full"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    check_found(lambda: theorem(bits=2, slots=2, token_bits=2), Scatter.elaborate, *FAULTS[name])
