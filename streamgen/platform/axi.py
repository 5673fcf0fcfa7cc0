"""AXI4 as this project uses it, and the ports between memory clients and the master of a channel.

Beats have 512 bits. Addresses have 64 bits on the pins, of which a card uses the lower ones. A burst is INCR,
full-width, aligned to its beats, at most 64 beats, never across 4 KiB. Read data come when they come: who
asks for a burst has room for all of it, so `r` is never held up. Who asks to write has all beats of the
burst, so `w` never waits for anything but the memory.
"""

from amaranth import unsigned
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out, Signature

from streamgen.artifact.packing import ADDRESS_BITS, BEAT_BITS, BEAT_BYTES, ID_BITS, TRANSFER_BITS

BEAT_SHIFT = BEAT_BYTES.bit_length() - 1  # lower bits of an address, 0
MAX_BURST = 64  # 64 beats of 64 bytes are 4 KiB: a burst that ends at its boundary can cross no page

Command = data.StructLayout({"address": unsigned(ADDRESS_BITS), "beats": unsigned(TRANSFER_BITS)})
"""A transfer of whole beats: byte address, a multiple of 64, and number of beats, at least 1."""

Burst = data.StructLayout({"address": unsigned(ADDRESS_BITS), "length": unsigned(6)})
"""A legal burst: byte address and number of beats - 1."""

WriteBeat = data.StructLayout({"data": unsigned(BEAT_BITS), "last": unsigned(1)})

ReadPort = Signature(
    {
        "ar": Out(stream.Signature(Burst)),
        "r": In(Signature({"valid": Out(1), "payload": Out(BEAT_BITS)})),
    }
)
"""A read client's side of a channel; what comes on `r` must be taken."""

WritePort = Signature(
    {
        "aw": Out(stream.Signature(Burst)),
        "w": Out(stream.Signature(WriteBeat)),
        "b": In(1),
    }
)
"""A write client's side of a channel; `b` is high for one cycle a finished burst, in order."""


class AxiSignature(Signature):
    """The pins of an AXI4 master, named as in the standard, lower case."""

    def __init__(self, id_bits: int = ID_BITS) -> None:
        address = {
            "id": id_bits,
            "addr": 64,
            "len": 8,
            "size": 3,
            "burst": 2,
            "lock": 1,
            "cache": 4,
            "prot": 3,
            "qos": 4,
            "region": 4,
            "valid": 1,
        }
        super().__init__(
            {
                **{f"aw{name}": Out(bits) for name, bits in address.items()},
                "awready": In(1),
                "wdata": Out(BEAT_BITS),
                "wstrb": Out(BEAT_BYTES),
                "wlast": Out(1),
                "wvalid": Out(1),
                "wready": In(1),
                "bid": In(id_bits),
                "bresp": In(2),
                "bvalid": In(1),
                "bready": Out(1),
                **{f"ar{name}": Out(bits) for name, bits in address.items()},
                "arready": In(1),
                "rid": In(id_bits),
                "rdata": In(BEAT_BITS),
                "rresp": In(2),
                "rlast": In(1),
                "rvalid": In(1),
                "rready": Out(1),
            }
        )
