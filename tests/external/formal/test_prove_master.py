"""Channel master: bursts of the clients reach the pins unchanged, once each; data and responses find back.

The FIFO that keeps the order of writes is looked at from outside: what goes in is proved here to be one
client; that what comes out is what went in is the queue's theorem, assumed here.
Of data two bits are compared, the lowest and the highest; the others go the same way.
"""

from typing import Any

import pytest
from amaranth import Cat, Const, Mux, Signal, Value

from sim.formal import Theorem, prove
from sim.formal_laws import fire, obey
from streamgen.artifact.packing import ADDRESS_BITS
from streamgen.platform.axi import BEAT_BITS, ID_BITS
from streamgen.platform.master import ChannelMaster, ChannelMasterParams
from tests.external.formal.seeded import check_found


def _clients(master: ChannelMaster, kind: str) -> list[Any]:
    count = {"read": master._params.readers, "write": master._params.writers}[kind]
    return [getattr(master, f"{kind}_{k}") for k in range(count)]


def _ends(payload: Any) -> Value:
    """An address with its length as it is; of data the lowest, the highest bit, and `last`."""
    value = Value.cast(payload)
    return value if len(value) < BEAT_BITS else Cat(value[0], value[BEAT_BITS - 1 :])


def _passes(
    t: Theorem, name: str, sources: list[Any], valid: Any, ready: Any, number: Any, *pins: Any
) -> None:
    """What is taken from one of the sources is at the pins in the next cycle and stays until it is taken."""
    taken = Cat(fire(source) for source in sources)
    sent, old = Signal(name=f"{name}_sent"), Signal(name=f"_{name}_old")
    shown = Cat(*pins)
    before, who = (
        Signal(len(shown), name=f"_{name}_sent_payload"),
        Signal(ID_BITS, name=f"{name}_sent_by"),
    )
    t.m.d.sync += [sent.eq(taken.any()), old.eq(valid & ~ready)]
    for k, source in enumerate(sources):
        with t.m.If(fire(source)):
            t.m.d.sync += [before.eq(_ends(source.payload)), who.eq(k)]
    t.always(f"one client at a time is taken to {name}", (taken & (taken - 1)) == 0)
    t.always(f"{name} shows what was taken, or what waits", valid == (sent | old))
    t.always(f"{name} is what was taken", ~sent | (shown == before))
    if number is not None:
        t.always(f"{name} has the number of the client", ~sent | (number == who))
    last = Signal(len(shown), name=f"_{name}_last")
    t.m.d.sync += last.eq(shown)
    t.always(f"what is valid on {name} stays, unchanged, until it is taken", ~old | (valid & (shown == last)))
    t.reachable(f"{name} moves", valid & ready & (who == len(sources) - 1))


def _returns(t: Theorem, name: str, valid: Any, number: Any, arrives: list[Any]) -> None:
    """What comes from memory is at the client of its number in the next cycle, and at no other."""
    came, who = Signal(name=f"{name}_came"), Signal(ID_BITS, name=f"{name}_for")
    t.m.d.sync += [came.eq(valid), who.eq(number)]
    for k, arrived in enumerate(arrives):
        t.always(f"{name} reaches client {k} when it is for it", arrived == (came & (who == k)))


