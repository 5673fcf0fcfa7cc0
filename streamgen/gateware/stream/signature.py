"""What a stream port carries.

The laws (enforced by `streamgen.testing.monitor` in every test):
1. A token moves in a cycle in which `valid` and `ready` are both high.
2. `valid` never waits for `ready`: it does not depend on it, not even through registers.
3. Once `valid` is high it stays high, with the same payload, until the token has moved.
"""

from amaranth import unsigned
from amaranth.lib import data, stream

from streamgen.contract import Field
from streamgen.itensor import ITensor


def signature(itensor: ITensor) -> stream.Signature:
    """The stream that carries the tokens of `itensor` as plain bits (see `formats.encode`)."""
    return stream.Signature(unsigned(itensor.token_bits))


def descriptor_layout(fields: tuple[Field, ...]) -> data.StructLayout:
    """The payload of a descriptor stream: the fields in order, the first in the lowest bits."""
    return data.StructLayout({field.name: unsigned(field.bits) for field in fields})


def descriptor_signature(fields: tuple[Field, ...]) -> stream.Signature:
    """The descriptor stream of a kernel."""
    return stream.Signature(descriptor_layout(fields))
