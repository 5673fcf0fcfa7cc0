"""What memory clients promise about their bursts."""

from types import SimpleNamespace
from typing import Any

from amaranth import Cat, Mux, Signal, Value

from sim.formal import Theorem
from sim.formal_laws import fire
from streamgen.artifact.packing import ADDRESS_BITS, TRANSFER_BITS
from streamgen.platform.axi import BEAT_BYTES, MAX_BURST

__all__ = ["Bursts", "ends_of"]

PAGE = 4096


def ends_of(port: Any, ready: Any) -> Any:
    """A stream of the lowest and the highest bit of a stream's payload."""
    payload = Value.cast(port.payload)
    return SimpleNamespace(valid=port.valid, ready=ready, payload=Cat(payload[0], payload[-1]))


class Bursts:
    """Bursts on the address stream `a` are legal, and together exactly what the commands ask for.

    fresh: a burst is offered that was not offered before; beats: how many beats it has, else 0.
    left, address: beats of the command and address before this burst; left_after, address_after: behind it.
    """

    def __init__(self, t: Theorem, command: Any, a: Any, greatest: int) -> None:
        t.assume(
            ~command.valid | ((command.payload.beats != 0) & (command.payload.address % BEAT_BYTES == 0))
        )
        old = Signal(name="_old")
        self.fresh = Signal(name="fresh")
        self.beats = Signal(range(MAX_BURST + 1), name="beats")
        self.left = Signal(TRANSFER_BITS, name="left")
        self.address = address = Signal(ADDRESS_BITS, name="next_address")
        length = a.payload.length + 1
        t.m.d.sync += old.eq(a.valid & ~a.ready)
        t.m.d.comb += [self.fresh.eq(a.valid & ~old), self.beats.eq(Mux(self.fresh, length, 0))]
        self.address_after, self.left_after = (
            Signal(ADDRESS_BITS, name="_address_after"),
            Signal(TRANSFER_BITS, name="_left_after"),
        )
        t.m.d.comb += [
            self.address_after.eq(address + self.beats * BEAT_BYTES),
            self.left_after.eq(self.left - self.beats),
        ]
        with t.m.If(fire(command)):
            t.m.d.sync += [address.eq(command.payload.address), self.left.eq(command.payload.beats)]
        with t.m.Else():
            t.m.d.sync += [address.eq(self.address_after), self.left.eq(self.left_after)]
        t.always(f"a burst has at most {greatest} beats", ~a.valid | (length <= greatest))
        t.always(
            "a burst crosses no 4 KiB",
            ~a.valid | ((a.payload.address % PAGE) // BEAT_BYTES + length <= PAGE // BEAT_BYTES),
        )
        t.always("a burst begins at a beat", ~a.valid | (a.payload.address % BEAT_BYTES == 0))
        t.always("a burst begins where the one before ended", ~self.fresh | (a.payload.address == address))
        t.always("no more beats are asked for than the command says", self.beats <= self.left)
        t.always("a command ends when all its beats are asked for", ~fire(command) | (self.left_after == 0))
