"""The messages between XRT and an emulated device, in the wire format of protocol buffers.

Requests and replies are flat records of numbers and bytes, so varints and lengths are all that they need. A
request is preceded by `<fixed64 size> <fixed32 call>`, a reply by `<fixed64 size>`. The numbers of the calls
are those of XRT's public header xcl_macros.h.
"""

import socket
import struct
from collections.abc import Iterator, Mapping
from enum import IntEnum

Value = int | bytes
_REQUEST, _REPLY = struct.Struct("<BQBI"), struct.Struct("<BQ")
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Call(IntEnum):
    """The calls of XRT that a device answers."""

    CLOSE = 1
    ALLOCATE = 4
    FREE = 5
    WRITE_MEMORY = 6
    READ_MEMORY = 7
    WRITE_REGISTER = 9
    READ_REGISTER = 11
    TIME = 17
    MESSAGES = 19
    ENVIRONMENT = 20
    SET_UP = 28


def encoded(fields: Mapping[int, Value]) -> bytes:
    """Encode the fields of a record, given by number: integers as varints, bytes with their length."""
    parts = []
    for number, value in fields.items():
        kind = _VARINT if isinstance(value, int) else _BYTES
        parts.append(_varint(number << 3 | kind))
        parts.append(_varint(value) if isinstance(value, int) else _varint(len(value)) + value)
    return b"".join(parts)


def decoded(record: bytes) -> dict[int, Value]:
    """The fields of a record by number; if several have the same number, the last one. Raises ValueError for
    bytes that are not a record."""
    return dict(_fields(record))


def receive(connection: socket.socket) -> tuple[int, bytes] | None:
    """Receive a request: its call and its record; None if the other side has closed the connection. Raises
    ValueError for bytes that are not a packet of XRT."""
    packet = _exactly(connection, _REQUEST.size)
    if packet is None:
        return None
    first, size, second, call = _REQUEST.unpack(packet)
    if (first, second) != (1 << 3 | _FIXED64, 2 << 3 | _FIXED32):
        raise ValueError(f"these bytes are not a packet of XRT: {packet.hex()}")
    record = _exactly(connection, size)
    return None if record is None else (call, record)


def send(connection: socket.socket, record: bytes) -> None:
    """Send the record of a reply."""
    connection.sendall(_REPLY.pack(1 << 3 | _FIXED64, len(record)) + record)


def _fields(record: bytes) -> Iterator[tuple[int, Value]]:
    place = 0
    while place < len(record):
        tag, place = _number(record, place)
        match tag & 7:
            case 0:
                value, place = _number(record, place)
                yield tag >> 3, value
            case 2:
                size, place = _number(record, place)
                yield tag >> 3, _slice(record, place, size)
                place += size
            case 1 | 5 as kind:
                size = 8 if kind == _FIXED64 else 4
                yield tag >> 3, int.from_bytes(_slice(record, place, size), "little")
                place += size
            case kind:
                raise ValueError(f"a field has wire type {kind}; 0, 1, 2 and 5 are allowed")


def _slice(record: bytes, place: int, size: int) -> bytes:
    if place + size > len(record):
        raise ValueError(f"a field has {size} bytes, but only {len(record) - place} bytes are left")
    return record[place : place + size]


def _number(record: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(record):
        byte = record[place]
        value, shift, place = value | (byte & 0x7F) << shift, shift + 7, place + 1
        if byte < 0x80:
            return value, place
    raise ValueError("the record ends inside a number")


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)