def theorem(readers: int, writers: int) -> Theorem:
    """Any clients that keep the law, any memory that answers what it was asked."""
    master = ChannelMaster(ChannelMasterParams(readers=readers, writers=writers))
    t = Theorem(f"channel master of {readers} readers, {writers} writers", master)
    m, pins = t.m, master.m_axi
    reads, writes = _clients(master, "read"), _clients(master, "write")
    for k, client in enumerate(reads):
        obey(t, **{f"read_{k}_ar": client.ar})
    for k, client in enumerate(writes):
        obey(t, **{f"write_{k}_aw": client.aw, f"write_{k}_w": client.w})
    halted = Signal(name="halted")
    m.d.sync += halted.eq(master.halt)
    under_way = []
    if reads:
        shown = pins.araddr[:ADDRESS_BITS], pins.arlen[:6]
        _passes(t, "ar", [c.ar for c in reads], pins.arvalid, pins.arready, pins.arid, *shown)
        t.always("a length has 6 bits", ~pins.arvalid | (pins.arlen[6:] == 0))
        t.always("an address has no more bits than a card", ~pins.arvalid | (pins.araddr[ADDRESS_BITS:] == 0))
        _returns(t, "r", pins.rvalid, pins.rid, [c.r.valid for c in reads])
        data = Signal.like(_ends(pins.rdata), name="r_data")
        m.d.sync += data.eq(_ends(pins.rdata))
        t.always("r is as it came", Cat(~c.r.valid | (_ends(c.r.payload) == data) for c in reads).all())
        under_way.append(
            _count(t, "reads", Cat(fire(c.ar) for c in reads).any(), pins.rvalid, pins.rvalid & pins.rlast)
        )
        t.always("r is always ready", pins.rready)
        t.always("no burst is granted under halt", ~master.halt | ~Cat(fire(c.ar) for c in reads).any())
    if writes:
        _passes(
            t,
            "aw",
            [c.aw for c in writes],
            pins.awvalid,
            pins.awready,
            pins.awid,
            pins.awaddr[:ADDRESS_BITS],
            pins.awlen[:6],
        )
        _passes(
            t, "w", [c.w for c in writes], pins.wvalid, pins.wready, None, _ends(Cat(pins.wdata, pins.wlast))
        )
        _returns(t, "b", pins.bvalid, pins.bid, [c.b for c in writes])
        under_way.append(_count(t, "writes", Cat(fire(c.aw) for c in writes).any(), pins.bvalid, pins.bvalid))
        order = t.inside.submodules.order
        turn = Mux(order.o.valid, Const(1) << order.o.payload, 0)
        granted = Cat(fire(c.aw) for c in writes)
        t.assume(~order.o.valid | (order.o.payload < len(writes)))
        done = Cat(fire(c.w) & c.w.payload.last for c in writes).any()
        t.always("every granted burst is put in line", order.i.valid == granted.any())
        t.always("it is put in line by its client", ~order.i.valid | (Const(1) << order.i.payload == granted))
        t.always("one client is put in line", (granted & (granted - 1)) == 0)
        t.always("the line has room", ~order.i.valid | order.i.ready)
        t.always("only the first in line sends data", (Cat(c.w.ready for c in writes) & ~turn) == 0)
        t.always("the line moves on after the last beat", fire(order.o) == done)
    quiet = ~Cat(under_way).any() & ~Cat([c.r.valid for c in reads], [c.b for c in writes]).any()
    t.always("when idle is high under halt nothing is under way", ~(master.idle & halted) | quiet)
    t.reachable("idle falls and rises again", master.idle & halted)
    return t


def _count(t: Theorem, name: str, starts: Any, answers: Any, ends: Any) -> Signal:
    """Bursts under way; memory answers none that did not start, and there are never 2^16 of them."""
    count = Signal(16, name=f"{name}_count")
    t.m.d.sync += count.eq(count + starts - ends)
    t.assume(~answers | (count != 0))
    t.assume(~count.all())
    t.always(f"{name} under way are counted", t.state(f"{name}_under_way") == count)
    return count


def fairness(readers: int) -> Theorem:
    """A client waits for each other client once at most."""
    master = ChannelMaster(ChannelMasterParams(readers=readers, writers=0))
    t = Theorem(f"round robin of {readers}", master)
    reads = _clients(master, "read")
    for k, client in enumerate(reads):
        obey(t, **{f"read_{k}_ar": client.ar})
        others = Cat(fire(other.ar) for other in reads if other is not client).any()
        passed = Signal(range(readers + 1), name=f"passed_{k}")
        with t.m.If(~client.ar.valid | fire(client.ar)):
            t.m.d.sync += passed.eq(0)
        with t.m.Elif(others):
            t.m.d.sync += passed.eq(passed + 1)
        t.always(f"client {k} waits for {readers - 1} others at most", passed < readers)
        t.reachable(f"client {k} waits for all others", passed == readers - 1)
    return t


@pytest.mark.slow
@pytest.mark.parametrize(("readers", "writers"), [(1, 0), (0, 1), (2, 2), (3, 1)])
def test_master(readers: int, writers: int) -> None:
    prove(theorem(readers, writers), steps=2)


@pytest.mark.slow
@pytest.mark.parametrize("readers", [2, 3, 4])
def test_round_robin(readers: int) -> None:
    prove(fairness(readers))


FAULTS = {
    "address changed under way": (
        ChannelMaster._grant,
        '~getattr(pins, f"{prefix}valid") | getattr',
        'getattr(pins, f"{prefix}valid") | getattr',
    ),
    "grants under halt": (ChannelMaster._reads, "~self.halt", "1"),
    "data to all clients": (ChannelMaster._reads, " & _one_hot(pins.rid, len(ports))", ""),
    "data of another burst": (
        ChannelMaster._writes,
        "_one_hot(order.o.payload, len(ports)) & order",
        "_one_hot(order.o.payload, len(ports))[::-1] & order",
    ),
    "data changed under way": (
        ChannelMaster._writes,
        "accept.eq(~pins.wvalid | pins.wready)",
        "accept.eq(1)",
    ),
    "line moves on at every beat": (
        ChannelMaster._writes,
        "offered & accept & beat.last",
        "offered & accept",
    ),
    "last beat not marked": (ChannelMaster._writes, "pins.wlast.eq(beat.last)", "pins.wlast.eq(0)"),
    "responses not counted": (ChannelMaster._writes, "granted, pins.bvalid)", "granted, 0)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    check_found(lambda: theorem(2, 2), *FAULTS[name], steps=2)


@pytest.mark.slow
def test_fault_in_the_round_robin() -> None:
    check_found(lambda: fairness(3), ChannelMaster._grant, "later.eq(valid & ~below)", "later.eq(valid)")
