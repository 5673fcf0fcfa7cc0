"""The codec of XRT's messages against Google's, and the packets around them."""

import socket
import struct

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from streamgen.package.emulation.messages import decoded, encoded, receive, send

FIELD = descriptor_pb2.FieldDescriptorProto
KINDS = (FIELD.TYPE_UINT64, FIELD.TYPE_BYTES, FIELD.TYPE_FIXED64, FIELD.TYPE_FIXED32, FIELD.TYPE_BOOL)
NUMBERS = (0, 1, 127, 128, 300, 2**31, 2**63, 2**64 - 1)


def record_class():
    """A message of the field types that XRT uses, fields 1 to 5."""
    file = descriptor_pb2.FileDescriptorProto(name="record.proto", package="test", syntax="proto2")
    record = file.message_type.add(name="Record")
    for number, kind in enumerate(KINDS, 1):
        record.field.add(name=f"f{number}", number=number, type=kind, label=FIELD.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("test.Record"))


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("data", [b"", b"a", bytes(range(256)) * 3])
def test_same_as_the_library(number, data):
    made = record_class()(f1=number, f2=data, f3=number, f4=number & 0xFFFFFFFF, f5=True)
    fields = {1: number, 2: data, 3: number, 4: number & 0xFFFFFFFF, 5: 1}
    assert decoded(made.SerializeToString()) == fields
    read = record_class().FromString(encoded({1: number, 2: data, 5: 1}))
    assert (read.f1, read.f2, read.f5) == (number, data, True)


@pytest.mark.parametrize("record", [b"\x08", b"\x08\x80", b"\x12\x05abc", b"\x0b", b"\x19abc"])
def test_damaged(record):
    with pytest.raises(ValueError):
        decoded(record)


def test_packets():
    one, two = socket.socketpair()
    with one, two:
        one.sendall(b"\x09" + struct.pack("<Q", 3) + b"\x15" + struct.pack("<I", 17) + b"abc")
        assert receive(two) == (17, b"abc")
        send(two, b"defg")
        assert one.recv(100) == b"\x09" + struct.pack("<Q", 4) + b"defg"
        one.sendall(b"x" * 14)
        with pytest.raises(ValueError, match="not a packet of XRT"):
            receive(two)
        one.close()
        assert receive(two) is None
