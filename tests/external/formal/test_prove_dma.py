"""Load and Store: each descriptor becomes the command for exactly its beats, and the count of its tokens.

The client and the width adapter inside have theorems of their own; this is about what stands between.
"""

import pytest
from amaranth import Signal

from sim.formal import Theorem, prove
from sim.formal_laws import fire, held, obey
from sim.memory import MEMORY
from streamgen.artifact.packing import ADDRESS_BITS, MemoryLayout
from streamgen.platform import dma
from streamgen.platform.axi import BEAT_BYTES
from streamgen.platform.dma import LoadParams, StoreParams
from tests.external.formal.seeded import check_found

LAYOUTS = {
    "2 tokens a beat": MemoryLayout("u8", (32,)),
    "a token a beat": MemoryLayout("u8", (64,)),
    "2 beats a token": MemoryLayout("u8", (128,)),
}


def theorem(params: LoadParams | StoreParams) -> Theorem:
    """No descriptor lost, none twice, in order; all bits of addresses, tokens up to the greatest count."""
    block = params.build()
    t = Theorem(f"{type(block).__name__} of {params.layout}", block)
    obey(t, i_descriptor=block.i_descriptor)
    descriptor, fields = block.i_descriptor, block.i_descriptor.payload
    t.assume((fields.tokens != 0) & (block.base % BEAT_BYTES == 0))
    command = t.inside.submodules.client.i_command
    layout = params.layout
    beats = (fields.tokens * layout.beats_per_token + layout.tokens_per_beat - 1) // layout.tokens_per_beat
    taken, address, count, waits = (
        Signal(name="taken"),
        Signal(ADDRESS_BITS, name="first_address"),
        Signal(32, name="beats_of_transfer"),
        Signal(name="waits"),
    )
    t.m.d.sync += [
        taken.eq(fire(descriptor)),
        waits.eq(command.valid & ~command.ready),
        address.eq(block.base + fields.offset * BEAT_BYTES),
        count.eq(beats),
    ]
    t.always("a descriptor is offered as a command in the next cycle", command.valid == (taken | waits))
    t.always("no command is written over", ~(taken & waits))
    t.always("a command begins at base + 64 * offset", ~taken | (command.payload.address == address))
    t.always("a command has the beats of its tokens", ~taken | (command.payload.beats == count))
    t.always("a command stays until it is taken", held(t, "command", command))
    if layout.tokens_per_beat > 1:
        counts = t.inside.submodules.counts
        t.always(
            "their number is that of the descriptor", ~fire(counts.i) | (counts.i.payload == fields.tokens)
        )
        t.always("a descriptor is counted when it is taken", fire(counts.i) == fire(descriptor))
    t.reachable("a command follows another", taken & (count > 1))
    return t


def _params(kind: str, name: str) -> LoadParams | StoreParams:
    if kind == "load":
        return LoadParams(layout=LAYOUTS[name], max_tokens=7, prefetch=4, burst=2, **MEMORY)
    return StoreParams(layout=LAYOUTS[name], max_tokens=7, depth=4, burst=2, **MEMORY)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("kind", ["load", "store"])
def test_dma(kind: str, name: str) -> None:
    prove(theorem(_params(kind, name)), steps=1)


FAULTS = {
    "a descriptor is lost": ("free & room", "room"),
    "rounded down": (dma._DmaParams._beats, "(tokens + self.layout.tokens_per_beat - 1)", "tokens"),
    "wrong unit": ("fields.offset) << BEAT_SHIFT", "fields.offset) << BEAT_SHIFT + 1"),
    "counted twice": ("i.valid.eq(descriptor.valid & free)", "i.valid.eq(descriptor.valid)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["load", "store"])
@pytest.mark.parametrize("name", FAULTS)
def test_faults(kind: str, name: str) -> None:
    function, old, new = (dma._start_transfers, *FAULTS[name])[-3:]
    check_found(lambda: theorem(_params(kind, "2 tokens a beat")), function, old, new, steps=1)
