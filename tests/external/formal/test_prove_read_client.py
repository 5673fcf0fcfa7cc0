"""Read client: legal bursts without gap or overlap, never more than its FIFO has room for or memory may owe.

Memory answers what it was asked, when it likes. Two bits of every beat are followed, the lowest and the
highest; the others go the same way.
"""

import pytest
from amaranth import Const, Mux, Signal

from sim.formal import Theorem, prove
from sim.formal_laws import Follow, Inside, fire, obey, promise
from streamgen.platform.axi import BEAT_BYTES
from streamgen.platform.read_client import ReadClient, ReadClientParams
from tests.external.formal.bursts import Bursts, ends_of
from tests.external.formal.seeded import check_found


def theorem(depth: int, burst: int, under_way: int | None = None, follow: bool = False) -> Theorem:
    """Any commands of any length, any memory; follow: data too."""
    client = ReadClient(ReadClientParams(depth=depth, burst=burst, under_way=under_way))
    t = Theorem(f"read client of {depth} beats, bursts of {burst}", client)
    command, ar, r, o = client.i_command, client.memory.ar, client.memory.r, client.o
    obey(t, i_command=command)
    promise(t, ar=ar)
    bursts = Bursts(t, command, ar, burst)
    promised = Inside(t, "promised", bursts.beats, fire(o), depth).count

    waiting = Signal(range(depth + 65), name="waiting")  # beats that memory owes
    t.m.d.sync += waiting.eq(waiting + Mux(fire(ar), ar.payload.length + 1, 0) - r.valid)
    t.assume(~r.valid | (waiting != 0))

    # what the registers mean
    at, left, beats, room = map(t.state, ("at", "left", "beats", "room"))
    idle, issue = command.ready, t.during("ISSUE")
    limit = Signal(range(burst + 1), name="_limit")
    t.m.d.comb += limit.eq(burst - at % burst)
    t.always("`at` is where the next burst begins", idle | (at * BEAT_BYTES == bursts.address_after))
    t.always("`left` is what the next bursts ask for", idle | ((left == bursts.left_after) & (left != 0)))
    t.always("an idle client owes no beats", ~idle | (bursts.left_after == 0))
    t.always(
        "a burst goes to the end of its block, or of the command",
        ~issue | (beats == Mux(left < limit, left, limit)),
    )
    t.always("`room` is what is not promised", room == depth - promised - bursts.beats)
    queue = t.inside.submodules.queue
    stored = queue.level
    t.always("the FIFO is ready unless it is full", queue.i.ready == (stored != depth))
    t.always("the FIFO offers a beat unless it is empty", queue.o.valid == (stored != 0))
    t.always(
        "what is promised is asked for, under way or stored",
        promised + bursts.beats == Mux(ar.valid, ar.payload.length + 1, 0) + waiting + stored,
    )
    if under_way is not None:
        asked = waiting + Mux(ar.valid, ar.payload.length + 1, 0)
        t.always("`owed` is asked for and not there", t.state("owed") == asked)
        t.always("memory owes no more than it may", asked <= under_way)
    t.always("a beat from memory has room", ~r.valid | queue.i.ready)
    latency = client._params.queue.latency
    if follow:
        Follow(t, ends_of(r, ready=Const(1)), ends_of(o, ready=o.ready), capacity=depth, latency=latency)
    several = Signal(name="_several")
    with t.m.If(fire(command)):
        t.m.d.sync += several.eq(0)
    with t.m.Elif(bursts.fresh & (bursts.left_after != 0)):
        t.m.d.sync += several.eq(1)
    t.reachable("a command of several bursts ends", several & (bursts.left_after == 0))
    t.reachable("the FIFO is promised to the last beat", promised == depth)
    return t


@pytest.mark.slow
@pytest.mark.parametrize(
    ("depth", "burst", "under_way"), [(4, 1, None), (6, 4, None), (64, 64, None), (16, 4, 6)]
)
def test_bursts(depth: int, burst: int, under_way: int | None) -> None:
    prove(theorem(depth, burst, under_way), steps=1)


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "burst"), [(2, 1), (4, 2)])
def test_data(depth: int, burst: int) -> None:
    prove(theorem(depth, burst, follow=True))


FAULTS = {
    "room is not asked for": ("(room >= beats)", "1"),
    "room for one less is enough": ("(room >= beats)", "(room + 1 >= beats)"),
    "memory owes what it likes": ("& few)", ")"),
    "room given back too early": ("pop = self.o.valid & self.o.ready", "pop = self.o.valid"),
    "the page is forgotten": ("limit.eq(burst - page)", "limit.eq(burst)"),
    "a beat is left out": (
        "at.eq(at + beats)",
        "at.eq(at + beats + 1)",
    ),
    "one beat too many": ("ar.payload.length.eq(beats - 1)", "ar.payload.length.eq(beats)"),
    "address changed under way": ("(~ar.valid | ar.ready) & (room", "(room"),
    "the last burst is forgotten": ("with m.If(left == beats)", "with m.If(left <= 2 * beats)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    check_found(lambda: theorem(depth=4, burst=2, under_way=3), ReadClient.elaborate, *FAULTS[name], steps=1)
