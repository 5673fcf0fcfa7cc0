"""Write client: legal bursts without gap or overlap, `last` on their last beats, `done` after all responses.

What enters its three FIFOs is looked at; that a FIFO keeps order and loses nothing is the queue's theorem.
"""

from types import SimpleNamespace

import pytest
from amaranth import Const, Mux, Signal, Value
from amaranth.lib import data

from sim.formal import Theorem, prove
from sim.formal_laws import fire, obey
from streamgen.platform.axi import BEAT_BYTES, Burst, WriteBeat
from streamgen.platform.write_client import WriteClient, WriteClientParams
from tests.external.formal.bursts import Bursts
from tests.external.formal.seeded import check_found


def theorem(depth: int, burst: int) -> Theorem:
    """Any commands of any length, any source, any memory that answers what it was granted."""
    client = WriteClient(WriteClientParams(depth=depth, burst=burst))
    t = Theorem(f"write client of {depth} beats, bursts of {burst}", client)
    m, command, memory = t.m, client.i_command, client.memory
    obey(t, i_command=command, i=client.i)
    parts = t.inside.submodules
    beats, requests, finals = parts.beats, parts.bursts, parts.finals
    for name, queue in (("beats", beats), ("bursts", requests), ("finals", finals)):
        full = queue._params.depth
        t.always(f"what goes to {name} has room", ~queue.i.valid | queue.i.ready)
        t.always(f"{name} is ready unless it is full", queue.i.ready == (queue.level != full))
        t.always(f"{name} offers what it has", queue.o.valid == (queue.level != 0))
        t.always(f"{name} holds no more than it can", queue.level <= full)
    request = SimpleNamespace(
        valid=requests.i.valid, ready=Const(1), payload=data.View(Burst, requests.i.payload)
    )
    beat = data.View(WriteBeat, beats.i.payload)
    bursts = Bursts(t, command, request, burst)

    moves = fire(client.i)
    gathered = Signal(32, name="since_last")  # beats since the last one of a burst
    with m.If(moves):
        m.d.sync += gathered.eq(Mux(beat.last, 0, gathered + 1))
    t.always("each beat taken is stored, and nothing else", beats.i.valid == moves)
    t.always("beats are as they came", ~moves | (beat.data == client.i.payload))
    t.always("a beat is taken for a command only", ~moves | (bursts.left > gathered))
    t.always("the last beat of a burst completes it", requests.i.valid == (moves & beat.last))
    t.always(
        "a burst has the beats since the one before", ~request.valid | (request.payload.length == gathered)
    )
    t.always("each burst expects a response", finals.i.valid == requests.i.valid)
    t.always(
        "the last burst of a command is marked",
        ~finals.i.valid | (finals.i.payload == (bursts.left_after == 0)),
    )

    # the channel's side
    for name, pins, queue in (("aw", memory.aw, requests), ("w", memory.w, beats)):
        same = (pins.valid == queue.o.valid) & (pins.ready == queue.o.ready)
        t.always(f"{name} is what its FIFO offers", same & (Value.cast(pins.payload) == queue.o.payload))
    granted = Signal(range(64), name="granted")  # bursts without response
    m.d.sync += granted.eq(granted + fire(memory.aw) - memory.b)
    t.assume(~memory.b | (granted != 0))
    t.always("every burst has a response to come", finals.level == requests.level + granted)
    answered = Signal(name="answered")
    m.d.sync += answered.eq(memory.b & finals.o.payload)
    t.always("`done` follows the response of a last burst", client.done == answered)

    # what the registers mean
    active, left, final, place = map(t.state, ("active", "left", "final", "place"))
    inside = (bursts.address // BEAT_BYTES) % burst  # a block of `burst` beats
    begin = t.state("begin") * BEAT_BYTES
    t.always("`begin` is that of the burst that gathers", ~active | (begin == bursts.address))
    t.always("bursts begin at beats", ~active | (bursts.address % BEAT_BYTES == 0))
    t.always("`left` is what the source owes", ~active | ((left == bursts.left - gathered) & (left != 0)))
    t.always("`gathered` is the beats since the last burst", ~active | (t.state("gathered") == gathered))
    t.always("bursts stay in a block", ~active | ((gathered < burst) & (place == inside + gathered)))
    t.always("`final` marks the last beat", ~active | (final == (left == 1)))
    t.always("nothing is owed without a command", active | ((bursts.left == 0) & (gathered == 0)))
    t.reachable(
        "a beat of a second burst is taken", moves & (bursts.left != 0) & (inside == 0) & (gathered == 0)
    )
    t.reachable("a command is done", client.done)
    return t


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "burst"), [(2, 1), (4, 2), (6, 4), (64, 64)])
def test_write_client(depth: int, burst: int) -> None:
    prove(theorem(depth, burst), steps=2)


FAULTS = {
    "the page is forgotten": ("place == burst - 1", "gathered == burst - 1"),
    "one beat too many": ("request.length.eq(gathered)", "request.length.eq(gathered + 1)"),
    "a beat is written over": ("begin.eq(begin + gathered + 1)", "begin.eq(begin + gathered)"),
    "last only at the end": ("entry.last.eq(ends)", "entry.last.eq(final)"),
    "done too early": ("finals.i.payload.eq(final)", "finals.i.payload.eq(1)"),
    "bursts overrun": ("beats.i.ready & bursts.i.ready & finals.i.ready", "beats.i.ready & finals.i.ready"),
    "beats overrun": ("beats.i.ready & bursts.i.ready & finals.i.ready", "bursts.i.ready & finals.i.ready"),
    "responses not counted": ("self.done.eq(memory.b & finals", "self.done.eq(finals"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    check_found(lambda: theorem(depth=4, burst=2), WriteClient.elaborate, *FAULTS[name], steps=2)
