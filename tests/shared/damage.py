"""Damage to files, drawn at random: what is in JSON gets other values, everything other bytes. Full disks."""

import json
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["changed_bytes", "changed_json", "damaged", "full_disk"]

VALUES = (
    *(0, -1, 1, 2, 7, 10**12, -(10**30), 1.5, 1e308, True, None),
    *("", "x", "a\nb", "../x", [], {}, [[]], {"a": 1}),
)


@contextmanager
def full_disk(size: int = 0) -> Iterator[None]:
    """Each file can take so many bytes, and an OSError comes behind them as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def damaged(name: str, content: bytes, draw: random.Random) -> bytes:
    """Another content of a file that is called so."""
    if name.endswith(".json") and draw.random() < 0.7:
        return changed_json(content, draw)
    return changed_bytes(content, draw)


def changed_json(text: bytes, draw: random.Random) -> bytes:
    """A value is another one, is missing, or comes twice."""
    document = json.loads(text)
    if not (places := list(_places(document))):
        return json.dumps(draw.choice(VALUES)).encode()
    container, key = draw.choice(places)
    match draw.randrange(6):
        case 0:
            del container[key]
        case 1 if isinstance(container, dict):
            container[f"{key}_"] = container.pop(key)
        case 2 if isinstance(container, list):
            container.append(container[key])
        case 3:
            _, other = draw.choice(places)
            container[key] = other
        case _:
            container[key] = draw.choice(VALUES)
    return json.dumps(document).encode()


def changed_bytes(content: bytes, draw: random.Random) -> bytes:
    """Bits turned, a piece cut out or put in, all that follows lost."""
    found = bytearray(content)
    at = draw.randrange(len(found))
    match draw.randrange(4):
        case 0:
            for _ in range(draw.randint(1, 4)):
                found[draw.randrange(len(found))] ^= 1 << draw.randrange(8)
        case 1:
            del found[at : at + draw.randint(1, 64)]
        case 2:
            found[at:at] = draw.randbytes(draw.randint(1, 64))
        case _:
            del found[at:]
    return bytes(found)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with each of its keys."""
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])
